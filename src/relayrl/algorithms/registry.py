"""Every algorithm by name: the command line, the docs and the tests iterate over this table.

A base algorithm comes in three forms that differ in what its critics see: for one agent, independently for several
(`i…`), and centrally trained for several (`ma…`).
"""

from __future__ import annotations

from dataclasses import dataclass

from relayrl.algorithms.params import DDPGParams, MADDPGParams, PPOParams, REINFORCEParams, SACParams, TD3Params
from relayrl.config.settings import Settings
from relayrl.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """A name, its settings class, whether its critics see all agents, and one line for `relayrl list algos`."""

    name: str
    params: type[Settings]
    summary: str
    is_central: bool = False


_ENTRIES = [
    AlgorithmEntry("reinforce", REINFORCEParams, "policy gradient on whole returns, optional learned baseline"),
    AlgorithmEntry("ireinforce", REINFORCEParams, "REINFORCE for several agents, each with a critic of its own view"),
    AlgorithmEntry(
        "mareinforce",
        REINFORCEParams,
        "REINFORCE for several agents, with critics that see all of them",
        is_central=True,
    ),
    AlgorithmEntry("ppo", PPOParams, "clipped policy gradient"),
    AlgorithmEntry("ippo", PPOParams, "PPO for several agents, each with a critic of its own view"),
    AlgorithmEntry("mappo", PPOParams, "PPO for several agents, with critics that see all of them", is_central=True),
    AlgorithmEntry("ddpg", DDPGParams, "deterministic policy gradient from replay, Box actions"),
    AlgorithmEntry("iddpg", DDPGParams, "DDPG for several agents, each with a critic of its own view"),
    AlgorithmEntry(
        "maddpg", MADDPGParams, "DDPG for several agents, with critics that see all of them", is_central=True
    ),
    AlgorithmEntry("td3", TD3Params, "DDPG with twin critics, smoothed targets and a delayed policy, Box actions"),
    AlgorithmEntry("itd3", TD3Params, "TD3 for several agents, each with a critic of its own view"),
    AlgorithmEntry("matd3", TD3Params, "TD3 for several agents, with critics that see all of them", is_central=True),
    AlgorithmEntry("sac", SACParams, "maximum-entropy actor-critic from replay, Box actions"),
    AlgorithmEntry("isac", SACParams, "SAC for several agents, each with a critic of its own view"),
    AlgorithmEntry("masac", SACParams, "SAC for several agents, with critics that see all of them", is_central=True),
]


def algorithms() -> dict[str, AlgorithmEntry]:
    """All algorithms."""
    return {entry.name: entry for entry in _ENTRIES}


def algorithm(name: str) -> AlgorithmEntry:
    """The entry of an algorithm; an unknown name raises with the nearest one."""
    entries = algorithms()
    if name not in entries:
        raise UnknownNameError("algorithm", name, entries)
    return entries[name]
