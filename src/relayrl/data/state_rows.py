"""Global states of environments beside the rollouts of their agents: one column for all groups, and what followed where.

    builder.add(state)                              before the environment steps
    builder.finish_row(episode_over, final_state)   after it
    states = builder.build(next_state)              after the block's last row
    rollout = states.beside(rollout)                for the rollout of every group

As with `rollout_builder`, columns live in two sets of buffers that take turns. Trajectories hold the states of their agent's
own steps; `joint_states` gives their environment's. Not its job: what lanes see (`rollout_builder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout, Trajectory
from relayrl.data.trees import Array, Space, Tree, allocate, index, map_tree, write
from relayrl.errors import ConfigError, EnvError


@dataclass(frozen=True, slots=True)
class BlockStates:
    """States `now` [T, B, …] of a block's rows, and those `after` [T, B, …] them."""

    now: Tree
    after: Tree

    def beside(self, rollout: Rollout) -> Rollout:
        """The rollout of one group of these environments, with their states."""
        successors = rollout.successors
        where = (successors.step, successors.lane // len(rollout.header.agent_ids))
        return replace(rollout, state=self.now, successors=replace(successors, state=index(self.after, where)))


class StateBuilder:
    """Fills blocks of at most `num_steps` rows of states of `num_envs` environments."""

    def __init__(self, space: Space, num_envs: int, num_steps: int) -> None:
        leading = (num_steps, num_envs)
        self._filling, self._resting = ((allocate(space, leading), allocate(space, leading)) for _ in range(2))
        self._over = np.zeros(leading, bool)
        self._row = 0

    def add(self, state: Tree | None) -> None:
        """The environments' states [B, …] in which the row's actions are chosen."""
        write(self._filling[0], self._row, _given(state, "state"))

    def finish_row(self, episode_over: Array, final_state: Tree | None) -> None:
        """Where episodes ended [B], and in which states [K, …]."""
        self._over[self._row] = episode_over
        if episode_over.any():
            write(self._filling[1], (self._row, np.flatnonzero(episode_over)), _given(final_state, "final_state"))
        self._row += 1

    def fail_row(self) -> None:
        """Every environment broke down: episodes ended in the states of the row."""
        self._over[self._row] = True
        write(self._filling[1], self._row, index(self._filling[0], self._row))
        self._row += 1

    def build(self, next_state: Tree | None) -> BlockStates:
        """The block's states; `next_state` [B, …] followed its last row where the episode goes on."""
        (now, after), T = self._filling, self._row
        goes_on = ~self._over[:T]

        def follow(following: Array, state: Array, last: Array) -> None:
            following[: T - 1][goes_on[:-1]] = state[1:T][goes_on[:-1]]
            following[T - 1][goes_on[-1]] = last[goes_on[-1]]

        map_tree(follow, after, now, _given(next_state, "state"))
        self._filling, self._resting = self._resting, self._filling
        self._row = 0
        return BlockStates(index(now, slice(T)), index(after, slice(T)))

    def clear(self) -> None:
        """Drop the present block."""
        self._row = 0


def states_after(rollouts: Sequence[Rollout]) -> Any:
    """[T, B, …] the states that followed each row, from the rollouts of all groups of the same environments."""
    first = rollouts[0]
    after = map_tree(np.copy, first.state)
    map_tree(lambda following, state: following.__setitem__(slice(-1), state[1:]), after, first.state)
    for rollout in rollouts:
        successors = rollout.successors
        # On the last row, lanes that are not there any more know nothing of what followed.
        knows = (rollout.ended | rollout.valid)[successors.step, successors.lane]
        env = successors.lane // len(rollout.header.agent_ids)
        write(after, (successors.step[knows], env[knows]), index(successors.state, knows))
    return after


@dataclass(frozen=True, slots=True)
class PlacedStates:
    """A trajectory of an agent in `env`, the rows of its steps, and the one behind its end."""

    trajectory: Trajectory
    env: int
    rows: slice | Array
    end: int


def joint_states(placed: Sequence[PlacedStates], num_steps: int, num_envs: int) -> BlockStates | None:
    """States `[T, B, …]` of environments, zeros where nobody recorded any; None where the trajectories have none."""
    given = [p for p in placed if p.trajectory.state is not None]
    if not given:
        return None
    if len(given) != len(placed):
        raise ConfigError("some trajectories have states and others do not; record them for all agents or for none")

    def like(leaf: Array) -> Array:
        return np.zeros((num_steps, num_envs, *leaf.shape[1:]), leaf.dtype)

    now: Any = map_tree(like, given[0].trajectory.state)
    for p in given:
        write(now, (p.rows, p.env), p.trajectory.state)
        if p.trajectory.failed:
            write(now, (p.end - 1, p.env), p.trajectory.final_state)
    after = map_tree(np.zeros_like, now)
    map_tree(lambda following, state: following.__setitem__(slice(-1), state[1:]), after, now)
    for p in given:
        write(after, (p.end - 1, p.env), p.trajectory.final_state)
    return BlockStates(now, after)


def _given(state: Tree | None, name: str) -> Any:
    if state is None:
        raise EnvError(
            f"the environment declares a state_space, but its result has no {name}; give one in every result"
        )
    return state
