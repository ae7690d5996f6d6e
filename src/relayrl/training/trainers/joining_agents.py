"""Carries over what was learned when an agent joins: into a fresh trainer, from the one before.

Policies, targets, optimisers, counters and random streams of those who were there stay as they are, bit for bit. Critics that
see all agents have a wider input now: their weights on old inputs stay, those on the newcomer's begin at zero, so that nobody's
value changes by its arrival; their optimisers begin anew. Transitions in replay stay, with the newcomer absent.

It works on the states that trainers save, in which whatever is a group's own lies under `groups`, by the group's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.training.replay.joint_replay import FRAMES, JointReplay
from relayrl.training.trainers.policy_groups import Column, Groups
from relayrl.training.trainers.policy_trainer import PolicyTrainer

State = dict[str, Any]
Widen = Callable[[Tensor, Tensor], Tensor]
"""(fresh, learned) to `learned` in the shape of `fresh`."""
AGENT_AXIS = 1


def carry_over(before: PolicyTrainer, after: PolicyTrainer, old: Groups, new: Groups) -> None:
    """Make `after`, fresh and for the groups `new`, continue what `before` learned for the groups `old`."""
    widen = {name: _widening(*(_inputs(*side, name) for side in ((before, old), (after, new)))) for name in old}
    learned = before.state_dict()
    state = _continued(after.state_dict(), learned, widen)
    if "replay" in learned:
        after.hold_envs(int(learned["replay"]["num_envs"]))
        state["replay"] = _grown_replay(learned["replay"], old, new)
    after.load_state_dict(state)


def _inputs(trainer: PolicyTrainer, groups: Groups, name: str) -> list[Column]:
    columns = trainer.critic_columns(name)
    return [] if columns is None else columns.names(groups, name)


def _continued(fresh: State, learned: State, widen: Mapping[str, Widen]) -> State:
    """`learned`, with `fresh` parts for groups that are new; `widen` by group."""
    state = {}
    for key, value in fresh.items():
        if key == "groups":
            known = learned[key]
            state[key] = {
                name: _inherited(own, known[name], widen[name]) if name in known else own for name, own in value.items()
            }
        elif key == "algorithm":
            state[key] = _continued(value, learned[key], widen)
        elif key == "replay":
            continue
        else:
            state[key] = _inherited(value, learned[key], _no_widening)
    return state


def _inherited(fresh: Any, learned: Any, widen: Widen) -> Any:
    """`learned` where it has the shape of `fresh`, else `fresh`; leaf by leaf, an optimiser whole or not at all."""
    if isinstance(fresh, dict):
        if "first_moment" in fresh and fresh["first_moment"].shape != learned["first_moment"].shape:
            return fresh
        return {
            key: _inherited(value, learned[key], widen) if key in learned else value for key, value in fresh.items()
        }
    if isinstance(fresh, Tensor) and fresh.shape != learned.shape:
        return widen(fresh, learned)
    return learned


def _no_widening(fresh: Tensor, learned: Tensor) -> Tensor:
    return fresh


def _widening(old: Sequence[Column], new: Sequence[Column]) -> Widen:
    """Moves the columns of a wider last axis to their new places; new weights are zero, new moments fresh."""
    if not old:
        return _no_widening
    place = {column: i for i, column in enumerate(new)}
    where = torch.tensor([place[column] for column in old], dtype=torch.long)

    def widen(fresh: Tensor, learned: Tensor) -> Tensor:
        if fresh.shape[-1:] != (len(new),) or learned.shape[-1:] != (len(old),):
            return fresh
        wider = torch.zeros_like(fresh) if fresh.ndim > 1 else fresh.clone()
        wider[..., where] = learned
        return wider

    return widen


def _grown_replay(state: State, old: Groups, new: Groups) -> State:
    """Replay with more agents and groups: newcomers to a group hold what its last agent holds, and nobody new is valid."""
    if not state["size"]:
        return state
    arrays = {key: np.asarray(array) for key, array in state["arrays"].items()}
    for name, group in old.items():
        num_joined = len(new[name].agent_ids) - len(group.agent_ids)
        for key in [key for key in arrays if num_joined and key.startswith(f"{name}/")]:
            widths = [(0, num_joined if axis == AGENT_AXIS else 0) for axis in range(arrays[key].ndim)]
            arrays[key] = np.pad(arrays[key], widths, mode="edge")
            if key == f"{name}/valid":
                arrays[key][:, -num_joined:] = False
    for name in new.keys() - old.keys():
        absent = JointReplay(1, 1)
        absent.add({name: new[name].nothing_played()})
        arrays |= {
            key: row if key.startswith(FRAMES) else np.repeat(row, state["size"], axis=0)
            for key, row in absent.get_state()["arrays"].items()
        }
    return {**state, "arrays": arrays}
