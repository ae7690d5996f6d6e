"""A minute of what `benchmarks/soak.py` does for ten: half of it against all durable sinks at once, half against each alone."""

import contextlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"
KINDS = ("arrow", "parquet", "csv", "sqlite", "memory", "postgresql")


def soak_module():
    specification = importlib.util.spec_from_file_location("soak", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["soak"] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sinks(tmp_path_factory):
    """The script and a URL of every kind of sink."""
    soak = soak_module()
    with contextlib.ExitStack() as stack:
        yield soak, dict(zip(KINDS, soak.every_sink(tmp_path_factory.mktemp("alone"), stack), strict=True))


def check(result, urls, least_steps):
    assert result.is_clean
    assert (result.num_missing, result.num_doubled) == (0, 0)
    assert result.num_recorded == dict.fromkeys(urls, result.num_steps)
    assert result.num_steps > least_steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_random_changes_lose_and_double_no_step_of_any_sink(sinks, tmp_path, kind):
    soak, urls = sinks
    result = soak.run_soak([urls[kind]], tmp_path, soak.SoakSettings(seconds=5.0, steps_per_s=10_000))
    check(result, [urls[kind]], 10_000)
    assert min(result.num_changes[what] for what in ("added", "removed", "renamed", "scaled", "reloaded")) > 0


@pytest.mark.slow
def test_random_changes_lose_and_double_no_step_of_all_sinks_at_once(tmp_path):
    soak = soak_module()
    with contextlib.ExitStack() as stack:
        urls = [url for url in soak.every_sink(tmp_path, stack) if not url.startswith("memory:")]
        result = soak.run_soak(urls, tmp_path, soak.SoakSettings(seconds=30.0, steps_per_s=5_000))
    check(result, urls, 20_000)
    assert min(result.num_changes[what] for what in ("added", "removed", "renamed", "scaled", "reloaded")) > 5
    assert result.memory_growth < 1.15
    assert np.median(result.p99_ms[3:]) < 8 * np.median(result.p99_ms[:3])
