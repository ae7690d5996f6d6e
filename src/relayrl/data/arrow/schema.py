"""The one Arrow schema of RelayRL's data, version 2: a row is a step. Every sink and every wire uses it.

    trajectory_id                 dictionary<string>  trajectories only
    env_id, agent_id, group       dictionary<string>  who acted
    episode, step                 int64               trajectories: the environment's episode, and its step of the row;
                                                      rollouts: the lane's own count of both
    env_episode, env_step         int64               rollouts of environments with several agents: the environment's count
    policy_version                int64               the policy that acted
    obs, obs.camera.0, …          the space's dtype   one column per leaf of a nested space
    action, action.…              the space's dtype
    action_mask                   bool                where actions are masked; True is allowed
    reward                        float32
    terminated, truncated         bool                the lane's episode ended on this row
    failed                        bool                the environment broke down
    valid                         bool                the lane acted on this row; always true in trajectories
    logp, value                   float32             where the policy gave them
    memory, memory.…              any dtype           where the policy is recurrent
    state, state.…                any dtype           where the environment's global state is recorded
    successor                     list<struct<…>>     0 or 1 records: the observation, and the state and action_mask where
                                                      recorded, that followed this row where the lane's next row does not show
                                                      them (`columns` says which rows); in trajectories that know the
                                                      environment's steps also `first_step` and `end_step`, between which they
                                                      are all that the lane did

Leaves with axes of their own are fixed-size lists, flattened in C order; their shapes stand in the space. Nothing is
null. A dot or percent sign inside a key is written `%2E`, `%25`, so that names are unique. A trajectory's rows are in
order of time. A rollout's row `t * L + l` is step `t` of lane `l`, and its lanes are `env_ids × agent_ids` in the order of
those columns' dictionaries, so `T` and `L` need no words of their own.

Metadata: `relayrl.schema_version`, `relayrl.kind`, `relayrl.group`, `relayrl.observation_space`, `relayrl.action_space`,
`relayrl.memory_space`, `relayrl.state_space` (JSON, see `space_json`), `relayrl.about`. It is the same for all messages of one
group of agents.

Version 1 had neither the environment's clock nor `first_step` and `end_step`: its trajectories number a lane's own decisions,
and are read as trajectories that do not know the environment's steps.

Not its job: filling columns (`arrow_writing`, `rollout_batches`) or bytes (`codec`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from relayrl.data.arrow.space_json import DTYPES, space_from_json, space_to_json
from relayrl.data.trees import Space, leaf_dtype
from relayrl.errors import ConfigError, DecodeError

SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)
_ABOUT = (
    "RelayRL experience: one row is one step, obs -> action -> reward; successor is what followed where no row shows it"
)
_ARROW_TYPES = {dtype: pa.bool_() if name == "bool" else pa.from_numpy_dtype(dtype) for name, dtype in DTYPES.items()}
ID = pa.dictionary(pa.int32(), pa.string())
GROUP = pa.dictionary(pa.int8(), pa.string())
_MAX_LIST_SIZE = 2**31 - 1


class Kind(Enum):
    """What the rows of a message form together."""

    TRAJECTORY = "trajectory"
    ROLLOUT = "rollout"


@dataclass(frozen=True)
class Leaf:
    """One array of a tree: its column's name, and dtype and shape of one row."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @cached_property
    def width(self) -> int:
        """Elements in a row."""
        return prod(self.shape)

    @cached_property
    def arrow_type(self) -> pa.DataType:
        """A plain value for a leaf without axes, else a fixed-size list."""
        if self.dtype not in _ARROW_TYPES:
            raise ConfigError(f"column {self.name!r} is {self.dtype}, which cannot be stored; use {', '.join(DTYPES)}")
        if self.width > _MAX_LIST_SIZE:
            raise ConfigError(f"a row of column {self.name!r} has {self.width} elements, more than Arrow can hold")
        if not self.shape:
            return _ARROW_TYPES[self.dtype]
        return pa.list_(pa.field("item", _ARROW_TYPES[self.dtype], nullable=False), self.width)


REWARD = Leaf("reward", DTYPES["float32"])
LOGP = Leaf("logp", DTYPES["float32"])
VALUE = Leaf("value", DTYPES["float32"])
EPISODE, STEP, POLICY_VERSION = (Leaf(name, DTYPES["int64"]) for name in ("episode", "step", "policy_version"))
ENV_EPISODE, ENV_STEP = (Leaf(name, DTYPES["int64"]) for name in ("env_episode", "env_step"))
FIRST_STEP, END_STEP = (Leaf(name, DTYPES["int64"]) for name in ("first_step", "end_step"))
TERMINATED, TRUNCATED, FAILED, VALID = (
    Leaf(name, DTYPES["bool"]) for name in ("terminated", "truncated", "failed", "valid")
)


def space_columns(root: str, space: Space) -> Iterator[Leaf]:
    """The leaves of a space in `space_leaves` order, named as columns below `root`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from space_columns(f"{root}.{key.replace('%', '%25').replace('.', '%2E')}", part)
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from space_columns(f"{root}.{i}", part)
    else:
        yield Leaf(root, leaf_dtype(space), tuple(space.shape or ()))


@dataclass(frozen=True)
class Layout:
    """Everything that decides the schema of a message; what follows from it is worked out once."""

    kind: Kind
    group: str
    observation_space: Space
    action_space: Space
    mask_width: int | None = None
    has_logp: bool = False
    has_value: bool = False
    memory_space: Space | None = None
    state_space: Space | None = None
    masks_successor: bool = False
    """Whether `successor` holds action masks; files from before they were kept have them for the steps only."""
    knows_steps: bool = False
    """Whether rows are numbered by the environment: trajectories say which of its steps they cover, rollouts have its clock."""

    @cached_property
    def observation(self) -> list[Leaf]:
        return list(space_columns("obs", self.observation_space))

    @cached_property
    def action(self) -> list[Leaf]:
        return list(space_columns("action", self.action_space))

    @cached_property
    def action_mask(self) -> Leaf | None:
        return None if self.mask_width is None else Leaf("action_mask", DTYPES["bool"], (self.mask_width,))

    @cached_property
    def memory(self) -> list[Leaf]:
        return [] if self.memory_space is None else list(space_columns("memory", self.memory_space))

    @cached_property
    def state(self) -> list[Leaf]:
        return [] if self.state_space is None else list(space_columns("state", self.state_space))

    @cached_property
    def followed(self) -> list[Leaf]:
        """What is kept of the moment after a row."""
        mask = [self.action_mask] if self.masks_successor and self.action_mask is not None else []
        return [*self.observation, *self.state, *mask]

    @cached_property
    def successor(self) -> list[Leaf]:
        """What a record of `successor` holds."""
        return [*self.followed, *((FIRST_STEP, END_STEP) if self.knows_steps and self.kind is Kind.TRAJECTORY else ())]

    @cached_property
    def stored(self) -> tuple[Leaf, ...]:
        """The columns that come from arrays of a trajectory, in the order in which blocks hold them."""
        found = [REWARD, POLICY_VERSION, *self.observation, *self.action]
        optional = ((self.action_mask, True), (LOGP, self.has_logp), (VALUE, self.has_value))
        found += [leaf for leaf, is_there in optional if leaf is not None and is_there]
        return (*found, *self.memory, *self.state)

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, metadata included."""
        columns = [("env_id", ID), ("agent_id", ID), ("group", GROUP)]
        if self.kind is Kind.TRAJECTORY:
            columns.insert(0, ("trajectory_id", ID))
        columns += [(leaf.name, leaf.arrow_type) for leaf in self.leaves]
        columns += [("successor", self._successor_type())]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns], metadata=self._metadata())

    @cached_property
    def fingerprint(self) -> bytes:
        """Equal for equal layouts, and for no others."""
        return bytes(self.schema.serialize().to_pybytes())

    @property
    def leaves(self) -> Iterator[Leaf]:
        """All columns but those of names and `successor`, in the schema's order."""
        yield from (EPISODE, STEP)
        if self.knows_steps and self.kind is Kind.ROLLOUT:
            yield from (ENV_EPISODE, ENV_STEP)
        yield from (POLICY_VERSION, *self.observation, *self.action)
        if self.action_mask is not None:
            yield self.action_mask
        yield from (REWARD, TERMINATED, TRUNCATED, FAILED, VALID)
        if self.has_logp:
            yield LOGP
        if self.has_value:
            yield VALUE
        yield from self.memory
        yield from self.state

    def _successor_type(self) -> pa.DataType:
        record = [pa.field(leaf.name, leaf.arrow_type, nullable=False) for leaf in self.successor]
        return pa.list_(pa.field("item", pa.struct(record), nullable=False))

    def _metadata(self) -> dict[str, str]:
        metadata = {
            "relayrl.schema_version": str(SCHEMA_VERSION),
            "relayrl.about": _ABOUT,
            "relayrl.kind": self.kind.value,
            "relayrl.group": self.group,
            "relayrl.observation_space": space_to_json(self.observation_space),
            "relayrl.action_space": space_to_json(self.action_space),
        }
        if self.memory_space is not None:
            metadata["relayrl.memory_space"] = space_to_json(self.memory_space)
        if self.state_space is not None:
            metadata["relayrl.state_space"] = space_to_json(self.state_space)
        return metadata


def layout_of(schema: pa.Schema) -> Layout:
    """The layout that gives exactly this schema; `DecodeError` says what is wrong with any other.

    The spaces that are built have at most as many elements as a row of the schema, so a caller that knows rows of this
    width to exist knows what this allocates.
    """
    try:
        return _layout_of(schema)
    except UnicodeDecodeError as error:
        raise DecodeError(f"a name in the schema is not UTF-8: {error}") from error


def _layout_of(schema: pa.Schema) -> Layout:
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    _require_version(metadata)
    kind = _kind(metadata)
    if len(set(schema.names)) != len(schema.names):
        raise DecodeError(f"two columns have the same name: {sorted(schema.names)}"[:400])
    mask = schema.field("action_mask").type if "action_mask" in schema.names else None
    if mask is not None and not pa.types.is_fixed_size_list(mask):
        raise DecodeError(f"column 'action_mask' is {mask}, expected a fixed-size list of bool")
    memory, state = metadata.get("relayrl.memory_space"), metadata.get("relayrl.state_space")
    layout = Layout(
        kind=kind,
        group=_required(metadata, "relayrl.group"),
        observation_space=_space(schema, "obs", _required(metadata, "relayrl.observation_space")),
        action_space=_space(schema, "action", _required(metadata, "relayrl.action_space")),
        mask_width=None if mask is None else mask.list_size,
        has_logp="logp" in schema.names,
        has_value="value" in schema.names,
        memory_space=None if memory is None else _space(schema, "memory", memory),
        state_space=None if state is None else _space(schema, "state", state),
        masks_successor=mask is not None and _successor_has(schema, "action_mask"),
        knows_steps=ENV_STEP.name in schema.names or _successor_has(schema, END_STEP.name),
    )
    _require_equal(schema, layout.schema)
    return layout


def _successor_has(schema: pa.Schema, name: str) -> bool:
    if "successor" not in schema.names:
        return False
    kind = schema.field("successor").type
    return bool(
        pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.get_field_index(name) >= 0
    )


def row_width_bytes(schema: pa.Schema) -> int:
    """Bytes that one row takes as NumPy columns, its successor not counted."""
    return sum(_width_bytes(column.type) for column in schema)


def _width_bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width_bytes(kind.value_type)
    if pa.types.is_dictionary(kind):
        return int(kind.index_type.bit_width) // 8
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_primitive(kind):
        return int(kind.bit_width) // 8
    return 4


def _require_version(metadata: dict[str, str]) -> None:
    version = metadata.get("relayrl.schema_version")
    if version is None:
        raise DecodeError("this is Arrow data, but no RelayRL data: its schema has no 'relayrl.schema_version'")
    if version not in map(str, READABLE_VERSIONS):
        raise DecodeError(f"data of schema version {version[:20]}; this program reads versions 1 to {SCHEMA_VERSION}")


def _required(metadata: dict[str, str], key: str) -> str:
    if key not in metadata:
        raise DecodeError(f"the schema's metadata has no {key!r}")
    return metadata[key]


def _kind(metadata: dict[str, str]) -> Kind:
    name = _required(metadata, "relayrl.kind")
    try:
        return Kind(name)
    except ValueError as error:
        raise DecodeError(f"unknown kind of data {name[:20]!r}, expected trajectory or rollout") from error


def _space(schema: pa.Schema, root: str, text: str) -> Space:
    columns = [column.type for column in schema if column.name == root or column.name.startswith(f"{root}.")]
    num_elements = sum(kind.list_size if pa.types.is_fixed_size_list(kind) else 1 for kind in columns)
    return space_from_json(text, max_elements=num_elements)


def _require_equal(schema: pa.Schema, expected: pa.Schema) -> None:
    if schema.equals(expected):
        return
    missing = [name for name in expected.names if name not in schema.names]
    extra = [name for name in schema.names if name not in expected.names]
    if missing or extra:
        raise DecodeError(f"columns do not fit the spaces: missing {missing[:8]}, not expected {extra[:8]}")
    if schema.names != expected.names:
        raise DecodeError(f"columns are in the order {schema.names}, expected {expected.names}")
    wrong = next((have, want) for have, want in zip(schema, expected, strict=True) if not have.equals(want))
    raise DecodeError(f"column {wrong[0].name!r} is {wrong[0]}, expected {wrong[1]}"[:400])
