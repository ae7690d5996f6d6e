"""Runners of tests by name, and a sweep without waiting between two looks."""

import itertools
from collections.abc import Callable

import pytest

import relayrl
from relayrl.extend import SweepReport, TrialRunner, register_trial_runner
from relayrl.sweeps import sweep_driver
from relayrl.sweeps.results import sweep_picture

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_driver, "POLL_S", 0.0)
    monkeypatch.setattr(sweep_driver, "SYNC_S", 0.0)


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Drawing takes longer than all else; the tests that look at pictures are marked."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(sweep_picture, "draw", lambda *_: None)


@pytest.fixture
def pictures() -> None:
    """Have pictures drawn."""


@pytest.fixture
def sweep_with() -> Callable[..., SweepReport]:
    """`sweep_with(runner, config, sweep_dir=…)` runs a sweep by a runner of the test's."""

    def run(runner: TrialRunner, config: dict[str, object], **options: object) -> SweepReport:
        name = f"fake-{next(_numbers)}"
        register_trial_runner(name, lambda: runner)
        return relayrl.sweep({**config, "runner": name}, progress=False, **options)

    return run
