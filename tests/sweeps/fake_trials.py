"""Runners for tests of sweeps: trials that cost nothing, in whatever order they end, and real ones in the test's process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relayrl.extend import StartedTrial, TrialOrder, TrialOutcome, TrialRunner

SHORT = {
    "environment": {"num_envs": 2},
    "network": {"hidden_sizes": [4]},
    "params": {"train_pi_iters": 1, "train_vf_iters": 1, "num_minibatches": 1},
    "trainer": {"max_steps": 64, "time_horizon": 8},
    "evaluation": {"episodes": 1, "interval_episodes": 1, "max_episode_steps": 20},
    "statistics": {"tensorboard": False},
}
"""Settings of runs that take a few milliseconds."""


class Ended(StartedTrial):
    """A trial that ends after it was asked so many times."""

    def __init__(self, how: str, num_asked: int) -> None:
        self._how, self._left = how, num_asked

    def how_it_ended(self) -> str | None:
        self._left -= 1
        return None if self._left >= 0 else self._how

    def stop(self) -> None:
        self._left = 0

    def kill(self) -> None:
        self._left = 0


class FakeRunner(TrialRunner):
    """Trials whose value is a function of their settings, seed and steps; their networks are a hash of all that made them."""

    def __init__(self, value: Callable[[TrialOrder], float], seed: int = 0) -> None:
        self._value, self._rng = value, np.random.default_rng(seed)
        self.started: list[str] = []
        self.num_running = self.most_running = 0

    def start(self, order: TrialOrder) -> StartedTrial:
        self.started.append(f"{order.name} until {order.until}")
        run_dir = Path(order.run_dir)
        before = (Path(order.parent or order.run_dir) / "networks").read_text() if self._goes_on(order) else ""
        made_of = json.dumps([before, dict(order.settings), order.until], sort_keys=True)
        digest = hashlib.sha256(made_of.encode()).hexdigest()
        try:
            outcome = TrialOutcome(self._value(order), order.until or 64, 1.0, digest)
        except RuntimeError as error:
            if str(error) == "cut off":
                return Ended("killed by signal 9", 0)
            outcome = TrialOutcome(error=str(error))
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "networks").write_text(digest)
        outcome.write(Path(order.outcome))
        return Ended("ended", int(self._rng.integers(4)))

    def _goes_on(self, order: TrialOrder) -> bool:
        return order.parent is not None or (Path(order.run_dir) / "networks").exists()


class InThisProcess(TrialRunner):
    """Real runs, one after the other, without the start of an interpreter."""

    def start(self, order: TrialOrder) -> StartedTrial:
        assert order.run()
        return Ended("ended", 0)
