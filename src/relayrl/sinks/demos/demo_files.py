"""`demo:PATH`: what Unity's ML-Agents recorded, a `.demo` file or a folder of them, to be read only.

A file holds messages, each behind its length: metadata in the first 33 bytes, the behaviour's parameters, then for every step a
pair of what an agent saw and did. The reward and the end of a step are those of the pair after it; a pair that is the end of an
episode gives its last observation and no step.

    observations   one: a Box; several: a Tuple of them. PNG pictures are uint8 [H, W, C]
    actions        continuous ones: Box in ±1; branches: Discrete or MultiDiscrete; both: a Tuple of them
    group, agent   the behaviour's name, and `agent`; every episode is in an environment of its own

Steps whose episode does not end in the file are truncated where it stops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid5

import numpy as np
from gymnasium import spaces

from relayrl.data.arrow.schema import Layout
from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.mlagents.png_images import decode_images
from relayrl.data.trees import Array, Space
from relayrl.errors import ConfigError, DecodeError, SinkClosedError
from relayrl.sinks.buffered import checked_blocks
from relayrl.sinks.contract import ReadReport, SourceCount, TrajectorySink, TrajectorySource, rest_of
from relayrl.sinks.demos.wire_reader import Message, varint
from relayrl.sinks.sink_settings import SinkSettings

SUFFIX = ".demo"
AGENT = "agent"
VERSIONS = (0, 1)
"""Of demonstrations; all that ML-Agents has had."""
METADATA_BYTES = 33
MAX_FILE_BYTES = 8 << 30
MAX_MESSAGE_BYTES = 256 << 20
MAX_PICTURE_BYTES, MAX_EPISODE_BYTES = 64 << 20, 4 << 30
"""Unpacked: pictures may be a thousand times larger than in the file."""
MAX_AXES, MAX_PARTS, MAX_CHOICES = 8, 64, 1 << 16
_NAMESPACE = UUID("6f0a8c5e-1a3b-5a44-9a3a-6d3c0d7f6b1e")


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """There is none: Unity writes these files."""
    del settings
    raise ConfigError(
        f"{url}: demonstrations of ML-Agents are read only; record to arrow:DIR, parquet:DIR or another sink"
    )


def open_source(url: str) -> TrajectorySource:
    """The demonstrations at a path."""
    return DemoSource(url)


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions of a behaviour."""

    num_continuous: int
    branches: tuple[int, ...]

    @classmethod
    def of(cls, behavior: Message, what: str) -> Actions:
        """As its parameters describe them; files before communicator 1.3 in fields of their own."""
        if behavior.has(9):
            spec = Message(behavior.bytes(9), what)
            found = cls(spec.int32(1), tuple(spec.int32s(3, MAX_PARTS)))
            if spec.int32(2) != len(found.branches):
                raise DecodeError(f"{what} has {spec.int32(2)} discrete actions with {len(found.branches)} sizes")
        else:
            sizes, is_continuous = behavior.int32s(3, MAX_PARTS), behavior.int32(6) == 1
            found = cls(sizes[0] if is_continuous and sizes else 0, () if is_continuous else tuple(sizes))
        if not 0 <= found.num_continuous <= MAX_CHOICES or not all(0 < size <= MAX_CHOICES for size in found.branches):
            raise DecodeError(f"{what} has {found.num_continuous} continuous actions and branches {found.branches}")
        if not found.num_continuous and not found.branches:
            raise DecodeError(f"{what} has no actions")
        return found

    def nothing(self) -> tuple[Array, Array]:
        """In place of the actions of a step without any."""
        return np.zeros(self.num_continuous, np.float32), np.zeros(len(self.branches), np.int64)

    @property
    def space(self) -> Space:
        """The action space."""
        box = spaces.Box(-1.0, 1.0, (self.num_continuous,), np.float32)
        choice: Space = (
            spaces.Discrete(self.branches[0])
            if len(self.branches) == 1
            else spaces.MultiDiscrete(list(self.branches) or [1])
        )
        if not self.branches:
            return box
        return spaces.Tuple((box, choice)) if self.num_continuous else choice

    def rows(self, steps: list[Step]) -> Array | tuple[Array, ...]:
        """The actions of some steps as columns."""
        real = np.stack([step.continuous for step in steps])
        chosen = np.stack([step.discrete for step in steps])
        chosen = chosen[:, 0] if len(self.branches) == 1 else chosen
        if not self.branches:
            return real
        return (real, chosen) if self.num_continuous else chosen


@dataclass(frozen=True, slots=True)
class Step:
    """One pair: what an agent saw, what it did then, and what its last action had brought."""

    observations: tuple[Array, ...]
    continuous: Array
    discrete: Array
    mask: Array | None
    reward: float
    acts: bool  # not at the end of an episode, nor where a recording was stopped
    is_done: bool
    is_cut: bool
    agent: int

    @classmethod
    def of(cls, pair: Message, actions: Actions, what: str) -> Step:
        """From an AgentInfoActionPairProto."""
        info, action = Message(pair.bytes(1), what), Message(pair.bytes(2), what)
        given = (_observation(Message(each, what), what) for each in info.messages(13)[: MAX_PARTS + 1])
        observations = tuple(each for each in given if each.size)
        if not 0 < len(observations) <= MAX_PARTS:
            raise DecodeError(f"{what} has {len(observations)} observations")
        is_done = bool(info.int32(8))
        acts = not is_done and any(action.has(field) for field in (1, 6, 7))
        reward = info.float32(7) + info.float32(15)
        numbers = _actions(action, actions, what) if acts else actions.nothing()
        mask = _mask(info, actions, numbers[1], what)
        found = cls(observations, *numbers, mask, reward, acts, is_done, bool(info.int32(9)), info.int32(10))
        parts = (*observations, numbers[0], np.array(reward))
        if not all(np.isfinite(part).all() for part in parts if part.dtype.kind == "f"):
            raise DecodeError(f"{what} holds numbers that are NaN or infinite")
        return found


def _actions(action: Message, known: Actions, what: str) -> tuple[Array, Array]:
    real, chosen = action.floats(6), np.array(action.int32s(7, MAX_PARTS), np.int64)
    if not len(real) and not len(chosen):
        old = action.floats(1)
        if not np.isfinite(old).all() or np.abs(old).max(initial=0.0) > MAX_CHOICES:
            raise DecodeError(f"{what} holds numbers that are NaN or infinite")
        real, chosen = (old, chosen) if known.num_continuous else (real, old.astype(np.int64))
    if len(real) != known.num_continuous or len(chosen) != len(known.branches):
        raise DecodeError(f"{what} has {len(real)} continuous and {len(chosen)} discrete actions, unlike its behaviour")
    if not all(0 <= choice < size for choice, size in zip(chosen.tolist(), known.branches, strict=True)):
        raise DecodeError(f"{what} chose {chosen.tolist()} of {list(known.branches)}")
    return real, chosen


def _mask(info: Message, actions: Actions, chosen: Array, what: str) -> Array | None:
    """What is allowed; in the file, True forbids. What was done counts as allowed: people's keys do not ask the mask there."""
    width = sum(actions.branches)
    given = info.int32s(11, width)
    if not given:
        return None
    if len(given) != width:
        raise DecodeError(f"{what} has a mask of {len(given)} entries, its actions take {width}")
    allowed = ~np.array(given, bool)
    allowed[chosen + np.cumsum((0, *actions.branches[:-1]))] = True
    return allowed


def _observation(observation: Message, what: str) -> Array:
    shape = observation.int32s(1, MAX_AXES)
    if shape == [0]:  # a vector sensor without numbers, which Unity writes nevertheless
        return np.empty(0, np.float32)
    if not shape or any(size < 1 for size in shape) or math.prod(shape) > MAX_MESSAGE_BYTES:
        raise DecodeError(f"{what} has an observation of shape {shape}")
    compression = observation.int32(2)
    if compression == 1:
        return _picture(observation, shape, what)
    if compression != 0:
        raise DecodeError(f"{what} has an observation with compression {compression}; known are none (0) and PNG (1)")
    data = Message(observation.bytes(4), what).floats(1)
    if len(data) != math.prod(shape):
        raise DecodeError(f"{what} has an observation of shape {shape} with {len(data)} numbers")
    return data.reshape(shape)


def _picture(observation: Message, shape: list[int], what: str) -> Array:
    """In the order of axes of the shape: channels come first, in older files last."""
    if len(shape) != 3:
        raise DecodeError(f"{what} has a picture of shape {shape}")
    if math.prod(shape) > MAX_PICTURE_BYTES:
        raise DecodeError(f"{what} has a picture of shape {shape}; {MAX_PICTURE_BYTES >> 20} MiB are unpacked at most")
    mapping = observation.int32s(5, MAX_CHOICES)
    try:
        return decode_images(bytes(observation.bytes(3)), tuple(shape), mapping)
    except DecodeError as error:
        raise DecodeError(f"{what}: {error}") from error


class DemoFile:
    """One file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def trajectories(self) -> Iterator[Trajectory]:
        """Its episodes, in order."""
        steps: list[Step] = []
        number, first, num_bytes = 0, None, 0
        for group, actions, step in self._steps():
            first = step if first is None else first
            if [each.shape for each in step.observations] != [each.shape for each in first.observations]:
                raise DecodeError(f"{self._path}: the shapes of observations change, in step {number}")
            goes_on = not steps or step.agent == steps[-1].agent
            if not goes_on:
                yield from self._episode(group, actions, steps, number)
                number, num_bytes, steps = number + 1, 0, []
            steps.append(step)
            num_bytes += sum(each.nbytes for each in step.observations)
            if num_bytes > MAX_EPISODE_BYTES:
                raise DecodeError(f"{self._path}: an episode unpacks to more than {MAX_EPISODE_BYTES >> 30} GiB")
            if not step.acts:
                yield from self._episode(group, actions, steps, number)
                number, num_bytes, steps = number + 1, 0, []
        if steps:
            yield from self._episode(group, actions, steps, number)

    def _steps(self) -> Iterator[tuple[str, Actions, Step]]:
        size = self._path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DecodeError(f"{self._path} has {size >> 20} MiB; {MAX_FILE_BYTES >> 30} GiB are read at most")
        data = memoryview(np.memmap(self._path, np.uint8, "r")) if size else memoryview(b"")  # type: ignore[arg-type]
        what = str(self._path)
        length, position = varint(data, 0, what)
        if length > METADATA_BYTES - position:
            raise DecodeError(f"{what} is no demonstration of ML-Agents: its metadata take {length} bytes")
        metadata = Message(_part(data, position, length, what), what)
        version, num_steps = metadata.int32(1), metadata.int32(3)
        if version not in VERSIONS:
            raise DecodeError(f"{what} has version {version} of ML-Agents' demonstrations; {VERSIONS} are read")
        if num_steps < 0:
            raise DecodeError(f"{what} is damaged: it claims {num_steps} steps")
        length, position = varint(data, METADATA_BYTES, what)
        behavior = Message(_part(data, position, length, what), f"{what}: its behaviour")
        actions, group = Actions.of(behavior, what), behavior.text(7) or AGENT
        position += length
        number = 0
        # Behind the steps that the metadata count there may be a second copy of them. A recorder that was killed counted none.
        while number < num_steps if num_steps else position < len(data):
            where = f"{what}: step {number}"
            length, position = varint(data, position, where)
            yield group, actions, Step.of(Message(_part(data, position, length, where), where), actions, where)
            position, number = position + length, number + 1

    def _episode(self, group: str, actions: Actions, steps: list[Step], number: int) -> Iterator[Trajectory]:
        """The steps before the last, whose observation followed them."""
        *acted, last = steps
        if not acted:
            return
        env = uuid5(_NAMESPACE, f"{self._path.resolve()}/{number}")
        observed = [np.stack([step.observations[i] for step in acted]) for i in range(len(last.observations))]
        masks = [step.mask for step in steps]
        width = sum(actions.branches)
        is_masked = any(mask is not None for mask in masks)
        allowed = [np.ones(width, bool) if mask is None else mask for mask in masks]
        yield Trajectory(
            trajectory_id(env, AGENT, 0, 0),
            env,
            AGENT,
            group,
            _observation_space(last.observations),
            actions.space,
            episode=0,
            first_step=0,
            obs=observed[0] if len(observed) == 1 else tuple(observed),
            action=actions.rows(acted),
            reward=np.array([step.reward for step in steps[1:]], np.float32),
            policy_version=np.zeros(len(acted), np.int64),
            terminated=last.is_done and not last.is_cut,
            truncated=last.is_cut or not last.is_done,
            failed=False,
            final_obs=last.observations[0] if len(observed) == 1 else last.observations,
            action_mask=np.stack(allowed[:-1]) if is_masked else None,
            final_mask=allowed[-1] if is_masked else None,
        )


def _part(data: memoryview, position: int, length: int, what: str) -> memoryview:
    if length > min(len(data) - position, MAX_MESSAGE_BYTES):
        raise DecodeError(
            f"{what} is damaged: a message claims {length} bytes where {max(0, len(data) - position)} are left"
        )
    return data[position : position + length]


def _observation_space(observations: tuple[Array, ...]) -> Space:
    boxes = [
        spaces.Box(0, 255, each.shape, np.uint8)
        if each.dtype == np.uint8
        else spaces.Box(-np.inf, np.inf, each.shape, np.float32)
        for each in observations
    ]
    return boxes[0] if len(boxes) == 1 else spaces.Tuple(boxes)


def demo_files(path: Path) -> list[Path]:
    """The files at a path, in the order of their names."""
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.suffix == SUFFIX)
        if not found:
            raise ConfigError(f"{path} holds no {SUFFIX} files")
        return found
    if not path.is_file():
        raise ConfigError(f"there is no file or folder {path}")
    return [path]


class DemoSource(TrajectorySource):
    """The trajectories of some files, one after the other."""

    def __init__(self, url: str) -> None:
        self._url, self._is_closed = url, False
        self._files = demo_files(Path(rest_of(url, "PATH")))
        self.report = ReadReport()

    @property
    def url(self) -> str:
        return self._url

    def __iter__(self) -> Iterator[Trajectory]:
        if self._is_closed:
            raise SinkClosedError(f"reading after close() on {self._url}; open a new source")
        self.report = ReadReport()
        return (trajectory for path in self._files for trajectory in DemoFile(path).trajectories())

    def count(self) -> SourceCount:
        lengths = [len(trajectory) for trajectory in self]
        return SourceCount(len(lengths), sum(lengths))

    def layouts(self) -> tuple[Layout, ...]:
        found: dict[bytes, Layout] = {}
        for trajectory in self:
            (block,) = checked_blocks([trajectory])
            found.setdefault(block.layout.schema.serialize().to_pybytes(), block.layout)
        return tuple(found.values())

    def close(self) -> None:
        self._is_closed = True
