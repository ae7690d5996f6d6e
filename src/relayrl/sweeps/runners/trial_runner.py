"""The seam between a sweep and the place where its runs go: `start` a trial, ask whether it has ended, stop it.

    class MyRunner(TrialRunner):
        def start(self, order): ...        # have `order.run()` called somewhere, or write a TrialOutcome to `order.outcome`

A runner is a plugin of the kind `relayrl.trial_runners`: `make() -> TrialRunner`. The outcome travels as a file, so that it
is there when the sweep's own process is not. Not a runner's job: which trials there are, and what happens when one was cut
off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from relayrl.config.plugin_registry import PluginKind, has_plugin, load_plugin, plugin_names, register_plugin
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.sweeps.trial_jobs import TrialOrder


class StartedTrial(ABC):
    """A trial that was started."""

    @abstractmethod
    def how_it_ended(self) -> str | None:
        """None while it runs; then how it ended, as in `killed by signal 9`. Whether it came to its end, its outcome says."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to save its state and end."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""


class TrialRunner(ABC):
    """Starts trials."""

    @abstractmethod
    def start(self, order: TrialOrder) -> StartedTrial:
        """Start a trial. It ends when this process ends, however that is."""

    def close(self) -> None:  # noqa: B027 - not every runner holds something
        """Release what the runner holds; all trials have ended."""


def register_trial_runner(name: str, make: Callable[[], TrialRunner]) -> None:
    """Make `name` a place for the runs of sweeps in this process, as in `runner: NAME`; `make()` gives the `TrialRunner`."""
    if name in _BUILT_IN:
        raise ConfigError(f"{name!r} is a trial runner of RelayRL; choose another name")
    if not name or not callable(make):
        raise ConfigError(f"trial runner {name!r} must be a name and what makes a TrialRunner, not {make!r:.100}")
    register_plugin(PluginKind.TRIAL_RUNNER, name, make)


def make_runner(name: str, num_at_once: int) -> TrialRunner:
    """The runner of a name; `num_at_once` trials share this machine."""
    if name in _BUILT_IN:
        return _BUILT_IN[name](num_at_once)
    if not has_plugin(PluginKind.TRIAL_RUNNER, name):
        raise UnknownNameError("trial runner", name, [*_BUILT_IN, *plugin_names(PluginKind.TRIAL_RUNNER)])
    made = load_plugin(PluginKind.TRIAL_RUNNER, name)()
    if not isinstance(made, TrialRunner):
        raise ConfigError(
            f"plugin {name!r} of {PluginKind.TRIAL_RUNNER.value} must make a TrialRunner, not {made!r:.100}"
        )
    return made


def _process_runner(num_at_once: int) -> TrialRunner:
    from relayrl.sweeps.runners.process_trials import ProcessRunner

    return ProcessRunner(num_at_once)


def _ray_runner(num_at_once: int) -> TrialRunner:
    from relayrl.sweeps.runners.ray_trials import RayRunner

    return RayRunner(num_at_once)


_BUILT_IN: dict[str, Callable[[int], TrialRunner]] = {"process": _process_runner, "ray": _ray_runner}
