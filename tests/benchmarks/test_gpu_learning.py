"""The learning check of devices: which rows it runs, with which settings, and what they have to reach."""

import importlib.util
import sys
from pathlib import Path

import pytest

from learning_records import read_records
from learning_rows import ROWS
from relayrl.engines.settings.run_settings import build_run_settings

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "learning.py"


@pytest.fixture(scope="module")
def learning():
    spec = importlib.util.spec_from_file_location("gpu_learning", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def row_of(name):
    return next(row for row in ROWS if row.name == name)


def test_rows_are_those_of_the_results(learning):
    names = {f"{env}/{algo}" for env, algo in learning.NATIVE}
    assert names <= {row.name for row in ROWS} & {record.row for record in read_records()}
    for part in ("CartPole", "Pendulum", "simple_spread", "speaker_listener"):
        assert [name for name in names if part in name]


def test_a_row_reaches_its_own_target_or_what_the_records_reached(learning):
    assert learning.threshold(row_of("CartPole-v1/ppo"), 500.0, []) == 490.0
    name = "native:simple_speaker_listener/mappo"
    records = [record for record in read_records() if record.row == name]
    random_return = records[0].random_return
    expected = -6.0 - learning.SLACK * (-6.0 - random_return)
    assert random_return < expected < -6.0
    assert learning.threshold(row_of(name), -6.0, records) == pytest.approx(expected)


def test_presets_become_dotted_paths(learning):
    nested = {
        "environment": {"num_envs": 64, "options": {"continuous_actions": True}},
        "network": {"hidden_sizes": [64]},
    }
    assert learning.dotted(nested) == {
        "environment.num_envs": 64,
        "environment.options.continuous_actions": True,
        "network.hidden_sizes": [64],
    }


def test_a_seed_runs_on_the_device_with_the_rows_settings(learning):
    result = learning.run_seed(row_of("native:simple_spread/mappo"), "cpu:0", 0, True)
    assert (result.env, result.algo, result.num_env_steps) == ("native:simple_spread", "mappo", learning.TINY_STEPS)


def test_settings_are_the_rows_where_its_preset_is_silent_too(learning):
    settings = learning.settings_of(row_of("CartPole-v1/ppo"), "cpu:0", False)
    shipped = build_run_settings("CartPole-v1", None, {"algo": "ppo"}, [])
    assert settings["network.normalize_observations"] is shipped.network.normalize_observations is False
    assert settings["params.normalize_returns"] is shipped.params.normalize_returns is False
    assert (settings["environment.num_envs"], settings["device"]) == (shipped.environment.num_envs, "cpu:0")
