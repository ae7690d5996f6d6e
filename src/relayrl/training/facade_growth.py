"""Carries over what was learned when an agent joins: into a fresh learner, from the one before.

Policies, targets, optimisers, counters and random streams of those who were there stay as they are, bit for bit. Critics that
see all agents have a wider input now: their weights on old inputs stay, those on the newcomer's begin at zero, so that nobody's
value changes by its arrival; their optimisers begin anew. Transitions in replay stay, with the newcomer absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.critic_views import CentralView
from relayrl.training.construction import Learner, OffPolicyLearner, OnPolicyLearner
from relayrl.training.facade_args import PolicyGroup
from relayrl.training.replay import JointReplay

Groups = Mapping[str, PolicyGroup]
Column = tuple[str, ...]
Widen = Callable[[Tensor, Tensor], Tensor]
"""(fresh, learned) to `learned` in the shape of `fresh`."""
AGENT_AXIS = 1


def carry_over(before: Learner, after: Learner, old: Groups, new: Groups, *, is_central: bool) -> None:
    """Make `after`, fresh and for the groups `new`, continue what `before` learned for the groups `old`."""
    after.trainer.num_env_steps = before.trainer.num_env_steps
    after.trainer.policy_version = before.trainer.policy_version
    if isinstance(before, OnPolicyLearner) and isinstance(after, OnPolicyLearner):
        _carry_on_policy(before, after, old, new, is_central)
    elif isinstance(before, OffPolicyLearner) and isinstance(after, OffPolicyLearner):
        _carry_off_policy(before, after, old, new, is_central)


def _carry_on_policy(
    before: OnPolicyLearner, after: OnPolicyLearner, old: Groups, new: Groups, is_central: bool
) -> None:
    for name in old:
        widen: Widen = _no_widening
        if is_central:
            widen = _widening(*(_seen(groups, learner, name) for groups, learner in ((old, before), (new, after))))
        fresh, learned = after.algorithms[name], before.algorithms[name]
        fresh.policy.load_state_dict(_inherited(fresh.policy.state_dict(), learned.policy.state_dict(), widen))
        fresh.load_state_dict(_inherited(fresh.state_dict(), learned.state_dict(), widen))


def _carry_off_policy(
    before: OffPolicyLearner, after: OffPolicyLearner, old: Groups, new: Groups, is_central: bool
) -> None:
    for name in old:
        after.policies[name].load_state_dict(before.policies[name].state_dict())
    fresh, learned = after.algorithm.state_dict(), before.algorithm.state_dict()
    for name in old:
        widen: Widen = _no_widening
        if is_central:
            widen = _widening(*(_judged(groups, learner, name) for groups, learner in ((old, before), (new, after))))
        learned["groups"][name] = _inherited(fresh["groups"][name], learned["groups"][name], widen)
    after.algorithm.load_state_dict(_inherited(fresh, learned, _no_widening))
    after.rng.bit_generator.state = before.rng.bit_generator.state
    if len(before.trainer.replay):
        spaces = {name: (group.observation_space, group.action_space) for name, group in new.items()}
        after.trainer.replay.set_state(_grown_replay(before.trainer.replay.get_state(), old, new), spaces)


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
    place = {column: i for i, column in enumerate(new)}
    where = torch.tensor([place[column] for column in old], dtype=torch.long)

    def widen(fresh: Tensor, learned: Tensor) -> Tensor:
        if fresh.shape[-1:] != (len(new),) or learned.shape[-1:] != (len(old),):
            return fresh
        wider = torch.zeros_like(fresh) if fresh.ndim > 1 else fresh.clone()
        wider[..., where] = learned
        return wider

    return widen


def _seen(groups: Groups, learner: OnPolicyLearner, own: str) -> list[Column]:
    """The inputs of a central critic in the order of `joint_observations`."""
    features = {name: policy.encoder.num_features for name, policy in learner.policies.items()}
    columns: list[Column] = []
    central = learner.trainer.central
    if central is not None and central.sight(own).observations:
        columns += _of_all("obs", groups, features)
    if central is not None and central.sight(own).state:
        columns += [("state", str(i)) for i in range(central.num_state_features)]
    return [*columns, *(("self", agent) for agent in groups[own].agent_ids)]


def _judged(groups: Groups, learner: OffPolicyLearner, own: str) -> list[Column]:
    """The inputs of a central Q-network in the order of `critic_views.CentralView`."""
    features = {name: policy.encoder.num_features for name, policy in learner.policies.items()}
    actions = {name: policy.head.critic_width for name, policy in learner.policies.items()}
    own_columns = [("self", agent) for agent in groups[own].agent_ids]
    view, state = learner.algorithm.view, learner.algorithm.state
    columns: list[Column] = []
    if isinstance(view, CentralView) and view.sight(own).observations:
        columns += _of_all("obs", groups, features)
    if isinstance(view, CentralView) and view.sight(own).state and state is not None:
        columns += [("state", str(i)) for i in range(state.encoder.num_features)]
    return [*columns, *_of_all("action", groups, actions), *own_columns]


def _of_all(kind: str, groups: Groups, widths: Mapping[str, int]) -> list[Column]:
    return [
        (kind, name, agent, str(i))
        for name, group in groups.items()
        for agent in group.agent_ids
        for i in range(widths[name])
    ]


def _grown_replay(state: dict[str, Any], old: Groups, new: Groups) -> dict[str, Any]:
    """Replay with more agents and groups: newcomers to a group hold what its last agent holds, and nobody new is valid."""
    arrays = dict(state["arrays"])
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
        arrays |= {key: np.repeat(row, state["size"], axis=0) for key, row in absent.get_state()["arrays"].items()}
    return {**state, "arrays": arrays}
