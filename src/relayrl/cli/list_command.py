"""`relayrl list`: what there is to choose from, as lines or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from relayrl.errors import UnknownNameError


class _Listing(NamedTuple):
    """Entries for programs, and how one is shown to people."""

    entries: Callable[[], Iterator[dict[str, str]]]
    line: str
    heading: str | None = None  # what entries are shown under, in the order in which it occurs


def lines(what: str) -> Iterator[str]:
    """Lines for `envs`, `algos`, `presets`, `plugins` or `schema`."""
    if what == _SCHEMA:
        yield json.dumps(_schema(), indent=2)
        return
    chosen = _listing(what)
    under: dict[str, list[str]] = {}
    for entry in chosen.entries():
        under.setdefault("" if chosen.heading is None else entry[chosen.heading], []).append(
            chosen.line.format(**entry)
        )
    for heading, shown in under.items():
        if heading:
            yield f"# {heading}: {len(shown)}"
        yield from shown


def as_json(what: str) -> str:
    """The same on one line: a list of objects, or the schema."""
    return json.dumps(_schema() if what == _SCHEMA else list(_listing(what).entries()))


def _listing(what: str) -> _Listing:
    if what not in _LISTINGS:
        raise UnknownNameError("listing", what, [*_LISTINGS, _SCHEMA])
    return _LISTINGS[what]


def _envs() -> Iterator[dict[str, str]]:
    from relayrl.config.plugin_registry import PluginKind, plugin_names
    from relayrl.envs.environment_registry import environments_by_package

    packages = environments_by_package() | {"plugins": plugin_names(PluginKind.ENVIRONMENT)}
    for package, names in packages.items():
        for name in names:
            yield {"name": name, "package": package}


def _algos() -> Iterator[dict[str, str]]:
    from relayrl.algorithms.registry import algorithms
    from relayrl.config.plugin_registry import PluginKind, plugin_names
    from relayrl.engines.plugins import algorithm_entry

    added = [algorithm_entry(name) for name in plugin_names(PluginKind.ALGORITHM)]
    for entry in [*algorithms().values(), *added]:
        yield {"name": entry.name, "summary": entry.summary}


def _presets() -> Iterator[dict[str, str]]:
    from relayrl.engines.settings.run_settings import presets

    for env, algo in sorted(presets()):
        yield {"env": env, "algo": algo, "command": f"relayrl train {env} --algo {algo}"}


def _plugins() -> Iterator[dict[str, str]]:
    from relayrl.config.plugin_registry import PluginKind, plugin_names

    for kind in PluginKind:
        for name in plugin_names(kind):
            yield {"kind": kind.value, "name": name}


def _schema() -> Mapping[str, Any]:
    from relayrl.engines.settings.settings_schema import settings_schema

    return settings_schema()


_SCHEMA = "schema"
_LISTINGS = {
    "envs": _Listing(_envs, "{name}", "package"),
    "algos": _Listing(_algos, "{name:12s} {summary}"),
    "presets": _Listing(_presets, "{command}"),
    "plugins": _Listing(_plugins, "{kind:28s} {name}"),
}
