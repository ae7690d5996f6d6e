"""Kernels that are compiled together: a rehearsal of work finds all that it launches, before it is done for the first time.

Triton compiles a kernel at its first launch, so that kernels wait for one another. In a rehearsal, launches are scheduled for
compilation in threads, nothing is written to a tensor, and new memory is zeros, so that indices stay in their bounds. Work that
is rehearsed keeps its state in tensors and generators alone: what it changes in Python is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode

from relayrl.accelerator.gpu.compilation.compiler_start import started_compiler
from relayrl.compiled.usable_cores import num_cores

Schedule = Callable[["Kernel", tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
"""What happens in a rehearsal to a launch: of a kernel, on a grid, with arguments."""
_schedule: ContextVar[Schedule | None] = ContextVar("schedule", default=None)
POINTER_ALIGNMENT = 16
"""Bytes: addresses that are multiples of it have machine code of their own."""
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


def compile_together(work: Callable[[], None], generators: Sequence[torch.Generator]) -> int:
    """Compile all kernels that `work` launches, as many at a time as there are cores; gives how many there were. A kernel that
    cannot be compiled raises as its launch would."""
    started_compiler().result()
    return copy_context().run(_compiled, work, generators)  # Triton leaves its mode behind where a kernel fails


def _compiled(work: Callable[[], None], generators: Sequence[torch.Generator]) -> int:
    # Not during the rehearsal: whenever an operation let go of the GIL, a thread that compiles would take it for 5 ms.
    launches: dict[Any, Callable[[], Any]] = {}

    def keep(kernel: Kernel, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key = kernel, tuple(_kind(arg) for arg in args), tuple(kwargs.items())
        launches.setdefault(key, partial(kernel.function.warmup, *args, grid=grid, **kwargs))

    rehearse(work, generators, keep)
    with _Compilers(num_cores()) as compilers, triton.AsyncCompileMode(compilers) as mode:
        # Those of many parameters take the longest: they begin first.
        for _, schedule in sorted(launches.items(), key=lambda each: -len(each[0][0].function.arg_names)):
            schedule()
    return len(mode.raw_futures)


def _kind(arg: Any) -> Any:
    """What decides, with an argument's place, which machine code is needed."""
    return (arg.dtype, arg.data_ptr() % POINTER_ALIGNMENT) if isinstance(arg, torch.Tensor) else (type(arg), arg)


class _Compilers(ThreadPoolExecutor):
    """Threads that compile kernels. Triton's passes, LLVM and the assembler run without the GIL."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(_with_launcher, fn, *args, **kwargs)


def _with_launcher(compiling: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compile a kernel and, into Triton's cache, the C code that its first launch would compile."""
    kernel = compiling(*args, **kwargs)
    triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel
