"""The device matrix on a device without hardware: tensors that were left on the host are found without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
USUAL = ("ippo", "poca", "matd3", "mappo-lstm-dying", "ppo-images-lstm", "sac-masks-priorities")
"""One of each kind; `slow` runs the others."""


def matrix(chosen: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of the matrix on the stand-in, in a process of their own."""
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    own = {"RELAYRL_TEST_DEVICE": "standin", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-p", "standin_device", "-p", "no:cacheprovider", "-q", *chosen]
    return subprocess.run(
        command, env={**os.environ, **own}, capture_output=True, text=True, timeout=1_500, check=False
    )


def test_one_run_of_each_kind() -> None:
    file = HERE / "test_device_matrix.py"
    each = [f"{file}::test_runs_equal_those_of_the_cpu_and_resume_bit_for_bit[{name}]" for name in USUAL]
    done = matrix(each)
    assert done.returncode == 0, done.stdout[-4_000:]
    assert f"{len(USUAL)} passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_all_others() -> None:
    without = [
        f"--deselect={HERE / 'test_device_matrix.py'}::test_runs_equal_those_of_the_cpu_and_resume_bit_for_bit[{name}]"
        for name in USUAL
    ]
    done = matrix([str(HERE / "test_device_matrix.py"), *without])
    assert done.returncode == 0, done.stdout[-4_000:]
    assert "skipped" not in done.stdout


def test_the_standin_finds_what_was_left_on_the_host() -> None:
    program = """
import standin_device, torch
layer, rows = torch.nn.Linear(4, 2).to("standin"), torch.ones(3, 4)
assert layer(rows.to("standin")).cpu().shape == (3, 2)
for wrong in (lambda: layer(rows), lambda: layer.weight.detach().numpy(), lambda: layer.weight + torch.ones(2, 4)):
    try:
        wrong()
    except (RuntimeError, TypeError):
        continue
    raise SystemExit("it was not found")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
