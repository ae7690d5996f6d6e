"""The facade for several agents: who shares a policy, who joins, who is absent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_facade import ALGORITHMS, IN_EPOCH, LENGTH, SMALL, epoch, hashes, make_trainer, play, small_params, train

from relayrl import RelayRLTrainer, TrainerArgs
from relayrl.data.stacking import stack_jointly
from relayrl.errors import CheckpointError, ConfigError
from relayrl.models.network_settings import NetworkSettings
from relayrl.training.replay.joint_replay import JointReplay

SEVERAL = [form for name in ALGORITHMS for form in (f"i{name}", f"ma{name}") if form in ALGORITHMS]
CENTRAL = [name for name in SEVERAL if ALGORITHMS[name].is_central]


def make_team(algo: str, folder: Any, agents: dict[str, str], **args: Any) -> Any:
    """A trainer with `agents` by the group whose policy they have."""
    given = TrainerArgs("env", folder, 3, 2, **({"network": SMALL} | args))
    trainer = getattr(RelayRLTrainer, algo)(given, small_params(algo))
    for agent_id, group in agents.items():
        trainer.register_agent(agent_id, group)
    return trainer


def test_nothing_can_be_learned_before_someone_is_registered(tmp_path):
    trainer = make_team("mappo", tmp_path, {})
    assert not trainer.train_model()
    with pytest.raises(ConfigError, match="no agents yet"):
        trainer.acquire_model()


def test_agents_have_policies_of_their_own_unless_they_share_one(tmp_path):
    trainer = make_team("mappo", tmp_path, {"a": "team", "b": "team"})
    trainer.register_agent("c")
    assert {name: group.agent_ids for name, group in trainer.groups.items()} == {"team": ("a", "b"), "c": ("c",)}
    assert trainer.agent_ids == ("a", "b", "c")
    assert set(trainer.policies) == {"team", "c"}
    trainer.register_agent("c")
    assert trainer.agent_ids == ("a", "b", "c")
    with pytest.raises(ConfigError, match="'c' has a policy already"):
        trainer.register_agent("c", "team")


@pytest.mark.parametrize("algo", SEVERAL)
def test_a_shared_policy_learns_from_all_its_agents(algo, tmp_path):
    trainer = make_team(algo, tmp_path, {"a": "team", "b": "team"})
    train(trainer)
    assert list(trainer.policies) == ["team"]
    row = trainer.log_epoch()
    assert np.isfinite([row["actor_loss"], row["critic_loss"]]).all()


def test_losses_are_means_over_policies(tmp_path):
    trainer = make_trainer("matd3", tmp_path)
    train(trainer)
    row = trainer.log_epoch()
    assert row["actor_loss"] == pytest.approx((row["a/policy/loss"] + row["b/policy/loss"]) / 2)
    assert row["critic_loss"] == pytest.approx((row["a/value/loss"] + row["b/value/loss"]) / 2)


def test_an_epoch_counts_the_trajectories_of_all_agents(tmp_path):
    trainer = make_trainer("mappo", tmp_path)
    answers = [trainer.receive_trajectory(trajectory) for trajectory in epoch(trainer)]
    assert answers == [False] * (2 * IN_EPOCH - 1) + [True]


@pytest.mark.parametrize("algo", ["ippo", "mappo", "mareinforce"])
def test_a_policy_without_trajectories_stays_while_others_learn(algo, tmp_path):
    trainer = make_trainer(algo, tmp_path)
    before = hashes(trainer)
    for episode in range(2 * IN_EPOCH):
        (alone,) = play(trainer, episode, agents=["a"])
        assert not trainer.receive_trajectory(alone)
    for missing in trainer.incomplete:
        assert missing.missing == ("b",)
        trainer.declare_absent(*missing[:2], "b")
    assert trainer.train_model()
    assert hashes(trainer)["a"] != before["a"]
    assert hashes(trainer)["b"] == before["b"]
    assert np.isfinite(list(trainer.log_epoch().values())).all()


def test_replay_waits_for_the_first_trajectory_of_every_policy(tmp_path):
    trainer = make_trainer("masac", tmp_path)
    for episode in range(3):
        (alone,) = play(trainer, episode, agents=["a"])
        trainer.declare_absent(alone.env_id, episode, "b")
        assert not trainer.receive_trajectory(alone)
    (other,) = play(trainer, 3, agents=["b"])
    trainer.declare_absent(other.env_id, 3, "a")
    assert trainer.receive_trajectory(other)
    assert trainer.train_model()
    for episode in (4, 5):
        (alone,) = play(trainer, episode, agents=["a"])
        trainer.declare_absent(alone.env_id, episode, "b")
        ready = trainer.receive_trajectory(alone)
    assert ready


def test_strangers_are_refused(tmp_path):
    trainer = make_trainer("mappo", tmp_path)
    with pytest.raises(ConfigError, match=r"register_agent\('z'\) first"):
        trainer.receive_trajectory(replace(play(trainer, 0)[0], agent_id="z"))


@pytest.mark.parametrize("algo", ["mappo", "masac", "ippo"])
def test_agents_may_see_and_do_different_things(algo, tmp_path):
    trainer = make_team(algo, tmp_path, {"speaker": "speaker"})
    wide = spaces.Dict({"goal": spaces.Discrete(3, start=1), "place": spaces.Box(-1, 1, (4,))})
    trainer.register_agent("listener", observation_space=wide, action_space=spaces.MultiDiscrete([2, 3]))
    with pytest.raises(ConfigError, match="policy of its own"):
        trainer.register_agent("other", "listener", observation_space=spaces.Box(-1, 1, (9,)))
    before = hashes(trainer)
    for trajectory in epoch(trainer):
        if trajectory.agent_id == "listener":
            place = {"goal": np.full(LENGTH, 2), "place": trajectory.obs["place"]}
            final = {"goal": np.array(3), "place": trajectory.final_obs["place"]}
            trajectory = replace(trajectory, obs=place, final_obs=final)
        trainer.receive_trajectory(trajectory)
    assert trainer.train_model()
    assert all(hashes(trainer)[name] != old for name, old in before.items())
    with pytest.raises(ConfigError, match=r"2 policies.*acquire_models"):
        trainer.acquire_model()
    assert trainer.acquire_models()["listener"].metadata.observation_space == wide


@pytest.mark.parametrize("algo", SEVERAL)
def test_absent_and_dying_agents_do_not_stop_the_others(algo, tmp_path):
    trainer = make_team(algo, tmp_path, {"a": "team", "b": "team", "c": "c"})
    for episode in range(3):
        for trajectory in play(trainer, episode, agents=["a", "c"] if episode else None):
            if trajectory.agent_id == "a":
                trajectory = cut_short(trajectory, 4)
            trainer.receive_trajectory(trajectory)
    assert [(each.episode, each.missing) for each in trainer.incomplete] == [(1, ("b",)), (2, ("b",))]
    trainer.end_episode()
    assert trainer.train_model()
    assert trainer.log_epoch()["epoch/num_incomplete"] == 2
    assert np.isfinite(list(trainer.log_epoch().values())).all()


def cut_short(trajectory: Any, length: int) -> Any:
    columns = {name: getattr(trajectory, name)[:length] for name in ("obs", "action", "reward", "policy_version")}
    return replace(trajectory, terminated=True, truncated=False, **columns)


@pytest.mark.parametrize("algo", SEVERAL)
@pytest.mark.parametrize("group", [None, "a"], ids=["own policy", "shared policy"])
def test_an_agent_that_joins_leaves_the_others_as_they_were(algo, group, tmp_path):
    trainer = make_trainer(algo, tmp_path)
    train(trainer)
    learned, steps, version = hashes(trainer), trainer.num_env_steps, trainer.policy_version
    if ALGORITHMS[algo].is_central and ALGORITHMS[algo].params.is_on_policy:
        actors = {name: policy.actor[0].weight.clone() for name, policy in trainer.policies.items()}
        trainer.register_agent("c", group)
        assert all(torch.equal(trainer.policies[name].actor[0].weight, old) for name, old in actors.items())
    else:
        trainer.register_agent("c", group)
        assert {name: hashes(trainer)[name] for name in learned} == learned
    assert (trainer.num_env_steps, trainer.policy_version) == (steps, version)
    assert trainer.agent_ids == (("a", "c", "b") if group else ("a", "b", "c"))
    grown = hashes(trainer)
    train(trainer, 1)
    assert all(hashes(trainer)[name] != old for name, old in grown.items())


@pytest.mark.parametrize("algo", ["ippo", "ireinforce"])
def test_independent_agents_learn_as_if_nobody_had_joined(algo, tmp_path):
    one, other = make_trainer(algo, tmp_path / "one"), make_trainer(algo, tmp_path / "other")
    train(one)
    train(other)
    other.register_agent("c")
    train(one, 1)
    train(other, 1)
    assert {name: hashes(other)[name] for name in ("a", "b")} == hashes(one)


@pytest.mark.parametrize("group", [None, "a"], ids=["own policy", "shared policy"])
@pytest.mark.parametrize("algo", CENTRAL)
def test_values_do_not_change_when_an_agent_joins(algo, group, tmp_path):
    trainer = make_trainer(algo, tmp_path)
    train(trainer)
    before = values_of(trainer, ["a", "b"])
    trainer.register_agent("c", group)
    for present in (["a", "b"], ["a", "b", "c"]):
        after = values_of(trainer, present)
        for name, values in before.items():
            np.testing.assert_allclose(after[name], values, rtol=1e-5, atol=1e-6)


def values_of(trainer: Any, present: list[str]) -> dict[str, np.ndarray]:
    """What the critics of groups "a" and "b" think of agents "a" and "b" in an environment where `present` play."""
    groups = {agent_id: name for name, group in trainer.groups.items() for agent_id in group.agent_ids}
    learner = trainer._learned()
    played = [replace(t, group=groups[t.agent_id]) for t in play(trainer, 7, agents=present)]
    rollouts = stack_jointly(played, {name: group.header for name, group in trainer.groups.items()})
    if trainer.params.replay_size is not None:
        algorithm = learner.trainer._algorithm
        replay = JointReplay(LENGTH, 1)
        replay.add(rollouts)
        probe = replay.sample(LENGTH, np.random.default_rng(0), gamma=0.9)
        batch = algorithm.batch(probe)
        view, features = algorithm.view, {name: own.features for name, own in batch.items()}
        actions = {name: own.action for name, own in batch.items()}
        parts = algorithm.groups
        of_first = {n: view.inputs(n, features, actions)[:: parts[n].num_agents] for n in "ab"}
        with torch.no_grad():
            return {n: parts[n].q(of_first[n])[0].numpy() for n in "ab"}
    views = learner.trainer.central.inputs(rollouts)
    first_lane = {name: views[name].rows[:: rollouts[name].num_lanes].laid_out() for name in "ab"}
    with torch.no_grad():
        return {name: learner.policies[name].value(torch.from_numpy(first_lane[name])).numpy() for name in "ab"}


@pytest.mark.parametrize("algo", ["masac", "itd3"])
def test_replay_survives_an_agent_that_joins(algo, tmp_path):
    trainer = make_trainer(algo, tmp_path)
    train(trainer)
    stream = trainer._learned().trainer._rng.bit_generator.state
    trainer.register_agent("c", "a")
    trainer.register_agent("d")
    assert trainer._learned().trainer._rng.bit_generator.state == stream
    train(trainer, 1)
    replay = trainer._learned().trainer.replay
    assert len(replay) == 2 * IN_EPOCH * LENGTH
    arrays = replay.get_state()["arrays"]
    num_old = IN_EPOCH * LENGTH
    assert arrays["a/valid"].sum(0).tolist() == [2 * num_old, num_old]
    assert arrays["d/valid"].sum(0).tolist() == [num_old]


def test_a_learning_rate_goes_on_falling_when_an_agent_joins(tmp_path):
    params = small_params("ippo", lr_schedule="linear", pi_lr=0.1)
    trainer = make_trainer("ippo", tmp_path, params=params, max_steps=100)
    train(trainer)
    trainer.register_agent("c")
    trainer.log_epoch()
    train(trainer, 1)
    assert trainer.log_epoch()["a/policy/learning_rate"] == pytest.approx(0.1 * (1 - IN_EPOCH * LENGTH / 100))


def test_steps_that_were_not_learned_from_count_after_an_agent_joined(tmp_path):
    params = small_params("isac", update_interval=15)  # of 20 steps an epoch, 5 are left
    trainer = make_trainer("isac", tmp_path, params=params)
    train(trainer)
    versions = trainer.policy_version
    trainer.register_agent("c")
    train(trainer, 1)
    assert trainer.policy_version == versions + 1
    assert trainer._learned().trainer._owed_steps == 2 * 20 - 2 * 15


def test_newcomers_may_choose_and_observe_from_any_first_number(tmp_path):
    trainer = make_trainer("masac", tmp_path, action_space=spaces.Discrete(3, start=1))
    train(trainer)
    trainer.register_agent("c", observation_space=spaces.Discrete(4, start=-2))
    trainer.register_agent("d", "a")
    train(trainer, 1)
    assert np.isfinite(trainer.log_epoch()["actor_loss"])


def test_normalisation_of_central_critics_survives_an_agent_that_joins(tmp_path):
    network = NetworkSettings(hidden_sizes=(8,), normalize_observations=True)
    trainer = make_trainer("mappo", tmp_path, network=network)
    train(trainer)
    before = trainer.policies["a"].critic_normalizer.mean.clone()
    trainer.register_agent("c")
    after = trainer.policies["a"].critic_normalizer.mean
    assert torch.equal(after[:6], before[:6])  # what "a" and "b" see
    assert after[6:9].tolist() == [0, 0, 0]  # what "c" sees
    assert after[-1] == before[-1]  # which of its group is valued


def test_loading_registers_the_agents_that_were_saved(tmp_path):
    one = make_team("maddpg", tmp_path, {"a": "team", "b": "team", "c": "c"})
    train(one)
    one.save("team")
    other = make_team("maddpg", tmp_path, {})
    other.load("team")
    assert other.agent_ids == ("a", "b", "c")
    train(one, 1)
    train(other, 1)
    assert hashes(one) == hashes(other)


def test_a_save_that_does_not_know_an_agent_is_refused(tmp_path):
    make_team("mappo", tmp_path, {"a": "a"}).save("small")
    with pytest.raises(CheckpointError, match=r"does not know 'b'.*load, then register"):
        make_team("mappo", tmp_path, {"a": "a", "b": "b"}).load("small")


@pytest.mark.parametrize(("algo", "explains"), [("mappo", True), ("ippo", False)])
def test_central_critics_see_who_acted_at_once(algo, explains, tmp_path):
    """A team reward for seeing alike, which nobody can tell from its own view: only aligned rows explain it."""
    params = small_params(algo, gamma=0.0, train_vf_iters=300, vf_lr=0.01, target_kl=None)
    trainer = make_trainer(algo, tmp_path, params=params)
    for _ in range(2):
        rng = np.random.default_rng(0)
        for episode in range(IN_EPOCH):
            signs = rng.choice([-1.0, 1.0], (2, LENGTH)).astype(np.float32)
            for trajectory, own in zip(play(trainer, episode), signs, strict=True):
                obs = np.repeat(own[:, None], 3, 1)
                trainer.receive_trajectory(replace(trajectory, obs=obs, reward=signs[0] * signs[1]))
        assert trainer.train_model()
        row = trainer.log_epoch()
    assert (row["a/value/explained_variance"] > 0.9) is explains


@pytest.mark.parametrize(("algo", "counted"), [("mappo", 1), ("isac", 1), ("ippo", 0)])
def test_agents_that_cannot_be_aligned_are_told(algo, counted, tmp_path, caplog):
    """One agent acted four times, the other ten times, and nobody knows when; independent critics need not know."""
    trainer = make_trainer(algo, tmp_path)
    for trajectory in epoch(trainer):
        is_short = trajectory.agent_id == "a" and trajectory.episode == 0
        trainer.receive_trajectory(cut_short(trajectory, 4) if is_short else trajectory)
    assert trainer.train_model()
    assert trainer.log_epoch()["epoch/num_unaligned"] == counted
    assert ("unequally often" in caplog.text) is bool(counted)
