"""TD3's three additions, and DDPG as TD3 without them."""

import numpy as np
import pytest
import torch
from test_off_policy import BOX, hashes, make_learner, random_transitions, target_values

from relayrl.algorithms.params import DDPGParams, TD3Params
from relayrl.algorithms.td3 import DDPG, TD3
from relayrl.models.heads.box_heads import DeterministicHead


def batch_of(learner, num_rows: int = 32):
    return learner.batch(random_transitions(learner, num_rows))


def set_constant(network: torch.nn.Module, output: float) -> None:
    """Make an MLP give `output` whatever it sees."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.linears()[-1].bias.fill_(output)


@pytest.mark.parametrize("lower", [0, 1])
def test_the_target_takes_the_minimum_of_both_target_twins(lower):
    learner = make_learner("td3")
    twins = learner.groups["agent"].target_q.critics
    set_constant(twins[lower], 2.0)
    set_constant(twins[1 - lower], 5.0)
    batch = batch_of(learner)
    target = target_values(learner, "agent", batch)
    np.testing.assert_allclose(target, batch["agent"].reward + batch["agent"].discount * 2.0, rtol=1e-6)


def test_the_minimum_is_taken_row_by_row():
    learner = make_learner("td3", policy_noise=0.0)
    batch, group = batch_of(learner, 200), learner.groups["agent"]
    target = target_values(learner, "agent", batch)
    with torch.no_grad():
        own = batch["agent"]
        seen = own.next_features
        action = torch.from_numpy(group.policy.head.encode_action(group.target_policy.distribution(seen).numpy()))
        both = [critic(torch.cat([seen, action], -1))[..., 0] for critic in group.target_q.critics]
        expected = own.reward + own.discount * both[0].minimum(both[1])
    assert 0.05 < float((both[0] < both[1]).float().mean()) < 0.95
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


def test_targets_ignore_the_networks_that_are_trained():
    learner = make_learner("td3", policy_noise=0.0)
    batch = batch_of(learner)
    before = target_values(learner, "agent", batch)
    with torch.no_grad():
        for module in (learner.groups["agent"].policy, learner.groups["agent"].q):
            for parameter in module.parameters():
                parameter.add_(0.5)
    assert np.array_equal(target_values(learner, "agent", batch), before)


def test_smoothing_noise_is_normal_clipped_and_of_the_target_policy():
    # Deviation 0.2 clipped at ±0.1: 61.7 % of the noise lies on the bound (a normal's share beyond half a deviation).
    learner = make_learner("td3", policy_noise=0.2, noise_clip=0.1)
    group = learner.groups["agent"]
    set_constant(group.target_policy.actor, 0.0)
    noise = learner.all_next_actions(batch_of(learner, 20_000))["agent"].action.numpy()
    assert float(np.abs(noise).max()) == pytest.approx(0.1)
    assert float((np.abs(noise) > 0.1 - 1e-6).mean()) == pytest.approx(0.617, abs=0.01)
    assert float(noise.mean()) == pytest.approx(0.0, abs=2e-3)
    assert float(noise[..., 0].std()) == pytest.approx(float(noise[..., 1].std()), rel=0.03)


def test_smoothing_noise_that_is_not_clipped_has_its_deviation():
    learner = make_learner("td3", policy_noise=0.2, noise_clip=0.9)
    group = learner.groups["agent"]
    set_constant(group.target_policy.actor, 0.0)
    noise = learner.all_next_actions(batch_of(learner, 20_000))["agent"].action.numpy()
    assert float(noise.std()) == pytest.approx(0.2, rel=0.02)


def test_smoothed_target_actions_stay_within_the_bounds():
    learner = make_learner("td3")
    group = learner.groups["agent"]
    set_constant(group.target_policy.actor, 10.0)
    actions = learner.all_next_actions(batch_of(learner, 1000))["agent"].action
    assert float(actions.max()) == 1.0
    assert float(actions.min()) < 0.9


@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_policy_and_all_targets_move_together_every_so_many_steps(frequency):
    learner = make_learner("td3", policy_frequency=frequency)
    data = random_transitions(learner)
    for update in range(1, 7):
        before = hashes(learner)["agent"]
        metrics, _ = learner.update(data)
        after = hashes(learner)["agent"]
        moved = [old != new for old, new in zip(before, after, strict=True)]
        is_turn = update % frequency == 0
        assert moved == [is_turn, True, is_turn, is_turn]
        assert ("policy/loss" in metrics) == is_turn


def test_the_policy_climbs_its_first_critic():
    learner = make_learner("td3", policy_frequency=1, actor_lr=1e-3, critic_lr=1e-12)
    batch, group = batch_of(learner), learner.groups["agent"]
    own = batch["agent"]

    def value_of(q: int) -> float:
        with torch.no_grad():
            seen = own.features
            action = torch.from_numpy(group.policy.head.encode_action(group.policy.distribution(seen).numpy()))
            return float(group.q(torch.cat([seen, action], -1))[q].mean())

    before = value_of(0)
    losses = [learner.update_policies(batch)["policy/loss"] for _ in range(50)]
    assert losses[0] == pytest.approx(-before, rel=1e-5)
    assert value_of(0) > before + 0.01


def test_ddpg_is_td3_without_its_additions():
    class PlainTD3(TD3):
        num_q = 1

    settings = {"policy_noise": 0.0, "policy_frequency": 1, "tau": 0.1}
    plain, ddpg = make_learner(PlainTD3, params=TD3Params(**settings)), make_learner("ddpg", tau=0.1)
    data = random_transitions(ddpg)
    for _ in range(3):
        assert plain.update(data)[0] == ddpg.update(data)[0]
    assert hashes(plain) == hashes(ddpg)


def test_ddpg_moves_everything_at_every_step():
    learner = make_learner("ddpg")
    data = random_transitions(learner)
    for _ in range(3):
        before = hashes(learner)["agent"]
        learner.update(data)
        assert all(old != new for old, new in zip(before, hashes(learner)["agent"], strict=True))


def test_exploration_noise_is_each_algorithms_own_setting():
    assert DDPG.make_head(BOX, DDPGParams(noise_scale=0.3)).noise_scale == 0.3
    assert TD3.make_head(BOX, TD3Params(exploration_noise=0.4)).noise_scale == 0.4


def test_acting_adds_noise_in_units_of_half_the_range_and_stays_within_the_bounds():
    head, rng = DeterministicHead(BOX, 0.1), np.random.default_rng(0)
    centre = np.tile(head.center, (20_000, 1))
    drawn = head.sample(centre, rng)
    # Half ranges are 2 and ½: deviations .2 and .05.
    np.testing.assert_allclose(drawn.std(0), [0.2, 0.05], rtol=0.03)
    np.testing.assert_allclose(drawn.mean(0), [0.0, 0.5], atol=0.005)
    edge = head.sample(np.tile(head.high, (1000, 1)), rng)
    assert (edge <= head.high).all()
    assert (edge < head.high).mean() == pytest.approx(0.5, abs=0.05)


def test_greedy_actions_have_no_noise():
    head = DeterministicHead(BOX, 0.5)
    parameters = np.array([[1.0, 0.25]], np.float32)
    np.testing.assert_array_equal(head.mode(parameters), parameters)


def test_checkpoints_that_call_critics_judges_are_read():
    own, other = make_learner("td3"), make_learner("td3")
    torch.nn.init.zeros_(other.groups["agent"].q.critics[1].linears()[0].weight)
    old = {name.replace("critics.", "judges."): tensor for name, tensor in own.groups["agent"].q.state_dict().items()}
    assert any(name.startswith("judges.") for name in old)
    other.groups["agent"].q.load_state_dict(old)
    for mine, theirs in zip(own.groups["agent"].q.parameters(), other.groups["agent"].q.parameters(), strict=True):
        assert torch.equal(mine, theirs)
