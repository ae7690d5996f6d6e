"""Losses and whole updates, parameter by parameter, against Stable-Baselines3 on the same weights, rows and noise.

Both use Adam with our epsilon. Where the two weigh a loss differently, Adam takes the same step if epsilon is weighed alike.
"""

import uuid

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_off_policy import make_learner, random_transitions
from torch import nn

from relayrl.algorithms.optimizer import EPSILON
from relayrl.algorithms.params import PPOParams, SACParams, TD3Params
from relayrl.algorithms.ppo import PPO
from relayrl.algorithms.sac import SAC
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import rows_with_successor
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.settings import Activation, NetworkSettings

sb3 = pytest.importorskip("stable_baselines3")
from stable_baselines3.common.buffers import RolloutBuffer  # noqa: E402
from stable_baselines3.common.logger import Logger  # noqa: E402
from stable_baselines3.common.type_aliases import ReplayBufferSamples  # noqa: E402

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
        policy_kwargs={"net_arch": HIDDEN, "optimizer_kwargs": {"eps": EPSILON}, "n_critics": learner.num_q},
        buffer_size=1,
        **settings,
    )
    model.set_logger(Logger(None, []))
    model.replay_buffer = GivenRows(transitions.groups["agent"], group.policy.head, np.float32(0.9))
    for theirs, ours in zip(model.critic.q_networks, group.q.judges, strict=True):
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
    model.critic.optimizer.param_groups[0]["eps"] = 2 * EPSILON
    return learner, transitions, model


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_ddpg_and_td3_take_their_steps(algo):
    learner, transitions, model = td3_pair(algo)
    group = learner.groups["agent"]
    for update in range(1, 7):
        learner._generator.manual_seed(update)
        torch.manual_seed(update)
        metrics, _ = learner.update(transitions)
        model.train(1, 32)
        logged = model.logger.name_to_value
        assert metrics["value/loss"] == pytest.approx(0.5 * logged["train/critic_loss"], rel=1e-5)
        if algo == "ddpg" or update % 2 == 0:
            assert metrics["policy/loss"] == pytest.approx(logged["train/actor_loss"], rel=1e-4, abs=1e-6)
        assert_same_linears(linears(group.policy.actor), linears(model.actor))
        assert_same_linears(linears(group.target_policy.actor), linears(model.actor_target))
        for judge in range(learner.num_q):
            assert_same_linears(linears(group.q.judges[judge]), linears(model.critic.q_networks[judge]))
            assert_same_linears(linears(group.target_q.judges[judge]), linears(model.critic_target.q_networks[judge]))


def test_td3s_smoothing_noise_matters_to_that_comparison():
    learner, transitions, model = td3_pair("td3")
    learner._generator.manual_seed(1)
    torch.manual_seed(2)
    metrics, _ = learner.update(transitions)
    model.train(1, 32)
    assert metrics["value/loss"] != pytest.approx(0.5 * model.logger.name_to_value["train/critic_loss"], rel=1e-5)


class SeededSAC(SAC):
    """Draws next actions and own actions from seeds of their own, since the order of the two draws is not the algorithm."""

    def draw(self, group, features, mask):
        self._generator.manual_seed(0 if not torch.is_grad_enabled() else 1)
        return super().draw(group, features, mask)


def sac_pair(**settings):
    rates = {"actor_lr": RATE, "critic_lr": RATE, "temperature_lr": RATE, "tau": 0.05}
    learner = make_learner(SeededSAC, params=SACParams(**rates, **settings))
    transitions = random_transitions(learner)
    is_fixed = not learner.params.learns_temperature
    start = learner.params.init_temperature
    model = their_model(sb3.SAC, transitions, learner, tau=0.05, ent_coef=start if is_fixed else f"auto_{start}")
    if not is_fixed:
        model.ent_coef_optimizer.param_groups[0]["eps"] = EPSILON
    actor = model.actor
    copy_linears(linears(learner.groups["agent"].policy.actor)[:-1], linears(actor.latent_pi))
    last = linears(learner.groups["agent"].policy.actor)[-1]
    with torch.no_grad():
        for half, target in zip((slice(0, 2), slice(2, 4)), (actor.mu, actor.log_std), strict=True):
            target.weight.copy_(last.weight[half])
            target.bias.copy_(last.bias[half])
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
        for judge in range(2):
            assert_same_linears(linears(group.q.judges[judge]), linears(model.critic.q_networks[judge]))
            assert_same_linears(linears(group.target_q.judges[judge]), linears(model.critic_target.q_networks[judge]))


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
        next(super().get(self.buffer_size * self.n_envs))  # flattens the columns, world by world
        order = next(self.orders)
        for start in range(0, len(order), batch_size):
            yield self._get_samples(order[start : start + batch_size])


T, L = 16, 4
PPO_ACTIONS = {"discrete": spaces.Discrete(3), "multi_discrete": spaces.MultiDiscrete([2, 3]), "box": SCALED}


def ppo_pair(action_space: spaces.Space, num_minibatches: int, passes: int):
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
    ours = PPO(policy, params, GivenOrder(permutations))
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
        policy_kwargs={"net_arch": HIDDEN, "activation_fn": nn.Tanh, "optimizer_kwargs": {"eps": EPSILON}},
    )
    theirs.set_logger(Logger(None, []))
    for own, other in zip(ppo_linears(policy), sb3_linears(theirs.policy), strict=True):
        copy_linears(own, other)
    if isinstance(action_space, spaces.Box):
        theirs.policy.log_std.data.copy_(policy.log_std)
    # Ours shuffles the rows as they lie after the pass before; theirs number them world by world.
    order, orders = np.arange(T * L), []
    for permutation in permutations:
        order = order[permutation] if num_minibatches > 1 else order
        orders.append((order % L) * T + order // L)
    theirs.rollout_buffer.orders = iter(orders)
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


@pytest.mark.parametrize("num_minibatches", [1, 4])
@pytest.mark.parametrize("space", PPO_ACTIONS)
def test_ppo_takes_their_steps(space, num_minibatches):
    ours, theirs = ppo_pair(PPO_ACTIONS[space], num_minibatches, passes=3)
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


def test_td3s_defaults_are_theirs_where_both_have_them():
    model = sb3.TD3("MlpPolicy", Nowhere(SCALED), buffer_size=1, device="cpu")
    ours = TD3Params()
    assert (ours.gamma, ours.tau, ours.policy_frequency) == (model.gamma, model.tau, model.policy_delay)
    assert (ours.policy_noise, ours.noise_clip) == (model.target_policy_noise, model.target_noise_clip)
