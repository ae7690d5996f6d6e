"""The ML-Agents contract: the loop of the docstring, on a real environment, learns what the engine learns."""

from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces

from relayrl import PPOParams, TrainerSettings, train
from relayrl.data.columns import LaneHeader
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.local.run_parts import build_parts, make_run_parts
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.errors import UnknownNameError
from relayrl.extend import PPOTrainer
from relayrl.models.policy import parameter_hash
from relayrl.training.queued.queues import PolicyQueue, TrajectoryQueue
from relayrl.training.queued.rl_trainer import LaneReturns, RolloutTrainer
from relayrl.training.statistics.run_statistics import Statistics

FLAGS = {
    "trainer.time_horizon": 16,
    "trainer.max_steps": 128,
    "environment.num_envs": 2,
    "network.hidden_sizes": (8,),
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "evaluation.episodes": 0,
    "statistics.tensorboard": False,
}


def test_the_usage_loop_learns_what_the_engine_learns(tmp_path):
    settings = build_run_settings("native:CartPole", None, FLAGS, [])
    parts = build_parts(settings)
    saved = []
    trainer = RolloutTrainer(
        "native:CartPole",
        settings.trainer,
        make_policy=lambda behavior, group: parts.policies[behavior],
        make_learner=lambda policies: parts.trainer,
        stats_reporter=Statistics([]),
        save=lambda: saved.append(trainer.get_step),
    )
    for name, group in parts.env.groups.items():
        trainer.add_policy(name, trainer.create_policy(name, group))
    trajectories, policies = TrajectoryQueue(), PolicyQueue()
    trainer.subscribe_trajectory_queue(trajectories)
    trainer.publish_policy_queue(policies)
    versions = [0]
    while trainer.should_still_train:
        newest = policies.take()
        if newest is not None:
            versions.append(newest.version)
        trajectories.put(parts.collector.collect(versions[-1]))
        trainer.advance()
    trainer.save_model()
    trainer.end_episode()
    parts.env.close()

    assert versions == [0, 1, 2, 3]
    assert (trainer.get_step, trainer.get_max_steps, saved) == (128, 128, [128])
    assert not trainer.threaded
    assert len(trainer.reward_buffer) > 0
    assert trainer.get_policy("agent") is parts.policies["agent"]
    with pytest.raises(UnknownNameError, match="agent"):
        trainer.get_policy("agnet")

    directory = RunDirectory(tmp_path / "run")
    directory.create(settings)
    result = LocalEngine(settings, directory).run(lambda _: None)
    assert result.parameter_hash == parameter_hash(parts.policies["agent"])


def test_a_published_policy_does_not_change_afterwards():
    settings = build_run_settings("native:CartPole", None, FLAGS, [])
    parts = build_parts(settings)
    trainer = RolloutTrainer(
        "x", settings.trainer, lambda name, _: parts.policies[name], lambda _: parts.trainer, Statistics([])
    )
    trainer.add_policy("agent", parts.policies["agent"])
    trajectories, policies = TrajectoryQueue(), PolicyQueue()
    trainer.subscribe_trajectory_queue(trajectories)
    trainer.publish_policy_queue(policies)
    snapshots = []
    for _ in range(2):
        trajectories.put(parts.collector.collect(0))
        trainer.advance()
        snapshot = policies.take()
        snapshots.append((snapshot, {k: v.clone() for k, v in snapshot.parameters["agent"].items()}))
    parts.env.close()
    first, copy = snapshots[0]
    assert all((first.parameters["agent"][k] == copy[k]).all() for k in copy)
    assert any((first.parameters["agent"][k] != snapshots[1][1][k]).any() for k in copy)


def test_returns_of_lanes_go_on_over_blocks_and_leave_failures_out():
    header = LaneHeader("agent", (UUID(int=0), UUID(int=1)), ("agent",), spaces.Box(-1, 1), spaces.Discrete(2))
    returns = LaneReturns(header)
    no = np.zeros((2, 2), bool)
    assert returns.add(np.ones((2, 2)), no, no) == []
    ended = np.array([[True, True], [False, False]])
    failed = np.array([[False, True], [False, False]])
    assert returns.add(np.ones((2, 2)), ended, failed) == [3.0]
    assert returns.add(np.ones((1, 2)), np.ones((1, 2), bool), np.zeros((1, 2), bool)) == [2.0, 2.0]


def driven_by_queues(env: str, algo: str, settings: dict[str, Any], steps: int) -> tuple[int, str]:
    """The public loop of `examples/run_queue_driven.py`."""
    parts = make_run_parts(env, algo=algo, settings={**settings, "trainer.max_steps": steps})
    trainer = RolloutTrainer(
        env,
        TrainerSettings(max_steps=steps),
        lambda behavior, _: parts.policies[behavior],
        lambda _: parts.trainer,
        Statistics([]),
    )
    for name, group in parts.env.groups.items():
        trainer.add_policy(name, trainer.create_policy(name, group))
    trajectories, policies, version = TrajectoryQueue(), PolicyQueue(), 0
    trainer.subscribe_trajectory_queue(trajectories)
    trainer.publish_policy_queue(policies)
    while trainer.should_still_train:
        newest = policies.take()
        version = version if newest is None else newest.version
        trajectories.put(parts.collect(version))
        trainer.advance()
    parts.close()
    return trainer.get_step, "".join(parameter_hash(policy) for policy in parts.policies.values())


@pytest.mark.parametrize(
    ("env", "algo", "settings", "steps"),
    [
        ("CartPole-v1", "ppo", {}, 1024),
        ("mpe2:simple_spread_v3", "mappo", {"num_envs": 4}, 800),
        ("mpe2:simple_spread_v3", "ippo", {"time_horizon": 25, "num_envs": 2}, 300),
        ("native:Pendulum", "sac", {"learning_starts": 64, "num_envs": 2}, 200),
    ],
)
def test_queues_give_the_parameters_of_a_run(env, algo, settings, steps, tmp_path):
    """Presets for the kind of problem included, which only `train` had once."""
    off = {"evaluation.episodes": 0, "statistics.tensorboard": False}
    run = train(env, algo=algo, steps=steps, run_dir=tmp_path / "run", settings={**settings, **off}, progress=False)
    expected = (run.result.num_env_steps, run.result.parameter_hash)
    assert driven_by_queues(env, algo, settings, steps) == expected == (steps, expected[1])


def test_the_last_rollout_of_a_queue_is_as_short_as_asked_for():
    assert driven_by_queues("native:CartPole", "ppo", FLAGS | {"environment.num_envs": 2}, 100)[0] == 100


@pytest.mark.parametrize(("env", "algo"), [("relayrl.testing.multi_agent_environments:DyingAgents", "mappo")])
def test_the_parts_of_a_run_have_the_settings_of_the_run(env, algo, tmp_path):
    """Without a preset, a run takes generic settings; so do the parts that a program drives."""
    given = {"trainer.time_horizon": 32, "trainer.max_steps": 128, "environment.num_envs": 2, "evaluation.episodes": 0}
    run = train(env, algo=algo, settings=given, run_dir=tmp_path / "run", progress=False)
    parts = make_run_parts(env, algo=algo, settings=given)
    while parts.trainer.num_env_steps < parts.trainer.max_steps:
        parts.trainer.receive(parts.collector.collect(parts.trainer.policy_version))
        parts.trainer.advance()
    parts.close()
    assert run.result.parameter_hash == "".join(parameter_hash(policy) for policy in parts.policies.values())


def test_rollouts_that_wait_in_a_queue_stay_as_they_are():
    """A program may collect ahead of its trainer; the collector writes into its own columns again."""
    given = {"num_envs": 2, "time_horizon": 16, "max_steps": 10_000}
    parts, same = (make_run_parts("native:CartPole", algo="ppo", settings=given) for _ in range(2))
    waiting = [parts.collect(0) for _ in range(4)]
    at_once = [same.collect(0)["agent"].obs.copy() for _ in range(4)]
    parts.close()
    same.close()
    for rollouts, obs in zip(waiting, at_once, strict=True):
        np.testing.assert_array_equal(rollouts["agent"].obs, obs)


def test_a_trainer_whose_schedule_ends_elsewhere_warns(caplog):
    parts = make_run_parts("native:CartPole", algo="ppo", settings={"max_steps": 5_000})
    trainer = RolloutTrainer(
        "x", TrainerSettings(max_steps=1_000), lambda *_: None, lambda _: parts.trainer, Statistics([])
    )
    assert trainer.learner is parts.trainer
    parts.close()
    assert "of 5000 steps, and trainer_settings have 1000" in caplog.text


def driven_by_rollouts(
    env: str, params: PPOParams, given: dict[str, Any], steps: int, folder: Path, *, resumes: bool, **own: Any
) -> tuple[int, str]:
    """A `PPOTrainer` in the place of a run's trainer; `resumes` saves and loads it before every rollout."""
    parts = make_run_parts(env, algo="ppo", settings={**given, "max_steps": steps})
    ((name, group),) = parts.env.groups.items()

    def made(load: bool) -> Any:
        settings = TrainerSettings(max_steps=steps, **own)
        network = parts.policies[name].network
        trainer = PPOTrainer("x", settings, artifact_path=folder, params=params, network=network, load=load)
        trainer.add_policy(name, trainer.create_policy(name, group))
        queues = TrajectoryQueue(), PolicyQueue()
        trainer.subscribe_trajectory_queue(queues[0])
        trainer.publish_policy_queue(queues[1])
        return trainer, *queues

    trainer, trajectories, policies = made(load=False)
    while trainer.should_still_train:
        parts.trainer.num_env_steps = trainer.get_step
        trajectories.put(parts.collect(trainer.policy_version))
        trainer.advance()
        parts.policies[name].load_state_dict(policies.take().parameters[name])
        if resumes:
            trainer.save_model()
            trainer, trajectories, policies = made(load=True)
    parts.close()
    return trainer.get_step, parameter_hash(trainer.policies[name])


@pytest.mark.parametrize(
    ("steps", "resumes", "own"),
    [(592, False, {}), (592, True, {}), (100, False, {"time_horizon": 32}), (512, False, {})],
    ids=["short last rollout", "resumed", "short only rollout", "whole rollouts"],
)
def test_a_facade_trainer_learns_from_a_runs_rollouts_what_the_run_learns(steps, resumes, own, tmp_path):
    params = PPOParams(train_pi_iters=2, train_vf_iters=2, num_minibatches=4)
    given = {f"params.{key}": value for key, value in params.model_dump(mode="json").items()}
    given |= {"num_envs": 4, "time_horizon": 32, "evaluation.episodes": 0, "statistics.tensorboard": False}
    run = train("CartPole-v1", algo="ppo", steps=steps, run_dir=tmp_path / "run", settings=given, progress=False)
    driven = driven_by_rollouts("CartPole-v1", params, given, steps, tmp_path / "own", resumes=resumes, **own)
    assert driven == (run.result.num_env_steps, run.result.parameter_hash)
