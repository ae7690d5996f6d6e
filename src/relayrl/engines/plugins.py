"""What others add to RelayRL by entry point, without a change here.

    group                          name = "package.module:what"
    relayrl.environments           a factory of environments: NAME is then one for `relayrl train NAME`
    relayrl.algorithms             an `AlgorithmPlugin`
    relayrl.networks               `make(network_settings) -> KernelFactory`
    relayrl.reward_signals         a `RewardSignal` class
    relayrl.statistics_writers     `make(run_path) -> StatisticsWriter`

Nothing is imported before it is named. Names that RelayRL has itself cannot be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from relayrl.algorithms.registry import AlgorithmEntry, algorithms
from relayrl.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from relayrl.engines.assembly import Assembly
    from relayrl.engines.run_settings import RunSettings
    from relayrl.envs.contract import VectorEnvironment
    from relayrl.models.kernels import KernelFactory
    from relayrl.models.settings import NetworkSettings


class PluginKind(Enum):
    """What can be added, with the entry-point group that it is found under."""

    ENVIRONMENT = "relayrl.environments"
    ALGORITHM = "relayrl.algorithms"
    NETWORK = "relayrl.networks"
    REWARD_SIGNAL = "relayrl.reward_signals"
    STATISTICS_WRITER = "relayrl.statistics_writers"


@dataclass(frozen=True, slots=True)
class AlgorithmPlugin:
    """An algorithm from outside: its settings class and how its parts come about."""

    params: type[Any]
    summary: str
    assemble: Callable[[RunSettings, VectorEnvironment], Assembly]


def plugin_names(kind: PluginKind) -> list[str]:
    """Names of installed plugins."""
    return sorted({point.name for point in entry_points(group=kind.value)})


def plugin_values(kind: PluginKind) -> list[str]:
    """What the installed plugins of one kind stand for, as `module:what`."""
    return sorted({point.value for point in entry_points(group=kind.value)})


def plugin_packages() -> set[str]:
    """Top-level packages that declare a plugin of any kind."""
    return {value.partition(":")[0].partition(".")[0] for kind in PluginKind for value in plugin_values(kind)}


def load_plugin(kind: PluginKind, name: str) -> Any:
    """What the entry point names; an unknown name raises with the nearest one."""
    point = _find(kind, name)
    if point is None:
        what = kind.value.removeprefix("relayrl.").replace("_", " ").removesuffix("s")
        raise UnknownNameError(what, name, plugin_names(kind))
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"plugin {name!r} of {kind.value} cannot be loaded from {point.value}: {error}") from error


def network_kernels(network: NetworkSettings) -> KernelFactory | None:
    """What makes the networks that the settings ask for; None for the built-in ones."""
    if network.kernel is None:
        return None
    kernels: KernelFactory = load_plugin(PluginKind.NETWORK, network.kernel)(network)
    return kernels


def environment_name(name: str) -> str:
    """The name that the environment registry takes: where a plugin has this name, the factory it stands for."""
    point = _find(PluginKind.ENVIRONMENT, name)
    return name if point is None else point.value


def algorithm_entry(name: str) -> AlgorithmEntry:
    """An algorithm of RelayRL or of a plugin."""
    own = algorithms()
    if name in own:
        return own[name]
    if _find(PluginKind.ALGORITHM, name) is None:
        raise UnknownNameError("algorithm", name, [*own, *plugin_names(PluginKind.ALGORITHM)])
    plugin = algorithm_plugin(name)
    return AlgorithmEntry(name, plugin.params, plugin.summary)


def algorithm_plugin(name: str) -> AlgorithmPlugin:
    """The plugin of an algorithm."""
    plugin = load_plugin(PluginKind.ALGORITHM, name)
    if not isinstance(plugin, AlgorithmPlugin):
        raise ConfigError(f"plugin {name!r} of {PluginKind.ALGORITHM.value} must be an AlgorithmPlugin, not {plugin!r}")
    return plugin


def _find(kind: PluginKind, name: str) -> EntryPoint | None:
    return next((point for point in entry_points(group=kind.value) if point.name == name), None)
