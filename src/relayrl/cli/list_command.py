"""`relayrl list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterator

from relayrl.errors import UnknownNameError


def lines(what: str) -> Iterator[str]:
    """Lines for `envs`, `algos` or `presets`."""
    listings = {"envs": _envs, "algos": _algos, "presets": _presets}
    if what not in listings:
        raise UnknownNameError("listing", what, listings)
    return listings[what]()


def _envs() -> Iterator[str]:
    from relayrl.envs.registry import list_environments

    yield from list_environments()


def _algos() -> Iterator[str]:
    from relayrl.algorithms.registry import algorithms

    for entry in algorithms().values():
        yield f"{entry.name:12s} {entry.summary}"


def _presets() -> Iterator[str]:
    from relayrl.engines.run_settings import presets

    for env, algo in sorted(presets()):
        yield f"relayrl train {env} --algo {algo}"
