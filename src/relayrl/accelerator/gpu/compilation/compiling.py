"""Compiles all kernels of some work at once, in processes: Triton's compiler keeps the GIL, so that threads would wait for it.

Processes fill Triton's cache; this one then compiles as it always would, and finds each kernel there. A kernel that cannot be
compiled raises here what its launch would raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from typing import Any

import torch
import triton

from relayrl.accelerator.gpu.compilation.compiler_start import started_compiler
from relayrl.accelerator.gpu.compilation.forked_jobs import do_in_forks
from relayrl.accelerator.gpu.compilation.rehearsal import Kernel, rehearse
from relayrl.compiled.usable_cores import num_cores

_log = logging.getLogger("relayrl.accelerator.gpu.compilation.compiling")
POINTER_ALIGNMENT = 16
"""Bytes: addresses that are multiples of it have machine code of their own."""


def compile_together(work: Callable[[], None], generators: Sequence[torch.Generator]) -> int:
    """Compile all kernels that `work` launches, as many at a time as there are cores; gives how many there were."""
    launches: dict[Any, Callable[[], Any]] = {}

    def note(kernel: Kernel, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key = kernel, tuple(_kind(arg) for arg in args), tuple(kwargs.items())
        launches.setdefault(key, partial(kernel.function.warmup, *args, grid=grid, **kwargs))

    rehearse(work, generators, note)
    started_compiler().result()
    # Those of many parameters take the longest: they begin first.
    ordered = sorted(launches.items(), key=lambda each: -len(each[0][0].function.arg_names))
    # Triton leaves its mode behind where a kernel fails.
    return copy_context().run(_compiled, [schedule for _, schedule in ordered])


def _kind(arg: Any) -> Any:
    """What decides, with an argument's place, which machine code is needed."""
    return (arg.dtype, arg.data_ptr() % POINTER_ALIGNMENT) if isinstance(arg, torch.Tensor) else (type(arg), arg)


def _compiled(schedules: Sequence[Callable[[], Any]]) -> int:
    compilers = _Compilers()
    with triton.AsyncCompileMode(compilers):
        try:
            for schedule in schedules:
                schedule()
            compilers.compile()
        except BaseException as error:
            compilers.abandon(error)  # the mode waits for every future when it ends
            raise
    return len(compilers.jobs)


class _Compilers(Executor):
    """Keeps what is submitted until all of it is compiled."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Future[Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((partial(fn, *args, **kwargs), future))
        return future

    def compile(self) -> None:
        """Give every future its kernel, or what kept it from being compiled."""
        num_failed = do_in_forks([partial(_with_launcher, job) for job, _ in self.jobs], num_cores())
        if num_failed:
            _log.warning("%d processes that compile kernels failed; this process compiles what they left", num_failed)
        for job, future in self.jobs:
            try:
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - raised where the future is asked, which is at once
                future.set_exception(error)

    def abandon(self, error: BaseException) -> None:
        """Give every future that has no result an error."""
        for _, future in self.jobs:
            if not future.done():
                future.set_exception(error)


def _with_launcher(compiling: Callable[[], Any]) -> None:
    """Compile a kernel and, into Triton's cache as well, the C code that its first launch would compile."""
    kernel = compiling()
    launcher = getattr(triton.runtime.driver.active, "launcher_cls", None)
    if launcher is not None:  # a part of Triton's drivers that other versions may not have
        launcher(kernel.src, kernel.metadata)
