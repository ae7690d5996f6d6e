"""What a run collects can be kept, and learned from by another run that collects nothing."""

from pathlib import Path
from uuid import UUID

import gymnasium as gym
import numpy as np
import pytest

from relayrl.bench.codec_rows import example_rollout
from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.engines.local.local_engine import LocalEngine, RunResult
from relayrl.engines.local.run_recorder import DURABLE_ROWS, RECORDED_STEPS, Recorder
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.errors import ConfigError, EnvironmentFailedError, SinkWriteError
from relayrl.sinks.contract import TrajectorySink, open_sink, open_source

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
    # Two environments, episodes of 200 steps: two whole ones each, in fragments of at most what is written together.
    assert sum(t.truncated for t in trajectories) == 4
    assert not any(t.failed or t.terminated for t in trajectories)


@pytest.mark.parametrize(("kind", "suffix", "is_early"), [("arrow", "arrows", True), ("parquet", "parquet", False)])
def test_a_sink_that_appends_is_flushed_while_the_run_goes_on(kind, suffix, is_early, tmp_path):
    recorder = Recorder(open_sink(f"{kind}:{tmp_path}"))
    rollout = example_rollout(RECORDED_STEPS, DURABLE_ROWS // RECORDED_STEPS)
    recorder.record({rollout.header.group: rollout})
    recorder._waiting.drain()
    sizes = [path.stat().st_size for path in tmp_path.glob(f"*.{suffix}")]
    assert (sum(sizes) > rollout.reward.nbytes) == is_early
    recorder.close()
    with open_source(f"{kind}:{tmp_path}") as source:
        assert source.count().num_steps == rollout.reward.size


@pytest.mark.parametrize("is_threaded", [False, True])
def test_a_run_that_an_environment_ends_has_recorded_every_step_before(is_threaded, tmp_path):
    url, env = f"arrow:{tmp_path}/records", "relayrl.testing.toy_environments:Crashing"
    with pytest.raises(EnvironmentFailedError, match="as asked"):
        run(
            tmp_path / "run",
            env,
            algo="ppo",
            record=url,
            **{"environment.options": {"at_step": 38}, "trainer.time_horizon": 16, "trainer.threaded": is_threaded},
        )
    with open_source(url) as source:
        trajectories = list(source)
    assert sum(len(t) for t in trajectories) == 2 * 37
    assert (
        sorted((t.episode, t.steps.tolist(), t.end_step, t.truncated) for t in trajectories if t.failed)
        == [(7, [0, 1], 3, True)] * 2
    )


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


def test_what_actors_of_a_simulator_recorded_can_be_learned_from(tmp_path):
    url, env = f"sqlite:{tmp_path}/records.db", UUID(int=7)
    pendulum, steps = gym.make("Pendulum-v1"), np.arange(40, dtype=np.float32)
    trajectory = Trajectory(
        *(trajectory_id(env, "an actor", 0, 0), env, "an actor", "agent"),
        *(pendulum.observation_space, pendulum.action_space, 0, 0),
        obs=np.stack([np.cos(steps), np.sin(steps), steps], 1),
        action=np.sin(steps)[:, None],
        reward=-steps,
        policy_version=np.zeros(40, np.int64),
        terminated=False,
        truncated=True,
        failed=False,
        final_obs=np.array([1.0, 0.0, 0.0], np.float32),
    )
    with open_sink(url) as sink:
        sink.write([trajectory])
    result = run(tmp_path / "run", "Pendulum-v1", algo="td3", learn_from=url, **{"trainer.max_steps": 100, **TD3})
    assert result.num_env_steps == 100


def test_a_sink_that_fails_ends_the_run_with_its_reason(tmp_path):
    class FailingSink(TrajectorySink):
        url = "failing:"

        def write(self, trajectories):
            raise SinkWriteError("the disk is full", len(trajectories))

        def flush(self):
            raise AssertionError("nothing was written")

        def close(self):
            pass

    recorder = Recorder(FailingSink())
    rollout = example_rollout(RECORDED_STEPS, 2)
    recorder.record({"agent": rollout})
    with pytest.raises(SinkWriteError, match="the disk is full"):
        recorder.flush()
    with pytest.raises(SinkWriteError, match="the disk is full"):
        recorder.record({"agent": rollout})
    with pytest.raises(SinkWriteError, match="the disk is full"):
        recorder.close()
