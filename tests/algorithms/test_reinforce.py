"""REINFORCE: reward-to-go by hand, what a cut costs with and without a baseline, and one plain gradient step."""

import uuid

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.on_policy_params import REINFORCEParams
from relayrl.algorithms.optimizer import POLICY_GRADIENT_EPSILON
from relayrl.algorithms.reinforce import REINFORCE
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import rows_with_successor
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic, parameter_hash

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(4)


def make_reinforce(**params) -> REINFORCE:
    generator = torch.Generator().manual_seed(0)
    policy = ActorCritic(OBSERVATIONS, ACTIONS, NetworkSettings(hidden_sizes=(8,)), generator)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return REINFORCE(policy, REINFORCEParams(**params), np.random.default_rng(0), FASTEST)


def one_lane(*rewards: float, terminated: int | None = None, truncated: int | None = None) -> Rollout:
    """A lane with these rewards that ends on the given row, if any."""
    rng, T = np.random.default_rng(1), len(rewards)
    flags = [np.zeros((T, 1), bool) for _ in range(2)]
    for flag, row in zip(flags, (terminated, truncated), strict=True):
        if row is not None:
            flag[row] = True
    step, lane = np.nonzero(rows_with_successor(flags[0] | flags[1]))
    return Rollout(
        header=LaneHeader("agent", (uuid.UUID(int=0),), ("agent",), OBSERVATIONS, ACTIONS),
        obs=rng.normal(size=(T, 1, 3)).astype(np.float32),
        action=rng.integers(0, 4, (T, 1)),
        reward=np.array(rewards, np.float32)[:, None],
        terminated=flags[0],
        truncated=flags[1],
        valid=np.ones((T, 1), bool),
        failed=np.zeros((T, 1), bool),
        policy_version=np.zeros((T, 1), np.int64),
        first_episode=np.zeros(1, np.int64),
        first_step=np.zeros(1, np.int64),
        successors=Successors(step, lane, rng.normal(size=(len(step), 3)).astype(np.float32)),
    )


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def weights(algorithm: REINFORCE, rollout: Rollout, value: np.ndarray, next_value: np.ndarray) -> list[float]:
    return algorithm.advantages(rollout, value, next_value)[:, 0].tolist()


def test_an_actions_weight_is_what_came_after_it():
    algorithm, junk = make_reinforce(gamma=0.5), column(7, 8, 9)
    # 1 + ½·2 + ¼·3, 2 + ½·3, 3; the untrained value plays no part.
    assert weights(algorithm, one_lane(1, 2, 3, terminated=2), junk, junk) == pytest.approx([2.75, 3.5, 3.0])


def test_rewards_before_an_action_do_not_count_for_it():
    algorithm, junk = make_reinforce(), column(0, 0, 0)
    first, second = (weights(algorithm, one_lane(r, 2, 3, terminated=2), junk, junk) for r in (1.0, 100.0))
    assert first[1:] == second[1:]
    assert second[0] - first[0] == pytest.approx(99.0)


def test_episodes_do_not_pay_for_each_other():
    algorithm, junk = make_reinforce(gamma=0.5), column(0, 0, 0)
    assert weights(algorithm, one_lane(1, 2, 40, terminated=1), junk, junk)[:2] == pytest.approx([2.0, 2.0])


def test_with_a_baseline_a_truncation_bootstraps_from_the_value_and_a_termination_does_not():
    algorithm = make_reinforce(with_vf_baseline=True, gamma=0.5, lam=1.0)
    value, next_value = column(10, 20), column(20, 40)
    # Truncated: 1 + ½·2 + ¼·40 − 10 and 2 + ½·40 − 20; terminated: without the 40.
    assert weights(algorithm, one_lane(1, 2, truncated=1), value, next_value) == pytest.approx([2.0, 2.0])
    assert weights(algorithm, one_lane(1, 2, terminated=1), value, next_value) == pytest.approx([-8.0, -18.0])


def test_with_a_baseline_the_end_of_the_block_bootstraps():
    algorithm = make_reinforce(with_vf_baseline=True, gamma=0.5, lam=1.0)
    assert weights(algorithm, one_lane(1, 2), column(10, 20), column(20, 40)) == pytest.approx([2.0, 2.0])


def test_the_policy_makes_one_pass_and_the_value_its_own_number():
    metrics = make_reinforce(with_vf_baseline=True, train_vf_iters=5).update([one_lane(1, 2, 3, terminated=2)], 0.0)
    assert (metrics["policy/gradient_steps"], metrics["value/gradient_steps"]) == (1, 5)


def test_without_a_baseline_the_value_is_not_trained():
    algorithm = make_reinforce()
    before = parameter_hash(algorithm.policy.critic)
    metrics = algorithm.update([one_lane(1, 2, 3, terminated=2)], 0.0)
    assert parameter_hash(algorithm.policy.critic) == before
    assert metrics["value/gradient_steps"] == 0


def test_an_update_is_one_adam_step_along_the_weighted_likelihood():
    algorithm = make_reinforce(gamma=0.5, normalize_advantages=False, max_grad_norm=None, pi_lr=1e-2)
    rollout = one_lane(1, 2, 3, terminated=2)
    policy = algorithm.policy
    logp = torch.log_softmax(policy.actor(torch.from_numpy(rollout.obs[:, 0])), -1)
    chosen = logp[torch.arange(3), torch.from_numpy(rollout.action[:, 0])]
    loss = -(chosen * torch.tensor([2.75, 3.5, 3.0])).mean()
    gradients = torch.autograd.grad(loss, policy.actor_parameters())
    # Adam's first step is −lr g / (|g| + ε).
    expected = [
        p - 1e-2 * g / (g.abs() + POLICY_GRADIENT_EPSILON)
        for p, g in zip(policy.actor_parameters(), gradients, strict=True)
    ]
    algorithm.update([rollout], 0.0)
    for parameter, want in zip(policy.actor_parameters(), expected, strict=True):
        torch.testing.assert_close(parameter, want, rtol=1e-4, atol=1e-6)


def test_actions_that_paid_become_likelier():
    algorithm = make_reinforce(pi_lr=1e-2, normalize_advantages=False, gamma=0.0)
    rollout = one_lane(1.0, terminated=0)
    obs, action = torch.from_numpy(rollout.obs[:, 0]), int(rollout.action[0, 0])

    def probability() -> float:
        with torch.no_grad():
            return float(algorithm.policy.distribution(obs)[0, action].exp())

    before = probability()
    for _ in range(20):
        algorithm.update([rollout], 0.0)
    assert probability() > before + 0.05


def test_defaults_are_the_documented_ones():
    expected = {
        "with_vf_baseline": False,
        "gamma": 0.98,
        "lam": 0.97,
        "traj_per_epoch": 8,
        "pi_lr": 3e-4,
        "vf_lr": 1e-3,
        "train_vf_iters": 80,
    }
    assert {name: getattr(REINFORCEParams(), name) for name in expected} == expected


@pytest.mark.parametrize("compiled", ["on", "off"])
def test_the_reported_loss_is_the_loss(compiled, monkeypatch):
    if compiled == "off":
        monkeypatch.setenv("RELAYRL_COMPILED", "off")
    algorithm = make_reinforce(normalize_advantages=False, gamma=0.9)
    rollout = one_lane(1.0, 2.0, -1.0, terminated=2)
    with torch.no_grad():
        distribution, _ = algorithm.policy(torch.from_numpy(rollout.obs[:, 0]))
        logp = algorithm.policy.head.log_prob(distribution, torch.from_numpy(rollout.action[:, 0])).numpy()
    to_go = np.array([1.0 + 0.9 * (2.0 - 0.9), 2.0 - 0.9, -1.0])
    metrics = algorithm.update([rollout], 0.0)
    assert metrics["policy/loss"] == pytest.approx(-(logp * to_go).mean(), rel=1e-5)
