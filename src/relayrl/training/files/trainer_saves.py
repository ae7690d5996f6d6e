"""What `save` writes and `load` reads: one checkpoint file with the trainer's state, its groups and waiting trajectories.

The file's form is `state_codec`'s; it is there whole or not at all. Params, network and kernel are the program's to give again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.data.arrow.codec import decode_trajectory, encode
from relayrl.data.arrow.space_json import space_from_json, space_to_json
from relayrl.data.columns import Trajectory
from relayrl.errors import CheckpointError, ConfigError
from relayrl.models.exports.exported import MAX_SPACE_ELEMENTS
from relayrl.training.files.atomic_files import replacing
from relayrl.training.files.state_codec import read_state, write_state
from relayrl.training.trainers.policy_groups import PolicyGroup
from relayrl.training.trainers.policy_trainer import PolicyTrainer

SUFFIX = ".ckpt"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint's content."""

    path: Path
    groups: dict[str, PolicyGroup]
    num_epochs: int
    in_replay: set[str]
    pending: list[Trajectory]
    waiting: dict[str, Any] | None
    """What the buffer knew of `pending` (`UpdateBuffer.state`); None in files of earlier versions."""
    rollout_steps: int
    """Steps of a whole rollout; 0 where none was received."""
    trainer: dict[str, Any]

    def restore(self, trainer: PolicyTrainer) -> None:
        """Put the state into a fresh trainer for `groups`."""
        try:
            if "replay" in self.trainer:
                trainer.hold_envs(int(self.trainer["replay"]["num_envs"]))
            trainer.load_state_dict(self.trainer)
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(f"{self.path} was made with another network or kernel: {error}") from error


def write_save(
    directory: Path, name: str, state: dict[str, Any], groups: Mapping[str, PolicyGroup], pending: list[Trajectory]
) -> Path:
    """Write `name`, in place of what was there under it."""
    path = _path(directory, name)
    waiting = [np.frombuffer(encode(trajectory), np.uint8) for trajectory in pending]
    members = {group.name: _group_to_state(group) for group in groups.values()}
    with replacing(path) as file:
        write_state(file, {**state, "groups": members, "pending": waiting})
    return path


def read_save(directory: Path, name: str, algo: str, groups: Mapping[str, PolicyGroup]) -> Saved:
    """Read `name` for a trainer of `algo` that has `groups`, all of which must be in it."""
    path = _path(directory, name)
    if not path.exists():
        known = sorted(p.stem for p in directory.glob(f"*{SUFFIX}"))
        raise CheckpointError(f"nothing was saved as {name!r} in {directory}; there is {', '.join(known) or 'nothing'}")
    state = read_state(path)
    if state.get("algo") != algo:
        raise CheckpointError(f"{path} was saved by {state.get('algo')}, not {algo}")
    try:
        saved_groups = {key: _group_from_state(key, value) for key, value in state["groups"].items()}
        pending = [decode_trajectory(bytes(content)) for content in state["pending"]]
        counts = (int(state["num_epochs"]), set(state["in_replay"]))
        waiting, rollout_steps = state.get("waiting"), int(state.get("rollout_steps", 0))
        saved = Saved(path, saved_groups, *counts, pending, waiting, rollout_steps, state["trainer"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no save of a trainer: {error}") from error
    _require_known(saved, groups)
    return saved


def _require_known(saved: Saved, groups: Mapping[str, PolicyGroup]) -> None:
    for name, group in groups.items():
        kept = saved.groups.get(name)
        if kept is None or not set(group.agent_ids) <= set(kept.agent_ids):
            raise CheckpointError(
                f"{saved.path} does not know {name!r} with {list(group.agent_ids)}; load, then register"
            )
        if (kept.observation_space, kept.action_space) != (group.observation_space, group.action_space):
            raise CheckpointError(f"{saved.path} has other spaces for {name!r} than this trainer")


def _group_to_state(group: PolicyGroup) -> dict[str, Any]:
    return {
        "observation_space": space_to_json(group.observation_space),
        "action_space": space_to_json(group.action_space),
        "masks_actions": group.masks_actions,
        "agent_ids": list(group.agent_ids),
    }


def _group_from_state(name: str, state: Mapping[str, Any]) -> PolicyGroup:
    observation, action = (
        space_from_json(state[key], max_elements=MAX_SPACE_ELEMENTS) for key in ("observation_space", "action_space")
    )
    return PolicyGroup(name, observation, action, bool(state["masks_actions"]), tuple(state["agent_ids"]))


def _path(directory: Path, name: str) -> Path:
    if not name or Path(name).name != name or "\0" in name:
        raise ConfigError(f"{name!r} is no name for a save; give a plain name, the folder is save_model_path")
    return directory / f"{name}{SUFFIX}"
