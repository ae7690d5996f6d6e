"""What all tests share: one thread per process, as tests run side by side."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    from relayrl.engines.local.local_engine import limit_threads

    limit_threads(1)
