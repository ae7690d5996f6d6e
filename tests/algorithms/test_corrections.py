"""What other implementations of these algorithms get wrong: one test for each, which fails on the wrong version.

Target networks that begin as copies, frozen critics and scaled actions are in `test_off_policy`; the minimum of both twins,
clipped smoothing noise and the common delay of policy and targets in `test_td3`; reward-to-go in `test_reinforce`.
"""

import uuid

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_off_policy import PAIR, make_learner, random_transitions, target_values
from test_td3 import batch_of, set_constant

from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.critics.critic_views import CentralView, LocalView
from relayrl.algorithms.on_policy_params import PPOParams
from relayrl.algorithms.ppo import PPO
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.environment_registry import make_vector
from relayrl.extend import Assembly, assemble
from relayrl.models.heads.discrete_heads import CategoricalHead
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.runtime.collector import Collector
from relayrl.training.replay.joint_replay import JointReplay

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
SCALED = spaces.Box(-1.0, 1.0, (1,), np.float32)


def rollout(action_space: spaces.Space, T: int = 8, **columns) -> Rollout:
    """One lane of random steps; `columns` replace what is given."""
    rng = np.random.default_rng(0)
    nothing = np.zeros((T, 1), bool)
    action_space.seed(0)
    action = np.stack([np.asarray(action_space.sample()) for _ in range(T)])[:, None]
    given = {
        "obs": rng.normal(size=(T, 1, 3)).astype(np.float32),
        "action": action,
        "reward": rng.normal(size=(T, 1)).astype(np.float32),
        "terminated": nothing,
        "truncated": nothing,
        "successors": Successors(np.array([T - 1]), np.array([0]), rng.normal(size=(1, 3)).astype(np.float32)),
    }
    return Rollout(
        header=LaneHeader("agent", (uuid.UUID(int=0),), ("agent",), OBSERVATIONS, action_space),
        valid=~nothing,
        failed=nothing,
        policy_version=np.zeros((T, 1), np.int64),
        first_episode=np.zeros(1, np.int64),
        first_step=np.zeros(1, np.int64),
        **(given | columns),
    )


def make_ppo(**params) -> PPO:
    generator = torch.Generator().manual_seed(0)
    policy = ActorCritic(OBSERVATIONS, spaces.Discrete(3), NetworkSettings(hidden_sizes=(8,)), generator)
    return PPO(policy, PPOParams(**params), np.random.default_rng(0), FASTEST)


def test_log_probabilities_are_log_softmax_of_the_outputs():
    # The raw output of the choice, or the logarithm of a softmax that has underflowed, would be 0, 200 or −∞.
    head = CategoricalHead(spaces.Discrete(3))
    outputs = torch.tensor([[200.0, 0.0, 199.0]])
    logp = [float(head.log_prob(head.parameters(outputs, None), torch.tensor([a]))) for a in range(3)]
    assert logp == pytest.approx([-0.3132617, -200.3132617, -1.3132617])
    in_numpy = head.parameters_numpy(outputs.numpy(), None)
    assert head.log_prob_numpy(in_numpy, np.array([1])) == pytest.approx([-200.3132617])
    assert np.exp(in_numpy).sum() == pytest.approx(1.0)


def test_the_kl_estimate_is_not_negative_where_the_mean_log_ratio_is():
    # The policy that acted is said to have found every action less likely: the plain estimate E[log old − log new] is −½.
    ppo = make_ppo(train_pi_iters=1, train_vf_iters=1, target_kl=None)
    data = rollout(spaces.Discrete(3))
    features = ppo._update.features(data.obs[:, 0])
    logp = ppo._update.log_prob(features, None, data.action[:, 0])[:, None] - np.float32(0.5)
    metrics = ppo.update([rollout(spaces.Discrete(3), action=data.action, logp=logp)], 0.0)
    assert metrics["policy/kl"] == pytest.approx(np.exp(0.5) - 1.5, rel=1e-4)


@pytest.mark.parametrize("vf_lr", [1e-4, 1e-2])
def test_the_values_learning_rate_is_the_values(vf_lr):
    ppo = make_ppo(pi_lr=1e-3, vf_lr=vf_lr, train_pi_iters=1, train_vf_iters=1, max_grad_norm=None)
    before = [p.clone() for p in ppo.policy.critic_parameters()], [p.clone() for p in ppo.policy.actor_parameters()]
    ppo.update([rollout(spaces.Discrete(3))], 0.0)
    after = ppo.policy.critic_parameters(), ppo.policy.actor_parameters()
    # Adam's first step moves the parameters of large gradients by the learning rate.
    largest = [
        max(float((new - old).detach().abs().max()) for old, new in zip(*pair, strict=True))
        for pair in zip(before, after, strict=True)
    ]
    assert largest[0] == pytest.approx(vf_lr, rel=1e-2)
    assert largest[1] == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize(("flag", "bootstraps"), [("terminated", False), ("truncated", True)])
@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_only_a_truncation_bootstraps_and_from_what_was_seen_last(algo, flag, bootstraps):
    learner = make_learner(algo, box=SCALED, **({"init_temperature": 1e-9} if algo == "sac" else {}))
    group = learner.groups["agent"]
    # Targets value a state by its first feature, whatever is done in it; only the final observation has one.
    for critic in group.target_q.critics:
        set_constant(critic, 0.0)
        with torch.no_grad():
            for layer in critic.linears():
                layer.weight[0, 0] = 1.0
    ended = np.zeros((4, 1), bool)
    ended[1] = True
    obs = np.zeros((4, 1, 3), np.float32)
    final = np.array([[50.0, 0, 0], [0, 0, 0]], np.float32)
    data = rollout(
        SCALED,
        T=4,
        obs=obs,
        reward=np.ones((4, 1), np.float32),
        successors=Successors(np.array([1, 3]), np.array([0, 0]), final),
        **{flag: ended},
    )
    replay = JointReplay(4, 1)
    replay.add({"agent": data})
    sampled = replay.sample(64, np.random.default_rng(0), gamma=0.9)
    target = target_values(learner, "agent", learner.batch(sampled))[:, 0]
    expected = np.where(sampled.rows == 1, 1.0 + 0.9 * 50.0 * bootstraps, 1.0)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-4)


def parts_of(algo: str, learning_starts: int) -> tuple[Assembly, Collector]:
    flags = {"algo": algo, "environment.num_envs": 1, "network.hidden_sizes": (8,)}
    settings = build_run_settings("Pendulum-v1", None, flags | {"params.learning_starts": learning_starts}, [])
    env = make_vector(settings.env, settings.environment)
    parts = assemble(settings, env)
    return parts, Collector(env, parts.actors, num_steps=300, seed=0, rng=np.random.default_rng(0))


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_exploration_noise_is_in_the_actions_that_are_taken(algo):
    parts, collector = parts_of(algo, learning_starts=1)
    parts.trainer.num_env_steps = 1
    data = collector.collect(0)["agent"]
    greedy = parts.actors["agent"].act_greedily(data.obs[:, 0])
    # A tenth of half the range, which is 2.
    assert float((data.action[:, 0] - greedy).std()) == pytest.approx(0.2, rel=0.15)
    assert float(np.abs(data.action).max()) <= 2.0


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_the_first_steps_are_uniform_over_the_bounds(algo):
    _, collector = parts_of(algo, learning_starts=1000)
    action = collector.collect(0)["agent"].action.reshape(-1)
    counts, _ = np.histogram(action, bins=5, range=(-2.0, 2.0))
    assert counts.sum() == 300
    assert ((counts - 60) ** 2 / 60).sum() < 13.3  # 99 % of χ² with 4 degrees of freedom


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_a_policys_actions_reach_the_bounds_and_no_further(algo):
    parts, _ = parts_of(algo, learning_starts=1)
    policy, obs = parts.policies["agent"], np.zeros((1, 3), np.float32)
    for output, bound in ((100.0, 2.0), (-100.0, -2.0)):
        set_constant(policy.actor, output)
        assert parts.actors["agent"].act_greedily(obs) == pytest.approx(np.array([[bound]]))


def played(learner, num_rows: int, seed: int):
    """Uniform actions in a game that pays both players the product of their actions and is then over."""
    transitions = random_transitions(learner, num_rows, seed)
    product = 1.0
    for rows in transitions.groups.values():
        rows.obs[:], rows.next_obs[:], rows.discount[:] = 0.0, 0.0, 0.0
        product = product * rows.action[..., 0].prod(1, keepdims=True)
    for rows in transitions.groups.values():
        rows.reward[:] = product
    return transitions


def fitted_values(algo: str, view: type, groups: dict[str, int]) -> np.ndarray:
    """What the first player's critic thinks of both playing 1, of both playing −1 and of playing against each other."""
    settings = {"critic_lr": 1e-2, "actor_lr": 1e-12}
    learner = make_learner(algo, groups=groups, view=view, box=SCALED, hidden_sizes=(32,), **settings)
    for update in range(300):
        learner.update(played(learner, 128, update))
    first = next(iter(groups))
    joint = played(learner, 3, 0)
    for rows in joint.groups.values():
        rows.action[:] = np.array([1, -1, 1], np.float32)[:, None, None]
    last = joint.groups[list(groups)[-1]].action
    last[2, -1] = -1.0
    batch = learner.batch(joint)
    with torch.no_grad():
        inputs = learner.view.inputs(
            first, {n: b.features for n, b in batch.items()}, {n: b.action for n, b in batch.items()}
        )
        return learner.groups[first].q(inputs[:: groups[first]])[0].numpy()


@pytest.mark.parametrize("groups", [PAIR, {"left": 1, "right": 1}], ids=["one group", "two groups"])
@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_a_central_critic_knows_the_best_joint_action(algo, groups):
    np.testing.assert_allclose(fitted_values(algo, CentralView, groups), [1.0, 1.0, -1.0], atol=0.25)


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_a_local_critic_cannot_tell_it_from_the_worst(algo):
    # Whatever one player does, the other's half of the game makes it worth nothing on average.
    np.testing.assert_allclose(fitted_values(algo, LocalView, PAIR), [0.0, 0.0, 0.0], atol=0.3)


@pytest.mark.parametrize(("view", "matters"), [(CentralView, True), (LocalView, False)])
@pytest.mark.parametrize("whose", ["target_policy", "policy"])
def test_central_targets_use_what_everybodys_target_policy_does_next(view, matters, whose):
    learner = make_learner("ddpg", groups={"left": 1, "right": 1}, view=view)
    batch = batch_of(learner)
    before = target_values(learner, "left", batch)
    set_constant(getattr(learner.groups["right"], whose).actor, 3.0)
    changed = not np.array_equal(target_values(learner, "left", batch), before)
    assert changed == (matters and whose == "target_policy")


def test_an_actors_step_keeps_the_others_actions_of_the_batch():
    learner = make_learner("ddpg", groups={"left": 1, "right": 1}, view=CentralView)
    losses = []
    for output in (0.0, 3.0):
        # The right one's policy is not asked when the left one's is improved; its recorded actions are.
        set_constant(learner.groups["right"].policy.actor, output)
        losses.append(learner.update_policies(batch_of(learner))["left/policy/loss"])
        learner = make_learner("ddpg", groups={"left": 1, "right": 1}, view=CentralView)
    assert losses[0] == losses[1]
