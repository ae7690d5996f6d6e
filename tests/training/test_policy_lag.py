"""Where data enters the update, steps of policies that are too old are dropped and counted, and nothing breaks for it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_facade import OBS_DIM, SMALL, hashes, make_trainer, play, small_params

import relayrl
from relayrl import APPOParams, IMPALAParams, PPOParams, RelayRLTrainer, SACParams, TrainerArgs
from relayrl.data.columns import Rollout
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.environment_registry import make_vector
from relayrl.extend import Assembly, assemble
from relayrl.models.policy import parameter_hash
from relayrl.runtime.collector import Collector

LAG = "policy/lag_versions"
ALGOS = ["ppo", "mappo", "impala", "maappo", "reinforce"]


def parts_of(algo: str, env: str = "native:simple_tag", **params: Any) -> tuple[Assembly, Collector]:
    given = {"traj_per_epoch": 1, "train_vf_iters": 2} | params
    flags = {"algo": algo, "environment.num_envs": 2, "trainer.time_horizon": 12, "network.hidden_sizes": (8,)}
    settings = build_run_settings(env, None, flags | {f"params.{name}": value for name, value in given.items()}, [])
    vector = make_vector(settings.env, settings.environment)
    parts = assemble(settings, vector)
    rng = np.random.default_rng(0)
    return parts, Collector(vector, parts.actors, num_steps=12, seed=0, rng=rng, records_logp=True)


def parameters(parts: Assembly) -> dict[str, str]:
    return {name: parameter_hash(policy) for name, policy in parts.policies.items()}


def of_versions(rollouts: dict[str, Rollout], versions: Any) -> dict[str, Rollout]:
    """The same rollouts, acted by policies of other versions: a number, or one for each row."""
    rows = np.asarray(versions, np.int64).reshape(-1, 1)
    return {
        name: replace(r, policy_version=np.broadcast_to(rows, r.reward.shape).copy()) for name, r in rollouts.items()
    }


@pytest.mark.parametrize("algo", ALGOS)
def test_a_block_that_is_too_old_is_counted_and_changes_nothing(algo):
    parts, collector = parts_of(algo, max_policy_lag=2)
    trainer = parts.trainer
    trainer.policy_version = 10
    block = collector.collect(7)
    before, num_steps = parameters(parts), sum(int(rollout.valid.sum()) for rollout in block.values())
    trainer.receive(block)
    metrics = trainer.advance()
    assert metrics == {
        LAG: 3.0,
        "policy/lag_versions_max": 3.0,
        "data/dropped_stale_steps": num_steps,
        "data/skipped_updates": 1.0,
    }
    assert parameters(parts) == before
    assert trainer.policy_version == 10
    assert (trainer.num_dropped_stale_steps, trainer.num_skipped_updates) == (num_steps, 1)
    assert trainer.num_env_steps == 24
    # The next one that is young enough is learned from as ever.
    trainer.receive(collector.collect(8))
    metrics = trainer.advance()
    assert (metrics[LAG], metrics["data/dropped_stale_steps"], metrics["data/skipped_updates"]) == (2.0, 0.0, 0.0)
    assert trainer.policy_version == 11
    assert parameters(parts) != before or algo == "reinforce"  # no episode has ended yet


@pytest.mark.parametrize("algo", ["ippo", "mappo", "iimpala", "maimpala"])
def test_of_a_block_only_the_rows_that_are_too_old_are_left_out(algo):
    (parts, collector), (other, _) = (parts_of(algo, max_policy_lag=bound) for bound in (1, None))
    block = of_versions(collector.collect(0), [5] * 4 + [9] * 8)
    for each in (parts, other):
        each.trainer.policy_version = 10
        each.trainer.receive(block)
    num_dropped = sum(4 * rollout.num_lanes for rollout in block.values())
    metrics, unbound = parts.trainer.advance(), other.trainer.advance()
    assert metrics["data/dropped_stale_steps"] == num_dropped == parts.trainer.num_dropped_stale_steps
    assert metrics[LAG] == pytest.approx((4 * 5 + 8 * 1) / 12) == unbound[LAG]
    assert metrics["policy/lag_versions_max"] == 5.0
    assert "data/dropped_stale_steps" not in unbound
    assert parameters(parts) != parameters(other)


def test_rows_that_are_left_out_stay_in_the_returns_of_those_before_them():
    parts, collector = parts_of("ppo", "native:CartPole", max_policy_lag=1)
    algorithm = parts.trainer._algorithms["agent"]
    rollout = collector.collect(0)["agent"]
    whole = algorithm._prepare(rollout, None)
    fresh = np.ones(rollout.reward.shape, bool)
    fresh[5:] = False
    batch = algorithm._prepare(rollout, None, fresh)
    np.testing.assert_array_equal(batch.advantage, whole.advantage[: 5 * rollout.num_lanes])


@pytest.mark.parametrize("algo", ["ippo", "mappo", "maappo"])
def test_a_group_of_which_nothing_is_left_waits_while_the_others_learn(algo):
    parts, collector = parts_of(algo, max_policy_lag=0)
    block = collector.collect(0)
    stale, *others = block
    block[stale] = of_versions(block, -3)[stale]
    before = parameters(parts)
    parts.trainer.receive(block)
    metrics = parts.trainer.advance()
    after = parameters(parts)
    assert after[stale] == before[stale]
    assert all(after[name] != before[name] for name in others)
    assert f"{stale}/policy/loss" not in metrics
    assert parts.trainer.num_skipped_updates == 0


def test_recurrent_policies_leave_out_old_rows_as_well():
    memory = {"kind": "gru", "size": 5, "sequence_length": 4}
    flags = {"algo": "appo", "environment.num_envs": 2, "trainer.time_horizon": 12, "network.memory": memory}
    settings = build_run_settings("relayrl.testing:RecallCue", None, flags | {"params.max_policy_lag": 0}, [])
    vector = make_vector(settings.env, settings.environment)
    parts = assemble(settings, vector)
    rng = np.random.default_rng(0)
    collector = Collector(vector, parts.actors, num_steps=12, seed=0, rng=rng, records_logp=True)
    parts.trainer.receive(of_versions(collector.collect(0), [-1] * 6 + [0] * 6))
    before = parameters(parts)
    metrics = parts.trainer.advance()
    assert metrics["data/dropped_stale_steps"] == 12
    assert parameters(parts) != before


def test_an_update_without_anything_received_is_skipped():
    parts, _ = parts_of("ppo", "native:CartPole")
    assert parts.trainer.advance() == {LAG: 0.0, "policy/lag_versions_max": 0.0}
    assert (parts.trainer.policy_version, parts.trainer.num_skipped_updates) == (0, 1)


def test_a_version_that_the_trainer_has_lost_is_not_too_old():
    parts, collector = parts_of("ppo", "native:CartPole", max_policy_lag=0)
    parts.trainer.receive(collector.collect(7))
    assert parts.trainer.advance()[LAG] == 0.0
    assert parts.trainer.policy_version == 1


def test_totals_are_part_of_the_trainers_state():
    parts, collector = parts_of("ppo", "native:CartPole", max_policy_lag=0)
    parts.trainer.policy_version = 3
    parts.trainer.receive(collector.collect(0))
    parts.trainer.advance()
    state, (fresh, _) = parts.trainer.state_dict(), parts_of("ppo", "native:CartPole", max_policy_lag=0)
    fresh.trainer.load_state_dict(state)
    assert (fresh.trainer.num_dropped_stale_steps, fresh.trainer.num_skipped_updates) == (24, 1)
    del state["num_dropped_stale_steps"], state["num_skipped_updates"]  # as older checkpoints
    fresh.trainer.load_state_dict(state)
    assert (fresh.trainer.num_dropped_stale_steps, fresh.trainer.num_skipped_updates) == (0, 0)


def test_the_bound_of_a_group_is_its_own():
    flags = {"algo": "ippo", "behaviors.adversary.params": {"max_policy_lag": 0}, "network.hidden_sizes": (8,)}
    settings = build_run_settings("native:simple_tag", None, flags, [])
    vector = make_vector(settings.env, settings.environment)
    parts = assemble(settings, vector)
    parts.trainer.policy_version = 1
    parts.trainer.receive(Collector(vector, parts.actors, num_steps=4, seed=0, rng=np.random.default_rng(0)).collect(0))
    metrics = parts.trainer.advance()
    assert metrics["data/dropped_stale_steps"] == 4 * 3 * settings.environment.num_envs
    assert [name for name in metrics if name.endswith("policy/loss")] == ["agent_0/policy/loss"]


@pytest.mark.parametrize("algo", ["ppo", "mappo", "maimpala"])
def test_trajectories_are_dropped_each_by_its_own_versions(algo, tmp_path):
    params = small_params(algo, max_policy_lag=1)
    (trainer, twin) = (make_trainer(algo, tmp_path / name, params=params) for name in ("one", "two"))
    young, old = ([t for e in episodes for t in play(trainer, e)] for episodes in ((0, 1), (2, 3)))
    for each in (trainer, twin):
        each._learned().trainer.policy_version = 4
    for t in [replace(t, policy_version=np.full(len(t), 3)) for t in young] + old:
        trainer.receive_trajectory(t)
    for t in [replace(t, policy_version=np.full(len(t), 3)) for t in young]:
        twin.receive_trajectory(t)
    assert trainer.train_model()
    assert twin.train_model()
    assert hashes(trainer) == hashes(twin)
    row = trainer.log_epoch()
    assert row["data/dropped_stale_steps"] == sum(len(t) for t in old)
    assert row[LAG] == pytest.approx(2.5)


def test_an_epoch_that_is_too_old_is_no_update(tmp_path):
    trainer = make_trainer("ppo", tmp_path, params=small_params("ppo", max_policy_lag=0))
    trainer._learned().trainer.policy_version = 1
    before = hashes(trainer)
    for episode in range(2):
        trainer.receive_trajectory(play(trainer, episode)[0])
    assert not trainer.train_model()
    assert hashes(trainer) == before
    row = trainer.log_epoch()
    assert (row["data/dropped_stale_steps"], row["data/skipped_updates"]) == (20.0, 1.0)
    assert trainer.num_env_steps == 20


@pytest.mark.parametrize(("algo", "warns"), [("impala", True), ("appo", True), ("ppo", False)])
def test_who_corrects_for_lag_warns_once_where_log_probabilities_are_missing(algo, warns, tmp_path, caplog):
    params = small_params(algo)
    trainer = getattr(RelayRLTrainer, algo)(TrainerArgs("env", tmp_path, OBS_DIM, 2, network=SMALL), params)
    with caplog.at_level(logging.WARNING, logger="relayrl.training"):
        for episode in range(6):
            trainer.receive_trajectory(play(trainer, episode)[0])
            trainer.train_model()
    assert trainer.policy_version == 3
    assert len([record for record in caplog.records if "without log-probabilities" in record.message]) == warns


def test_a_bound_for_whoever_feeds_old_data_is_taken_where_it_is_needed():
    assert PPOParams().with_policy_lag_bound(4).max_policy_lag == 4
    assert PPOParams(max_policy_lag=1).with_policy_lag_bound(4).max_policy_lag == 1
    assert PPOParams(max_policy_lag=None).with_policy_lag_bound(4).max_policy_lag is None
    for params in (IMPALAParams(), APPOParams(), SACParams()):
        assert params.with_policy_lag_bound(4) is params


def test_a_run_in_turns_never_lags_and_a_bound_of_nothing_changes_nothing(tmp_path):
    settings = {"time_horizon": 16, "summary_freq": 128, "hidden_sizes": [8], "evaluation.episodes": 0}
    settings |= {"train_pi_iters": 2, "train_vf_iters": 2}
    given = {"algo": "ppo", "steps": 512, "num_envs": 2, "progress": False}
    runs = [
        relayrl.train("native:CartPole", run_dir=tmp_path / str(i), settings=settings | more, **given)
        for i, more in enumerate(({}, {"max_policy_lag": 0}))
    ]
    models = [(run.path / "model.onnx").read_bytes() for run in runs]
    assert models[0] == models[1]
    assert max(runs[1].history["policy/lag_versions_max"]) == 0.0
    assert max(runs[1].history["data/dropped_stale_steps"]) == 0.0
