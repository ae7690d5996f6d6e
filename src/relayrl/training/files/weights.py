"""The networks' weights inside a trainer's state, apart from counters, optimisers, generators and replay.

A trainer's `state_dict` keeps networks under the names in `NETWORKS`, at any depth; `weights_of` cuts everything else away, and
`with_weights` lays weights over another state. So a new run starts from another one's networks without knowing the trainer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from relayrl.errors import CheckpointError

NETWORKS = frozenset(
    {
        *("policy", "policies", "critic", "q", "target_policy", "target_critic", "target_q"),
        *("state_features", "log_alpha"),  # running moments of states, and SAC's temperature
    }
)


def weights_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a trainer's state that is networks."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if key in NETWORKS:
            found[key] = value
        elif isinstance(value, Mapping):
            below = weights_of(value)
            if below:
                found[key] = below
    return found


def weights_hash(state: Mapping[str, Any]) -> str:
    """SHA-256 over the networks of a trainer's state, names included: equal hashes mean equal networks, bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors(weights_of(state)), key=lambda pair: pair[0]):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def with_weights(state: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
    """`state` with its networks replaced by `weights`, which must be of the same shapes throughout."""
    own, other = dict(_tensors(weights_of(state))), dict(_tensors(weights))
    missing = sorted(own.keys() ^ other.keys())
    if missing:
        raise CheckpointError(f"the networks differ: {missing[0]!r} exists in one of them only; use the same algorithm")
    for name, tensor in own.items():
        if tensor.shape != other[name].shape:
            shapes = f"{tuple(other[name].shape)}, here {tuple(tensor.shape)}"
            raise CheckpointError(f"the networks differ: {name!r} is {shapes}; use the same network and environment")
    return _laid_over(state, weights)


def _laid_over(state: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(state)
    for key, value in weights.items():
        result[key] = value if key in NETWORKS else _laid_over(state[key], value)
    return result


def _tensors(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in tree.items():
        if isinstance(value, Tensor):
            yield prefix + key, value
        elif isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{key}/")
