"""Storage of steps by row number: one record per step, so that a request of many actors is one indexed write.

All small fields of a step (a vector observation, action, reward, log-probability, value, version, mask) lie side by side in
one record, usually one cache line; a field larger than `MAX_FIELD_BYTES`, such as an image, is an array of its own. Records
of a request are put together in a scratch row per actor and then copied to where each actor's row is.

Not its job: which rows belong to whom (`step_pages`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.trees import Array, Tree, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.runtime.requests.acting_layout import ActingLayout

MAX_FIELD_BYTES = 512
WORD_BYTES = 8


class StepRows:
    """`num_rows` rows of one layout. Row 0 may be written to by whoever has no row."""

    def __init__(self, layout: ActingLayout, num_rows: int) -> None:
        self._layout = layout
        self._obs_names = tuple(f"obs.{path}" for path, _ in space_leaves(layout.observation_space))
        fields = _fields(layout)
        small = {name: kind for name, kind in fields.items() if kind.itemsize <= MAX_FIELD_BYTES}
        self._large = {name: kind for name, kind in fields.items() if name not in small}
        self._record = _padded(small)
        self.has_masks = False
        self._columns = self._allocate(num_rows)
        self._scratch = self._allocate(1)
        self._scratch_version = -1

    def __len__(self) -> int:
        return len(self._columns["reward"])

    def write(
        self,
        rows: Array,
        obs: Tree,
        action: Array,
        logp: Array | None,
        value: Array | None,
        policy_version: int,
        mask: Array | None,
        memory: Array | None = None,
    ) -> None:
        """Steps without a reward yet, in `rows` [L], which differ."""
        L = len(rows)
        if len(self._scratch["reward"]) < L:
            self._scratch, self._scratch_version = self._allocate(2 * L), -1
        scratch = self._scratch
        if len(self._obs_names) == 1:
            scratch[self._obs_names[0]][:L] = obs
        else:
            for name, (_, leaf) in zip(self._obs_names, leaves(obs), strict=True):
                scratch[name][:L] = leaf
        scratch["action"][:L] = action
        if logp is not None:
            scratch["logp"][:L] = logp
        if value is not None:
            scratch["value"][:L] = value
        if memory is not None:
            scratch["memory"][:L] = memory
        if policy_version != self._scratch_version:
            scratch["policy_version"][:] = self._scratch_version = policy_version
        if mask is not None:
            self.has_masks = True
            scratch["action_mask"][:L] = mask
        self._columns["records"][rows] = scratch["records"][:L]
        for name in self._large:
            self._columns[name][rows] = scratch[name][:L]
        if mask is not None:
            scratch["action_mask"][:L] = True

    def write_one(
        self,
        row: int,
        obs: Tree,
        action: Array,
        logp: Array | None,
        value: Array | None,
        policy_version: int,
        mask: Array | None,
        memory: Array | None = None,
    ) -> None:
        """The same for one row and arrays [1, …]."""
        columns = self._columns
        if len(self._obs_names) == 1:
            columns[self._obs_names[0]][row] = obs[0]  # type: ignore[index]
        else:
            for name, (_, leaf) in zip(self._obs_names, leaves(obs), strict=True):
                columns[name][row] = leaf[0]
        columns["action"][row] = action[0]
        columns["reward"][row] = 0.0
        columns["policy_version"][row] = policy_version
        if logp is not None:
            columns["logp"][row] = logp[0]
        if value is not None:
            columns["value"][row] = value[0]
        if memory is not None:
            columns["memory"][row] = memory[0]
        if mask is not None:
            self.has_masks = True
            columns["action_mask"][row] = mask[0]
        elif self.has_masks:
            columns["action_mask"][row] = True

    def set_rewards(self, rows: Array, reward: Array) -> None:
        """The rewards of steps that had none; rows that occur twice keep one of theirs."""
        self._columns["reward"][rows] = reward

    def add_reward(self, row: int, reward: float) -> None:
        self._columns["reward"][row] += reward

    def observation(self, row: int) -> Tree:
        """The observation of one row, as a copy."""
        tree: Tree = unflatten(
            self._layout.observation_space, iter([np.array(self._columns[name][row]) for name in self._obs_names])
        )
        return tree

    def mask(self, row: int) -> Array | None:
        """The action mask of one row, as a copy; None where there are none."""
        return np.array(self._columns["action_mask"][row]) if self.has_masks else None

    def gather(self, rows: Array) -> dict[str, Any]:
        """The columns of a trajectory, by the names of its fields; fresh arrays."""
        taken = _views(self._columns["records"][rows], self._record)
        result: dict[str, Any] = {
            name: np.ascontiguousarray(taken[name]) for name in self._record.names or () if not name.startswith("obs.")
        }
        large = {name: self._columns[name].take(rows, 0) for name in self._large}
        result |= {name: column for name, column in large.items() if not name.startswith("obs.")}
        flat = [large[name] if name in large else np.ascontiguousarray(taken[name]) for name in self._obs_names]
        result["obs"] = unflatten(self._layout.observation_space, iter(flat))
        if not self.has_masks:
            result.pop("action_mask", None)
        return result

    def grow(self) -> None:
        """Twice as many rows; those there are keep their contents."""
        old, num_rows = self._columns, len(self)
        self._columns = self._allocate(2 * num_rows)
        self._columns["records"][:num_rows] = old["records"]
        for name in self._large:
            self._columns[name][:num_rows] = old[name]

    def _allocate(self, num_rows: int) -> dict[str, Array]:
        records = np.zeros(num_rows, self._record).view(f"V{self._record.itemsize}")  # opaque: copied as a whole, fast
        columns = {"records": records, **_views(records, self._record)}
        columns |= {name: np.zeros((num_rows, *kind.shape), kind.base) for name, kind in self._large.items()}
        if "action_mask" in columns:
            columns["action_mask"][:] = True
        return columns


def _fields(layout: ActingLayout) -> dict[str, np.dtype[Any]]:
    """Name and type, shape included, of every field of a step."""
    fields: dict[str, np.dtype[Any]] = {
        f"obs.{path}": np.dtype((leaf_dtype(leaf), tuple(leaf.shape or ())))
        for path, leaf in space_leaves(layout.observation_space)
    }
    ((_, action),) = space_leaves(layout.action_space)
    fields["action"] = np.dtype((leaf_dtype(action), tuple(action.shape or ())))
    fields["policy_version"], fields["reward"] = np.dtype(np.int64), np.dtype(np.float32)
    if layout.has_logp:
        fields["logp"] = np.dtype(np.float32)
    if layout.has_value:
        fields["value"] = np.dtype(np.float32)
    if layout.memory_width:
        fields["memory"] = np.dtype((np.float32, (layout.memory_width,)))
    if layout.mask_width is not None:
        fields["action_mask"] = np.dtype((np.bool_, (layout.mask_width,)))
    return fields


def _padded(fields: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    """An aligned record of the fields, the widest first, whose size is a multiple of a word."""
    order = sorted(fields, key=lambda name: -fields[name].base.itemsize)
    offsets, end = [], 0
    for name in order:
        offsets.append(end)
        end += fields[name].itemsize
    size = -(-end // WORD_BYTES) * WORD_BYTES
    description = {"names": order, "formats": [fields[name] for name in order], "offsets": offsets, "itemsize": size}
    return np.dtype(description)  # type: ignore[call-overload, no-any-return]


def _views(records: Array, record: np.dtype[Any]) -> dict[str, Array]:
    """The fields of opaque records, without a copy."""
    structured = records.view(record)
    return {name: structured[name] for name in record.names or ()}
