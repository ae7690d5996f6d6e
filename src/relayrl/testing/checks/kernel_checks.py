"""The checks of the kernel contract that look at networks alone; each gives what it saw where its fact does not hold."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.testing.checks.network_bench import NetworkBench

TOLERANCE = 1e-5


def makes_modules(bench: NetworkBench) -> str | None:
    """the factory gives an nn.Module for an actor and for a critic"""
    for role in bench.roles:
        made: object = bench.make(role)
        if not isinstance(made, nn.Module):
            return f"{role.name}: it gave a {type(made).__name__}"
    return None


def takes_any_leading_axes(bench: NetworkBench) -> str | None:
    """features [..., F] become outputs [..., O], with any number of leading axes"""
    features = bench.features(6)
    for role, (name, network) in zip(bench.roles, bench.networks(), strict=True):
        for leading in ((1,), (6,), (2, 3)):
            rows = features[: int(np.prod(leading))].reshape(*leading, -1)
            if (got := tuple(network(rows).shape)) != (*leading, role.num_outputs):
                return f"{name}: {list(rows.shape)} became {list(got)}, expected {[*leading, role.num_outputs]}"
    return None


def outputs_are_float32(bench: NetworkBench) -> str | None:
    """outputs are float32"""
    return next((f"{name}: {out.dtype}" for name, out in _outputs(bench) if out.dtype != torch.float32), None)


def outputs_are_finite(bench: NetworkBench) -> str | None:
    """outputs are finite"""
    return next((f"{name}: NaN or infinity" for name, out in _outputs(bench) if not bool(out.isfinite().all())), None)


def same_rows_same_outputs(bench: NetworkBench) -> str | None:
    """the same features give the same outputs again"""
    features = bench.features()
    for name, network in bench.networks():
        first, second = network(features), network(features)
        if not torch.equal(first, second):
            return f"{name}: the second call differs from the first by {_distance(first, second):.1e}"
    return None


def rows_are_independent(bench: NetworkBench) -> str | None:
    """a row's output depends on no other row"""
    features = bench.features()
    for name, network in bench.networks():
        together, alone = network(features), torch.cat([network(row[None]) for row in features])
        if not torch.allclose(together, alone, rtol=1e-4, atol=TOLERANCE):
            return f"{name}: rows differ by {_distance(together, alone):.1e} when they come alone"
    return None


def evaluation_mode_changes_nothing(bench: NetworkBench) -> str | None:
    """outputs are the same in training and in evaluation mode, in which policies are exported"""
    features = bench.features()
    for name, network in bench.networks():
        training, evaluation = network.train()(features), network.eval()(features)
        if not torch.equal(training, evaluation):
            return f"{name}: eval() changes outputs by {_distance(training, evaluation):.1e}"
    return None


def gradients_reach_all_parameters(bench: NetworkBench) -> str | None:
    """every parameter gets a gradient from the outputs"""
    for name, network in bench.networks():
        outputs = network(bench.features())
        if not outputs.requires_grad:
            return f"{name}: outputs have no gradient"
        outputs.square().sum().backward()
        for key, parameter in network.named_parameters():
            if parameter.grad is None or not bool(parameter.grad.any()):
                return f"{name}: {key} gets no gradient"
    return None


def gradients_reach_the_input(bench: NetworkBench) -> str | None:
    """outputs have a gradient by the features, through which Q-networks move a policy"""
    for name, network in bench.networks():
        features = bench.features().requires_grad_()
        network(features).square().sum().backward()
        if features.grad is None or not bool(features.grad.any()):
            return f"{name}: the features get no gradient"
    return None


def values_features_with_actions(bench: NetworkBench) -> str | None:
    """a network is made for features with an action behind them, as Q-networks and central critics see them"""
    width = 3
    layout = SideBySide([bench.encoder, plain_numbers(width)])
    critic = bench.factory(layout, 1, 1.0, torch.Generator().manual_seed(0))
    features = bench.features(4)
    got = tuple(critic(torch.cat([features, torch.zeros(4, width)], -1)).shape)
    return None if got == (4, 1) else f"4 rows became {list(got)}, expected [4, 1]; take the width from num_features"


def outputs_follow_the_parameters(bench: NetworkBench) -> str | None:
    """outputs follow parameters whose memory an optimiser has replaced"""
    features = bench.features()
    for (name, used), (_, fresh) in zip(bench.networks(), bench.networks(), strict=True):
        used(features)
        for network in (used, fresh):
            for parameter in network.parameters():
                parameter.data = parameter.detach() * 0.5 + 0.1
        if not torch.allclose(used(features), fresh(features), rtol=1e-4, atol=TOLERANCE):
            return f"{name}: outputs are still those of the parameters at its first call"
    return None


def same_generator_same_parameters(bench: NetworkBench) -> str | None:
    """the generator alone decides the first parameters"""
    for role in bench.roles:
        one, other = bench.make(role).state_dict(), bench.make(role).state_dict()
        for key, tensor in one.items():
            if not torch.equal(tensor, other[key]):
                return f"{role.name}: {key} differs under the same generator; draw from it, not from torch's own"
    return None


def networks_share_nothing(bench: NetworkBench) -> str | None:
    """two networks of a factory share no parameters"""
    actor, critic = (bench.make(role) for role in bench.roles)
    again = bench.make(bench.roles[0])
    own = {id(parameter) for parameter in actor.parameters()}
    shared = [key for other in (critic, again) for key, p in other.named_parameters() if id(p) in own]
    return f"{shared[0]} is the same object in two networks" if shared else None


def can_be_copied(bench: NetworkBench) -> str | None:
    """a deep copy gives the same outputs, and goes on when the original changes"""
    for name, network in bench.networks():
        copied, before = copy.deepcopy(network), network(bench.features()).detach()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
        if not torch.equal(copied(bench.features()), before):
            return f"{name}: the copy's outputs are not what the original's were"
    return None


def state_dict_round_trip(bench: NetworkBench) -> str | None:
    """a network that loads another's state_dict gives the same outputs"""
    for role, (name, network) in zip(bench.roles, bench.networks(), strict=True):
        other = bench.make(role, seed=1)
        other.load_state_dict(network.state_dict())
        if not torch.equal(other(bench.features()), network(bench.features())):
            return f"{name}: outputs differ; keep everything in parameters and buffers"
    return None


def _outputs(bench: NetworkBench) -> Iterator[tuple[str, Tensor]]:
    for name, network in bench.networks():
        yield name, network(bench.features())


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max())
