"""The random stream of one VMAS environment, put in place of the process's generators while VMAS runs.

VMAS draws from the global generators of torch, NumPy and Python. It puts a state of its own, shared by all environments of the
process, in place around most calls.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator


class VmasStream:
    """What one environment draws from.

    NumPy's global functions are given the stream's own bit generator, since copying a state takes 35 µs of a step's 1,300. They
    draw normal numbers in pairs and keep the second one: the process's is put back, one of the stream is dropped between calls.
    """

    def __init__(self, device: str, shared: list[Any]) -> None:
        """`shared`: VMAS's class-wide list of torch, NumPy and Python states, which it swaps in around most calls."""
        self._shared = shared
        self._device = None if torch.device(device).type == "cpu" else torch.device(device)
        self._numpy = np.random.MT19937()
        self.seed(None)

    def seed(self, seed: int | None) -> None:
        """Begin the stream of `seed`, or of fresh entropy; touches no generator but its own."""
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._torch = torch.Generator().manual_seed(seed).get_state()
        state: Any = np.random.RandomState(seed % 2**32).get_state(legacy=False)
        self._numpy.state = state
        self._python = random.Random(seed).getstate()
        if self._device is not None:
            self._on_device = torch.Generator(self._device).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Draws inside are from this stream. Outside, all generators are as before, even after an error in VMAS."""
        with self._on_device_in_place(), self._numpy_in_place():
            outside = torch.get_rng_state(), random.getstate()
            torch.set_rng_state(self._torch)
            random.setstate(self._python)
            try:
                yield
            finally:
                self._torch, self._python = torch.get_rng_state(), random.getstate()
                torch.set_rng_state(outside[0])
                random.setstate(outside[1])

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """The same for calls around which VMAS puts its shared state in place."""
        others = self._shared[:]
        with self.in_place():
            self._shared[:] = [torch.get_rng_state(), np.random.get_state(), random.getstate()]  # noqa: NPY002
            try:
                yield
            finally:
                torch.set_rng_state(self._shared[0])
                np.random.set_state(self._shared[1])  # noqa: NPY002
                random.setstate(self._shared[2])
                self._shared[:] = others

    @contextlib.contextmanager
    def _numpy_in_place(self) -> Iterator[None]:
        bits, outside = get_bit_generator(), np.random.get_state(legacy=False)  # noqa: NPY002
        set_bit_generator(self._numpy)
        try:
            yield
        finally:
            set_bit_generator(bits)
            if outside["has_gauss"]:
                np.random.set_state(outside)  # noqa: NPY002

    @contextlib.contextmanager
    def _on_device_in_place(self) -> Iterator[None]:
        if self._device is None:
            yield
            return
        module = torch.get_device_module(self._device)
        outside = module.get_rng_state(self._device)
        module.set_rng_state(self._on_device, self._device)
        try:
            yield
        finally:
            self._on_device = module.get_rng_state(self._device)
            module.set_rng_state(outside, self._device)
