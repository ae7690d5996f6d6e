"""A quarter of a minute of what `benchmarks/soak.py` does for ten."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def soak_module():
    specification = importlib.util.spec_from_file_location("soak", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["soak"] = module
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_random_changes_lose_and_double_no_step(tmp_path):
    soak = soak_module()
    settings = soak.SoakSettings(seconds=15.0, max_actors=1000, steps_per_s=10_000)
    result = soak.run_soak(f"arrow:{tmp_path / 'out'}", tmp_path, settings)
    assert result.is_clean
    assert (result.num_missing, result.num_doubled) == (0, 0)
    assert result.num_recorded == result.num_steps > 20_000
    assert min(result.num_changes[what] for what in ("added", "removed", "renamed", "scaled", "reloaded")) > 5
    assert result.memory_growth < 1.15
    assert np.median(result.p99_ms[3:]) < 8 * np.median(result.p99_ms[:3])
