"""Work that is the same every time, captured once as a CUDA graph and replayed: one launch instead of thousands."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence

import torch

from relayrl.garbage import collection_paused

_log = logging.getLogger("relayrl.engines.device.graphed")


class Graphed:
    """Calls `work` the first time, which also makes ready what it needs; captures it the second time; replays it from then on.

    Elsewhere than on a CUDA device, and where a part of the work cannot be captured, every call calls `work`.
    """

    def __init__(self, work: Callable[[], object], device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self._work, self._generators = work, list(generators)
        self._device, self._is_captured = device, device.type == "cuda"
        self._num_calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        self._num_calls += 1
        if self._num_calls == 2 and self._is_captured:
            self._graph = self._capture()
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        # Where a capture fails, generators are left in the middle of it, and the capture's stream is still the current one.
        before, stream = [generator.get_state() for generator in self._generators], torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        gc.collect()  # a graph of an earlier run that is freed during a capture spoils it
        try:
            with collection_paused(), torch.cuda.graph(graph):
                self._work()
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0]
            _log.warning(
                "an iteration cannot be captured in a CUDA graph (%s); its operations are launched one by one", line
            )
            torch.cuda.set_stream(stream)
            for generator, state in zip(self._generators, before, strict=True):
                generator.graphsafe_set_state(torch.Generator(generator.device))
                generator.set_state(state)
            return None
        # Generators' offsets are set to zero on the capture's stream, and to theirs on the one that replays.
        torch.cuda.synchronize(self._device)
        return graph
