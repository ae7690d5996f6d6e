"""Plugins of runs: algorithms, networks, and `relayrl.register_…`, by which a program adds what it does not install.

Every `register_…` takes what an entry point of the same kind names (`config.plugin_registry`). Names that RelayRL has itself
cannot be taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayrl.algorithms.registry import AlgorithmEntry, algorithms
from relayrl.config.plugin_registry import PluginKind, has_plugin, load_plugin, plugin_names, register_plugin
from relayrl.engines.given_parts import load_part, takes_layout
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.training.signals.signal_registry import signal_names

if TYPE_CHECKING:
    from pathlib import Path

    from relayrl.engines.local.run_parts import Assembly, RunParts
    from relayrl.engines.settings.run_settings import RunSettings
    from relayrl.envs.environment_contract import VectorEnvironment
    from relayrl.models.network_settings import NetworkSettings
    from relayrl.models.networks.network_factory import NetworkFactory
    from relayrl.sinks.contract import SinkPlugin
    from relayrl.training.signals.reward_signals import RewardSignal
    from relayrl.training.statistics.statistics_writers import StatisticsWriter


LOCAL_ENGINE, RAY_ENGINE = "local", "ray"


@dataclass(frozen=True, slots=True)
class AlgorithmPlugin:
    """An algorithm from outside: its settings class and how its parts come about."""

    params: type[Any]
    summary: str
    assemble: Callable[[RunSettings, VectorEnvironment], Assembly]


def register_environment(name: str, factory: Callable[..., Any]) -> None:
    """Make `name` an environment for this process: `factory(**options)` gives a `gymnasium.Env`, a PettingZoo environment, or
    one of RelayRL's three kinds. With `workers`, processes import it by its name, or are sent its code where it has none."""
    import gymnasium

    if ":" in name or name in gymnasium.registry:
        raise ConfigError(
            f"environment {name!r} would hide a built-in name; choose one without ':' that is no Gymnasium id"
        )
    _register(PluginKind.ENVIRONMENT, name, factory)


def register_algorithm(name: str, plugin: AlgorithmPlugin) -> None:
    """Make `name` an algorithm for this process, as in `train(algo=name)`."""
    if name in algorithms():
        raise ConfigError(f"{name!r} is an algorithm of RelayRL; choose another name")
    register_plugin(PluginKind.ALGORITHM, name, _checked_algorithm(name, plugin))


def register_network(name: str, make: Callable[[NetworkSettings], NetworkFactory]) -> None:
    """Make `name` a network for this process, as in `train(settings={"network.kernel": name})`."""
    _register(PluginKind.NETWORK, name, make)


def register_reward_signal(name: str, make: Callable[..., RewardSignal]) -> None:
    """Make `name` a reward signal for this process: `make(**options)`, as `reward_signals.NAME` of a run says."""
    if name in signal_names():
        raise ConfigError(f"{name!r} is a reward signal of RelayRL; choose another name")
    _register(PluginKind.REWARD_SIGNAL, name, make)


def register_writer(name: str, make: Callable[[Path], StatisticsWriter]) -> None:
    """Make `name` a statistics writer for this process: `make(run_path)`, for runs with it in `statistics.writers`."""
    _register(PluginKind.STATISTICS_WRITER, name, make)


def register_engine(name: str, build: Callable[[RunSettings], RunParts]) -> None:
    """Make `name` an engine for this process, as in `train(settings={"engine": name})`: `build(settings)` gives the parts of
    a run, wherever they are, and their `close()` ends what it started."""
    if name in (LOCAL_ENGINE, RAY_ENGINE):
        raise ConfigError(f"{name!r} is an engine of RelayRL; choose another name")
    _register(PluginKind.ENGINE, name, build)


def register_sink(scheme: str, plugin: SinkPlugin) -> None:
    """Make `scheme:…` a URL of sinks and sources for this process."""
    from relayrl.sinks.contract import READ_ONLY, SCHEMES, SinkPlugin

    if re.fullmatch(r"[a-z][a-z0-9+.-]+", scheme) is None or scheme in (*SCHEMES, *READ_ONLY, "postgres"):
        raise ConfigError(
            f"{scheme!r} cannot be the scheme of a sink; choose two or more of a-z, 0-9, +.- that are not taken"
        )
    if not isinstance(plugin, SinkPlugin):
        raise ConfigError(f"sink {scheme!r} must be a SinkPlugin, not {plugin!r}")
    register_plugin(PluginKind.SINK, scheme, plugin)


def network_factory(network: NetworkSettings) -> NetworkFactory | None:
    """What makes the networks that the settings ask for; None for the built-in ones."""
    if network.kernel is None:
        return None
    make = load_part(PluginKind.NETWORK, network.kernel)
    kernels: NetworkFactory = make if takes_layout(make) else make(network)
    return kernels


def require_engine(name: str) -> None:
    """Raise where there is no engine of this name."""
    own = (LOCAL_ENGINE, RAY_ENGINE)
    if name not in own and not has_plugin(PluginKind.ENGINE, name):
        raise UnknownNameError(PluginKind.ENGINE.noun, name, [*own, *plugin_names(PluginKind.ENGINE)])


def engine_builder(name: str) -> Callable[[RunSettings], RunParts]:
    """What builds the parts of a run with an engine."""
    if name == LOCAL_ENGINE:
        from relayrl.engines.local.run_parts import build_parts

        return build_parts
    if name == RAY_ENGINE:
        from relayrl.engines.cluster.ray_engine import build_ray_parts

        return build_ray_parts
    build: Callable[[RunSettings], RunParts] = load_plugin(PluginKind.ENGINE, name)
    return build


def algorithm_entry(name: str) -> AlgorithmEntry:
    """An algorithm of RelayRL or of a plugin."""
    own = algorithms()
    if name in own:
        return own[name]
    if not has_plugin(PluginKind.ALGORITHM, name):
        raise UnknownNameError("algorithm", name, [*own, *plugin_names(PluginKind.ALGORITHM)])
    plugin = algorithm_plugin(name)
    return AlgorithmEntry(name, plugin.params, plugin.summary)


def algorithm_plugin(name: str) -> AlgorithmPlugin:
    """The plugin of an algorithm."""
    return _checked_algorithm(name, load_plugin(PluginKind.ALGORITHM, name))


def _checked_algorithm(name: str, plugin: Any) -> AlgorithmPlugin:
    if not isinstance(plugin, AlgorithmPlugin):
        raise ConfigError(f"plugin {name!r} of {PluginKind.ALGORITHM.value} must be an AlgorithmPlugin, not {plugin!r}")
    return plugin


def _register(kind: PluginKind, name: str, make: Any) -> None:
    if not name or not callable(make):
        raise ConfigError(f"{kind.noun} {name!r} must be a name and a function or class that makes one, not {make!r}")
    register_plugin(kind, name, make)
