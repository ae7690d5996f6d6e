"""Calls the callbacks of a run, and keeps their state.

When a callback raises, the run goes on to the end of its update, so that what is saved is whole, and then stops with that
exception (`raise_failure`); the others are called as if nothing had happened. In a threaded run, updates are in another thread
than the rest: one call at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from relayrl.data.columns import Rollout
from relayrl.engines.callbacks.callback import Callback, name_of
from relayrl.engines.callbacks.live_run import LiveRun
from relayrl.engines.runs.run_record import RunResult

logger = logging.getLogger(__name__)


class CallbackCalls:
    """The callbacks of a run, in the order in which they were given."""

    def __init__(self, callbacks: Sequence[Callback], run: LiveRun) -> None:
        self.run, self._callbacks = run, list(callbacks)
        self._lock = threading.RLock()
        self._failure: BaseException | None = None
        self._has_started = False
        self.sees_rollouts = self._overrides("on_rollout")
        self.sees_updates = self._overrides("on_rollout", "on_update")
        """Whether somebody is called with every rollout or update: nothing of it may still go on beside then."""

    def _overrides(self, *names: str) -> bool:
        return any(
            getattr(type(each), name) is not getattr(Callback, name) for each in self._callbacks for name in names
        )

    @property
    def has_failed(self) -> bool:
        """Whether a callback has raised."""
        return self._failure is not None

    @property
    def ends_run(self) -> bool:
        """Whether the run should collect no more."""
        return self.run.is_stopped or self.has_failed

    def raise_failure(self) -> None:
        """Raise what a callback has raised, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def start(self) -> None:
        """The run is about to begin, or to go on."""
        self._has_started = True
        self._call("on_start")

    def rollout(self, rollouts: Mapping[str, Rollout]) -> None:
        """A rollout was collected."""
        self.run.rollouts = rollouts
        self._call("on_rollout")

    def update(self) -> None:
        """The policies have learned."""
        self._call("on_update")

    def evaluation(self) -> None:
        """An evaluation has ended."""
        self._call("on_evaluation")

    def checkpoint(self) -> None:
        """A checkpoint was written."""
        if self._has_started:
            self._call("on_checkpoint")

    def end(self, result: RunResult | None) -> None:
        """The run is over: each may close what it has opened. `result` is None where an exception ended it."""
        if not self._has_started:
            return
        self._has_started, self.run.result, self.run.has_written_all = False, result, True
        self._call("on_end")
        if result is None and self._failure is not None:  # beside the exception that ended the run
            logger.error("a callback raised as well", exc_info=self._failure)

    def _call(self, name: str) -> None:
        for callback in self._callbacks:
            try:
                with self._lock:
                    getattr(callback, name)(self.run)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the run stops with it when its state is whole
                self._note(error, callback, name)

    def _note(self, error: BaseException, callback: Callback, name: str) -> None:
        if self._failure is None:
            self._failure = error
        else:
            logger.error("%s of %s raised as well", name, name_of(callback), exc_info=error)

    def state_dict(self) -> dict[str, Any]:
        """What the callbacks keep, by their names, and the hyper-parameters that were set."""
        own = [{"name": name_of(each), "state": each.state_dict()} for each in self._callbacks]
        return {"callbacks": own, "params": self.run.params.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Continue from `state_dict`; gives a line for whoever resumes without the callbacks that were there."""
        self.run.params.load_state_dict(state.get("params", {}))
        kept = list(state.get("callbacks", ()))
        for callback in self._callbacks:
            found = next((each for each in kept if each["name"] == name_of(callback)), None)
            if found is not None:
                kept.remove(found)
                if found["state"]:
                    callback.load_state_dict(found["state"])
        if not kept:
            return []
        names = ", ".join(each["name"] for each in kept)
        return [f"the run had callbacks that it goes on without: {names}; pass them again, train(..., callbacks=[…])"]
