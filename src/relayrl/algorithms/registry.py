"""Every algorithm by name: the command line, the docs and the tests iterate over this table."""

from __future__ import annotations

from dataclasses import dataclass

from relayrl.algorithms.params import PPOParams, REINFORCEParams
from relayrl.config.settings import Settings
from relayrl.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """A name, its settings class, and one line for `relayrl list algos`."""

    name: str
    params: type[Settings]
    summary: str


def algorithm(name: str) -> AlgorithmEntry:
    """The entry of an algorithm; an unknown name raises with the nearest one."""
    entries = algorithms()
    if name not in entries:
        raise UnknownNameError("algorithm", name, entries)
    return entries[name]


def algorithms() -> dict[str, AlgorithmEntry]:
    """All algorithms."""
    entries = [
        AlgorithmEntry("reinforce", REINFORCEParams, "policy gradient on whole returns, optional learned baseline"),
        AlgorithmEntry("ppo", PPOParams, "clipped policy gradient, one policy per group of agents"),
    ]
    return {entry.name: entry for entry in entries}
