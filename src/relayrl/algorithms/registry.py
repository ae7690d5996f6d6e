"""Every algorithm by name: the command line, the docs and the tests iterate over this table.

A base algorithm comes in three forms that differ in what its critics see: for one agent, independently for several
(`i…`), and centrally trained for several (`ma…`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from relayrl.algorithms.imitation.bc_params import BCParams
from relayrl.algorithms.on_policy_params import PPOParams, REINFORCEParams
from relayrl.algorithms.params import DDPGParams, MADDPGParams, SACParams, TD3Params
from relayrl.algorithms.poca.poca_params import POCAParams
from relayrl.algorithms.vtrace.vtrace_params import APPOParams, IMPALAParams
from relayrl.config.settings import Settings
from relayrl.errors import ConfigError, UnknownNameError


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """A name, its settings class, one line for `relayrl list algos`, whether its critics see all agents, and its class."""

    name: str
    params: type[Settings]
    summary: str
    is_central: bool = False
    algorithm: str | type[Any] = ""
    """The class, or `module:Class`, which is imported when it is built: reading this table loads no torch."""

    def load(self) -> type[Any]:
        """The algorithm: an `OnPolicyAlgorithm`, an `OffPolicyAlgorithm` or `BC`."""
        if not isinstance(self.algorithm, str):
            return self.algorithm
        if not self.algorithm:
            raise ConfigError(f"algorithm {self.name!r} comes from a plugin, which assembles its own parts")
        module, _, name = self.algorithm.partition(":")
        found: type[Any] = getattr(importlib.import_module(module), name)
        return found


def _forms(
    name: str, algorithm: str, params: type[Settings], summary: str, central_params: type[Settings] | None = None
) -> list[AlgorithmEntry]:
    """A base algorithm in its three forms."""
    several = f"{name.upper()} for several agents"
    return [
        AlgorithmEntry(name, params, summary, algorithm=algorithm),
        AlgorithmEntry(f"i{name}", params, f"{several}, each with a critic of its own view", algorithm=algorithm),
        AlgorithmEntry(
            f"ma{name}",
            central_params or params,
            f"{several}, with critics that see all of them",
            is_central=True,
            algorithm=algorithm,
        ),
    ]


_ENTRIES = [
    *_forms(
        "reinforce",
        "relayrl.algorithms.reinforce:REINFORCE",
        REINFORCEParams,
        "policy gradient on whole returns, optional learned baseline",
    ),
    *_forms("ppo", "relayrl.algorithms.ppo:PPO", PPOParams, "clipped policy gradient"),
    *_forms(
        "impala",
        "relayrl.algorithms.vtrace.impala:IMPALA",
        IMPALAParams,
        "actor-critic that corrects for data of older policies (V-trace)",
    ),
    *_forms(
        "appo",
        "relayrl.algorithms.vtrace.appo:APPO",
        APPOParams,
        "PPO that corrects for data of older policies (V-trace)",
    ),
    AlgorithmEntry(
        "poca",
        POCAParams,
        "PPO for a team, with counterfactual credit that outlives an agent's death",
        algorithm="relayrl.algorithms.poca.poca:POCA",
    ),
    *_forms(
        "ddpg",
        "relayrl.algorithms.td3:DDPG",
        DDPGParams,
        "deterministic policy gradient from replay, Box actions",
        MADDPGParams,
    ),
    *_forms(
        "td3",
        "relayrl.algorithms.td3:TD3",
        TD3Params,
        "DDPG with twin critics, smoothed targets and a delayed policy, Box actions",
    ),
    *_forms("sac", "relayrl.algorithms.sac:SAC", SACParams, "maximum-entropy actor-critic from replay, Box actions"),
    AlgorithmEntry(
        "bc",
        BCParams,
        "supervised cloning of recorded trajectories (--from), for one agent or several",
        algorithm="relayrl.algorithms.imitation.bc:BC",
    ),
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
