"""The GPU's update of policies with a memory takes the steps of the reference; others are left to it."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.device_accelerator import fastest_device_update
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.recurrent.fused_recurrent import fused_recurrent_update
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_sequences import LaneBatch, RecurrentDeviceUpdate, memory_starts
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.models.recurrent_policy import RecurrentActorCritic

PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.3, target_kl=0.5)
NUM_STEPS, NUM_LANES = 5, 9
SPACES = {
    "discrete": spaces.Discrete(4),
    "normal": spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([3.0, 2.0], np.float32)),
}


def _parts(kind, action_space, *, is_central):
    box = spaces.Box(-1.0, 1.0, (3,), np.float32)
    network = NetworkSettings(hidden_sizes=(10, 6), memory=MemorySettings(kind=kind, size=7, sequence_length=3))
    central = SideBySide([plain_numbers(8)]) if is_central else None
    policy = RecurrentActorCritic(box, action_space, network, torch.Generator().manual_seed(0), central)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return _with_optimizers(policy)


def _with_optimizers(policy):
    return policy, *(FlatAdam(own, 1e-2, 0.5) for own in (policy.actor_parameters(), policy.critic_parameters()))


def _lanes(policy, *, is_central):
    g = torch.Generator().manual_seed(2)
    rows = NUM_STEPS, NUM_LANES
    features = torch.randn(*rows, 3, generator=g)
    seen = torch.randn(*rows, 8, generator=g) if is_central else features
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
        logp = policy.head.log_prob(distribution, action) + 0.1 * torch.randn(len(action), generator=g)
    columns = features, seen, action.view(*rows, *action.shape[1:]), None, logp.view(rows)
    return LaneBatch(*columns, *torch.randn(3, *rows, generator=g), *starts)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("name", "is_central"), [("discrete", False), ("normal", True)])
def test_takes_the_steps_of_the_reference(kind, name, is_central):
    parts = _parts(kind, SPACES[name], is_central=is_central)
    twins = _with_optimizers(copy.deepcopy(parts[0]))
    batch = _lanes(parts[0], is_central=is_central)
    own = fused_recurrent_update(parts[0], PPO, *parts[1:], Precision.NEAR_FLOAT32)
    reference = RecurrentDeviceUpdate(twins[0], PPO, *twins[1:])
    found = []
    for update in (own, reference):
        keep, sums = torch.ones(1), (torch.zeros(6), torch.zeros(3))
        for where in (None, torch.tensor([4, 0, 7])):
            update.take_step(batch, where, keep, sums)
        found.append(sums)
    assert float(found[0][0][-1]) == 2
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for key, tensor in parts[0].state_dict().items():
        torch.testing.assert_close(tensor, twins[0].state_dict()[key], rtol=1e-3, atol=1e-4, msg=key)


def test_acting_and_advantages_are_those_of_the_reference():
    parts = _parts("lstm", SPACES["discrete"], is_central=False)
    own, reference = (
        fused_recurrent_update(parts[0], PPO, *parts[1:]),
        RecurrentDeviceUpdate(parts[0], PPO, *parts[1:]),
    )
    g = torch.Generator().manual_seed(3)
    obs, noise, memory = (torch.rand(6, width, generator=g) for width in (3, 1, 14))
    results = []
    for update in (own, reference):
        held, out = memory.clone(), (torch.zeros(6, dtype=torch.int64), torch.zeros(6))
        update.act_remembering(obs, noise, held, out)
        results.append((*out, held))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert not torch.equal(results[0][2], memory)
    reward, value = torch.randn(2, 7, 5, generator=g)
    terminated, truncated = torch.rand(2, 7, 5, generator=g) < 0.1
    truncated &= truncated.cumsum(0) <= 2
    values, flags = (value, *torch.randn(1, 5, generator=g), torch.randn(2, 5, generator=g)), (terminated, truncated)
    ours, theirs = (update.advantages(reward, values, flags, 0.9, 0.8) for update in (own, reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_says_no_to_what_it_does_not_know_exactly():
    class Mine(RecurrentActorCritic):
        pass

    parts = _parts("gru", SPACES["discrete"], is_central=False)
    on_the_cpu = fastest_device_update(parts[0], PPO, *parts[1:], tf32=True)
    assert type(on_the_cpu) is RecurrentDeviceUpdate
    assert fused_recurrent_update(parts[0], PPO, *parts[1:]) is not None
    mine = copy.deepcopy(parts[0])
    mine.__class__ = Mine
    assert fused_recurrent_update(mine, PPO, *parts[1:]) is None
    hooked = copy.deepcopy(parts[0])
    hooked.critic.cell.layer.register_forward_hook(lambda *_: None)
    assert fused_recurrent_update(hooked, PPO, *parts[1:]) is None
