"""The global states of environments in replay: one record per joint transition, beside those of the groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.state_rows import states_after
from relayrl.data.trees import Array, Space, leaves, space_leaves, unflatten
from relayrl.errors import CheckpointError, ConfigError


class StateRecords:
    """States of rows, and those that followed them."""

    def __init__(self, space: Space, capacity: int) -> None:
        self._space = space
        names = [(root, path, leaf) for root in ("state", "next_state") for path, leaf in space_leaves(space)]
        layout = [(f"{root}/{path}", leaf.dtype, tuple(leaf.shape or ())) for root, path, leaf in names]
        self.records = np.zeros(capacity, np.dtype(layout, align=True))

    def write(self, rows: Array | slice, rollouts: Mapping[str, Rollout]) -> None:
        """Keep the states of a block whose joint transitions lie on `rows`."""
        for name, array in _fields(list(rollouts.values())):
            self.records[name][rows] = array

    def states(self, rows: Array, root: str) -> Any:
        """[M, …] the states ("state"), or those that followed ("next_state")."""
        taken = self.records.take(rows)
        return unflatten(self._space, (taken[f"{root}/{path}"] for path, _ in space_leaves(self._space)))

    def get(self, rows: Array) -> dict[str, Array]:
        """Everything on `rows`, by name."""
        return {name: np.ascontiguousarray(self.records[name][rows]) for name in self.records.dtype.names or ()}

    def set(self, rows: Array, arrays: Mapping[str, Any]) -> None:
        """Put back what `get` gave."""
        for name in self.records.dtype.names or ():
            if name not in arrays:
                raise CheckpointError("the replay was filled without global states; resume with the same critic_input")
            self.records[name][rows] = np.asarray(arrays[name])


def _fields(rollouts: list[Rollout]) -> Iterator[tuple[str, Array]]:
    if any(rollout.state is None for rollout in rollouts):
        raise ConfigError("records lack the state for critics; set network.critic_input=joint_observations")
    for root, tree in (("state", rollouts[0].state), ("next_state", states_after(rollouts))):
        for path, leaf in leaves(tree):
            yield f"{root}/{path}", leaf.reshape(-1, *leaf.shape[2:])
