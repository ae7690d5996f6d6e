"""What DDPG, TD3 and SAC share: targets, frozen critics, absent agents, weights, checkpoints. And builders for their tests."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.algorithms.critics.critic_views import CentralView, LocalView
from relayrl.algorithms.off_policy import OffPolicyAlgorithm
from relayrl.algorithms.params import DDPGParams, MADDPGParams, OffPolicyParams, SACParams, TD3Params
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.td3 import DDPG, TD3
from relayrl.algorithms.updates.replay_actor_critic import actions_of, features_of
from relayrl.errors import TrainingDivergedError
from relayrl.models.heads.box_heads import DeterministicHead, SquashedGaussianHead
from relayrl.models.network_settings import Activation, NetworkSettings
from relayrl.models.policy import Policy, parameter_hash
from relayrl.training.replay.joint_replay import GroupTransitions, JointTransitions

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))
ALGORITHMS = {"ddpg": (DDPG, DDPGParams), "td3": (TD3, TD3Params), "sac": (SAC, SACParams)}
PAIR = {"agent": 2}
TEAMS = {"wolf": 2, "sheep": 1}
torch.set_num_threads(1)  # as runs do: in networks this small, threads wait for each other longer than they work


def make_learner(
    algo: str | type[OffPolicyAlgorithm] = "ddpg",
    *,
    groups: dict[str, int] | None = None,
    view=LocalView,
    box: spaces.Box = BOX,
    num_features: int = 3,
    hidden_sizes: tuple[int, ...] = (8, 8),
    params: OffPolicyParams | None = None,
    **settings,
):
    """An algorithm over `groups` (name → agents), with weights far enough from their beginning that all outputs differ."""
    if isinstance(algo, str):
        make, params_class = ALGORITHMS[algo]
        params = params or params_class(**settings)
    else:
        make = algo
    groups = groups or {"agent": 1}
    generator = torch.Generator().manual_seed(0)
    network = NetworkSettings(hidden_sizes=hidden_sizes, activation=Activation.RELU)
    head = SquashedGaussianHead(box) if issubclass(make, SAC) else DeterministicHead(box, 0.1)
    observations = spaces.Box(-np.inf, np.inf, (num_features,), np.float32)
    policies = {name: Policy(observations, head, network, generator) for name in groups}
    with torch.no_grad():
        for policy in policies.values():
            for parameter in policy.actor_parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return make(policies, groups, params, torch.Generator().manual_seed(1), view)


def target_values(learner: OffPolicyAlgorithm, group: str, batch) -> np.ndarray:
    return learner.target_values(group, batch, learner.all_next_actions(batch)).numpy()


def update_critics(learner: OffPolicyAlgorithm, transitions: JointTransitions) -> None:
    batch, weight = learner.batch(transitions), torch.from_numpy(transitions.weight)[:, None]
    target = learner.target_values("agent", batch, learner.all_next_actions(batch))
    learner.update_critics("agent", batch, target, weight)


def random_transitions(learner: OffPolicyAlgorithm, num_rows: int = 32, seed: int = 0) -> JointTransitions:
    """Joint transitions, some of which terminated."""
    rng = np.random.default_rng(seed)
    groups = {}
    for name, group in learner.groups.items():
        shape, head = (num_rows, group.num_agents), group.policy.head
        num_features = group.policy.encoder.num_features
        groups[name] = GroupTransitions(
            obs=rng.normal(size=(*shape, num_features)).astype(np.float32),
            action=rng.uniform(head.low, head.high, (*shape, head.num_actions)).astype(np.float32),
            reward=rng.normal(size=shape).astype(np.float32),
            next_obs=rng.normal(size=(*shape, num_features)).astype(np.float32),
            discount=np.where(rng.random(shape) < 0.25, 0.0, 0.9).astype(np.float32),
            valid=np.ones(shape, bool),
            next_valid=np.ones(shape, bool),
        )
    return JointTransitions(groups, np.arange(num_rows), np.ones(num_rows, np.float32))


def hashes(learner: OffPolicyAlgorithm) -> dict[str, tuple[str | None, ...]]:
    """Policy, Q-networks and their targets (SAC's policy has none), by group."""
    return {
        name: tuple(m and parameter_hash(m) for m in (group.policy, group.q, group.target_policy, group.target_q))
        for name, group in learner.groups.items()
    }


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_targets_begin_as_copies_and_are_not_the_same_memory(algo):
    learner = make_learner(algo)
    policy, q, target_policy, target_q = hashes(learner)["agent"]
    assert (policy, q) == (target_policy or policy, target_q)
    assert (target_policy is None) == (algo == "sac")
    with torch.no_grad():
        for module in (learner.groups["agent"].policy, learner.groups["agent"].q):
            for parameter in module.parameters():
                parameter.add_(1.0)
    assert hashes(learner)["agent"][2:] == (target_policy, target_q)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_targets_move_by_tau_towards_the_newest_parameters(algo):
    learner = make_learner(algo, tau=0.25, **({"policy_frequency": 1} if algo == "td3" else {}))
    group = learner.groups["agent"]
    before = [p.clone() for p in group.target_q.parameters()]
    learner.update(random_transitions(learner))
    for old, new, target in zip(before, group.q.parameters(), group.target_q.parameters(), strict=True):
        torch.testing.assert_close(target, 0.75 * old + 0.25 * new)


def gradients(learner: OffPolicyAlgorithm) -> list[torch.Tensor]:
    """Gradients of the Q-networks and, as the optimiser holds them, of the policy."""
    group = learner.groups["agent"]
    return [group.critic_optimizer.gradient.clone(), group.actor_optimizer.gradient.clone()]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_critic_is_frozen_in_the_actors_step(algo):
    learner = make_learner(algo, **({"policy_frequency": 1} if algo == "td3" else {}))
    transitions = random_transitions(learner)
    update_critics(learner, transitions)
    before, (critic_gradient, _) = hashes(learner)["agent"][1], gradients(learner)
    learner.update_policies(learner.batch(transitions))
    after, (critic_gradient_after, actor_gradient) = hashes(learner)["agent"][1], gradients(learner)
    assert before == after
    assert torch.equal(critic_gradient, critic_gradient_after)
    assert float(actor_gradient.abs().sum()) > 0
    assert all(p.requires_grad for p in learner.groups["agent"].q.parameters())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_critics_step_leaves_the_policy_alone(algo):
    learner = make_learner(algo)
    before = hashes(learner)["agent"]
    update_critics(learner, random_transitions(learner))
    after = hashes(learner)["agent"]
    assert before[1] != after[1]
    assert [before[i] for i in (0, 2, 3)] == [after[i] for i in (0, 2, 3)]
    assert float(gradients(learner)[1].abs().sum()) == 0


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_actions_are_scaled_to_the_bounds(algo):
    learner = make_learner(algo)
    group = learner.groups["agent"]
    corners = np.array([[-2.0, 0.0], [2.0, 1.0], [0.0, 0.5]], np.float32)
    assert group.policy.head.encode_action(corners).tolist() == [[-1, -1], [1, 1], [0, 0]]


def with_absent_agent(transitions: JointTransitions, garbage: float) -> JointTransitions:
    """Agent 1 of the group does not act on the first half of the rows; its columns there mean nothing."""
    rows, half = transitions.groups["agent"], len(transitions) // 2
    rows.valid[:half, 1] = False
    for column in (rows.obs, rows.action, rows.reward):
        column[:half, 1] = garbage
    rows.discount[:half, 1] = 0.0
    return transitions


@pytest.mark.parametrize("view", [LocalView, CentralView])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_absent_agents_see_and_do_changes_nothing(algo, view):
    results = []
    for garbage in (0.0, 1e4):
        learner = make_learner(algo, groups=PAIR, view=view)
        for _ in range(2):
            learner.update(with_absent_agent(random_transitions(learner), garbage))
        results.append(hashes(learner))
    assert results[0] == results[1]


def test_losses_are_means_over_the_rows_that_were_acted_on():
    learner = make_learner("ddpg", groups=PAIR)
    numbers = torch.tensor([[1.0, 10.0], [3.0, 20.0]])
    for valid, mean in (([[1, 0], [1, 0]], 2.0), ([[1, 1], [1, 1]], 8.5), ([[0, 0], [0, 0]], 0.0)):
        transitions = random_transitions(learner, 2)
        transitions.groups["agent"].valid[:] = valid
        assert float((numbers * learner.batch(transitions)["agent"].share).sum()) == pytest.approx(mean)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_row_of_no_weight_teaches_the_critic_nothing(algo):
    results = []
    for reward in (0.0, 1e3):
        learner = make_learner(algo)
        transitions = random_transitions(learner)
        transitions.weight[5] = 0.0
        transitions.groups["agent"].reward[5] = reward
        update_critics(learner, transitions)
        results.append(hashes(learner)["agent"][1])
    assert results[0] == results[1]


def test_errors_are_the_largest_of_all_agents_that_acted():
    learner = make_learner("ddpg", groups=PAIR)
    transitions = random_transitions(learner)
    rows = transitions.groups["agent"]
    rows.discount[:] = 0.0
    rows.valid[0, 1] = False
    with torch.no_grad():
        batch = learner.batch(transitions)
        inputs = learner.view.inputs("agent", features_of(batch), actions_of(batch))
        value = learner.groups["agent"].q(inputs)[0].numpy().reshape(rows.reward.shape)
    expected = np.abs(value - rows.reward)
    expected[0, 1] = 0.0
    _, errors = learner.update(transitions)
    np.testing.assert_allclose(errors, expected.max(1), rtol=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_group_is_trained_and_named(algo):
    learner = make_learner(algo, groups=TEAMS, view=CentralView)
    before = hashes(learner)
    for _ in range(2):
        metrics, _ = learner.update(random_transitions(learner))
    after = hashes(learner)
    for name in TEAMS:
        assert all(old != new for old, new in zip(before[name][:2], after[name][:2], strict=True))
        assert math.isfinite(metrics[f"{name}/value/loss"])
        assert math.isfinite(metrics[f"{name}/policy/loss"])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_one_group_has_plain_metrics(algo):
    learner = make_learner(algo)
    learner.update(random_transitions(learner))
    metrics, _ = learner.update(random_transitions(learner))
    names = {"value/loss", "value/mean", "value/gradient_norm", "policy/loss", "policy/gradient_norm"}
    assert set(metrics) == names | ({"policy/entropy", "policy/temperature"} if algo == "sac" else set())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_state_round_trip_continues_bit_for_bit(algo):
    first, second = (make_learner(algo, groups=TEAMS, view=CentralView) for _ in range(2))
    data = random_transitions(first)
    for _ in range(3):
        first.update(data)
    for name, group in first.groups.items():
        second.groups[name].policy.load_state_dict(group.policy.state_dict())
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        results = [learner.update(data)[0] for learner in (first, second)]
        assert results[0] == results[1]
    assert hashes(first) == hashes(second)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_loss_that_is_not_finite_stops_the_run_before_the_step(algo):
    learner = make_learner(algo)
    transitions = random_transitions(learner)
    transitions.groups["agent"].reward[0] = np.nan
    before = hashes(learner)
    with pytest.raises(TrainingDivergedError, match="check the rewards"):
        learner.update(transitions)
    assert hashes(learner) == before


DEFAULTS = {
    DDPGParams: {
        "gamma": 0.99,
        "tau": 0.005,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "batch_size": 128,
        "buffer_size": 50_000,
        "learning_starts": 128,
        "noise_scale": 0.1,
        "train_iters": 50,
    },
    MADDPGParams: {"tau": 0.01, "buffer_size": 1_000_000, "traj_per_epoch": 8, "train_iters": 50, "noise_scale": 0.1},
    TD3Params: {
        "gamma": 0.99,
        "tau": 0.005,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "batch_size": 256,
        "buffer_size": 1_000_000,
        "exploration_noise": 0.1,
        "policy_noise": 0.2,
        "noise_clip": 0.5,
        "learning_starts": 25_000,
        "policy_frequency": 2,
    },
    SACParams: {"batch_size": 128, "buffer_size": 50_000, "tau": 0.005, "learns_temperature": True},
}


@pytest.mark.parametrize("params", DEFAULTS)
def test_defaults_are_the_documented_ones(params):
    assert {name: getattr(params(), name) for name in DEFAULTS[params]} == DEFAULTS[params]


def test_what_absent_agents_would_see_next_changes_nothing():
    results = []
    for garbage in (0.0, np.nan):
        learner = make_learner("ddpg", groups=PAIR, view=CentralView)
        transitions = random_transitions(learner)
        rows = transitions.groups["agent"]
        rows.valid[:16, 1] = rows.next_valid[:16, 1] = False
        rows.obs[:16, 1] = rows.next_obs[:16, 1] = garbage
        rows.discount[:16, 1] = 0.0
        for _ in range(2):
            learner.update(transitions)
        results.append(hashes(learner))
    assert results[0] == results[1]


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_who_left_alone_bootstraps_from_what_it_saw_and_the_others_without_it(algo):
    learner = make_learner(algo, groups=PAIR, view=CentralView, **({"policy_noise": 0.0} if algo == "td3" else {}))
    transitions = random_transitions(learner)
    rows = transitions.groups["agent"]
    rows.discount[:] = 0.9

    def targets() -> np.ndarray:
        return target_values(learner, "agent", learner.batch(transitions))

    together = targets()
    rows.next_valid[:16, 1] = False
    apart = targets()
    rows.valid[:16, 1] = False
    absent = targets()
    np.testing.assert_allclose(apart[:, 1], together[:, 1], rtol=1e-5)
    np.testing.assert_allclose(apart[16:], together[16:], rtol=1e-5)
    np.testing.assert_allclose(apart[:, 0], absent[:, 0], rtol=1e-5)
    assert (np.abs(apart[:16, 0] - together[:16, 0]) > 1e-4).all()


def test_a_policy_loss_that_is_not_finite_stops_the_run():
    learner = make_learner("ddpg")
    batch = learner.batch(random_transitions(learner))
    with torch.no_grad():
        learner.groups["agent"].q.critics[0].linears()[0].weight[0, 0] = float("inf")
    before = hashes(learner)["agent"][0]
    with pytest.raises(TrainingDivergedError):
        learner.update_policies(batch)
    assert hashes(learner)["agent"][0] == before
