"""Where tf32 is allowed, GRU policies learn in half precision: gradients are those of float64 up to 10 bits of mantissa."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.recurrent import lane_gradients
from relayrl.accelerator.gpu.recurrent.fused_recurrent import HalfRecurrentUpdate, fused_recurrent_update
from relayrl.accelerator.gpu.recurrent.lane_networks import lane_shape
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_sequences import LaneBatch, RecurrentDeviceUpdate, memory_starts
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.models.networks.memory_cell import MemoryStarts
from relayrl.models.recurrent_policy import RecurrentActorCritic

PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=None, target_kl=0.5)
NUM_STEPS, NUM_LANES = 5, 19
SPACES = {
    "discrete": spaces.Discrete(4),
    "several": spaces.MultiDiscrete([3, 2]),
    "normal": spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([3.0, 2.0], np.float32)),
}


def _policy(action_space, hidden_sizes, activation, *, is_central, kind="gru", size=24):
    box = spaces.Box(-1.0, 1.0, (3,), np.float32)
    memory = MemorySettings(kind=kind, size=size, sequence_length=3)
    network = NetworkSettings(hidden_sizes=hidden_sizes, activation=activation, memory=memory)
    central = SideBySide([plain_numbers(9)]) if is_central else None
    policy = RecurrentActorCritic(box, action_space, network, torch.Generator().manual_seed(0), central)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return policy


def _optimizers(policy):
    return [FlatAdam(own, 1e-2, 0.5) for own in (policy.actor_parameters(), policy.critic_parameters())]


def _lanes(policy, *, is_central, reward_scale=1.0):
    g = torch.Generator().manual_seed(2)
    rows = NUM_STEPS, NUM_LANES
    features = torch.randn(*rows, 3, generator=g)
    seen = torch.randn(*rows, 9, generator=g) if is_central else features
    noise = torch.rand(NUM_STEPS * NUM_LANES, policy.head.noise[1], generator=g)
    ended = torch.rand(rows, generator=g) < 0.2
    starts = [
        memory_starts(ended, torch.randn(*rows, network.memory_width, generator=g), 3)
        for network in (policy.actor, policy.critic)
    ]
    with torch.no_grad():
        lived = policy.actor.cell.unroll_lanes(policy.actor.hidden(features), starts[0])
        distribution = policy.distribution_of(policy.actor.output(lived.outputs).flatten(0, 1), None)
        action = policy.head.sample_torch(distribution, noise, policy.constants)
        # Ratios inside of the clip and outside, none so near to its edge that rounding decides.
        moved = torch.tensor([-0.5, -0.1, 0.1, 0.5])[torch.randint(4, (len(action),), generator=g)]
        logp = policy.head.log_prob(distribution, action) + moved
    columns = features, seen, action.view(*rows, *action.shape[1:]), None, logp.view(rows)
    advantage, target, old_value = torch.randn(3, *rows, generator=g) * torch.tensor(
        [1.0, reward_scale, reward_scale]
    ).view(3, 1, 1)
    return LaneBatch(*columns, advantage, target, old_value, *starts)


def _double(batch):
    """The same numbers as float64, of starts too."""
    columns = [None if c is None or not c.is_floating_point() else c.double() for c in batch.columns()]
    columns[2] = batch.action.double() if batch.action.is_floating_point() else batch.action
    starts = [MemoryStarts(own.slot, own.given.double()) for own in (batch.actor_starts, batch.critic_starts)]
    return LaneBatch(*columns, *starts)


def _error(own, reference):
    return float((own.double() - reference).norm() / reference.norm().clamp(min=1e-30))


@pytest.mark.parametrize(
    ("name", "hidden_sizes", "activation", "is_central"),
    [
        ("discrete", (16, 24), "relu", True),
        ("normal", (12,), "tanh", False),
        ("several", (8, 16, 8), "tanh", False),
        ("discrete", (160, 24), "tanh", True),
        ("discrete", (160, 24), "relu", True),
    ],
)
@pytest.mark.parametrize("reward_scale", [1.0, 1e4, 1e-6])
def test_gradients_are_those_of_float64(name, hidden_sizes, activation, is_central, reward_scale):
    policy = _policy(SPACES[name], hidden_sizes, activation, is_central=is_central)
    exact, optimizers = copy.deepcopy(policy).double(), _optimizers(policy)
    batch = _lanes(policy, is_central=is_central, reward_scale=reward_scale)
    own = fused_recurrent_update(policy, PPO, *optimizers, Precision.TF32)
    assert type(own) is HalfRecurrentUpdate
    reference = RecurrentDeviceUpdate(exact, PPO, *_optimizers(exact))
    # Of few rows some units lie so near to the bend of a relu that rounding decides on which side.
    most = 6e-3 if activation == "tanh" else 8e-2
    for where in (None, torch.tensor([4, 0, 7, 18])):
        for optimizer in optimizers:
            optimizer.gradient.fill_(float("nan"))
        found = own.gradients(batch, where, trains_pi=True, trains_vf=True)
        expected = reference.gradients(_double(batch), where, trains_pi=True, trains_vf=True)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=5e-3, atol=1e-3)
        for ours, theirs in ((own.pi_adam, reference.pi_adam), (own.vf_adam, reference.vf_adam)):
            start = 0
            assert _error(ours.flat.gradient, theirs.flat.gradient) < most
            for parameter in policy.actor_parameters() if ours is own.pi_adam else policy.critic_parameters():
                part = slice(start, start + parameter.numel())
                assert _error(ours.flat.gradient[part], theirs.flat.gradient[part]) < 3 * most, parameter.shape
                start += parameter.numel()


@pytest.mark.parametrize("trains", [(True, False), (False, True)])
def test_one_network_alone_has_the_gradient_that_it_has_beside_the_other(trains):
    policy = _policy(SPACES["discrete"], (16, 24), "relu", is_central=True)
    optimizers, batch = _optimizers(policy), _lanes(policy, is_central=True)
    own = fused_recurrent_update(policy, PPO, *optimizers, Precision.TF32)
    both = own.gradients(batch, None, trains_pi=True, trains_vf=True)
    wanted = [optimizer.gradient.clone() for optimizer in optimizers]
    numbers = [found.clone() for found in both]
    for optimizer in optimizers:
        optimizer.gradient.zero_()
    alone = own.gradients(batch, None, trains_pi=trains[0], trains_vf=trains[1])
    for i in range(2):
        if trains[i]:
            assert torch.equal(optimizers[i].gradient, wanted[i])
            assert torch.equal(alone[i], numbers[i])
        else:
            assert alone[i] is None
            assert not optimizers[i].gradient.any()


def test_programs_that_take_several_blocks_of_rows_give_the_same(monkeypatch):
    gradients = []
    for is_shared in (False, True):
        if is_shared:
            for name, number in (("MULTIPROCESSORS", 2), ("FRONT_BLOCK", 16), ("RESIDENT_BLOCK", 16)):
                monkeypatch.setattr(lane_gradients, name, number)
        policy = _policy(SPACES["discrete"], (16, 24), "relu", is_central=True, size=64)
        optimizers, batch = _optimizers(policy), _lanes(policy, is_central=True)
        own = fused_recurrent_update(policy, PPO, *optimizers, Precision.TF32)
        own.gradients(batch, None, trains_pi=True, trains_vf=True)
        gradients.append([optimizer.gradient.clone() for optimizer in optimizers])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_lanes_are_valued_as_the_reference_unrolls_them():
    policy = _policy(SPACES["discrete"], (16, 24), "relu", is_central=True)
    own, batch = (
        fused_recurrent_update(policy, PPO, *_optimizers(policy), Precision.TF32),
        _lanes(policy, is_central=True),
    )
    with torch.no_grad():
        hidden = policy.critic.hidden(batch.critic_features)
        found = own.unroll(policy.critic.cell, own.hidden(policy.critic, batch.critic_features), batch.critic_starts)
        expected = policy.critic.cell.unroll_lanes(hidden, batch.critic_starts)
    for name in ("outputs", "before", "after"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=2e-3, atol=2e-3)


def test_half_precision_is_for_runs_that_allow_tf32_and_for_what_the_kernels_know():
    class Mine(RecurrentActorCritic):
        pass

    def update_of(policy, precision=Precision.TF32):
        return type(fused_recurrent_update(policy, PPO, *_optimizers(policy), precision))

    made = _policy(SPACES["discrete"], (8,), "relu", is_central=False)
    assert update_of(made) is HalfRecurrentUpdate
    assert update_of(made, None) is not HalfRecurrentUpdate
    assert update_of(made, Precision.NEAR_FLOAT32) is not HalfRecurrentUpdate
    assert (
        update_of(_policy(SPACES["discrete"], (8,), "relu", is_central=False, kind="lstm")) is not HalfRecurrentUpdate
    )
    assert update_of(_policy(SPACES["discrete"], (8,), "relu", is_central=False, size=160)) is not HalfRecurrentUpdate
    hooked, frozen, other = copy.deepcopy(made), copy.deepcopy(made), copy.deepcopy(made)
    hooked.critic.trunk[0].register_forward_hook(lambda *_: None)
    frozen.actor.output.bias.requires_grad_(False)
    other.actor.activation = torch.nn.Tanh()
    assert lane_shape(made.critic) is not None
    assert lane_shape(hooked.critic) is None
    assert lane_shape(frozen.actor) is None
    assert lane_shape(other.actor) is None
    made.__class__ = Mine
    assert fused_recurrent_update(made, PPO, *_optimizers(made), Precision.TF32) is None
