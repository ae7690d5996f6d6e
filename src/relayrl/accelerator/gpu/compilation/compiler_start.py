"""What Triton does before its first kernel, in a thread: it hashes its own libraries and compiles the code that loads kernels.

Both are done without the GIL, so that a run is built meanwhile.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache


@cache
def started_compiler() -> Future[None]:
    """Start, once a process; the result is there when Triton is ready, and raises what kept it from that."""
    with_one_thread = ThreadPoolExecutor(1, thread_name_prefix="triton-start")
    starting = with_one_thread.submit(_start)
    with_one_thread.shutdown(wait=False)
    return starting


def _start() -> None:
    from triton.runtime import cache as kernel_cache
    from triton.runtime import driver

    if hasattr(kernel_cache, "triton_key"):  # in this version; the first kernel asks for it wherever it is
        kernel_cache.triton_key()
    driver.active  # noqa: B018 - the first access makes it
