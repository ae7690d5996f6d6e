"""What all tests share: one thread per process, as tests run side by side."""

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    from relayrl.engines.local.local_engine import limit_threads

    limit_threads(1)


@pytest.fixture(autouse=True)
def _registrations_end_with_their_test() -> Iterator[None]:
    from relayrl.config.plugin_registry import _registered

    before = {kind: dict(own) for kind, own in _registered.items()}
    yield
    for kind, own in before.items():
        _registered[kind].clear()
        _registered[kind].update(own)


@pytest.fixture
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that switches to an instruction set, or `off`, also for code that asked for kernels before."""
    from relayrl.compiled.loader import VARIABLE, row_kernels

    def use(asked: str) -> None:
        monkeypatch.setenv(VARIABLE, asked)
        row_kernels.cache_clear()

    yield use
    row_kernels.cache_clear()
