"""SAC: its log-probabilities, its targets, and the temperature."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_off_policy import hashes, make_learner, random_transitions, target_values
from test_td3 import batch_of, set_constant

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.critics.critic_views import LocalView
from relayrl.algorithms.params import SACParams
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.updates.replay_batch import GroupBatch
from relayrl.models.heads.box_heads import SquashedGaussianHead
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import Policy


def gaussian_policy(learner: SAC, mean: float, log_std: float) -> None:
    """Make the policy's distribution the same everywhere."""
    actor = learner.groups["agent"].policy.actor
    set_constant(actor, mean)
    with torch.no_grad():
        actor.linears()[-1].bias[2:] = log_std


def draw(learner: SAC, num_rows: int, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn actions and their log-probabilities, where the policy sees ones."""
    group = learner.groups["agent"]
    with torch.no_grad():
        action, logp = group.act(group.policy, torch.ones(num_rows, 1, 3), mask, learner.rng)
    return action[:, 0], logp[:, 0]


def test_log_probabilities_are_the_density_of_the_squashed_action():
    learner = make_learner("sac")
    gaussian_policy(learner, 0.3, -0.5)
    action, logp = draw(learner, 4000)
    # p(a) = N(artanh a; μ, σ) / (1 − a²), for two independent components.
    x = torch.atanh(action.double())
    normal = torch.distributions.Normal(0.3, math.exp(-0.5))
    expected = (normal.log_prob(x) - (1 - action.double() ** 2).log()).sum(-1)
    inside = (action.abs() < 0.99).all(-1)
    torch.testing.assert_close(logp[inside].double(), expected[inside], rtol=1e-3, atol=1e-3)
    assert float(inside.float().mean()) > 0.9


def test_densities_of_drawn_actions_integrate_to_one():
    # E[1 / p(a)] over the box [−1, 1]² is its area, 4, if and only if p is a density of the drawn actions.
    learner = make_learner("sac")
    gaussian_policy(learner, 0.0, -0.3)
    assert float((-draw(learner, 200_000)[1]).exp().mean()) == pytest.approx(4.0, rel=0.05)


def test_the_target_is_the_minimum_of_the_twins_with_the_entropys_reward():
    learner = make_learner("sac", init_temperature=0.2)
    twins = learner.groups["agent"].target_q.critics
    set_constant(twins[0], 5.0)
    set_constant(twins[1], 2.0)
    batch = batch_of(learner)
    group, state = learner.groups["agent"], learner.rng.bit_generator.state
    with torch.no_grad():
        _, logp = group.act(group.policy, batch["agent"].next_features, None, learner.rng)
    learner.rng.bit_generator.state = state
    target = target_values(learner, "agent", batch)
    expected = batch["agent"].reward + batch["agent"].discount * (2.0 - 0.2 * logp)
    np.testing.assert_allclose(target, expected, rtol=1e-5)


def test_the_policys_loss_uses_the_minimum_of_the_twins():
    learner = make_learner("sac", init_temperature=1e-9)
    twins = learner.groups["agent"].q.critics
    set_constant(twins[0], 5.0)
    set_constant(twins[1], 2.0)
    assert learner.update_policies(batch_of(learner))["policy/loss"] == pytest.approx(-2.0, abs=1e-5)


@pytest.mark.parametrize(("log_std", "rises"), [(-5.0, True), (0.0, False)])
def test_the_temperature_rises_where_entropy_is_below_its_target(log_std, rises):
    learner = make_learner("sac", temperature_lr=0.01)
    gaussian_policy(learner, 0.0, log_std)
    batch = batch_of(learner)
    first = learner.update_policies(batch)["policy/temperature"]
    second = learner.update_policies(batch)["policy/temperature"]
    assert first == 1.0
    assert math.log(second) == pytest.approx(0.01 if rises else -0.01, rel=1e-2)


def test_a_fixed_temperature_stays():
    learner = make_learner("sac", learns_temperature=False, init_temperature=0.3)
    data = random_transitions(learner)
    for _ in range(3):
        metrics, _ = learner.update(data)
    assert metrics["policy/temperature"] == pytest.approx(0.3)


def test_the_temperature_vanishes_where_entropy_costs_nothing():
    learner = make_learner("sac", temperature_lr=0.03, actor_lr=0.01, target_entropy=-1.0, critic_lr=1e-12)
    set_constant(learner.groups["agent"].q.critics[0], 0.0)
    set_constant(learner.groups["agent"].q.critics[1], 0.0)
    batch = batch_of(learner, 256)
    entropy = [learner.update_policies(batch)["policy/entropy"] for _ in range(400)]
    # Without rewards any positive temperature drives entropy up to that of the uniform, log 4; its target holds α down.
    assert entropy[-1] > -1.0
    assert learner.update_policies(batch)["policy/temperature"] < 0.05


def test_the_target_entropy_is_minus_the_number_of_actions():
    assert make_learner("sac").target_entropy("agent") == -2.0
    assert make_learner("sac", target_entropy=0.5).target_entropy("agent") == 0.5


def test_the_temperature_is_part_of_the_state():
    first, second = make_learner("sac", temperature_lr=0.1), make_learner("sac", temperature_lr=0.1)
    data = random_transitions(first)
    first.update(data)
    second.load_state_dict(first.state_dict())
    alphas = [learner.update(data)[0]["policy/temperature"] for learner in (first, second)]
    assert alphas[0] == alphas[1] != 1.0


def test_every_optimizer_is_named():
    assert len(make_learner("sac").optimizers()) == 3
    assert len(make_learner("td3").optimizers()) == 2


def test_policy_critics_and_their_targets_move_with_every_step():
    learner = make_learner("sac")
    before = hashes(learner)["agent"]
    learner.update(random_transitions(learner))
    policy, q, _, target_q = (old != new for old, new in zip(before, hashes(learner)["agent"], strict=True))
    assert (policy, q, target_q) == (True, True, True)


def test_acting_draws_from_the_distribution_that_is_trained():
    learner = make_learner("sac")
    gaussian_policy(learner, 0.4, -1.0)
    policy = learner.groups["agent"].policy
    assert isinstance(policy.head, SquashedGaussianHead)
    actor, obs = live_actor(policy), np.zeros((50_000, 3), np.float32)
    acted = actor.act(obs, None, np.random.default_rng(0))
    drawn = draw(learner, 50_000)[0].numpy()
    acted_scaled = (acted - policy.head.center) / policy.head.half_range
    for quantile in (0.1, 0.5, 0.9):
        expected = np.quantile(drawn, quantile, axis=0)
        np.testing.assert_allclose(np.quantile(acted_scaled, quantile, axis=0), expected, atol=0.01)
    np.testing.assert_allclose(
        actor.act_greedily(obs[:1]), [[2 * math.tanh(0.4), 0.5 + 0.5 * math.tanh(0.4)]], rtol=1e-5
    )


def discrete_sac(space: spaces.Space, **settings) -> SAC:
    observations = spaces.Box(-1, 1, (3,))
    network, generator = NetworkSettings(hidden_sizes=(8,)), torch.Generator().manual_seed(0)
    policy = Policy(observations, likelihood_head(space), network, generator)
    params = SACParams(**settings)
    return SAC({"agent": policy}, {"agent": 1}, params, torch.Generator().manual_seed(1), LocalView)


def test_a_discrete_choice_is_drawn_one_hot_with_its_probability():
    learner = discrete_sac(spaces.Discrete(3))
    actor = learner.groups["agent"].policy.actor
    set_constant(actor, 0.0)
    with torch.no_grad():
        actor.linears()[-1].bias.copy_(torch.tensor([0.5, 0.3, 0.2]).log())
    action, logp = draw(learner, 50_000)
    np.testing.assert_allclose(np.sort(action, -1), np.tile([0.0, 0.0, 1.0], (50_000, 1)), atol=1e-6)
    assert action.mean(0).tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    # −H: .5 log .5 + .3 log .3 + .2 log .2
    assert np.unique(logp).tolist() == pytest.approx([-1.0296531], abs=1e-5)


def test_forbidden_choices_are_not_drawn():
    learner = discrete_sac(spaces.MultiDiscrete([2, 3]))
    mask = torch.tensor([True, False, False, True, True]).expand(1000, 1, 5)
    action, _ = draw(learner, 1000, mask)
    assert action.sum(0).tolist()[:3] == pytest.approx([1000.0, 0.0, 0.0])
    assert float(action[..., 3:].sum()) == pytest.approx(1000.0)


def test_gradients_pass_a_drawn_choice():
    learner = discrete_sac(spaces.Discrete(3))
    group = learner.groups["agent"]
    action, _ = group.act(group.policy, torch.ones(16, 1, 3), None, learner.rng)
    action[..., 0].sum().backward()
    assert float(group.actor_optimizer.gradient.abs().sum()) > 0


@pytest.mark.parametrize(
    ("space", "largest"), [(spaces.Discrete(3), math.log(3)), (spaces.MultiDiscrete([2, 3]), math.log(6))]
)
def test_the_target_entropy_of_choices_is_half_the_largest(space, largest):
    assert discrete_sac(space).target_entropy("agent").item() == pytest.approx(0.5 * largest)


def masked_batch(learner: SAC, mask: np.ndarray) -> dict[str, GroupBatch]:
    """Rows that allow the actions of `mask` [M, A]."""
    M, A = mask.shape
    one, rng = torch.ones(M, 1), np.random.default_rng(0)
    features, valid = torch.from_numpy(rng.normal(size=(2, M, 1, 3)).astype(np.float32)), one > 0
    rows = (features[0], torch.zeros(M, 1, A), one, features[1], one, valid, valid)
    allowed = torch.from_numpy(mask)[:, None]
    return {"agent": GroupBatch(*rows, allowed, allowed, one / M)}


def temperatures(learner: SAC, mask: np.ndarray, num_updates: int) -> list[float]:
    for critic in learner.groups["agent"].q.critics:
        set_constant(critic, 0.0)
    batch = masked_batch(learner, mask)
    return [learner.update_policies(batch)["policy/temperature"] for _ in range(num_updates)]


def test_forbidden_choices_do_not_raise_the_temperature():
    learner = discrete_sac(spaces.Discrete(8), temperature_lr=0.05, init_temperature=3.0)
    # Two of eight actions: an entropy of at most log 2 = 0.69, and half of log 8 = 1.04 is out of reach.
    alphas = temperatures(learner, np.tile(np.arange(8) < 2, (16, 1)), 300)
    assert alphas[0] == pytest.approx(3.0)
    assert alphas[-1] < 0.01


def test_rows_with_a_single_choice_leave_the_temperature_as_it_is():
    learner = discrete_sac(spaces.Discrete(8), temperature_lr=0.05)
    assert temperatures(learner, np.tile(np.arange(8) == 5, (16, 1)), 50) == [1.0] * 50


@pytest.mark.parametrize(("given", "share"), [(None, 0.5), (0.3 * math.log(6), 0.3)])
def test_the_target_entropy_is_that_of_what_each_row_allows(given, share):
    learner = discrete_sac(spaces.MultiDiscrete([2, 3]), target_entropy=given)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 1, 1, 0, 0]], bool)[:, None]
    target = learner.target_entropy("agent", torch.from_numpy(mask))
    assert target[:, 0].tolist() == pytest.approx([share * math.log(6), share * math.log(2), share * math.log(2), 0.0])


@pytest.mark.parametrize("largest", [8, 3])
def test_mixed_rows_have_the_mean_of_their_targets(largest):
    learner = discrete_sac(spaces.Discrete(8), temperature_lr=0.05)
    set_constant(learner.groups["agent"].policy.actor, 0.0)
    mask = np.stack([np.arange(8) < 1, np.arange(8) < largest])
    temperatures(learner, mask, 1)
    # A uniform policy: log 1 and log n, with targets of half of each.
    surplus = learner.temperature_optimizers["agent"].gradient
    assert float(surplus) == pytest.approx(0.25 * math.log(largest), abs=1e-4)


def test_the_bootstrap_of_a_truncated_row_is_over_what_its_last_observation_allows():
    learner = discrete_sac(spaces.Discrete(3), init_temperature=0.5)
    set_constant(learner.groups["agent"].policy.actor, 0.0)
    for critic in learner.groups["agent"].target_q.critics:
        set_constant(critic, 0.0)
        with torch.no_grad():  # Q is 1, 2 or 4, by the action alone
            first, last = critic.linears()
            first.weight.zero_()
            first.bias.zero_()
            first.weight[:3, 3:] = 0.1 * torch.eye(3)
            last.weight[0, :3] = torch.tensor([1.0, 2.0, 4.0]) / math.tanh(0.1)
    batch = masked_batch(learner, np.ones((2, 3), bool))
    batch["agent"].next_mask = torch.tensor([[[False, False, True]], [[True, False, False]]])
    # r + γ (Q(s′, the only action) + α · 0), with r = γ = 1.
    assert target_values(learner, "agent", batch)[:, 0].tolist() == pytest.approx([5.0, 2.0], abs=1e-4)
