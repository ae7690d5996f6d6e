"""What a run collects can be kept, and learned from by another run that collects nothing."""

from pathlib import Path

import pytest

from relayrl.engines.local import LocalEngine, RunResult
from relayrl.engines.run_directory import RunDirectory
from relayrl.engines.run_settings import build_run_settings
from relayrl.errors import ConfigError
from relayrl.sinks.contract import open_source

SMALL = {"environment.num_envs": 2, "network.hidden_sizes": (16,), "evaluation.episodes": 2}
TD3 = {"params.learning_starts": 100, "params.batch_size": 16, "params.buffer_size": 5000}
TD3 |= {"params.update_interval": 2, "params.train_iters": 1}


def run(path: Path, env: str, **flags) -> RunResult:
    settings = build_run_settings(env, None, SMALL | flags, [])
    directory = RunDirectory(path)
    directory.create(settings)
    return LocalEngine(settings, directory).run(lambda _: None)


@pytest.mark.parametrize("url", ["arrow:{}/records", "sqlite:{}/records.db"])
def test_every_step_of_a_run_is_kept_and_recording_changes_nothing(url, tmp_path):
    flags = {"algo": "td3", "trainer.max_steps": 900, **TD3}
    plain = run(tmp_path / "plain", "Pendulum-v1", **flags)
    url = url.format(tmp_path)
    recorded = run(tmp_path / "recorded", "Pendulum-v1", record=url, **flags)
    assert recorded.parameter_hash == plain.parameter_hash
    with open_source(url) as source:
        trajectories = list(source)
        assert source.count().num_steps == recorded.num_env_steps == 900
    # Two worlds, episodes of 200 steps: two whole ones each, in fragments of at most what is written together.
    assert sum(t.truncated for t in trajectories) == 4
    assert not any(t.failed or t.terminated for t in trajectories)


def test_learning_from_records_repeats_and_steps_no_environment(tmp_path):
    url = f"arrow:{tmp_path}/records"
    run(tmp_path / "made", "native:simple_spread", algo="ippo", record=url, **{"trainer.max_steps": 512, **CONTINUOUS})
    flags = {"algo": "matd3", "learn_from": url, "trainer.max_steps": 400, **TD3, **CONTINUOUS}
    first, second = (run(tmp_path / name, "native:simple_spread", **flags) for name in ("a", "b"))
    assert first.parameter_hash == second.parameter_hash
    assert first.num_env_steps == 400
    untrained = run(
        tmp_path / "c", "native:simple_spread", **flags | {"trainer.max_steps": 1, "params.update_interval": 9}
    )
    assert untrained.parameter_hash != first.parameter_hash


CONTINUOUS = {"environment.options": {"continuous_actions": True}, "trainer.time_horizon": 32}


def test_what_does_not_fit_is_refused(tmp_path):
    url = f"csv:{tmp_path}/records"
    run(
        tmp_path / "made",
        "Pendulum-v1",
        algo="ppo",
        record=url,
        **{"trainer.max_steps": 64, "trainer.time_horizon": 32},
    )
    with pytest.raises(ConfigError, match="td3, sac or ddpg"):
        run(tmp_path / "a", "Pendulum-v1", algo="ppo", learn_from=url)
    with pytest.raises(ConfigError, match="spaces"):
        run(tmp_path / "b", "MountainCarContinuous-v0", algo="td3", learn_from=url)
    with pytest.raises(ConfigError, match="nothing-here"):
        run(tmp_path / "c", "Pendulum-v1", algo="td3", learn_from=f"arrow:{tmp_path}/nothing-here")
