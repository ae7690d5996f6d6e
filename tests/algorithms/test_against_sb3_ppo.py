"""PPO: losses, advantages and updates, parameter by parameter, against Stable-Baselines3 on the same weights and rows."""

import uuid

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from test_against_sb3 import (
    HIDDEN,
    OBSERVATIONS,
    RATE,
    SCALED,
    TOLERANCE,
    Nowhere,
    assert_same_linears,
    copy_linears,
    linears,
    sb3,
)
from torch import nn

from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.on_policy_params import PPOParams
from relayrl.algorithms.optimizer import POLICY_GRADIENT_EPSILON
from relayrl.algorithms.ppo import PPO
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import rows_with_successor
from relayrl.models.network_settings import Activation, NetworkSettings
from relayrl.models.policy import ActorCritic


class GivenOrder:
    """Stands in for our generator."""

    def __init__(self, permutations: list[np.ndarray]) -> None:
        self._permutations = iter(permutations)

    def permutation(self, count: int) -> np.ndarray:
        return next(self._permutations)


class OrderedBuffer(RolloutBuffer):
    """Their rollout buffer, with rows handed out in the orders it is given."""

    orders = iter(())

    def get(self, batch_size=None):
        next(super().get(self.buffer_size * self.n_envs))  # flattens the columns, environment by environment
        order = next(self.orders)
        for start in range(0, len(order), batch_size):
            yield self._get_samples(order[start : start + batch_size])


T, L = 16, 4
PPO_ACTIONS = {"discrete": spaces.Discrete(3), "multi_discrete": spaces.MultiDiscrete([2, 3]), "box": SCALED}


def ppo_pair(action_space: spaces.Space, num_minibatches: int, passes: int, backend: Backend = REFERENCE):
    params = PPOParams(
        pi_lr=RATE,
        vf_lr=RATE,
        gamma=0.9,
        lam=0.8,
        train_pi_iters=passes,
        train_vf_iters=passes,
        num_minibatches=num_minibatches,
        entropy_coef=0.02,
        max_grad_norm=None,
        normalize_advantages=False,
        target_kl=None,
    )
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    network = NetworkSettings(hidden_sizes=tuple(HIDDEN), activation=Activation.TANH)
    policy = ActorCritic(OBSERVATIONS, action_space, network, generator)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    permutations = [rng.permutation(T * L) for _ in range(passes)]
    ours = PPO(policy, params, GivenOrder(permutations), backend)
    theirs = sb3.PPO(
        "MlpPolicy",
        sb3.common.vec_env.DummyVecEnv([lambda: Nowhere(action_space)] * L),
        learning_rate=RATE,
        n_steps=T,
        batch_size=T * L // num_minibatches,
        n_epochs=passes,
        gamma=0.9,
        gae_lambda=0.8,
        ent_coef=0.02,
        vf_coef=0.5,
        max_grad_norm=1e9,
        normalize_advantage=False,
        device="cpu",
        rollout_buffer_class=OrderedBuffer,
        policy_kwargs={
            "net_arch": HIDDEN,
            "activation_fn": nn.Tanh,
            "optimizer_kwargs": {"eps": POLICY_GRADIENT_EPSILON},
        },
    )
    theirs.set_logger(Logger(None, []))
    for own, other in zip(ppo_linears(policy), sb3_linears(theirs.policy), strict=True):
        copy_linears(own, other)
    if isinstance(action_space, spaces.Box):
        theirs.policy.log_std.data.copy_(policy.log_std)
    # Ours numbers rows step by step, theirs environment by environment.
    orders = permutations if num_minibatches > 1 else [np.arange(T * L)] * passes
    theirs.rollout_buffer.orders = iter([(order % L) * T + order // L for order in orders])
    return ours, theirs


def ppo_linears(policy: ActorCritic) -> tuple[list[nn.Linear], list[nn.Linear]]:
    return linears(policy.actor), linears(policy.critic)


def sb3_linears(policy) -> tuple[list[nn.Linear], list[nn.Linear]]:
    actor = [*linears(policy.mlp_extractor.policy_net), policy.action_net]
    return actor, [*linears(policy.mlp_extractor.value_net), policy.value_net]


def random_rollout(action_space: spaces.Space, policy: ActorCritic) -> Rollout:
    """Running, terminated and truncated episodes, with log-probabilities of a policy that has moved since."""
    rng = np.random.default_rng(2)
    terminated = rng.random((T, L)) < 0.15
    truncated = (rng.random((T, L)) < 0.15) & ~terminated
    obs = rng.normal(size=(T, L, 3)).astype(np.float32)
    step, lane = np.nonzero(rows_with_successor(terminated | truncated))
    with torch.no_grad():
        parameters = policy.distribution(torch.from_numpy(obs)).numpy()
    action = policy.head.sample(parameters, rng)
    logp = policy.head.log_prob_numpy(parameters, action) + 0.2 * rng.normal(size=(T, L))
    return Rollout(
        header=LaneHeader("agent", tuple(uuid.UUID(int=b) for b in range(L)), ("agent",), OBSERVATIONS, action_space),
        obs=obs,
        action=action,
        reward=rng.normal(size=(T, L)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones((T, L), bool),
        failed=np.zeros((T, L), bool),
        policy_version=np.zeros((T, L), np.int64),
        first_episode=np.zeros(L, np.int64),
        first_step=np.zeros(L, np.int64),
        successors=Successors(step, lane, rng.normal(size=(len(step), 3)).astype(np.float32)),
        logp=logp.astype(np.float32),
    )


def fill(model, rollout: Rollout) -> None:
    """Give their buffer our rollout, as their collection would: a truncated step's reward holds γ V(final observation)."""
    buffer, policy = model.rollout_buffer, model.policy
    ended = rollout.terminated | rollout.truncated
    final = np.zeros((T, L, 3), np.float32)
    final[rollout.successors.step, rollout.successors.lane] = rollout.successors.obs
    buffer.reset()
    with torch.no_grad():
        for t in range(T):
            obs = torch.from_numpy(rollout.obs[t])
            final_value = policy.predict_values(torch.from_numpy(final[t]))[:, 0].numpy()
            reward = rollout.reward[t] + 0.9 * final_value * rollout.truncated[t]
            starts = np.ones(L, bool) if t == 0 else ended[t - 1]
            value, logp = policy.predict_values(obs), torch.from_numpy(rollout.logp[t])
            buffer.add(rollout.obs[t], rollout.action[t].reshape(L, -1), reward, starts, value, logp)
        last_value = policy.predict_values(torch.from_numpy(final[-1]))
    buffer.compute_returns_and_advantage(last_value, ended[-1])


@pytest.mark.parametrize("backend", [REFERENCE, FASTEST], ids=["reference", "accelerator"])
@pytest.mark.parametrize("num_minibatches", [1, 4])
@pytest.mark.parametrize("space", PPO_ACTIONS)
def test_ppo_takes_their_steps(space, num_minibatches, backend):
    ours, theirs = ppo_pair(PPO_ACTIONS[space], num_minibatches, 3, backend)
    rollout = random_rollout(PPO_ACTIONS[space], ours.policy)
    fill(theirs, rollout)
    metrics = ours.update([rollout], 0.0)
    theirs.train()
    logged = theirs.logger.name_to_value
    assert metrics["policy/loss"] == pytest.approx(logged["train/policy_gradient_loss"], rel=1e-4, abs=1e-6)
    assert metrics["policy/entropy"] == pytest.approx(-logged["train/entropy_loss"], rel=1e-5)
    assert metrics["policy/clip_fraction"] == pytest.approx(logged["train/clip_fraction"])
    assert metrics["value/loss"] == pytest.approx(0.5 * logged["train/value_loss"], rel=1e-5)
    assert metrics["policy/clip_fraction"] > 0
    for own, other in zip(ppo_linears(ours.policy), sb3_linears(theirs.policy), strict=True):
        assert_same_linears(own, other)
    if space == "box":
        torch.testing.assert_close(ours.policy.log_std, theirs.policy.log_std, **TOLERANCE)


def test_ppos_advantages_are_theirs_at_truncations_too():
    ours, theirs = ppo_pair(PPO_ACTIONS["discrete"], 1, passes=1)
    rollout = random_rollout(PPO_ACTIONS["discrete"], ours.policy)
    fill(theirs, rollout)
    batch = ours._prepare(rollout, None)
    np.testing.assert_allclose(batch.advantage.reshape(T, L), theirs.rollout_buffer.advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.target.reshape(T, L), theirs.rollout_buffer.returns, rtol=1e-4, atol=1e-5)
