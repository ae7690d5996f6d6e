"""`TrajectoryBuilder`: one lane, driven step by step by a user's program.

    builder.record_action(obs, action, …)      gives a fragment when the present one has reached its longest length
    builder.record_reward(reward)              belongs to the last action; several add up
    builder.end(terminated, truncated, final_obs, final_mask)

A fragment that was cut because of its length did not end: its flags are False and its `final_obs` is the next
observation. Columns grow by doubling; trajectories own their memory.

Where several agents share an environment, `step` says at which of its steps an action was chosen, so that their trajectories
can be put side by side. Give it for every action or for none; without it, steps are not known.

Not its job: many lanes at once (`rollout_builder`), choosing actions, or sending trajectories anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.columns import LaneHeader, Trajectory, trajectory_id
from relayrl.data.trees import Array, Space, Tree, allocate, index, map_tree, write
from relayrl.errors import ConfigError

_FIRST_CAPACITY = 64


class TrajectoryBuilder:
    """Collects the steps of one lane, which `header` names. Episodes are numbered from `first_episode` on."""

    def __init__(
        self,
        header: LaneHeader,
        *,
        max_length: int,
        mask_width: int | None = None,
        with_logp: bool = False,
        with_value: bool = False,
        memory_space: Space | None = None,
        first_episode: int = 0,
    ) -> None:
        if max_length < 1:
            raise ConfigError(f"max_length is {max_length}; a trajectory holds at least one step")
        if header.num_lanes != 1:
            raise ConfigError(f"a header of {header.num_lanes} lanes; a trajectory has one environment and one agent")
        self._header = header
        self._max_length = max_length
        self._episode = first_episode
        self._first_step = 0
        self._length = 0
        self._steps: list[int] | None = None
        leading = (min(_FIRST_CAPACITY, max_length),)
        self._columns: dict[str, Any] = {
            "obs": allocate(header.observation_space, leading),
            "action": allocate(header.action_space, leading),
            "reward": np.zeros(leading, dtype=np.float32),
            "policy_version": np.zeros(leading, dtype=np.int64),
        }
        if mask_width is not None:
            self._columns["action_mask"] = np.zeros((*leading, mask_width), dtype=bool)
        if with_logp:
            self._columns["logp"] = np.zeros(leading, dtype=np.float32)
        if with_value:
            self._columns["value"] = np.zeros(leading, dtype=np.float32)
        if memory_space is not None:
            self._columns["memory"] = allocate(memory_space, leading)

    def __len__(self) -> int:
        """Steps recorded in the present fragment."""
        return self._length

    def record_action(
        self,
        obs: Tree,
        action: Tree,
        action_mask: Array | None = None,
        logp: float | None = None,
        value: float | None = None,
        policy_version: int = 0,
        memory: Tree | None = None,
        step: int | None = None,
    ) -> Trajectory | None:
        """Append a step. Gives the fragment before it if that has `max_length` steps: `obs` is what followed it."""
        given = {"logp": logp, "value": value, "memory": memory}
        for name, item in given.items():
            if (item is None) != (name not in self._columns):
                raise ConfigError(f"{name} must be given exactly when the builder was made with it")
        if action_mask is not None and "action_mask" not in self._columns:
            raise ConfigError("action_mask was given, but the builder was made without mask_width")
        self._require_step(step)
        fragment = self.cut(obs, action_mask, step) if self._length == self._max_length else None
        if self._length == len(self._columns["reward"]):
            self._grow()
        row = {name: item for name, item in given.items() if item is not None}
        row |= {"obs": obs, "action": action, "reward": 0.0, "policy_version": policy_version}
        if "action_mask" in self._columns:
            row["action_mask"] = True if action_mask is None else action_mask
        for name, item in row.items():
            write(self._columns[name], self._length, item)
        self._length += 1
        if step is not None:
            self._steps = self._steps or []
            self._steps.append(step)
        return fragment

    def _require_step(self, step: int | None) -> None:
        is_first = self._length == 0 and self._first_step == 0
        if not is_first and (step is None) != (self._steps is None):
            raise ConfigError("step must be given for every action of an episode, or for none")
        least = self._steps[-1] + 1 if self._steps else self._first_step
        if step is not None and step < least:
            raise ConfigError(f"step {step} follows step {least - 1} of its episode; steps increase")

    def record_reward(self, reward: float) -> None:
        """Add to the reward of the last action."""
        if self._length == 0:
            raise ConfigError("record_reward() before any action of this episode; a reward belongs to an action")
        self._columns["reward"][self._length - 1] += reward

    def cut(self, next_obs: Tree, next_mask: Array | None = None, next_step: int | None = None) -> Trajectory | None:
        """Take what is there while the episode goes on: `next_obs` is what followed, at `next_step`. None without steps."""
        fragment = self._take(False, False, False, next_obs, next_mask, next_step)
        self._first_step += 0 if fragment is None else fragment.num_env_steps
        return fragment

    def end(
        self,
        terminated: bool,
        truncated: bool,
        final_obs: Tree,
        final_mask: Array | None = None,
        step: int | None = None,
    ) -> Trajectory | None:
        """The episode is over. None if the agent never acted since the last fragment.

        `final_mask` is the action mask that came with `final_obs`; None means that everything was allowed. `step` is the
        environment's step on which it ended, where that is later than the last action.
        """
        if not (terminated or truncated):
            raise ConfigError("end() needs terminated or truncated; cut() takes the steps of an episode that goes on")
        behind = None if step is None else step + 1
        return self._next_episode(self._take(terminated, truncated, False, final_obs, final_mask, behind))

    def fail(self) -> Trajectory | None:
        """The environment broke down: nobody knows what came of the last action, so its step is void."""
        if self._length == 0:
            return self._next_episode(None)
        self._length -= 1
        if self._steps:
            self._steps.pop()
        last_obs = index(self._columns["obs"], self._length)
        last_mask = self._columns["action_mask"][self._length] if "action_mask" in self._columns else None
        return self._next_episode(self._take(False, True, True, last_obs, last_mask, None))

    def _next_episode(self, fragment: Trajectory | None) -> Trajectory | None:
        self._episode += 1
        self._first_step, self._steps = 0, None
        return fragment

    def _take(
        self,
        terminated: bool,
        truncated: bool,
        failed: bool,
        final_obs: Tree,
        final_mask: Array | None,
        end_step: int | None,
    ) -> Trajectory | None:
        if final_mask is not None and "action_mask" not in self._columns:
            raise ConfigError("a final mask was given, but the builder was made without mask_width")
        length, self._length = self._length, 0
        if length == 0:
            return None
        step, self._steps = (None, None) if self._steps is None else (np.array(self._steps, np.int64), [])
        if step is not None and end_step is None:
            end_step = int(step[-1]) + 1 + failed
        elif step is None and end_step is not None:
            raise ConfigError("a step was given for what followed, but none for the actions")
        header = self._header
        (env_id,), (agent_id,) = header.env_ids, header.agent_ids
        final = allocate(header.observation_space, ())
        write(final, ..., final_obs)
        last_mask = None
        if "action_mask" in self._columns:
            last_mask = np.ones(self._columns["action_mask"].shape[1:], dtype=bool)
            last_mask[...] = True if final_mask is None else final_mask
        return Trajectory(
            trajectory_id=trajectory_id(env_id, agent_id, self._episode, self._first_step),
            env_id=env_id,
            agent_id=agent_id,
            group=header.group,
            observation_space=header.observation_space,
            action_space=header.action_space,
            episode=self._episode,
            first_step=self._first_step,
            terminated=terminated,
            truncated=truncated,
            failed=failed,
            final_obs=final,
            final_mask=last_mask,
            step=step,
            end_step=end_step,
            **map_tree(lambda leaf: leaf[:length].copy(), self._columns),
        )

    def _grow(self) -> None:
        longer = min(2 * self._length, self._max_length)
        self._columns = map_tree(lambda leaf: np.resize(leaf, (longer, *leaf.shape[1:])), self._columns)
