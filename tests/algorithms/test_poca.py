"""POCA by hand: what a team is paid, who is credited, and what the critic may and may not see."""

from uuid import UUID

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.algorithms.poca.poca import POCA
from relayrl.algorithms.poca.poca_params import POCAParams
from relayrl.algorithms.poca.team_rows import team_rows
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.envs.environment_contract import FinalObservations
from relayrl.errors import ConfigError
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.models.teams.team_critic import TeamCritic, TeamNetworks

BOX, CHOICE = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(3)
NETWORK = NetworkSettings(hidden_sizes=(16,))


def rollout(valid, ends, rewards, over=None, acts_next=None) -> Rollout:
    """One environment of N agents; `ends`: 1 terminated, 2 truncated. Agent n sees 10 (n + 1) + t; −that at its end.

    `over`, by step: whether the environment's episode is; without it nobody counts episodes."""
    num_agents = len(valid[0])
    agents = tuple(str(n) for n in range(num_agents))
    header = LaneHeader("team", (UUID(int=1),), agents, BOX, CHOICE)
    builder = RolloutBuilder(header, len(valid), with_clock=over is not None)
    for t, (acts, ended, reward) in enumerate(zip(valid, ends, rewards, strict=True)):
        ending = np.flatnonzero(ended)
        builder.add(seen(t, num_agents), np.arange(num_agents) % 3, np.array(acts, bool))
        flags = np.array(ended) == 1, np.array(ended) == 2
        finals = FinalObservations(0 * ending, ending, -seen(t + 1, num_agents)[ending])
        is_over = None if over is None else np.array([over[t]], bool)
        builder.finish_row(np.array(reward, np.float64), *flags, None, finals, is_over)
    active = None if acts_next is None else np.array(acts_next, bool)
    return builder.build(seen(len(valid), num_agents), 0, None, active)


def seen(step: int, num_agents: int) -> np.ndarray:
    return 10.0 * (np.arange(num_agents, dtype=np.float32) + 1)[:, None] + step


def algorithm(**params) -> POCA:
    settings = POCAParams(**({"gamma": 1.0, "lam": 1.0} | params))
    generator = torch.Generator().manual_seed(0)
    policy = POCA.make_policy(BOX, CHOICE, NETWORK, settings, generator, None, None)
    return POCA(policy, settings, np.random.default_rng(0))


def test_a_reward_of_everybody_counts_once_however_many_are_left():
    rows = team_rows(rollout([[1, 1], [1, 0]], [[0, 1], [1, 0]], [[3.0, 3.0], [5.0, 0.0]]))
    assert rows.reward[:, 0].tolist() == [3.0, 5.0]
    assert rows.terminated[:, 0].tolist() == [False, True]  # the team is over when its last agent is
    assert not rows.truncated.any()


def test_a_waiting_agent_is_of_the_team():
    rows = team_rows(rollout([[1, 0], [0, 1], [1, 0]], [[0, 0], [0, 0], [1, 1]], [[0, 0], [0, 0], [4.0, 4.0]]))
    assert rows.reward[:, 0].tolist() == [0.0, 0.0, 4.0]
    assert rows.acts.all()


def test_a_truncated_team_is_bootstrapped_from_those_who_were_cut_off():
    rows = team_rows(rollout([[1, 1], [1, 0]], [[0, 1], [2, 0]], [[0, 0], [0, 0]]))
    assert rows.truncated[:, 0].tolist() == [False, True]
    assert rows.next_step.tolist() == [1]
    assert rows.next_present.tolist() == [[True, False]]


def test_who_dies_is_credited_with_what_the_team_earns_later():
    """Agent 1 dies in the first step with nothing; the team is paid 6 two steps later. Its return is 6, not 0."""
    played = rollout([[1, 1], [1, 0], [1, 0]], [[0, 1], [0, 0], [1, 0]], [[0, 0], [0, 0], [6.0, 0.0]])
    learner = algorithm()
    batch = learner._prepare(played, None)
    np.testing.assert_allclose(batch.target, 6.0, atol=1e-5)  # λ = γ = 1: every row's return
    np.testing.assert_allclose(batch.advantage, 6.0 - batch.old_value, atol=1e-5)
    assert len(batch) == 4  # rows on which agents acted
    assert len(batch.teams) == 3


def test_the_value_of_a_cut_team_sees_final_observations():
    learner = algorithm(gamma=0.5)
    played = rollout([[1, 1]], [[2, 2]], [[2.0, 2.0]])
    target = learner._prepare(played, None).teams.target
    with torch.no_grad():
        after = learner.policy.critic.value(torch.tensor([[[-11.0], [-21.0]]]), torch.ones(1, 2, dtype=torch.bool))
    np.testing.assert_allclose(target, 2.0 + 0.5 * after.numpy(), rtol=1e-5)


def test_a_block_that_stops_is_bootstrapped_from_those_who_are_left():
    learner = algorithm(gamma=0.5)
    played = rollout([[1, 1]], [[0, 1]], [[2.0, 2.0]])
    target = learner._prepare(played, None).teams.target
    with torch.no_grad():
        after = learner.policy.critic.value(torch.tensor([[[11.0], [7.0]]]), torch.tensor([[True, False]]))
    np.testing.assert_allclose(target, 2.0 + 0.5 * after.numpy(), rtol=1e-5)


def test_who_takes_over_from_the_last_one_goes_on_with_the_team():
    """Agent 0 leaves, and only then agent 1 appears, at once or a step later: one team, whose 6 both have earned."""
    at_once = rollout([[1, 0], [0, 1]], [[1, 0], [0, 1]], [[0, 0], [0, 6.0]], [0, 1])
    later = rollout([[1, 0], [0, 0], [0, 1]], [[1, 0], [0, 0], [0, 1]], [[0, 0], [0, 0], [0, 6.0]], [0, 0, 1])
    for played in (at_once, later):
        assert not team_rows(played).terminated[:-1].any()
        np.testing.assert_allclose(algorithm()._prepare(played, None).target, 6.0, atol=1e-5)


def test_an_episode_that_follows_another_is_another_team():
    played = rollout([[1, 0], [0, 1]], [[1, 0], [0, 1]], [[1.0, 0], [0, 6.0]], [1, 1])
    assert team_rows(played).terminated[:, 0].tolist() == [True, True]
    np.testing.assert_allclose(algorithm()._prepare(played, None).target, [1.0, 6.0], atol=1e-5)


@pytest.mark.parametrize(("over", "acts_next"), [(0, [0, 1]), (1, [1, 0])])
def test_a_block_that_stops_between_two_agents_is_bootstrapped_from_the_next(over, acts_next):
    learner = algorithm(gamma=0.5)
    target = learner._prepare(rollout([[1, 0]], [[1, 0]], [[2.0, 0]], [over], acts_next), None).teams.target
    with torch.no_grad():
        after = learner.policy.critic.value(torch.tensor([[[7.0], [21.0]]]), torch.tensor([[False, True]]))
    np.testing.assert_allclose(target, 2.0 if over else 2.0 + 0.5 * after.numpy(), rtol=1e-5)


def test_a_team_that_died_while_others_play_on_is_over():
    """The environment goes on for agents of other groups."""
    rows = team_rows(rollout([[1, 1], [0, 0]], [[1, 1], [0, 0]], [[3.0, 3.0], [0, 0]], [0, 0], [0, 0]))
    assert rows.terminated[:, 0].tolist() == [True, False]
    assert not len(rows.next_step)


def critic() -> TeamCritic:
    layout, generator = SideBySide([plain_numbers(3)]), torch.Generator().manual_seed(0)
    return TeamCritic(layout, 2, 16, 4, NETWORK, TeamNetworks.built_in(NETWORK), generator)


@torch.no_grad()
def test_what_the_critic_sees():
    net, draw = critic(), torch.Generator().manual_seed(1)
    features, actions = torch.randn(8, 5, 3, generator=draw), torch.randn(8, 5, 2, generator=draw)
    present = torch.tensor([[True, True, False, True, False]]).expand(8, -1)
    value, baseline = net.value_and_baseline(features, actions, present)
    assert torch.equal(net.value(features, present), value)
    elsewhere = torch.where(present[..., None], features, 99.0), torch.where(present[..., None], actions, 99.0)
    assert torch.equal(net.value(elsewhere[0], present), value)  # nothing of who is absent
    assert torch.equal(net.value_and_baseline(*elsewhere, present)[1][present], baseline[present])
    acts_otherwise = actions.clone()
    acts_otherwise[:, 0] += 1.0
    moved = net.value_and_baseline(features, acts_otherwise, present)[1] - baseline
    assert torch.equal(moved[:, 0], torch.zeros(8))  # not one's own action
    assert (moved[:, 1].abs() > 1e-5).all()  # but everybody else's
    order = torch.tensor([3, 0, 2, 1, 4])
    torch.testing.assert_close(net.value(features[:, order], present[:, order]), value)  # nobody has a number


@torch.no_grad()
def test_the_critic_knows_how_many_are_left():
    net = critic()
    same = torch.ones(1, 3, 3)
    values = [net.value(same, torch.tensor([[True] * n + [False] * (3 - n)])) for n in (1, 2, 3)]
    assert len({round(float(value), 6) for value in values}) == 3


def test_an_update_trains_actor_and_critic():
    learner = algorithm(train_pi_iters=2, train_vf_iters=2, num_minibatches=2, normalize_returns=True)
    before = [p.detach().clone() for p in learner.policy.parameters()]
    played = rollout([[1, 1], [1, 0], [1, 0]], [[0, 1], [0, 0], [1, 0]], [[0, 0], [0, 0], [6.0, 0.0]])
    metrics = learner.update([played, played], 0.0)
    assert metrics["value/gradient_steps"] == 4
    assert metrics["policy/gradient_steps"] == 4
    assert metrics["value/baseline_loss"] > 0.0
    old_critic = len(before) - len(list(learner.policy.critic.parameters()))
    changed = [not torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True)]
    assert all(changed[:old_critic])
    assert all(changed[old_critic:])


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="does not divide"):
        algorithm(num_attention_heads=3)
    recurrent = NetworkSettings(hidden_sizes=(16,), memory=MemorySettings(size=8))
    with pytest.raises(ConfigError, match="learns from whole sequences"):
        POCA.make_policy(BOX, CHOICE, recurrent, POCAParams(), torch.Generator(), None, None)
