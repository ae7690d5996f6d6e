"""Hindsight experience replay (Andrychowicz et al., 2017): transitions are also replayed as if another goal had been meant.

Of k + 1 sampled transitions, k get a new goal on average: what the same episode achieved at or after the transition, at a step
drawn uniformly (strategy `future`). The environment says what the transition would have paid then, and whether it would have
ended. Of an episode that goes on, what it has achieved so far counts. Relabelling happens when transitions are drawn, so that
the ring holds every step once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Space
from relayrl.errors import ConfigError
from relayrl.training.replay.joint_replay import GroupTransitions, JointReplay, JointTransitions

Relabel = Callable[[Array, Array], tuple[Array, Array | None]]
"""Rewards [M] and, where goals decide them, ends [M] of what was achieved [M, …] under goals [M, …]."""
GOING_ON = -1


class HindsightReplay(JointReplay):
    """A ring of transitions of one agent with goals."""

    def __init__(self, capacity: int, num_envs: int, *, ratio: float, relabel: Relabel, **options: Any) -> None:
        super().__init__(capacity, num_envs, **options)
        self._share, self._relabel = ratio / (1.0 + ratio), relabel
        self._num_steps = 0
        """Steps of each environment that were ever added; a row's place in the ring is its step modulo the ring's."""
        self._ring_steps = self.capacity // num_envs
        self._last = np.full((self._ring_steps, num_envs), GOING_ON, np.int64)
        """The last step of each row's episode."""
        self._begins = np.zeros(num_envs, np.int64)
        """The first step of each environment's running episode."""

    def add(self, rollouts: Mapping[str, Rollout]) -> None:
        super().add(rollouts)
        (rollout,) = rollouts.values()
        first, self._num_steps = self._num_steps, self._num_steps + rollout.num_steps
        self._last[np.arange(first, self._num_steps) % self._ring_steps] = GOING_ON
        is_void = rollout.ended & ~rollout.valid  # the environment failed: what it shows is not what followed
        for t, env in np.argwhere(rollout.ended).tolist():
            self._end(env, first + t, is_void=bool(is_void[t, env]))

    def _end(self, env: int, step: int, *, is_void: bool = False) -> None:
        """Close an environment's episode with `step`."""
        begin = max(int(self._begins[env]), self._num_steps - self._ring_steps)
        self._last[np.arange(begin, step + 1) % self._ring_steps, env] = step - 1 if is_void and step > begin else step
        self._begins[env] = step + 1

    def cut(self) -> None:
        super().cut()
        for env in range(self.num_envs):
            if self._begins[env] < self._num_steps:
                self._end(env, self._num_steps - 1)

    def sample(
        self,
        num_rows: int,
        rng: np.random.Generator,
        *,
        gamma: float,
        num_step_returns: int = 1,
        correction: float = 1.0,
    ) -> JointTransitions:
        drawn = super().sample(num_rows, rng, gamma=gamma, num_step_returns=num_step_returns, correction=correction)
        relabelled = rng.random(num_rows) < self._share
        steps, envs = self._step_of(drawn.rows), drawn.rows % self.num_envs
        last = self._last[drawn.rows // self.num_envs, envs]
        last = np.where(last == GOING_ON, self._num_steps - 1, last)
        ahead = np.maximum(last - steps, 0)
        future = steps + np.floor(rng.random(num_rows) * (ahead + 1)).astype(np.int64)
        rows = (future % self._ring_steps) * self.num_envs + envs
        ((name, group),) = drawn.groups.items()
        goals = self._groups[name].records["next_obs/achieved_goal"][rows]
        self._change(group, np.flatnonzero(relabelled), goals, gamma)
        return drawn

    def _change(self, group: GroupTransitions, where: Array, goals: Array, gamma: float) -> None:
        """Give the transitions at `where` their new goals [M, 1, …]."""
        if not len(where):
            return
        obs: Any = group.obs
        next_obs: Any = group.next_obs
        chosen = goals[where].astype(obs["desired_goal"].dtype)
        for tree in (obs, next_obs):
            tree["desired_goal"] = np.array(tree["desired_goal"])
            tree["desired_goal"][where] = chosen
        reward, terminated = self._relabel(next_obs["achieved_goal"][where, 0], chosen[:, 0])
        group.reward = np.array(group.reward)
        group.reward[where, 0] = reward
        if terminated is not None:
            group.discount = np.array(group.discount)
            group.discount[where, 0] = np.float32(gamma) * ~terminated

    def _step_of(self, rows: Array) -> Array:
        """The step of each row: the newest that lies in its place."""
        place = rows // self.num_envs
        newest = self._num_steps - 1
        return newest - (newest - place) % self._ring_steps

    def set_state(self, state: Mapping[str, Any], spaces: Mapping[str, tuple[Space, Space]]) -> None:
        super().set_state(state, spaces)
        held = len(self) // self.num_envs
        # Steps are numbered so that rows lie where the ring has them.
        oldest = (self._head // self.num_envs - held) % self._ring_steps
        self._num_steps, self._last[:] = oldest + held, GOING_ON
        self._begins[:] = oldest
        steps = np.arange(oldest, oldest + held)
        for group in self._groups.values():
            records = group.records.reshape(self._ring_steps, self.num_envs)[steps % self._ring_steps]
            for t, env in np.argwhere(records["ended"][..., 0]).tolist():
                self._end(env, oldest + t, is_void=not records["valid"][t, env, 0])


def require_goals(groups: Mapping[str, Any], num_step_returns: int, relabel: Relabel | None) -> Relabel:
    """What relabels the transitions of these `GroupLearner`s, by name; raises where that cannot be."""
    if relabel is None:
        raise ConfigError(
            "hindsight_ratio needs a goal environment: observations of observation, achieved_goal and desired_goal, and "
            "compute_reward(); leave it out elsewhere, and where trajectories come without their environment"
        )
    if len(groups) != 1 or next(iter(groups.values())).num_agents != 1:
        raise ConfigError("hindsight_ratio is for environments with one agent; leave it out for several")
    if num_step_returns != 1:
        raise ConfigError("hindsight_ratio relabels single steps; set num_step_returns to 1")
    return relabel
