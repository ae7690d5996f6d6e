"""Images in replay, every frame of them once.

A stack of frames shares all but its newest frame with the stack before it, and what followed a step is what the next step
begins with. So a stack is kept as the numbers of its frames, and a frame as long as a row has its number. Which frames are new
is found by comparing bytes, not by believing a wrapper: whatever an environment shows comes out of replay bit for bit, first
stacks of episodes (zeros, or the first frame repeated) and final observations too. What is no stack is kept as one frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from relayrl.data.trees import Array, Space, leaf_dtype, space_leaves
from relayrl.errors import ConfigError
from relayrl.models.networks.observation_encoder import LeafEncoding

MIN_BYTES = 1024
"""A smaller observation is kept whole: comparing and looking up would cost more than its memory."""
CHUNK_BYTES = 1 << 25
"""Memory is taken by as much at a time, as frames need it."""
NO_FRAME = 0
"""What a row holds before it is filled; frame `i` is number `i + 1`."""


class FrameStore:
    """The frames of one leaf of a group's observations."""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[np.generic], stack_axis: int | None, num_stacks: int
    ) -> None:
        """For about `num_stacks` observations at a time."""
        self._shape, self._axis = shape, stack_axis
        self.num_frames = 1 if stack_axis is None else shape[stack_axis]
        self._frame_size = math.prod(shape) // self.num_frames
        frames_per_chunk = max(min(CHUNK_BYTES // (self._frame_size * dtype.itemsize), num_stacks // 16), 1)
        self._bits = frames_per_chunk.bit_length() - 1
        self._dtype = dtype
        self._chunks: list[Array] = []
        self._uses = np.zeros(0, np.int32)
        self._free: list[int] = []
        # By how many frames a stack moves in a step, forward or back; what fitted last is tried first.
        steps = [step for step in range(1, self.num_frames) if self.num_frames % step == 0]
        self._moves = [move for step in steps for move in (step, -step)]

    def num_bytes(self) -> int:
        """Memory of the frames."""
        return sum(chunk.nbytes for chunk in self._chunks) + self._uses.nbytes

    def write(self, obs: Array, following: Array, before: Array | None) -> tuple[Array, Array]:
        """Numbers [T, L, S] of what lanes saw and of what followed, both [T, L, …]; `before` [L, S] followed the last rows."""
        numbers = np.empty((2, *obs.shape[:2], self.num_frames), np.int32)
        for t in range(len(obs)):
            numbers[0, t] = self._numbered(self._stacks(obs[t]), before, is_known=True)
            numbers[1, t] = before = self._numbered(self._stacks(following[t]), numbers[0, t], is_known=False)
        return numbers[0], numbers[1]

    def hold(self, numbers: Array) -> None:
        """Keep frames as long as they are not let go."""
        np.add.at(self._uses, numbers[numbers != NO_FRAME] - 1, 1)

    def let_go(self, numbers: Array) -> None:
        """Free frames that nobody else holds."""
        gone = numbers[numbers != NO_FRAME] - 1
        np.subtract.at(self._uses, gone, 1)
        self._free += np.unique(gone[self._uses[gone] == 0]).tolist()

    def observations(self, numbers: Array) -> Array:
        """[…, *shape] of numbers […, S]."""
        leading = numbers.shape[:-1]
        if self._axis is None:
            return self._taken(numbers).reshape(*leading, *self._shape)
        others = (*self._shape[: self._axis], *self._shape[self._axis + 1 :])
        return np.moveaxis(
            self._taken(numbers).reshape(*numbers.shape, *others), len(leading), len(leading) + self._axis
        )

    def compact(self, several: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
        """Numbers as they are without gaps, and the frames [F, P] that they stand for."""
        used = np.unique(np.concatenate([numbers.reshape(-1) for numbers in several.values()]))
        used = used[used != NO_FRAME]
        place = np.zeros(len(self._uses) + 1, np.int32)
        place[used] = np.arange(1, len(used) + 1)
        return {name: place[numbers] for name, numbers in several.items()}, self._taken(used)

    def load(self, frames: Array) -> None:
        """Begin with frames that `compact` gave; nobody holds them yet."""
        for number, frame in zip(self._new(len(frames)).tolist(), frames, strict=True):
            self._frame(number)[...] = frame

    def free_unused(self) -> None:
        """Free frames that nobody holds."""
        self._free = np.flatnonzero(self._uses == 0)[::-1].tolist()

    def _stacks(self, leaf: Array) -> Array:
        """[L, S, P] of observations [L, *shape]."""
        moved = leaf if self._axis is None else np.moveaxis(leaf, 1 + self._axis, 1)
        return moved.reshape(len(leaf), self.num_frames, self._frame_size)

    def _numbered(self, stacks: Array, before: Array | None, *, is_known: bool) -> Array:
        """[L, S] numbers of stacks that come after those of `before`, or are those where they may be `known`."""
        numbers = np.full(stacks.shape[:2], NO_FRAME, np.int32)
        left = np.arange(len(stacks))
        if before is not None:
            left = left[(before != NO_FRAME).all(1)]
            earlier = self._taken(before[left])
            if is_known:
                same = _equal(stacks[left], earlier)
                numbers[left[same]] = before[left[same]]
                left, earlier = left[~same], earlier[~same]
            for move in list(self._moves):
                if not len(left):
                    break
                kept, came_from = _overlap(move)
                fits = _equal(stacks[left, kept], earlier[:, came_from])
                numbers[left[fits], kept] = before[left[fits], came_from]
                if fits.any() and self._moves[0] != move:
                    self._moves.remove(move)
                    self._moves.insert(0, move)
                left, earlier = left[~fits], earlier[~fits]
        for s in range(self.num_frames):
            missing = np.flatnonzero(numbers[:, s] == NO_FRAME)
            if s and len(missing):
                repeated = missing[(stacks[missing, s] == stacks[missing, s - 1]).all(1)]
                numbers[repeated, s] = numbers[repeated, s - 1]
                missing = missing[numbers[missing, s] == NO_FRAME]
            if len(missing):
                numbers[missing, s] = found = self._new(len(missing))
                for number, lane in zip(found.tolist(), missing.tolist(), strict=True):
                    self._frame(number)[...] = stacks[lane, s]
        return numbers

    def _new(self, count: int) -> Array:
        """Numbers of frames to be filled."""
        while len(self._free) < count:
            first, size = len(self._uses), 1 << self._bits
            try:
                self._chunks.append(np.zeros((size, self._frame_size), self._dtype))
            except MemoryError as error:
                have = self.num_bytes() / 2**30
                raise ConfigError(
                    f"replay holds {have:,.1f} GiB of images, and there is no more; lower buffer_size"
                ) from error
            self._uses = np.concatenate([self._uses, np.zeros(size, np.int32)])
            self._free = [*range(first + size - 1, first - 1, -1), *self._free]
        taken = [self._free.pop() for _ in range(count)]
        return np.asarray(taken, np.int32) + 1

    def _frame(self, number: int) -> Array:
        index = number - 1
        chunk: Array = self._chunks[index >> self._bits]
        return np.asarray(chunk[index & ((1 << self._bits) - 1)])

    def _taken(self, numbers: Array) -> Array:
        """[…, P] frames."""
        frames = np.empty((numbers.size, self._frame_size), self._dtype)
        for i, number in enumerate(numbers.reshape(-1).tolist()):
            frames[i] = self._frame(number)
        return frames.reshape(*numbers.shape, self._frame_size)


def _overlap(move: int) -> tuple[slice, slice]:
    """The frames of a stack that were there before, and where they were."""
    return (slice(None, -move), slice(move, None)) if move > 0 else (slice(-move, None), slice(None, move))


def _equal(some: Array, others: Array) -> Array:
    """[L] whether all frames [L, S, P] are the same, as bytes: numbers that are not a number are themselves too."""
    if some.dtype != np.uint8:
        some, others = (np.ascontiguousarray(part).view(np.uint8) for part in (some, others))
    return np.asarray((some == others).all((1, 2)))


def frame_stores(observation_space: Space, num_stacks: int) -> dict[str, FrameStore]:
    """One for each leaf that is an image, by its path, for about `num_stacks` observations."""
    stores = {}
    for path, leaf in space_leaves(observation_space):
        dtype, encoding = leaf_dtype(leaf), LeafEncoding(leaf)
        if encoding.may_be_image and len(encoding.shape) > 1 and encoding.width * dtype.itemsize >= MIN_BYTES:
            stores[path] = FrameStore(encoding.shape, dtype, _stack_axis(encoding), num_stacks)
    return stores


def _stack_axis(encoding: LeafEncoding) -> int | None:
    try:
        layout = encoding.image_layout()
    except ConfigError:  # whether it is an image at all is the network's business
        return None
    return None if layout is None else layout.stack_axis
