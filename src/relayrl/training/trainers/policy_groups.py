"""Agents that share a policy, and their trajectories as the rollouts that trainers take.

`side_by_side` is for trainers that learn from rollouts once: one rollout per group, aligned in time only where critics see all
agents. `by_environment` is for replay, which holds the steps of one environment after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relayrl.data.columns import LaneHeader, Rollout, Trajectory
from relayrl.data.stacking import count_env_steps, empty_rollout, joint_envs, stack_jointly, stack_trajectories
from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.heads.head_registry import likelihood_head

RECOMPUTED = ("logp", "value", "memory")
"""Columns that learning can do without; they are left out where not all trajectories of an epoch have them."""
Column = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PolicyGroup:
    """Agents that share a policy, and the spaces that they have in common."""

    name: str
    observation_space: Space
    action_space: Space
    masks_actions: bool
    agent_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.masks_actions and self.mask_width is None:
            raise ConfigError(f"actions in {self.action_space} cannot be masked; leave masks_actions out")

    @property
    def mask_width(self) -> int | None:
        """Entries of an action mask; None where there is none."""
        return likelihood_head(self.action_space).mask_width if self.masks_actions else None

    @property
    def header(self) -> LaneHeader:
        """The group's lanes in an environment yet to be named."""
        return LaneHeader(self.name, (), self.agent_ids, self.observation_space, self.action_space)

    def nothing_played(self) -> Rollout:
        """A rollout in which none of its agents acts."""
        return empty_rollout(self.header, self.mask_width)

    def with_agent(self, agent_id: str) -> PolicyGroup:
        """The group with one more member."""
        return replace(self, agent_ids=(*self.agent_ids, agent_id))


Groups = Mapping[str, PolicyGroup]


@dataclass(frozen=True, slots=True)
class CriticColumns:
    """The inputs of a critic that sees all agents: observations, the state, actions, and which agent is asked for."""

    observation_widths: Mapping[str, int]  # by group; empty where it does not see them
    num_state_features: int
    action_widths: Mapping[str, int]

    def names(self, groups: Groups, own: str) -> list[Column]:
        """A name for every input of the critic of group `own`, in order."""
        return [
            *_of_all("obs", groups, self.observation_widths),
            *(("state", str(i)) for i in range(self.num_state_features)),
            *_of_all("action", groups, self.action_widths),
            *(("self", agent_id) for agent_id in groups[own].agent_ids),
        ]


def _of_all(kind: str, groups: Groups, widths: Mapping[str, int]) -> Iterator[Column]:
    for name, group in groups.items():
        for agent_id in group.agent_ids:
            yield from ((kind, name, agent_id, str(i)) for i in range(widths.get(name, 0)))


def side_by_side(epoch: Sequence[Trajectory], groups: Groups, *, aligned: bool) -> dict[str, Rollout]:
    """The epoch as one rollout per group; `aligned`: row by row of the same steps of the same environments."""
    alike = _with_the_same_optional_columns(epoch)
    if aligned:
        return _jointly(alike, groups)
    lanes: dict[str, list[Trajectory]] = {name: [] for name in groups}
    for trajectory in alike:
        # A lane per trajectory: who acted does not matter to a critic that sees one agent.
        is_named_so = trajectory.agent_id == trajectory.group
        lanes[trajectory.group].append(trajectory if is_named_so else replace(trajectory, agent_id=trajectory.group))
    return {name: stack_trajectories(own) if own else groups[name].nothing_played() for name, own in lanes.items()}


def by_environment(epoch: Sequence[Trajectory], groups: Groups) -> Iterator[tuple[dict[str, Rollout], int]]:
    """The epoch environment by environment, each as one aligned rollout per group, with the steps that it covers."""
    for part in joint_envs(_with_the_same_optional_columns(epoch)):
        yield _jointly(part, groups), count_env_steps(part)


def _jointly(trajectories: Sequence[Trajectory], groups: Groups) -> dict[str, Rollout]:
    headers = {name: group.header for name, group in groups.items()}
    widths = {name: group.mask_width for name, group in groups.items() if group.mask_width is not None}
    return stack_jointly(trajectories, headers, widths)


def _with_the_same_optional_columns(epoch: Sequence[Trajectory]) -> list[Trajectory]:
    missing = [name for name in RECOMPUTED if any(getattr(t, name) is None for t in epoch)]
    return [_without(trajectory, missing) for trajectory in epoch]


def _without(trajectory: Trajectory, names: Sequence[str]) -> Trajectory:
    known: dict[str, Any] = {name: None for name in names if getattr(trajectory, name) is not None}
    return replace(trajectory, **known) if known else trajectory
