"""What a sink holds: checked trajectories of one layout, taken apart into the arrays that are stored.

Not its job: checking (`layout_book`), batches (`row_batches`) or database rows (`database_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from relayrl.data.arrow_arrays import pooled_empty
from relayrl.data.schema import LOGP, POLICY_VERSION, REWARD, VALUE, Layout, Leaf
from relayrl.data.trajectory_block import TrajectoryBlock, TrajectoryHeaders
from relayrl.data.trees import Array, unflatten

_HEADER_BYTES = 256
"""Roughly what a trajectory costs beside its arrays."""


def stored_leaves(layout: Layout) -> tuple[Leaf, ...]:
    """The columns that come from arrays of the trajectory, one after the other."""
    found: list[Leaf] = [REWARD, POLICY_VERSION, *layout.observation, *layout.action]
    if layout.action_mask is not None:
        found.append(layout.action_mask)
    if layout.has_logp:
        found.append(LOGP)
    if layout.has_value:
        found.append(VALUE)
    return (*found, *layout.memory, *layout.state)


def joined_arrays(arrays: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Arrays of the same dtype one after the other, in memory that is used again and again."""
    out = pooled_empty((sum(map(len, arrays)), *shape), arrays[0].dtype)
    return np.concatenate(arrays, out=out, casting="no")


@dataclass(frozen=True, slots=True, eq=False)
class StoredBlock:
    """`K` trajectories: `arrays` `[R, …]` in the order of `stored_leaves`, `finals` `[K, …]` in that of `layout.successor`."""

    layout: Layout
    headers: TrajectoryHeaders
    arrays: tuple[Array, ...]
    finals: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def num_rows(self) -> int:
        return len(self.arrays[0])

    @property
    def num_bytes(self) -> int:
        return _HEADER_BYTES * len(self) + sum(array.nbytes for array in (*self.arrays, *self.finals))

    def column(self, leaf: Leaf) -> Array:
        """The array of one of `stored_leaves`."""
        return self.arrays[stored_leaves(self.layout).index(leaf)]

    def trajectories(self) -> TrajectoryBlock:
        """The same as trajectories; arrays are views and read-only."""
        layout, leaves = self.layout, stored_leaves(self.layout)
        columns = {leaf.name: _read_only(array) for leaf, array in zip(leaves, self.arrays, strict=True)}
        finals = iter([_read_only(final) for final in self.finals])
        memory, state = layout.memory_space, layout.state_space
        return TrajectoryBlock(
            group=layout.group,
            observation_space=layout.observation_space,
            action_space=layout.action_space,
            headers=self.headers,
            obs=unflatten(layout.observation_space, (columns[leaf.name] for leaf in layout.observation)),
            action=unflatten(layout.action_space, (columns[leaf.name] for leaf in layout.action)),
            reward=columns["reward"],
            policy_version=columns["policy_version"],
            final_obs=unflatten(layout.observation_space, finals),
            action_mask=columns.get("action_mask"),
            logp=columns.get("logp"),
            value=columns.get("value"),
            memory=None if memory is None else unflatten(memory, (columns[leaf.name] for leaf in layout.memory)),
            state=None if state is None else unflatten(state, (columns[leaf.name] for leaf in layout.state)),
            final_state=None if state is None else unflatten(state, finals),
            final_mask=next(finals, None),
        )

    def between(self, first: int, end: int) -> StoredBlock:
        """Trajectories `first … end - 1`; views."""
        ends = self.headers.ends
        rows = slice(int(ends[first - 1]) if first else 0, int(ends[end - 1]))
        return StoredBlock(
            self.layout,
            self.headers.taken(np.arange(first, end)),
            tuple(array[rows] for array in self.arrays),
            tuple(final[first:end] for final in self.finals),
        )

    def without(self, trajectory_ids: set[bytes]) -> StoredBlock | None:
        """Those that are not among the given; None if all are. A trajectory that occurs twice is kept once."""
        own = self.headers.trajectory_ids
        if trajectory_ids.isdisjoint(own) and len(set(own)) == len(own):
            return self
        seen = set(trajectory_ids)
        kept = []
        for i, name in enumerate(own):
            if name not in seen:
                seen.add(name)
                kept.append(i)
        return joined([self.between(i, i + 1) for i in kept]) if kept else None


def joined(blocks: Sequence[StoredBlock]) -> StoredBlock:
    """Blocks of the same layout one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    arrays = zip(*(block.arrays for block in blocks), strict=True)
    finals = zip(*(block.finals for block in blocks), strict=True)
    return StoredBlock(
        blocks[0].layout,
        TrajectoryHeaders.joined([block.headers for block in blocks]),
        tuple(joined_arrays(parts, parts[0].shape[1:]) for parts in arrays),
        tuple(joined_arrays(parts, parts[0].shape[1:]) for parts in finals),
    )


def by_layout(blocks: Sequence[StoredBlock]) -> Iterator[list[StoredBlock]]:
    """Blocks of each layout, in order."""
    found: dict[int, list[StoredBlock]] = {}
    for block in blocks:
        found.setdefault(id(block.layout), []).append(block)
    yield from found.values()


def num_trajectories(blocks: Sequence[StoredBlock]) -> int:
    """In all of them."""
    return sum(map(len, blocks))


def without(blocks: Sequence[StoredBlock], trajectory_ids: set[bytes]) -> list[StoredBlock]:
    """What is left of the blocks without the given trajectories."""
    return [kept for block in blocks if (kept := block.without(trajectory_ids)) is not None]


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
