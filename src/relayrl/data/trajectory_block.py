"""Many trajectories as one block of columns: what a rollout is cut into, what sinks hold and write, and what they read.

The rows of `K` trajectories of one layout stand one after the other in columns `[R, …]`; what belongs to a trajectory as a
whole stands in `headers` and in `finals` `[K, …]`. A block is also the sequence of its trajectories, made when they are asked
for; their arrays are views of the block's.

Not its job: taking trajectories apart and checking them (`layout_book`), or Arrow's batches (`arrow_writing`, `arrow_reading`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Any, overload
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.data.arrow.schema import Layout, Leaf
from relayrl.data.columns import Trajectory
from relayrl.data.trees import Array, Tree, index, unflatten

_HEADER_BYTES = 256
"""Roughly what a trajectory costs beside its arrays."""


@dataclass(frozen=True, slots=True)
class TrajectoryHeaders:
    """Who, when and how each of `K` trajectories ended. Ids are the 16 bytes of UUIDs."""

    trajectory_ids: list[bytes]
    env_ids: list[bytes]
    agent_ids: list[str]
    episode: Array
    first_step: Array
    num_steps: Array
    terminated: Array
    truncated: Array
    failed: Array
    # Where rows are numbered by the environment: the step behind the last one covered.
    end_step: Array | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.trajectory_ids)

    @property
    def ends(self) -> Array:
        """[K] the row behind each trajectory's last."""
        return np.cumsum(self.num_steps)

    def taken(self, which: Array) -> TrajectoryHeaders:
        """Those of the trajectories with numbers `which`."""
        numbers = which.tolist()
        return TrajectoryHeaders(
            [self.trajectory_ids[i] for i in numbers],
            [self.env_ids[i] for i in numbers],
            [self.agent_ids[i] for i in numbers],
            *(column[which] for column in self._columns()),
            end_step=None if self.end_step is None else self.end_step[which],
        )

    def _columns(self) -> tuple[Array, ...]:
        numbers = (self.episode, self.first_step, self.num_steps)
        return (*numbers, self.terminated, self.truncated, self.failed)

    @staticmethod
    def joined(parts: Sequence[TrajectoryHeaders]) -> TrajectoryHeaders:
        """One after the other."""
        columns = (np.concatenate(column) for column in zip(*(part._columns() for part in parts), strict=True))
        return TrajectoryHeaders(
            [each for part in parts for each in part.trajectory_ids],
            [each for part in parts for each in part.env_ids],
            [each for part in parts for each in part.agent_ids],
            *columns,
            end_step=_joined_or_none([part.end_step for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryBlock(Sequence[Trajectory]):
    """`K` trajectories: `arrays` `[R, …]` in the order of `layout.stored`, `finals` `[K, …]` in that of `layout.followed`.

    `steps` `[R]` are the environment's steps of the rows; None where they count on from every trajectory's first step.
    """

    layout: Layout
    headers: TrajectoryHeaders
    arrays: tuple[Array, ...]
    finals: tuple[Array, ...]
    steps: Array | None = None

    def __len__(self) -> int:
        return len(self.headers)

    @overload
    def __getitem__(self, which: int) -> Trajectory: ...
    @overload
    def __getitem__(self, which: slice) -> list[Trajectory]: ...
    def __getitem__(self, which: int | slice) -> Trajectory | list[Trajectory]:
        if isinstance(which, slice):
            return [self[i] for i in range(len(self))[which]]
        i = range(len(self))[which]
        return next(self._trajectories(i, i + 1))

    def __iter__(self) -> Iterator[Trajectory]:
        return self._trajectories(0, len(self))

    @property
    def trajectory_ids(self) -> list[bytes]:
        """16 bytes each."""
        return self.headers.trajectory_ids

    @property
    def num_rows(self) -> int:
        return len(self.arrays[0])

    @property
    def num_bytes(self) -> int:
        num_bytes = sum(array.nbytes for array in (*self.arrays, *self.finals))
        return _HEADER_BYTES * len(self) + num_bytes + (0 if self.steps is None else self.steps.nbytes)

    def row_steps(self) -> Array:
        """[R] the step of every row."""
        return counted_steps(self.headers) if self.steps is None else self.steps

    def column(self, leaf: Leaf) -> Array:
        """The array of one of `layout.stored`."""
        return self.arrays[self.layout.stored.index(leaf)]

    def read_only(self) -> TrajectoryBlock:
        """Views that nobody can write through."""
        return replace(
            self,
            arrays=tuple(map(_read_only, self.arrays)),
            finals=tuple(map(_read_only, self.finals)),
            steps=None if self.steps is None else _read_only(self.steps),
        )

    def between(self, first: int, end: int) -> TrajectoryBlock:
        """Trajectories `first … end - 1`; views."""
        ends = self.headers.ends
        rows = slice(int(ends[first - 1]) if first else 0, int(ends[end - 1]))
        return TrajectoryBlock(
            self.layout,
            self.headers.taken(np.arange(first, end)),
            tuple(array[rows] for array in self.arrays),
            tuple(final[first:end] for final in self.finals),
            None if self.steps is None else self.steps[rows],
        )

    def without(self, trajectory_ids: set[bytes]) -> TrajectoryBlock | None:
        """Those that are not among the given; None if all are. A trajectory that occurs twice is kept once."""
        own = self.headers.trajectory_ids
        if trajectory_ids.isdisjoint(own) and len(set(own)) == len(own):
            return self
        seen = set(trajectory_ids)
        kept = np.zeros(len(own), bool)
        for i, name in enumerate(own):
            if name not in seen:
                seen.add(name)
                kept[i] = True
        return self.chosen(kept) if kept.any() else None

    def chosen(self, which: Array) -> TrajectoryBlock:
        """Those of the trajectories where `which` [K] is True; copies, in order."""
        rows = np.repeat(which, self.headers.num_steps)
        return TrajectoryBlock(
            self.layout,
            self.headers.taken(np.flatnonzero(which)),
            tuple(array[rows] for array in self.arrays),
            tuple(final[which] for final in self.finals),
            None if self.steps is None else self.steps[rows],
        )

    def _trajectories(self, first: int, stop: int) -> Iterator[Trajectory]:
        layout, headers = self.layout, self.headers
        begin = int(headers.num_steps[:first].sum())
        names = (headers.trajectory_ids, headers.env_ids, headers.agent_ids)
        numbers = (headers.episode, headers.first_step, headers.num_steps)
        flags = (headers.terminated, headers.truncated, headers.failed)
        columns = [*(each[first:stop] for each in names), *(each[first:stop].tolist() for each in (*numbers, *flags))]
        ends = [None] * (stop - first) if headers.end_step is None else headers.end_step[first:stop].tolist()
        counts_on = _counts_on(headers, self.steps)
        steps, finals = self._fields()
        for i, header in enumerate(zip(*columns, strict=True), first):
            trajectory_id, env_id, agent_id, episode, first_step, num_steps, terminated, truncated, failed = header
            rows = slice(begin, begin := begin + num_steps)
            yield Trajectory(
                trajectory_id=UUID(bytes=trajectory_id),
                env_id=UUID(bytes=env_id),
                agent_id=agent_id,
                group=layout.group,
                observation_space=layout.observation_space,
                action_space=layout.action_space,
                episode=episode,
                first_step=first_step,
                terminated=terminated,
                truncated=truncated,
                failed=failed,
                step=None if self.steps is None or counts_on[i] else self.steps[rows],
                end_step=ends[i - first],
                **{name: _taken(column, rows) for name, column in steps.items()},
                **{name: _taken(column, (i, ...)) for name, column in finals.items()},
            )

    def _fields(self) -> tuple[dict[str, Tree], dict[str, Tree]]:
        """The columns of steps `[R, …]` and of what followed the last of them `[K, …]`, by the names of `Trajectory`."""
        layout, arrays, last = self.layout, iter(self.arrays), iter(self.finals)
        steps: dict[str, Any] = {"reward": next(arrays), "policy_version": next(arrays)}
        steps["obs"] = unflatten(layout.observation_space, arrays)
        steps["action"] = unflatten(layout.action_space, arrays)
        optional = {"action_mask": layout.action_mask is not None, "logp": layout.has_logp, "value": layout.has_value}
        steps |= {name: next(arrays) for name, is_there in optional.items() if is_there}
        finals: dict[str, Any] = {"final_obs": unflatten(layout.observation_space, last)}
        if layout.memory_space is not None:
            steps["memory"] = unflatten(layout.memory_space, arrays)
        if layout.state_space is not None:
            steps["state"] = unflatten(layout.state_space, arrays)
            finals["final_state"] = unflatten(layout.state_space, last)
        if layout.masks_successor:
            finals["final_mask"] = next(last)
        return steps, finals


def joined_blocks(blocks: Sequence[TrajectoryBlock]) -> TrajectoryBlock:
    """Blocks of the same layout one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    arrays = zip(*(block.arrays for block in blocks), strict=True)
    finals = zip(*(block.finals for block in blocks), strict=True)
    return TrajectoryBlock(
        blocks[0].layout,
        TrajectoryHeaders.joined([block.headers for block in blocks]),
        tuple(joined_arrays(parts, parts[0].shape[1:]) for parts in arrays),
        tuple(joined_arrays(parts, parts[0].shape[1:]) for parts in finals),
        None if all(block.steps is None for block in blocks) else np.concatenate([b.row_steps() for b in blocks]),
    )


def counted_steps(headers: TrajectoryHeaders) -> Array:
    """[R] steps that count on from every trajectory's first one."""
    zeroth = headers.first_step - (headers.ends - headers.num_steps)
    return np.asarray(np.repeat(zeroth, headers.num_steps) + np.arange(int(headers.num_steps.sum())))


def _counts_on(headers: TrajectoryHeaders, steps: Array | None) -> Any:
    """[K] whether the steps of a trajectory count on from its first one; as they increase, the last one tells."""
    if steps is None or not len(headers):
        return ()
    return (steps[headers.ends - 1] - headers.first_step == headers.num_steps - 1).tolist()


def _joined_or_none(parts: Sequence[Array | None]) -> Array | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None


def joined_arrays(arrays: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Arrays of the same dtype one after the other, in memory that is used again and again."""
    out = pooled_empty((sum(map(len, arrays)), *shape), arrays[0].dtype)
    return np.concatenate(arrays, out=out, casting="no")


def pooled_empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """An uninitialised array in Arrow's memory pool, which hands out the same pages again and again.

    NumPy's large arrays come fresh from the system each time; their page faults took half the time of encoding.
    """
    return pooled_arrays([(shape, np.dtype(dtype))])[0]


def pooled_arrays(kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """Several such arrays in one piece, each of a shape and dtype and aligned as Arrow likes it."""
    counts = [prod(shape) for shape, _ in kinds]
    sizes = (count * kind.itemsize for count, (_, kind) in zip(counts, kinds, strict=True))
    begins = list(accumulate((size + 63 & ~63 for size in sizes), initial=0))
    memory = pa.allocate_buffer(begins[-1])
    places = zip(kinds, counts, begins, strict=False)
    return [np.frombuffer(memory, kind, count, begin).reshape(shape) for (shape, kind), count, begin in places]


def by_layout(blocks: Sequence[TrajectoryBlock]) -> Iterator[list[TrajectoryBlock]]:
    """Blocks of each layout, in order."""
    found: dict[int, list[TrajectoryBlock]] = {}
    for block in blocks:
        found.setdefault(id(block.layout), []).append(block)
    yield from found.values()


def num_trajectories(blocks: Sequence[TrajectoryBlock]) -> int:
    """In all of them."""
    return sum(map(len, blocks))


def without(blocks: Sequence[TrajectoryBlock], trajectory_ids: set[bytes]) -> list[TrajectoryBlock]:
    """What is left of the blocks without the given trajectories."""
    return [kept for block in blocks if (kept := block.without(trajectory_ids)) is not None]


def _taken(column: Tree, where: Any) -> Any:
    """As `index`, without its cost for a plain array."""
    return index(column, where) if isinstance(column, dict | tuple) else column[where]


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
