"""One trainer, two ways to drive it: RelayRL's verbs, and ML-Agents' queues and `advance()`."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from test_facade import IN_EPOCH, LENGTH, SMALL, epoch, hashes, make_trainer, play, small_params

from relayrl import PPOParams, RLTrainer, Trainer, TrainerSettings
from relayrl.data.columns import copied_rollout
from relayrl.data.trajectory_parts import cut_at_step
from relayrl.errors import CheckpointError, ConfigError
from relayrl.extend import (
    AgentGroup,
    PolicyQueue,
    PPOTrainer,
    RolloutTrainer,
    SACTrainer,
    Statistics,
    TrajectoryQueue,
    make_run_parts,
)
from relayrl.models.policy import parameter_hash

NAMES = [
    "brain_name",
    "trainer_settings",
    "stats_reporter",
    "is_training",
    "reward_buffer",
    "policies",
    "policy_queues",
    "trajectory_queues",
    "threaded",
    "get_max_steps",
    "get_step",
    "should_still_train",
    "create_policy",
    "add_policy",
    "get_policy",
    "publish_policy_queue",
    "subscribe_trajectory_queue",
    "advance",
    "save_model",
    "end_episode",
    "collected_rewards",
    "update_buffer",
    "model_saver",
    "create_optimizer",
    "_update_policy",
    "_process_trajectory",
    "_is_ready_update",
]


def with_queues(trainer: Any) -> tuple[TrajectoryQueue, PolicyQueue]:
    trajectories, policies = TrajectoryQueue(capacity=100), PolicyQueue()
    trainer.subscribe_trajectory_queue(trajectories)
    trainer.publish_policy_queue(policies)
    return trajectories, policies


@pytest.mark.parametrize("algo", ["ppo", "mappo", "td3", "masac", "reinforce", "isac"])
def test_queues_and_verbs_learn_the_same(algo, tmp_path):
    verbs, queued = make_trainer(algo, tmp_path / "verbs"), make_trainer(algo, tmp_path / "queued")
    trajectories, policies = with_queues(queued)
    for number in range(3):
        for trajectory in epoch(verbs, number):
            if verbs.receive_trajectory(trajectory):
                verbs.train_model()
            trajectories.put(trajectory)
        queued.advance()
    assert hashes(queued) == hashes(verbs)
    assert queued.get_step == verbs.num_env_steps == 3 * IN_EPOCH * LENGTH
    newest = policies.take()
    assert newest.version == queued.policy_version
    assert set(newest.parameters) == set(queued.policies)


def test_a_facade_trainer_has_the_names_of_ml_agents(tmp_path):
    for trainer in (make_trainer("ppo", tmp_path), make_trainer("masac", tmp_path)):
        assert isinstance(trainer, RLTrainer)
        assert isinstance(trainer, Trainer)
        assert [name for name in NAMES if not hasattr(trainer, name)] == []
        assert trainer.get_max_steps == 500_000
        assert trainer.should_still_train
        assert not trainer.threaded


@pytest.mark.parametrize("algo", ["ppo", "mappo"])
def test_a_queue_takes_rollouts_and_learns_what_a_run_learns(algo, tmp_path):
    """The same rollouts and seed give the same parameters, through a facade trainer as through a run's own."""
    env = "native:CartPole" if algo == "ppo" else "mpe2:simple_spread_v3"
    params = PPOParams(train_pi_iters=2, train_vf_iters=2)
    own = {f"params.{name}": value for name, value in params.model_dump(mode="json").items()}
    fixed = {"num_envs": 2, "time_horizon": 20, "network.hidden_sizes": (8,), "max_steps": 120, "seed": 3}
    fixed |= {"normalize_observations": False}
    parts = make_run_parts(env, algo=algo, settings={**own, **fixed})
    ((name, group),) = parts.env.groups.items()
    args = {"observation_space": group.observation_space, "action_space": group.action_space}
    if parts.trainer.needs_states:
        args["state_space"] = parts.env.state_space
    network = parts.policies[name].network
    facade = make_trainer(algo, tmp_path, params=params, network=network, seed=3, max_steps=120, **args)
    if algo == "mappo":
        facade = with_agents(facade, group)
    trajectories, _ = with_queues(facade)
    for _ in range(3):
        rollouts = {
            key: copied_rollout(rollout) for key, rollout in parts.collect(parts.trainer.policy_version).items()
        }
        trajectories.put(rollouts)
        facade.advance()
        parts.trainer.receive(rollouts)
        parts.trainer.advance()
    parts.close()
    assert facade.get_step == parts.trainer.num_env_steps == 120
    assert parameter_hash(facade.policies[name]) == parameter_hash(parts.policies[name])


def with_agents(trainer: Any, group: AgentGroup) -> Any:
    """The same trainer for the agents of `group` instead of "a" and "b"."""
    fresh = type(trainer)(trainer._entry, trainer.args, trainer.params, None)
    fresh.create_policy(group.name, group)
    return fresh


def test_rollouts_of_other_agents_are_refused(tmp_path):
    parts = make_run_parts("mpe2:simple_spread_v3", algo="ippo", settings={"num_envs": 1})
    trajectories, _ = with_queues(trainer := make_trainer("ippo", tmp_path))
    trajectories.put(parts.collect(0))
    parts.close()
    with pytest.raises(ConfigError, match=r"rollouts are of.*agent_0.*the trainer has.*register the same agents"):
        trainer.advance()


@pytest.mark.parametrize(("env", "algo"), [("native:Pendulum", "td3"), ("mpe2:simple_spread_v3", "isac")])
def test_replay_takes_rollouts_and_learns_what_a_run_learns(env, algo, tmp_path):
    parts = make_run_parts(env, algo=algo, settings={"num_envs": 3, "max_steps": 300})
    ((name, group),) = parts.env.groups.items()
    params = small_params(algo, update_interval=3, train_iters=1)
    made = {"observation_space": group.observation_space, "action_space": group.action_space, "max_steps": 300}
    twins = [make_trainer(algo, tmp_path / twin, params=params, **made) for twin in ("one", "other")]
    one, other = twins if algo == "td3" else [with_agents(trainer, group) for trainer in twins]
    other.learner.hold_envs(3)
    trajectories, _ = with_queues(one)
    for _ in range(40):
        rollouts = {key: copied_rollout(rollout) for key, rollout in parts.collect(0).items()}
        trajectories.put(rollouts)
        one.advance()
        other.learner.receive(rollouts)  # as a run's own trainer
        other.learner.advance()
    parts.close()
    assert one.get_step == other.learner.num_env_steps == 40 * parts.block_steps
    assert one.policy_version > 0
    assert parameter_hash(one.policies[name]) == parameter_hash(other.policies[name])
    one.save("x")
    again = make_trainer(algo, tmp_path / "one", params=params, **made)
    again = again if algo == "td3" else with_agents(again, group)
    again.load("x")
    assert len(again.learner.replay) == len(one.learner.replay)
    with pytest.raises(ConfigError, match="side by side"):
        again.learner.receive_trajectories(play(again, 0), again.groups)


def test_advance_writes_rows_and_checkpoints_when_they_are_due(tmp_path):
    schedule = TrainerSettings(max_steps=200, summary_freq=40, checkpoint_interval=60, keep_checkpoints=2)
    trainer = make_trainer("ppo", tmp_path, trainer_settings=schedule)
    trajectories, _ = with_queues(trainer)
    number = 0
    while trainer.should_still_train:
        for trajectory in epoch(trainer, number):
            trajectories.put(trajectory)
        trainer.advance()
        number += 1
    assert trainer.get_step == trainer.get_max_steps == 200
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["num_env_steps"]) for row in rows] == [40, 80, 120, 160, 200]
    saved = sorted(path.stem for path in tmp_path.glob("step_*.ckpt"))
    assert saved == ["step_000000000120", "step_000000000180"]  # of 60, 120 and 180
    trainer.save_model()
    assert (tmp_path / "step_000000000200.ckpt").exists()
    assert trainer.model_saver.export(tmp_path / "final.onnx", trainer.brain_name).exists()


def test_a_trainer_goes_on_from_its_newest_checkpoint(tmp_path):
    schedule = TrainerSettings(checkpoint_interval=40)
    whole, first = (
        make_trainer("mappo", tmp_path / "whole"),
        make_trainer("mappo", tmp_path / "x", trainer_settings=schedule),
    )
    for trainer in (whole, first):
        for number in range(2):
            for trajectory in epoch(trainer, number):
                trainer.receive_trajectory(trajectory)
            trainer.advance()
    again = make_trainer("mappo", tmp_path / "x", trainer_settings=schedule)
    again.load()
    assert (again.get_step, hashes(again)) == (40, hashes(first))
    for trainer in (whole, again):
        for trajectory in epoch(trainer, 2):
            trainer.receive_trajectory(trajectory)
        trainer.advance()
    assert hashes(again) == hashes(whole)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        make_trainer("mappo", tmp_path / "nothing").load()


def test_rewards_are_collected_until_an_episode_ends(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    (whole,) = play(trainer, 0)
    first, rest = cut_at_step(whole, 4)
    trainer.receive_trajectory(first)
    assert trainer.collected_rewards == {"environment": {f"{whole.env_id}/agent": pytest.approx(first.episode_return)}}
    assert len(trainer.reward_buffer) == 0
    trainer.receive_trajectory(rest)
    assert trainer.collected_rewards == {"environment": {}}
    assert list(trainer.reward_buffer) == [pytest.approx(whole.episode_return)]
    trainer.receive_trajectory(cut_at_step(play(trainer, 1)[0], 4)[0])
    trainer.end_episode()
    assert trainer.collected_rewards == {"environment": {}}


def test_who_is_not_training_only_counts(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    trainer.is_training = False
    before = hashes(trainer)
    for trajectory in epoch(trainer):
        assert not trainer.receive_trajectory(trajectory)
    trainer.advance()
    assert not trainer.train_model()
    assert not trainer.should_still_train
    assert hashes(trainer) == before
    assert len(trainer.reward_buffer) == IN_EPOCH
    assert len(trainer.update_buffer) == 0


@pytest.mark.parametrize(("kind", "algo"), [(PPOTrainer, "ppo"), (SACTrainer, "sac")])
def test_trainers_by_the_names_of_ml_agents(kind, algo, tmp_path):
    group = AgentGroup("runner", ("runner",), spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
    trainer = kind(
        "Runner", TrainerSettings(), artifact_path=tmp_path, params=small_params(algo), network=SMALL, seed=1
    )
    trainer.add_policy("runner", trainer.create_policy("runner", group))
    assert (trainer.algo, trainer.brain_name) == (algo, "Runner")
    trajectories, policies = with_queues(trainer)
    for trajectory in epoch(trainer):
        trajectories.put(trajectory)
    trainer.advance()
    newest = policies.take()
    assert newest.version == trainer.policy_version > 0
    trainer.save_model()
    loaded = kind(
        "Runner", TrainerSettings(), artifact_path=tmp_path, params=small_params(algo), network=SMALL, load=True
    )
    assert loaded.get_step == trainer.get_step == IN_EPOCH * LENGTH
    assert hashes(loaded) == hashes(trainer)


def test_a_policy_of_another_trainer_is_refused(tmp_path):
    one, other = make_trainer("ppo", tmp_path / "a"), make_trainer("ppo", tmp_path / "b")
    with pytest.raises(ConfigError, match="use what create_policy"):
        one.add_policy("agent", other.get_policy("agent"))
    with pytest.raises(ConfigError, match="'x' maps"):
        one.create_policy("x", AgentGroup("x", ("x",), spaces.Box(-1, 1, (9,)), spaces.Discrete(2)))


def test_a_trainer_of_rollouts_says_what_it_takes_and_where_it_can_save(tmp_path):
    parts = make_run_parts("native:CartPole")
    trainer = RolloutTrainer("x", TrainerSettings(), lambda *_: None, lambda _: parts.trainer, Statistics([]))
    parts.close()
    trajectories, _ = with_queues(trainer)
    trajectories.put(play(make_trainer("ppo", tmp_path), 0)[0])
    with pytest.raises(ConfigError, match="RelayRLTrainer's trainers take trajectories"):
        trainer.advance()
    with pytest.raises(ConfigError, match="save="):
        trainer.save_model()


def test_max_steps_are_given_once(tmp_path):
    with pytest.raises(ConfigError, match="given twice"):
        make_trainer("ppo", tmp_path, max_steps=10, trainer_settings=TrainerSettings(max_steps=20))
    assert make_trainer("ppo", tmp_path, trainer_settings=TrainerSettings(max_steps=20)).args.max_steps == 20
    assert np.isfinite(make_trainer("ppo", tmp_path, max_steps=10).get_max_steps)


@pytest.mark.parametrize("algo", ["mappo", "masac", "ireinforce"])
def test_a_trainer_that_is_loaded_after_every_fragment_learns_the_same(algo, tmp_path):
    """Fragments of two agents, cut at different steps, in a random order that keeps each agent's; one agent stays out once."""
    whole, often = (make_trainer(algo, tmp_path / name) for name in ("whole", "often"))
    rng, lanes = np.random.default_rng(4), {}
    for number in range(4):
        for trajectory in play(whole, number):
            cut = cut_at_step(trajectory, int(rng.integers(1, LENGTH)))
            lanes[trajectory.env_id, trajectory.agent_id] = list(cut)
    missing = next(key for key in lanes if key[1] == "b")
    del lanes[missing]
    for trainer in (whole, often):
        trainer.declare_absent(missing[0], 0, "b")
    while lanes:
        key = list(lanes)[rng.integers(len(lanes))]
        fragment = lanes[key].pop(0)
        if not lanes[key]:
            del lanes[key]
        for trainer in (whole, often):
            with_queues(trainer)[0].put(fragment)
            trainer.advance()
        often.save_model()
        often = make_trainer(algo, tmp_path / "often")
        often.load()
    assert (often.policy_version, often.get_step, often.num_pending) == (whole.policy_version, 4 * LENGTH, 0)
    assert whole.policy_version > 1
    assert hashes(often) == hashes(whole)
