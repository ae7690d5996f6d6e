"""Buffers as named arrays: what the environments showed last, which a saved environment must show again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from relayrl.data.trees import Array, leaves
from relayrl.envs.vector.env_buffers import EnvBuffers
from relayrl.errors import CheckpointError


def read_buffers(buffers: EnvBuffers) -> dict[str, Array]:
    """Copies of everything that the next step builds on."""
    return {name: np.array(array) for name, array in _current_arrays(buffers)}


def write_buffers(buffers: EnvBuffers, saved: Mapping[str, Array]) -> None:
    """Put back what `read_buffers` gave."""
    for name, array in _current_arrays(buffers):
        if name not in saved or saved[name].shape != array.shape:
            given = saved[name].shape if name in saved else "nothing"
            raise CheckpointError(f"the state holds {given} for {name!r}, this environment {array.shape}")
        array[...] = saved[name]


def _current_arrays(buffers: EnvBuffers) -> Iterator[tuple[str, Array]]:
    half = buffers.half
    for group_name, group in buffers.groups.items():
        for path, leaf in leaves(group.obs[half]):
            yield f"{group_name}/obs/{path}", leaf
        yield f"{group_name}/alive", group.alive[half]
        yield f"{group_name}/active", group.active
        if group.action_mask is not None:
            yield f"{group_name}/action_mask", group.action_mask
    if buffers.state is not None:
        for path, leaf in leaves(buffers.state):
            yield f"state/{path}", leaf


def under(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    """The part of a state whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
