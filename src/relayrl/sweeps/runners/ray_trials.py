"""Trials as tasks of a Ray cluster, one core each. All nodes need the sweep's directory: outcomes and checkpoints are files.

An existing cluster is used where there is one (`RAY_ADDRESS`, or one that runs on this machine) and is never shut down;
else Ray starts on this machine, and ends with the sweep. A task leaves with the sweep's process: Ray ends the tasks of a
driver that is gone.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from relayrl.errors import MissingExtraError
from relayrl.sweeps.runners.trial_runner import StartedTrial, TrialRunner
from relayrl.sweeps.trial_jobs import TrialOrder


class RayRunner(TrialRunner):
    """Starts a task for each trial."""

    def __init__(self) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise MissingExtraError("runner: ray", "ray") from error
        self._owns_cluster = not self._ray.is_initialized()
        if self._owns_cluster:
            options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
            self._ray.init(ignore_reinit_error=True, **options)
        # A process of its own for each trial: what one leaves behind is not the next one's.
        self._task = self._ray.remote(num_cpus=1, max_calls=1, max_retries=0)(_run_in_task)

    def start(self, order: TrialOrder) -> StartedTrial:
        return RayTrial(self._ray, self._task.options(name=order.name).remote(order.to_json(), list(sys.path)))

    def close(self) -> None:
        if self._owns_cluster:
            self._ray.shutdown()


class RayTrial(StartedTrial):
    """A trial's task."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray, self._task = ray, task

    def how_it_ended(self) -> str | None:
        ready, _ = self._ray.wait([self._task], timeout=0)
        if not ready:
            return None
        try:
            self._ray.get(self._task)
        except self._ray.exceptions.RayError as error:
            return (str(error).splitlines() or [type(error).__name__])[0]
        return "ended"

    def stop(self) -> None:
        self._ray.cancel(self._task, force=False)

    def kill(self) -> None:
        self._ray.cancel(self._task, force=True)


def _run_in_task(order: str, path: list[str]) -> None:
    sys.path[:] = path
    TrialOrder.from_json(order).run()
