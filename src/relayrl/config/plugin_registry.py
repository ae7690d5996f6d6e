"""What others add to RelayRL, by kind and name: entry points of installed packages, and what a program registers in Python.

    group                          name = "package.module:what"
    relayrl.environments           a factory of environments: NAME is then one for `relayrl train NAME`
    relayrl.algorithms             an `AlgorithmPlugin`
    relayrl.networks               `make(network_settings) -> NetworkFactory`
    relayrl.reward_signals         a `RewardSignal` class
    relayrl.statistics_writers     `make(run_path) -> StatisticsWriter`
    relayrl.sinks                  a `SinkPlugin`: NAME is then the scheme of a URL, `NAME:…`
    relayrl.heads                  `make(action_space) -> LikelihoodHead`
    relayrl.losses                 a `PolicyLoss` class, or a function of `(log_ratio, advantage)`
    relayrl.schedules              a function of the share of the run that is over
    relayrl.engines                `build(run_settings) -> RunParts`, wherever these are
    relayrl.trial_runners          `make() -> TrialRunner`: where the runs of a sweep go

An entry point is imported when its name is asked for, not before. A registration is an object that exists already, in this
process only: another process that needs it, such as one that resumes the run, registers it again. Not its job: which names
RelayRL has itself and what a plugin of a kind must be, which `engines.plugins` and `sinks.contract` know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from relayrl.errors import ConfigError, UnknownNameError


class PluginKind(Enum):
    """What can be added, with the entry-point group that it is found under."""

    ENVIRONMENT = "relayrl.environments"
    ALGORITHM = "relayrl.algorithms"
    NETWORK = "relayrl.networks"
    REWARD_SIGNAL = "relayrl.reward_signals"
    STATISTICS_WRITER = "relayrl.statistics_writers"
    SINK = "relayrl.sinks"
    HEAD = "relayrl.heads"
    LOSS = "relayrl.losses"
    SCHEDULE = "relayrl.schedules"
    ENGINE = "relayrl.engines"
    TRIAL_RUNNER = "relayrl.trial_runners"

    @property
    def noun(self) -> str:
        """What to call one of them in messages."""
        if self in (PluginKind.SINK, PluginKind.LOSS):
            return "kind of sink" if self is PluginKind.SINK else "loss"
        group: str = self.value
        return group.removeprefix("relayrl.").replace("_", " ").removesuffix("s")


_RENAMED_MODULES = {
    "relayrl.testing.worlds": "relayrl.testing.toy_environments",
    "relayrl.testing.memory_worlds": "relayrl.testing.memory_environments",
    "relayrl.testing.multi_agent_worlds": "relayrl.testing.multi_agent_environments",
    "relayrl.testing.vector_worlds": "relayrl.testing.vector_environments",
}
_RENAMED_FACTORIES = {"relayrl.testing": {"CountingWorld": "CountingEnv"}}
"""What run directories of earlier versions may name, by the package that has it."""
_registered: dict[PluginKind, dict[str, Any]] = {kind: {} for kind in PluginKind}


def register_plugin(kind: PluginKind, name: str, plugin: Any) -> None:
    """Add `plugin` in this process. A definition that is run again, as in a notebook, replaces its former self."""
    point, known = _find(kind, name), _registered[kind].get(name)
    if point is not None and point.value != _address(plugin):
        raise ConfigError(f"{kind.noun} {name!r} is installed already, from {point.value}; choose another name")
    if known is not None and known is not plugin and _address(known) != _address(plugin):
        raise ConfigError(f"{kind.noun} {name!r} is registered already, as {known!r}; choose another name")
    _registered[kind][name] = plugin


def give_plugin(kind: PluginKind, name: str, plugin: Any) -> str:
    """Have `plugin` found under `name` in this process, instead of whatever was there; gives the name."""
    _registered[kind][name] = plugin
    return name


def unregister_plugin(kind: PluginKind, name: str) -> None:
    """Take a registration of this process back."""
    _registered[kind].pop(name, None)


def has_plugin(kind: PluginKind, name: str) -> bool:
    """Whether a name is registered or installed."""
    return name in _registered[kind] or _find(kind, name) is not None


def registrations() -> dict[PluginKind, dict[str, Any]]:
    """Everything that this process has registered, for another one that works for it."""
    return {kind: dict(own) for kind, own in _registered.items() if own}


def take_registrations(registered: Mapping[PluginKind, Mapping[str, Any]]) -> None:
    """Know what another process has registered."""
    for kind, own in registered.items():
        _registered[kind].update(own)


def plugin_names(kind: PluginKind) -> list[str]:
    """Names of all plugins, installed or registered; what was given as an object has an address instead (`give_plugin`)."""
    registered = {name for name in _registered[kind] if ":" not in name}
    return sorted({point.name for point in entry_points(group=kind.value)} | registered)


def plugin_values(kind: PluginKind) -> list[str]:
    """What the installed plugins of one kind stand for, as `module:what`."""
    return sorted({point.value for point in entry_points(group=kind.value)})


def plugin_packages() -> set[str]:
    """Top-level packages that declare a plugin of any kind."""
    return {value.partition(":")[0].partition(".")[0] for kind in PluginKind for value in plugin_values(kind)}


def load_plugin(kind: PluginKind, name: str) -> Any:
    """What a name stands for; an unknown one raises with the nearest."""
    if name in _registered[kind]:
        return _registered[kind][name]
    point = _find(kind, name)
    if point is None:
        raise UnknownNameError(kind.noun, name, plugin_names(kind))
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"plugin {name!r} of {kind.value} cannot be loaded from {point.value}: {error}") from error


@contextlib.contextmanager
def explaining_registrations(path: object) -> Iterator[None]:
    """Say of a name that a run at `path` has and this process does not know where it may have come from."""
    try:
        yield
    except UnknownNameError as error:
        if error.kind not in {kind.noun for kind in PluginKind}:
            raise
        raise ConfigError(
            f"{path}: {error} A program that registered {error.name!r} with relayrl.register_… must do so again in each "
            "process, before it loads or resumes the run; an entry point makes the name known everywhere"
        ) from error


def plugin_environment(name: str) -> str | Callable[..., Any]:
    """What makes the environment where a plugin has this name: a registered factory, or an installed one as `module:what`."""
    if name in _registered[PluginKind.ENVIRONMENT]:
        factory: Callable[..., Any] = _registered[PluginKind.ENVIRONMENT][name]
        return factory
    point = _find(PluginKind.ENVIRONMENT, name)
    return current_env(name) if point is None else point.value


def current_env(name: str) -> str:
    """`name`, or what it is called now: files of older versions name environments by modules that have other names since."""
    module, colon, factory = name.partition(":")
    package = ".".join(module.split(".")[:2])
    renamed = _RENAMED_FACTORIES.get(package, {}).get(factory, factory)
    return f"{_RENAMED_MODULES.get(module, module)}{colon}{renamed}"


def _find(kind: PluginKind, name: str) -> EntryPoint | None:
    return next((point for point in entry_points(group=kind.value) if point.name == name), None)


def _address(plugin: Any) -> str | None:
    """`module:what` of a class or function; None for other objects, which have no address."""
    name = getattr(plugin, "__qualname__", None)
    return None if name is None else f"{plugin.__module__}:{name}"
