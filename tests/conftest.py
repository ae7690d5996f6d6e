"""What all tests share: one thread per process, as tests run side by side."""

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    from relayrl.engines.local.local_engine import limit_threads

    limit_threads(1)


@pytest.fixture
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that switches to an instruction set, or `off`, also for code that asked for kernels before."""
    from relayrl.compiled.loader import VARIABLE, row_kernels

    def use(asked: str) -> None:
        monkeypatch.setenv(VARIABLE, asked)
        row_kernels.cache_clear()

    yield use
    row_kernels.cache_clear()
