"""Kernels that are compiled together: a rehearsal of work finds all that it launches, before it is done for the first time.

Triton compiles a kernel at its first launch, so that kernels wait for one another. In a rehearsal, launches are noted,
nothing is written to a tensor, and new memory is zeros, so that indices stay in their bounds. Work that is rehearsed keeps its
state in tensors and generators alone: what it changes in Python is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode

Schedule = Callable[["Kernel", tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
"""What happens in a rehearsal to a launch: of a kernel, on a grid, with arguments."""
_schedule: ContextVar[Schedule | None] = ContextVar("schedule", default=None)
_aten = torch.ops.aten
_EMPTY = frozenset({_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided, _aten.new_empty_strided})


class Kernel:
    """A decorator of Triton functions that the host launches: `kernel[grid](…)`. What only kernels call is `triton.jit`'s."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = triton.jit(function)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        schedule = _schedule.get()
        if schedule is None:
            launch: Callable[..., Any] = self.function[grid]
            return launch
        return partial(_scheduled, schedule, self, grid)


def _scheduled(schedule: Schedule, kernel: Kernel, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
    schedule(kernel, grid, args, kwargs)


@contextmanager
def launches_given_to(schedule: Schedule) -> Iterator[None]:
    """Launches of this thread happen as `schedule` has them."""
    token = _schedule.set(schedule)
    try:
        yield
    finally:
        _schedule.reset(token)


def rehearse(work: Callable[[], None], generators: Sequence[torch.Generator], schedule: Schedule) -> None:
    """Do `work`, whose random numbers are those of `generators`, with launches given to `schedule` and without any effect."""
    before = [generator.get_state() for generator in generators]
    try:
        with launches_given_to(schedule), _NothingWritten():  # type: ignore[no-untyped-call]
            work()
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


class _NothingWritten(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that write to a tensor are skipped; all others are done, and give zeros for memory that nobody wrote to."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is under `torch.compile`: to be hidden from it would import all of it, which takes a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func._schema.is_mutable:
            return _as_if_written(func._schema, args, named)
        made = func(*args, **named)
        return made.zero_() if func.overloadpacket in _EMPTY else made


def _as_if_written(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation gives that writes: the arguments that it writes to, untouched."""
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    written = [given[a.name] for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not schema.returns:
        return None
    return written[0] if len(schema.returns) == 1 else tuple(written)
