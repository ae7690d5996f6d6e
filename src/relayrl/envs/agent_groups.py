"""Which agents of a multi-agent environment share arrays: one `AgentGroup` per kind of agent.

Agents belong together when their spaces are equal and their ids differ only in a trailing `_<digits>`: `wolf_0` and
`wolf_1` are the group `wolf`. ML-Agents' `?team=<digits>` in an id says whom an agent plays with, and is passed over here. A
group of one is named after its agent. Order is that of `possible_agents`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayrl.data.action_masks import mask_parts
from relayrl.data.trees import Array, Space
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import EnvError

_NUMBERED = re.compile(r"(.+)_\d+")
_TEAM = re.compile(r"\?team=\d+")
LATE_MASK = "there is an action mask now, though the first reset had none; give one with every reset() and step()"


def group_agents(
    agent_ids: Sequence[str],
    observation_spaces: Mapping[str, Space],
    action_spaces: Mapping[str, Space],
    *,
    masks_actions: bool = False,
) -> dict[str, AgentGroup]:
    """The groups by name, each with at least one agent; every agent is in exactly one."""
    if not agent_ids:
        raise EnvError("possible_agents is empty; name every agent that can ever appear")
    members: list[list[str]] = []
    for agent in agent_ids:
        for group in members:
            if _belong_together(group[0], agent, observation_spaces, action_spaces):
                group.append(agent)
                break
        else:
            members.append([agent])
    groups: dict[str, AgentGroup] = {}
    for ids in members:
        prefix = _prefix(ids[0])
        name = prefix if len(ids) > 1 and prefix not in groups else ids[0]
        action_space = action_spaces[ids[0]]
        masked = masks_actions and mask_size(action_space) > 0
        groups[name] = AgentGroup(name, tuple(ids), observation_spaces[ids[0]], action_space, masked)
    return groups


def mask_size(action_space: Space) -> int:
    """Entries of an action mask; 0 where actions cannot be masked."""
    return sum(mask_parts(action_space))


def flat_mask(mask: Any, size: int) -> Array:
    """[A] an environment's mask as bool; the tuple of a `MultiDiscrete` mask becomes its components side by side."""
    try:
        flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple | list) else np.asarray(mask)
        if flat.shape == (size,):
            return flat.astype(np.bool_)
        given = f"has shape {flat.shape}"
    except (TypeError, ValueError) as error:
        given = f"is {mask!r:.60} ({error})"
    raise EnvError(f"the action mask {given}; give one entry per action, ({size},), True where it is allowed")


def _prefix(agent: str) -> str:
    name = _TEAM.sub("", agent)
    match = _NUMBERED.fullmatch(name)
    return match.group(1) if match else name


def _belong_together(
    first: str, second: str, observation_spaces: Mapping[str, Space], action_spaces: Mapping[str, Space]
) -> bool:
    return (
        _prefix(first) == _prefix(second)
        and observation_spaces[first] == observation_spaces[second]
        and action_spaces[first] == action_spaces[second]
    )
