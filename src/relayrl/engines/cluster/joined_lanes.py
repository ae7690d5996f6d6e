"""Rollouts of parts of a run's environments as one rollout of all of them, and what else the parts report.

Parts are given in the order of their environments, so that lanes stand side by side as if one collector had stepped them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from relayrl.data.columns import COLUMNS, OPTIONAL_COLUMNS, LaneHeader, Rollout, Successors
from relayrl.data.trees import Array, map_tree
from relayrl.runtime.collector import EndedEpisodes

RolloutColumns = dict[str, Any]
"""A rollout without its header, as plain arrays: what a collector sends."""
_OF_LANES = ("first_episode", "first_step")


def columns_of(rollout: Rollout) -> RolloutColumns:
    """Everything of a rollout but who its lanes are."""
    names = (field.name for field in fields(rollout) if field.name not in ("header", "successors"))
    columns = {name: getattr(rollout, name) for name in names}
    columns |= {f"successors.{field.name}": getattr(rollout.successors, field.name) for field in fields(Successors)}
    return {name: column for name, column in columns.items() if column is not None}


def rollout_of(columns: RolloutColumns, header: LaneHeader) -> Rollout:
    """The rollout of one part again."""
    return joined_lanes([columns], header)


def joined_lanes(parts: Sequence[RolloutColumns], header: LaneHeader) -> Rollout:
    """One rollout of the lanes of all parts, in memory of its own."""
    first = parts[0]
    present = [name for name in (*COLUMNS, *OPTIONAL_COLUMNS) if name in first]
    columns = {name: _beside([part[name] for part in parts], axis=1) for name in present}
    for name in _OF_LANES:
        columns[name] = np.concatenate([part[name] for part in parts])
    if "next_episode" in first:
        columns["next_episode"] = np.concatenate([part["next_episode"] for part in parts])
    if any("waits" in part for part in parts):
        columns["waits"] = np.concatenate([part.get("waits", np.zeros(_num_lanes(part), bool)) for part in parts])
    return Rollout(header=header, successors=_successors(parts), **columns)


def _successors(parts: Sequence[RolloutColumns]) -> Successors:
    prefix = "successors."
    names = [name.removeprefix(prefix) for name in parts[0] if name.startswith(prefix)]
    offsets = np.cumsum([0, *(_num_lanes(part) for part in parts)])
    lane = np.concatenate([part[f"{prefix}lane"] + offset for part, offset in zip(parts, offsets[:-1], strict=True)])
    step = np.concatenate([part[f"{prefix}step"] for part in parts])
    order = np.lexsort((lane, step))
    columns: dict[str, Any] = {
        name: map_tree(lambda *leaves: np.concatenate(leaves)[order], *(part[prefix + name] for part in parts))
        for name in names
        if name not in ("lane", "step")
    }
    return Successors(step=step[order], lane=lane[order], **columns)


def _beside(columns: Sequence[Any], axis: int) -> Any:
    return map_tree(lambda *leaves: np.concatenate(leaves, axis), *columns)


def _num_lanes(part: RolloutColumns) -> int:
    return int(part["reward"].shape[1])


def joined_episodes(parts: Sequence[EndedEpisodes], num_steps: int = 0) -> EndedEpisodes:
    """Episodes of all parts in the order in which they ended, those of one step in that of their environments; the run had
    taken `num_steps` steps of each environment before."""
    ended = [(step, i, k) for i, part in enumerate(parts) for k, step in enumerate(part.num_steps)]
    ended.sort(key=lambda each: each[:2])
    names = list(parts[0].group_returns)
    agents = [{name: _rows(part.agent_returns[name]) for name in names} for part in parts]
    return EndedEpisodes(
        returns=[parts[i].returns[k] for _, i, k in ended],
        lengths=[parts[i].lengths[k] for _, i, k in ended],
        group_returns={name: [parts[i].group_returns[name][k] for _, i, k in ended] for name in names},
        agent_returns={name: [agents[i][name][k] for _, i, k in ended] for name in names},
        began_at=[num_steps + parts[i].began_at[k] for _, i, k in ended],
        num_steps=[num_steps + step for step, _, _ in ended],
    )


def _rows(arrays: Sequence[Array]) -> list[Array]:
    """[1, N] of each episode."""
    return [row[None] for array in arrays for row in array]


def joined_states(states: Sequence[Mapping[str, Any]], bounds: Sequence[int]) -> dict[str, Any]:
    """What a checkpoint holds of the collectors: each one's state, and beside them what one collector of all environments would
    need to go on with new episodes, whichever engine it belongs to."""
    first = states[0]
    builders = {
        name: {key: np.concatenate([state["builders"][name][key] for state in states]) for key in own}
        for name, own in first["builders"].items()
    }
    return {
        "rng": first["rng"],
        "env_ids": [env_id for state in states for env_id in state["env_ids"]],
        "builders": builders,
        "episodes": {},
        "memories": {},
        "environment": None,
        "bounds": [int(bound) for bound in bounds],
        "parts": list(states),
    }
