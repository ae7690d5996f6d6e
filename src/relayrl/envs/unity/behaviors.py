"""A behaviour of a Unity scene: the spaces of its agents, and how their messages become arrays and back.

Spaces come from what the scene announces and from the first agent's observations:

    vector (rank 1), matrix (rank 2)    Box float32
    image (rank 3), compressed          Box uint8, 0 … 255, in the scene's own order of axes
    image (rank 3), plain               Box float32
    rank 2 of variable length           Box float32, missing rows are zeros, and MultiBinary `<name>_present`: which are there
    continuous actions                  Box [-1, 1]
    discrete actions                    Discrete, or MultiDiscrete for several branches
    both                                Dict of continuous and discrete

Several sensors make a Dict by the sensors' names, those that show a goal with `goal_signal_` before it. Whatever a simulator
sends is compared with this before it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.mlagents.png_images import decode_images
from relayrl.data.trees import Array, Space, Tree
from relayrl.envs.unity.unity_messages import GOAL_SIGNAL, NO_COMPRESSION, PNG, VARIABLE_SIZE, message
from relayrl.errors import DecodeError, EnvError

MAX_NUMBERS = 1 << 24
"""Numbers in one observation, at most."""
MAX_ACTIONS = 1 << 16
CONTINUOUS, DISCRETE = "continuous", "discrete"
GOAL_PREFIX = "goal_signal_"
"""Of sensors that show a goal, by which `network.goal_conditioning` knows them."""
_TEAM = re.compile(r"(.*)\?team=(\d+)", re.DOTALL)
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


class SensorKind(Enum):
    """How an observation travels."""

    NUMBERS = "numbers"
    PNG = "png"
    RAGGED = "ragged"


@dataclass(frozen=True, slots=True)
class Sensor:
    """One observation of every agent."""

    key: str
    kind: SensorKind
    shape: tuple[int, ...]

    @property
    def present_key(self) -> str:
        """Where the rows that are there are marked."""
        return f"{self.key}_present"

    def spaces(self) -> dict[str, Space]:
        """What the sensor adds to the observation space."""
        if self.kind is SensorKind.PNG:
            return {self.key: spaces.Box(0, 255, self.shape, np.uint8)}
        numbers = {self.key: spaces.Box(-np.inf, np.inf, self.shape, np.float32)}
        return numbers | (
            {self.present_key: spaces.MultiBinary(self.shape[0])} if self.kind is SensorKind.RAGGED else {}
        )

    def read(self, proto: Any) -> dict[str, Array]:
        """The arrays of one observation; `EnvError` where it is not what was announced."""
        shape = tuple(proto.shape)
        if shape != self.shape:
            raise EnvError(f"sensor {self.key!r} has the shape {list(shape)[:8]}, at first it was {list(self.shape)}")
        if proto.compression_type != (PNG if self.kind is SensorKind.PNG else NO_COMPRESSION):
            raise EnvError(f"sensor {self.key!r} has changed its compression, to {proto.compression_type}")
        if self.kind is SensorKind.PNG:
            try:
                return {self.key: decode_images(proto.compressed_data, shape, proto.compressed_channel_mapping)}
            except DecodeError as error:
                raise EnvError(f"sensor {self.key!r}: {error}") from error
        numbers = np.array(proto.float_data.data, np.float32)
        if self.kind is SensorKind.RAGGED:
            return self._read_rows(numbers)
        if numbers.size != math.prod(shape):
            raise EnvError(f"sensor {self.key!r} sent {numbers.size} numbers for the shape {list(shape)}")
        return {self.key: numbers.reshape(shape)}

    def _read_rows(self, numbers: Array) -> dict[str, Array]:
        most, width = self.shape
        if numbers.size > most * width or numbers.size % width:
            raise EnvError(f"sensor {self.key!r} sent {numbers.size} numbers for at most {most} rows of {width}")
        rows = np.zeros(self.shape, np.float32)
        rows.ravel()[: numbers.size] = numbers
        return {self.key: rows, self.present_key: np.asarray(rows.any(axis=1), np.int8)}


@dataclass(frozen=True, slots=True)
class Behavior:
    """What the agents of one behaviour see and do."""

    name: str
    """As the scene announces it, with its team."""
    sensors: tuple[Sensor, ...]
    num_continuous: int
    branches: tuple[int, ...]

    @property
    def observation_space(self) -> Space:
        """One Box, or a Dict by sensor."""
        parts = {key: space for sensor in self.sensors for key, space in sensor.spaces().items()}
        return next(iter(parts.values())) if len(parts) == 1 else spaces.Dict(parts)

    @property
    def action_space(self) -> Space:
        """Box, Discrete, MultiDiscrete, or a Dict of both kinds."""
        box = spaces.Box(-1.0, 1.0, (self.num_continuous,), np.float32)
        choice: Space = spaces.Discrete(self.branches[0]) if len(self.branches) == 1 else _choices(self.branches)
        if not self.branches:
            return box
        return spaces.Dict({CONTINUOUS: box, DISCRETE: choice}) if self.num_continuous else choice

    def does_the_same(self, other: Behavior) -> bool:
        """Whether one policy can act for both."""
        mine, theirs = ((own.sensors, own.num_continuous, own.branches) for own in (self, other))
        return mine == theirs

    def observation(self, info: Any) -> Tree:
        """What one agent sees, in the form of `observation_space`."""
        if len(info.observations) != len(self.sensors):
            raise EnvError(
                f"an agent of {self.name!r} has {len(info.observations)} sensors, the first had {len(self.sensors)}"
            )
        parts: dict[str, Tree] = {}
        for sensor, proto in zip(self.sensors, info.observations, strict=True):
            parts.update(sensor.read(proto))
        return next(iter(parts.values())) if len(parts) == 1 else parts

    def action_mask(self, info: Any) -> Array | None:
        """[A] what one agent may do next, all branches side by side; None where actions cannot be masked."""
        if not self.branches:
            return None
        size = sum(self.branches)
        if not info.action_mask:
            return np.ones(size, np.bool_)
        if len(info.action_mask) != size:
            raise EnvError(f"an agent of {self.name!r} masks {len(info.action_mask)} actions, there are {size}")
        return ~np.array(info.action_mask, np.bool_)  # the protocol marks what is forbidden

    def action(self, taken: Any) -> Any:
        """The message of one agent's action; `EnvError` where it lies outside the action space."""
        parts = taken if isinstance(taken, dict) else {DISCRETE if self.branches else CONTINUOUS: taken}
        numbers = np.clip(np.ravel(parts[CONTINUOUS]), -1.0, 1.0).tolist() if self.num_continuous else []
        choices = np.ravel(parts[DISCRETE]).astype(np.int64).tolist() if self.branches else []
        if not np.isfinite(numbers).all():
            raise EnvError(f"an action of {self.name!r} is not finite: {numbers[:8]}")
        for choice, size in zip(choices, self.branches, strict=True):
            if not 0 <= choice < size:
                raise EnvError(
                    f"an agent of {self.name!r} cannot do {choice}; the branch has the actions 0 to {size - 1}"
                )
        return message(
            "AgentActionProto",
            vector_actions_deprecated=[*numbers, *choices],
            continuous_actions=numbers,
            discrete_actions=choices,
        )

    def idle_action(self, info: Any) -> Any:
        """The message of an action for an agent that nobody acts for: zeros, and the first that is allowed of each branch."""
        allowed, first, choices = self.action_mask(info), 0, []
        for size in self.branches:
            assert allowed is not None
            choices.append(int(np.argmax(allowed[first : first + size])))
            first += size
        zeros = [0.0] * self.num_continuous
        return message(
            "AgentActionProto",
            vector_actions_deprecated=[*zeros, *choices],
            continuous_actions=zeros,
            discrete_actions=choices,
        )


def _choices(branches: Sequence[int]) -> Space:
    return spaces.MultiDiscrete(np.array(branches or (1,), np.int64))


def read_behavior(parameters: Any, info: Any) -> Behavior:
    """A behaviour as the scene announces it, with the sensors of its first agent; `EnvError` where it cannot be."""
    name, spec = parameters.brain_name, parameters.action_spec
    num_continuous, branches = spec.num_continuous_actions, tuple(spec.discrete_branch_sizes)
    if not num_continuous and not branches:
        sizes = tuple(parameters.vector_action_size_deprecated)
        is_continuous = parameters.vector_action_space_type_deprecated == 1
        num_continuous, branches = (sum(sizes), ()) if is_continuous else (0, sizes)
    if not (num_continuous > 0 or branches) or num_continuous < 0 or any(size < 1 for size in branches):
        raise EnvError(
            f"behaviour {name!r:.100} announces {num_continuous} continuous actions and branches {list(branches)[:8]}"
        )
    if num_continuous + sum(branches) > MAX_ACTIONS:
        raise EnvError(
            f"behaviour {name!r:.100} announces {num_continuous + sum(branches)} actions; {MAX_ACTIONS} are the limit"
        )
    if not info.observations:
        raise EnvError(f"agents of behaviour {name!r:.100} see nothing; give them a sensor")
    keys: list[str] = []
    for i, proto in enumerate(info.observations):
        key = _ODD.sub("_", proto.name)[:60].strip("_") or f"observation_{i}"
        key = f"{GOAL_PREFIX}{key}" if proto.observation_type == GOAL_SIGNAL else key
        keys.append(f"{key}_{i}" if key in keys else key)
    sensors = tuple(_read_sensor(key, proto) for key, proto in zip(keys, info.observations, strict=True))
    return Behavior(name, sensors, num_continuous, branches)


def _read_sensor(key: str, proto: Any) -> Sensor:
    shape, properties = tuple(proto.shape), tuple(proto.dimension_properties)
    if not 1 <= len(shape) <= 3 or min(shape, default=0) < 1 or math.prod(shape) > MAX_NUMBERS:
        raise EnvError(
            f"sensor {key!r} has the shape {list(shape)[:8]}; RelayRL takes 1 to 3 axes and {MAX_NUMBERS:,} numbers"
        )
    if proto.compression_type == PNG and len(shape) == 3:
        return Sensor(key, SensorKind.PNG, shape)
    if proto.compression_type != NO_COMPRESSION:
        raise EnvError(
            f"sensor {key!r} of shape {list(shape)} has compression {proto.compression_type}; RelayRL reads PNG images"
        )
    is_ragged = len(shape) == 2 and bool(properties) and bool(properties[0] & VARIABLE_SIZE)
    return Sensor(key, SensorKind.RAGGED if is_ragged else SensorKind.NUMBERS, shape)


@dataclass(frozen=True, slots=True)
class Membership:
    """The group of agents that a behaviour belongs to, and how its agents are called there."""

    group: str
    prefix: str


def form_groups(behaviors: Mapping[str, Behavior]) -> dict[str, Membership]:
    """The groups of behaviours, by the behaviours' names. Teams of one behaviour share a group, and so a policy, where they see
    and do the same; ids of their agents then name the team as Unity does. Odd characters become `_`."""
    bases = {name: _TEAM.fullmatch(name) for name in behaviors}
    members: dict[str, list[str]] = {}
    for name in behaviors:
        match = bases[name]
        members.setdefault(match.group(1) if match else name, []).append(name)
    found: dict[str, Membership] = {}
    for base, names in members.items():
        plain = _ODD.sub("_", base)[:60].strip("_") or "behavior"
        taken = {member.group for member in found.values()}
        plain = f"{plain}-{len(taken)}" if plain in taken else plain
        first = behaviors[names[0]]
        is_alike = all(behaviors[name].does_the_same(first) for name in names)
        for name in names:
            match = bases[name]
            team = match.group(2) if match else "0"
            group = plain if is_alike else f"{plain}_team{team}"
            found[name] = Membership(group, f"{plain}?team={team}" if is_alike and len(names) > 1 else group)
    return found
