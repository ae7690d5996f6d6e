"""`relayrl list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterator

from relayrl.errors import UnknownNameError


def lines(what: str) -> Iterator[str]:
    """Lines for `envs`, `algos`, `presets`, `plugins` or `schema`."""
    listings = {"envs": _envs, "algos": _algos, "presets": _presets, "plugins": _plugins, "schema": _schema}
    if what not in listings:
        raise UnknownNameError("listing", what, listings)
    return listings[what]()


def _envs() -> Iterator[str]:
    from relayrl.config.plugin_registry import PluginKind, plugin_names
    from relayrl.envs.environment_registry import environments_by_package

    packages = environments_by_package() | {"plugins": plugin_names(PluginKind.ENVIRONMENT)}
    for package, names in packages.items():
        if names:
            yield f"# {package}: {len(names)}"
            yield from names


def _algos() -> Iterator[str]:
    from relayrl.algorithms.registry import algorithms
    from relayrl.config.plugin_registry import PluginKind, plugin_names
    from relayrl.engines.plugins import algorithm_entry

    added = [algorithm_entry(name) for name in plugin_names(PluginKind.ALGORITHM)]
    for entry in [*algorithms().values(), *added]:
        yield f"{entry.name:12s} {entry.summary}"


def _presets() -> Iterator[str]:
    from relayrl.engines.settings.run_settings import presets

    for env, algo in sorted(presets()):
        yield f"relayrl train {env} --algo {algo}"


def _plugins() -> Iterator[str]:
    from relayrl.config.plugin_registry import PluginKind, plugin_names

    for kind in PluginKind:
        for name in plugin_names(kind):
            yield f"{kind.value:28s} {name}"


def _schema() -> Iterator[str]:
    import json

    from relayrl.engines.settings.settings_schema import settings_schema

    yield json.dumps(settings_schema(), indent=2)
