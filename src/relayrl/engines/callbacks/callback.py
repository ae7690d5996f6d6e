"""What a user adds to a run in Python: an object whose methods are called as the run goes on.

    class Watch(relayrl.Callback):
        def on_update(self, run):
            run.log("mine/return_squared", run.metrics.get("episode/return_mean", 0.0) ** 2)

    relayrl.train("CartPole-v1", callbacks=[Watch()])

A plain function is a callback whose `on_update` it is. Not its job: when the methods are called (`callback_calls`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from relayrl.engines.callbacks.live_run import LiveRun


class Callback:
    """Override what you need. A callback that only reads changes no bit of what is learned."""

    def on_start(self, run: LiveRun) -> None:
        """The run is about to begin, or to go on."""

    def on_rollout(self, run: LiveRun) -> None:
        """`run.rollouts` are collected, and are learned from next."""

    def on_update(self, run: LiveRun) -> None:
        """The policies have learned from what was collected."""

    def on_evaluation(self, run: LiveRun) -> None:
        """An evaluation of `evaluation.interval` has ended; `run.metrics` has its numbers."""

    def on_checkpoint(self, run: LiveRun) -> None:
        """A checkpoint was written: `run.checkpoint`."""

    def on_end(self, run: LiveRun) -> None:
        """The run is over, however it ended; `run.result` is None unless it came to its end."""

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep of the callback: numbers, strings, arrays, tensors, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; called before `on_start` of a resumed run that has saved one."""


class FunctionCallback(Callback):
    """A function that is called after every update."""

    def __init__(self, function: Callable[[LiveRun], Any]) -> None:
        self.function = function

    def on_update(self, run: LiveRun) -> None:
        self.function(run)


def callback_of(given: Callback | Callable[[LiveRun], Any]) -> Callback:
    """A callback, or a function as one."""
    if isinstance(given, Callback):
        return given
    if isinstance(given, type) or not callable(given):
        what = f"the class {given.__name__}; give an object of it" if isinstance(given, type) else f"{given!r:.200}"
        raise ConfigError(f"callbacks are relayrl.Callback objects or functions of the live run, not {what}")
    return FunctionCallback(given)


def name_of(callback: Callback) -> str:
    """What a checkpoint calls a callback: its class, or the function."""
    kind: Any = callback.function if isinstance(callback, FunctionCallback) else type(callback)
    return str(getattr(kind, "__qualname__", type(kind).__qualname__))
