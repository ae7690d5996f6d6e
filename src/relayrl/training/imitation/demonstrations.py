"""Demonstrations: recorded trajectories as rollouts of the groups that are to imitate them.

A source is what `read_trajectories` takes: the URL of a sink, a folder or a file, ML-Agents' among them. Trajectories belong to
the group of their name. Where a run has one group, all belong to that one. A trajectory becomes a rollout of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymnasium import spaces

from relayrl.config.passwords import without_password
from relayrl.data.action_masks import mask_parts
from relayrl.data.columns import LaneHeader, Rollout, Trajectory
from relayrl.data.stacking import stack_trajectories
from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.training.facade.received_trajectories import adopted, checked, read_trajectories
from relayrl.training.trainers.policy_groups import PolicyGroup

logger = logging.getLogger(__name__)


def read_demonstrations(source: str, headers: Mapping[str, LaneHeader]) -> dict[str, list[Rollout]]:
    """What each group is to imitate; `ConfigError` where there is nothing, or it is of other spaces."""
    shown = without_password(source)
    trajectories = checked(list(read_trajectories(source)))
    found: dict[str, list[Trajectory]] = {name: [] for name in headers}
    for trajectory in trajectories:
        found[_group_of(trajectory, headers, shown)].append(trajectory)
    if not any(found.values()):
        raise ConfigError(f"{shown} holds no trajectories to imitate")
    rollouts = {name: _rollouts(headers[name], own) for name, own in found.items()}
    without = [name for name, own in rollouts.items() if not own]
    if without:
        logger.warning("%s has no demonstrations of %s, which imitates nothing", shown, ", ".join(without))
    return rollouts


def _group_of(trajectory: Trajectory, headers: Mapping[str, LaneHeader], shown: str) -> str:
    if trajectory.group in headers:
        return trajectory.group
    if len(headers) == 1:
        return next(iter(headers))
    raise ConfigError(f"{shown} has group {trajectory.group!r}, the environment {sorted(headers)}")


def _named(trajectory: Trajectory, header: LaneHeader) -> Trajectory:
    """The trajectory with its parts by name, where it has as many in order: files of ML-Agents do not name them."""
    seen: Any = header.observation_space
    done: Any = header.action_space
    if _lacks_names(trajectory.observation_space, seen):
        obs, final = (dict(zip(seen, tree, strict=True)) for tree in (trajectory.obs, trajectory.final_obs))
        trajectory = replace(trajectory, observation_space=seen, obs=obs, final_obs=final)
    if _lacks_names(trajectory.action_space, done):
        action = dict(zip(done, trajectory.action, strict=True))
        trajectory = replace(trajectory, action_space=done, action=action)
    return trajectory


def _lacks_names(own: Space, named: Space) -> bool:
    return isinstance(own, spaces.Tuple) and isinstance(named, spaces.Dict) and len(own) == len(named)


def _rollouts(header: LaneHeader, trajectories: list[Trajectory]) -> list[Rollout]:
    masks = bool(mask_parts(header.action_space)) and any(t.action_mask is not None for t in trajectories)
    group = PolicyGroup(header.group, header.observation_space, header.action_space, masks)
    unknown = {"logp": None, "value": None, "memory": None, "state": None, "final_state": None}
    return [
        stack_trajectories([replace(adopted(_named(each, header), group, header.group), **unknown)])  # type: ignore[arg-type]
        for each in trajectories
        if len(each)
    ]
