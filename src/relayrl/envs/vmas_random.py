"""The random stream of one VMAS environment, put in place of the process's generators while VMAS runs.

VMAS draws from the global generators of torch, NumPy and Python. It puts a state of its own, shared by all environments of the
process, in place around most calls; copying NumPy's state takes 35 µs each time, some 140 of a step's 1,400 µs.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_TWISTER_BYTES = 624 * 4 + 4
"""Of the state of NumPy's Mersenne Twister: its numbers and the place among them."""


class VmasStream:
    """What one environment draws from."""

    def __init__(self, device: str, shared: list[Any]) -> None:
        """`shared`: VMAS's class-wide list of torch, NumPy and Python states, which it swaps in around most calls."""
        self._shared = shared
        self._device = None if torch.device(device).type == "cpu" else torch.device(device)
        self._numpy = _NumpyStream()
        self.seed(None)

    def seed(self, seed: int | None) -> None:
        """Begin the stream of `seed`, or of fresh entropy; touches no generator but its own."""
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._numpy.set_state(np.random.RandomState(seed % 2**32).get_state())
        self._python = random.Random(seed).getstate()
        if self._device is not None:
            self._on_device = torch.Generator(self._device).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Calls around which VMAS puts its state in place draw from this stream inside. Outside, all generators are as before,
        even after an error in VMAS."""
        others, outside = self._shared[:], _global_state()
        self._shared[:] = [self._torch, self._numpy.get_state(), self._python]
        with self._torch_and_python_left_alone():
            try:
                yield
            finally:
                self._torch, numpy_state, self._python = self._shared
                self._numpy.set_state(numpy_state)
                self._shared[:] = others
                np.random.set_state(outside)  # noqa: NPY002

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The same for calls around which VMAS puts nothing in place."""
        with self._torch_and_python_left_alone(), self._numpy.in_place():
            torch.set_rng_state(self._torch)
            random.setstate(self._python)
            try:
                yield
            finally:
                self._torch, self._python = torch.get_rng_state(), random.getstate()

    @contextlib.contextmanager
    def _torch_and_python_left_alone(self) -> Iterator[None]:
        outside = (torch.get_rng_state(), random.getstate())
        module = None if self._device is None else torch.get_device_module(self._device)
        outside_device = None if module is None else module.get_rng_state(self._device)
        if module is not None:
            module.set_rng_state(self._on_device, self._device)
        try:
            yield
        finally:
            torch.set_rng_state(outside[0])
            random.setstate(outside[1])
            if module is not None:
                self._on_device = module.get_rng_state(self._device)
                module.set_rng_state(outside_device, self._device)


class _NumpyStream:
    """A stream that can take the place of NumPy's global generator at the cost of two copies of its memory.

    NumPy draws normal numbers in pairs, and keeps the second one outside that memory. Where one is kept, here or there, states
    are copied as NumPy gives them.
    """

    def __init__(self) -> None:
        self._own = np.random.RandomState()
        self._own_at = _twister_at(self._own)
        self._has_kept_normal = False
        self._seen_without: bytes | None = None  # the global generator when it was last seen to keep none

    def get_state(self) -> Any:
        """As `np.random.get_state`."""
        return self._own.get_state()

    def set_state(self, state: Any) -> None:
        """As `np.random.set_state`."""
        self._own.set_state(state)
        self._has_kept_normal = _keeps_normal(state)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Draws from NumPy's global generator are from this stream inside."""
        place, own = _twister_at(np.random.mtrand._rand), self._own_at
        if place is None or own is None or self._has_kept_normal or not self._keeps_none(place):
            with self._in_place_slowly():
                yield
            return
        outside, began = ctypes.string_at(place, _TWISTER_BYTES), ctypes.string_at(own, _TWISTER_BYTES)
        ctypes.memmove(place, began, _TWISTER_BYTES)
        try:
            yield
        finally:
            drawn = _global_state() if ctypes.string_at(place, _TWISTER_BYTES) != began else None
            ctypes.memmove(place, outside, _TWISTER_BYTES)
            if drawn is not None:
                self.set_state(drawn)
                np.random.set_state((*_global_state()[:3], 0, 0.0))  # noqa: NPY002 - a normal number kept now is not its own

    @contextlib.contextmanager
    def _in_place_slowly(self) -> Iterator[None]:
        outside = _global_state()
        np.random.set_state(self.get_state())  # noqa: NPY002
        try:
            yield
        finally:
            self.set_state(_global_state())
            np.random.set_state(outside)  # noqa: NPY002

    def _keeps_none(self, place: int) -> bool:
        """Whether the global generator, which lies there, keeps no normal number: it gets one only by drawing."""
        now = ctypes.string_at(place, _TWISTER_BYTES)
        if now != self._seen_without and not _keeps_normal(_global_state()):
            self._seen_without = now
        return now == self._seen_without


def _global_state() -> Any:
    return np.random.get_state()  # noqa: NPY002


def _twister_at(generator: np.random.RandomState) -> int | None:
    """Where a generator's numbers lie; None if it is another kind."""
    bits = generator._bit_generator
    return int(bits.ctypes.state_address) if isinstance(bits, np.random.MT19937) else None


def _keeps_normal(state: Any) -> bool:
    return bool(state[3])
