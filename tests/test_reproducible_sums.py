"""Products of torch depend on their numbers alone: not on threads, and not on the rows beside a row."""

import os
import subprocess
import sys

import pytest

from relayrl import reproducible_sums

PRODUCTS = """
import relayrl, torch
torch.manual_seed(0)
for inputs, outputs in ((16, 1), (8, 2), (64, 64), (300, 300)):
    rows, weights = torch.randn(64, inputs), torch.randn(outputs, inputs)
    torch.set_num_threads(1)
    whole = torch.nn.functional.linear(rows, weights)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert all(torch.equal(torch.nn.functional.linear(rows[:some], weights), whole[:some]) for some in range(1, 64))
"""
needs_strict_mode = pytest.mark.skipif(
    os.environ.get("MKL_CBWR") != reproducible_sums.STRICT, reason="MKL has its strict mode on Intel's processors only"
)


@needs_strict_mode
def test_a_row_comes_out_alike_among_any_rows_on_any_threads():
    subprocess.run([sys.executable, "-c", PRODUCTS], check=True)


@pytest.mark.parametrize(
    ("processor", "before", "after"),
    [
        ("vendor_id\t: GenuineIntel", None, "AUTO,STRICT"),
        ("vendor_id\t: GenuineIntel", "AVX2", "AVX2"),
        ("vendor_id\t: AuthenticAMD", None, None),
    ],
)
def test_asks_on_processors_that_have_it_and_leaves_what_the_user_set(monkeypatch, processor, before, after):
    monkeypatch.setattr(reproducible_sums, "_processor", lambda: processor)
    monkeypatch.setenv("MKL_CBWR", "")
    monkeypatch.delenv("MKL_CBWR")
    if before is not None:
        monkeypatch.setenv("MKL_CBWR", before)
    reproducible_sums.ask_for_reproducible_sums()
    assert os.environ.get("MKL_CBWR") == after
