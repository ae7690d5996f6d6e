"""DDPG, TD3, SAC: losses and updates, parameter by parameter, against Stable-Baselines3 on the same weights, rows and noise.

Both use Adam with our epsilon. Where the two weigh a loss differently, Adam takes the same step if epsilon is weighed alike.
"""

import math

import gymnasium
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from test_off_policy import make_learner, random_transitions
from torch import nn

from relayrl.algorithms.optimizer import USUAL_EPSILON
from relayrl.algorithms.params import SACParams, TD3Params
from relayrl.algorithms.sac import SAC

SCALED = spaces.Box(-1.0, 1.0, (2,), np.float32)
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
HIDDEN = [8, 8]
RATE = 1e-3
TOLERANCE = {"rtol": 1e-5, "atol": 2e-6}


class Nowhere(gymnasium.Env):
    """Spaces, and nothing to do in them."""

    def __init__(self, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = OBSERVATIONS, action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


def copy_linears(sources: list[nn.Linear], targets: list[nn.Linear]) -> None:
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            target.weight.copy_(source.weight)
            target.bias.copy_(source.bias)


def linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def assert_same_linears(ours: list[nn.Linear], theirs: list[nn.Linear]) -> None:
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.weight, other.weight, **TOLERANCE)
        torch.testing.assert_close(own.bias, other.bias, **TOLERANCE)


class TorchNormals:
    """Stands in for the algorithm's generator: one seed of torch's after the other, one for each draw."""

    def __init__(self, seeds: list[int]) -> None:
        self._seeds = iter(seeds)

    def standard_normal(self, shape, dtype):
        return torch.randn(shape, generator=torch.Generator().manual_seed(next(self._seeds))).numpy()


class GivenRows:
    """Stands in for their replay buffer: gives the rows of our transitions, actions scaled as theirs are."""

    def __init__(self, rows, head, gamma: float) -> None:
        flat = [torch.from_numpy(c[:, 0]) for c in (rows.obs, rows.action, rows.next_obs, rows.reward, rows.discount)]
        obs, action, next_obs, reward, discount = flat
        scaled = (action - torch.from_numpy(head.center)) / torch.from_numpy(head.half_range)
        done = (discount == 0).float()
        assert torch.equal(discount, gamma * (1 - done))
        self._samples = ReplayBufferSamples(obs, scaled, next_obs, done[:, None], reward[:, None])

    def sample(self, batch_size: int, env=None) -> ReplayBufferSamples:
        return self._samples


def their_model(kind: type, transitions, learner, **settings):
    """One of their off-policy models that will be trained on our transitions."""
    group = learner.groups["agent"]
    model = kind(
        "MlpPolicy",
        Nowhere(SCALED),
        learning_rate=RATE,
        gamma=0.9,
        device="cpu",
        policy_kwargs={"net_arch": HIDDEN, "optimizer_kwargs": {"eps": USUAL_EPSILON}, "n_critics": learner.num_q},
        buffer_size=1,
        **settings,
    )
    model.set_logger(Logger(None, []))
    model.replay_buffer = GivenRows(transitions.groups["agent"], group.policy.head, np.float32(0.9))
    for theirs, ours in zip(model.critic.q_networks, group.q.critics, strict=True):
        copy_linears(linears(ours), linears(theirs))
    model.critic_target.load_state_dict(model.critic.state_dict())
    return model


def td3_pair(algo: str, **settings):
    rates = {"actor_lr": RATE, "critic_lr": RATE, "tau": 0.05}
    learner = make_learner(algo, **rates, **settings)
    transitions = random_transitions(learner)
    if algo == "td3":
        model = their_model(sb3.TD3, transitions, learner, tau=0.05, policy_delay=2)
    else:
        model = their_model(sb3.DDPG, transitions, learner, tau=0.05)
    copy_linears(linears(learner.groups["agent"].policy.actor), linears(model.actor))
    model.actor_target.load_state_dict(model.actor.state_dict())
    # They minimise twice our loss, which is our step with twice the epsilon.
    model.critic.optimizer.param_groups[0]["eps"] = 2 * USUAL_EPSILON
    return learner, transitions, model


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_ddpg_and_td3_take_their_steps(algo):
    learner, transitions, model = td3_pair(algo)
    group = learner.groups["agent"]
    for update in range(1, 7):
        learner.rng = TorchNormals([update])
        torch.manual_seed(update)
        metrics, _ = learner.update(transitions)
        model.train(1, 32)
        logged = model.logger.name_to_value
        assert metrics["value/loss"] == pytest.approx(0.5 * logged["train/critic_loss"], rel=1e-5)
        if algo == "ddpg" or update % 2 == 0:
            assert metrics["policy/loss"] == pytest.approx(logged["train/actor_loss"], rel=1e-4, abs=1e-6)
        assert_same_linears(linears(group.policy.actor), linears(model.actor))
        assert_same_linears(linears(group.target_policy.actor), linears(model.actor_target))
        for q in range(learner.num_q):
            assert_same_linears(linears(group.q.critics[q]), linears(model.critic.q_networks[q]))
            assert_same_linears(linears(group.target_q.critics[q]), linears(model.critic_target.q_networks[q]))


def test_td3s_smoothing_noise_matters_to_that_comparison():
    learner, transitions, model = td3_pair("td3")
    learner.rng = TorchNormals([1])
    torch.manual_seed(2)
    metrics, _ = learner.update(transitions)
    model.train(1, 32)
    assert metrics["value/loss"] != pytest.approx(0.5 * model.logger.name_to_value["train/critic_loss"], rel=1e-5)


def sac_pair(**settings):
    rates = {"actor_lr": RATE, "critic_lr": RATE, "temperature_lr": RATE, "tau": 0.05}
    learner = make_learner(SAC, params=SACParams(**rates, **settings))
    transitions = random_transitions(learner)
    is_fixed = not learner.params.learns_temperature
    start = learner.params.init_temperature
    model = their_model(sb3.SAC, transitions, learner, tau=0.05, ent_coef=start if is_fixed else f"auto_{start}")
    if not is_fixed:
        model.ent_coef_optimizer.param_groups[0]["eps"] = USUAL_EPSILON
    actor = model.actor
    copy_linears(linears(learner.groups["agent"].policy.actor)[:-1], linears(actor.latent_pi))
    last = linears(learner.groups["agent"].policy.actor)[-1]
    with torch.no_grad():
        for half, target in zip((slice(0, 2), slice(2, 4)), (actor.mu, actor.log_std), strict=True):
            target.weight.copy_(last.weight[half])
            target.bias.copy_(last.bias[half])
    distribution = actor.action_dist

    def exact_log_prob(actions, before_tanh):
        # Theirs is log(1 − a² + 10⁻⁶): off where tanh saturates.
        log_slope = 2.0 * (math.log(2.0) - before_tanh - torch.nn.functional.softplus(-2.0 * before_tanh))
        return DiagGaussianDistribution.log_prob(distribution, before_tanh) - log_slope.sum(1)

    distribution.log_prob = exact_log_prob
    original = actor.action_log_prob

    def seeded(obs):
        torch.manual_seed(0 if not torch.is_grad_enabled() else 1)
        return original(obs)

    actor.action_log_prob = seeded
    return learner, transitions, model


@pytest.mark.parametrize("learns_temperature", [True, False])
def test_sac_takes_their_steps(learns_temperature):
    learner, transitions, model = sac_pair(learns_temperature=learns_temperature, init_temperature=0.3)
    group = learner.groups["agent"]
    for _ in range(5):
        # Next actions and own actions from seeds of their own, since the order of the two draws is not the algorithm.
        learner.rng = TorchNormals([0, 1])
        metrics, _ = learner.update(transitions)
        model.train(1, 32)
        logged = model.logger.name_to_value
        assert metrics["value/loss"] == pytest.approx(logged["train/critic_loss"], rel=1e-5)
        assert metrics["policy/loss"] == pytest.approx(logged["train/actor_loss"], rel=1e-4, abs=1e-6)
        assert metrics["policy/temperature"] == pytest.approx(logged["train/ent_coef"], rel=1e-5)
        assert_same_linears(linears(group.policy.actor)[:-1], linears(model.actor.latent_pi))
        last = linears(group.policy.actor)[-1]
        heads = torch.cat([model.actor.mu.weight, model.actor.log_std.weight])
        torch.testing.assert_close(last.weight, heads, **TOLERANCE)
        for q in range(2):
            assert_same_linears(linears(group.q.critics[q]), linears(model.critic.q_networks[q]))
            assert_same_linears(linears(group.target_q.critics[q]), linears(model.critic_target.q_networks[q]))


def test_td3s_defaults_are_theirs_where_both_have_them():
    model = sb3.TD3("MlpPolicy", Nowhere(SCALED), buffer_size=1, device="cpu")
    ours = TD3Params()
    assert (ours.gamma, ours.tau, ours.policy_frequency) == (model.gamma, model.tau, model.policy_delay)
    assert (ours.policy_noise, ours.noise_clip) == (model.target_policy_noise, model.target_noise_clip)
