"""`TrajectoryBuilder`: one lane, driven step by step by a user's program.

    builder.record_action(obs, action, …)      gives a fragment when the present one has reached its longest length
    builder.record_reward(reward)              belongs to the last action; several add up
    builder.end(terminated, truncated, final_obs, final_mask)

It checks what a program gives and numbers its steps. Steps are kept and cut into trajectories by `step_pages`, as those of
agents are, in pages of its own.

Where several agents share an environment, `step` says at which of its steps an action was chosen, so that their trajectories
can be put side by side. Give it for every action or for none; without it, steps are not known.

Not its job: many lanes at once (`rollout_builder`), choosing actions, or sending trajectories anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.columns import LaneHeader, Trajectory
from relayrl.data.steps.step_pages import StepPages
from relayrl.data.steps.step_rows import ActingLayout, checked_reward, converted, given_array, given_leaves
from relayrl.data.trees import Array, Space, Tree, leaf_dtype, space_leaves, unflatten
from relayrl.errors import ConfigError


class _Form:
    """What trees of a space look like."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._leaves = [(path, leaf_dtype(leaf), tuple(leaf.shape or ())) for path, leaf in space_leaves(space)]

    def checked(self, name: str, tree: Any) -> Tree:
        """`tree` with arrays of the space's dtypes and shapes; `ConfigError` names the first that is not."""
        if len(self._leaves) == 1 and not self._leaves[0][0]:
            return _checked_leaf(name, tree, *self._leaves[0][1:])
        flat = zip(given_leaves(name, self._space, tree), self._leaves, strict=True)
        arrays = [_checked_leaf(f"{name}.{path}", leaf, dtype, shape) for leaf, (path, dtype, shape) in flat]
        checked: Tree = unflatten(self._space, iter(arrays))
        return checked


def _checked_leaf(name: str, leaf: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    array = converted(name, leaf, dtype)
    if array.shape != shape:
        raise ConfigError(f"{name} has shape {array.shape}, expected {shape}: one step of one agent")
    return array


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
        spaces = header.observation_space, header.action_space
        layout = ActingLayout(header.group, *spaces, mask_width, False, with_logp, with_value, memory_space)
        self._observation, self._action = (_Form(space) for space in spaces)
        self._pages = StepPages(layout, max_length, num_pages=2)
        self._lane = self._pages.open_lane(header.env_ids[0], header.agent_ids[0])
        self._lane.episode, self._lane.counts_rows = first_episode, False
        self._is_given = {"logp": with_logp, "value": with_value, "memory": memory_space is not None}
        self._all_allowed = None if mask_width is None else np.ones(mask_width, dtype=bool)
        self._gives_steps = False

    def __len__(self) -> int:
        """Steps recorded in the present fragment."""
        return self._pages.num_open_steps(self._lane)

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
        obs, action = self._observation.checked("obs", obs), self._action.checked("action", action)
        for name, item in (("logp", logp), ("value", value), ("memory", memory)):
            if (item is not None) != self._is_given[name]:
                raise ConfigError(f"{name} must be given exactly when the builder was made with it")
        action_mask = self._all_allowed if action_mask is None else self._checked_mask("action_mask", action_mask)
        if step is not None or self._gives_steps:
            self._require_step(step)
        lane = self._lane
        lane.next_step, self._gives_steps = step, step is not None
        row = obs, action, logp, value, policy_version, action_mask, memory
        fragment = self._pages.append_alone(lane, row)
        if step is not None:
            lane.steps.append(step)
        return fragment

    def _require_step(self, step: int | None) -> None:
        lane = self._lane
        if (step is not None) != self._gives_steps and (lane.pages or lane.first_step):
            raise ConfigError("step must be given for every action of an episode, or for none")
        least = lane.steps[-1] + 1 if lane.steps else lane.first_step
        if step is not None and step < least:
            raise ConfigError(f"step {step} follows step {least - 1} of its episode; steps increase")

    def record_reward(self, reward: float) -> None:
        """Add to the reward of the last action."""
        if not self._lane.pages:
            raise ConfigError("record_reward() before any action of this episode; a reward belongs to an action")
        self._pages.add_reward(self._lane, checked_reward(reward))

    def cut(self, next_obs: Tree, next_mask: Array | None = None, next_step: int | None = None) -> Trajectory | None:
        """Take what is there while the episode goes on: `next_obs` is what followed, at `next_step`. None without steps."""
        if next_mask is not None:
            next_mask = self._checked_mask("next_mask", next_mask)
        if not self._goes_to(next_step):
            return None
        return self._pages.cut(self._lane, self._observation.checked("next_obs", next_obs), next_mask)

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
        if final_mask is not None:
            final_mask = self._checked_mask("final_mask", final_mask)
        if not self._goes_to(None if step is None else step + 1):
            self._pages.leave(self._lane)
            return None
        final_obs = self._observation.checked("final_obs", final_obs)
        return self._pages.end(self._lane, 0.0, terminated, truncated, final_obs, final_mask)

    def fail(self) -> Trajectory | None:
        """The environment broke down: nobody knows what came of the last action, so its step is void."""
        lane = self._lane
        if not lane.pages:
            self._pages.leave(lane)
            return None
        lane.next_step = lane.steps[-2] + 2 if len(lane.steps) > 1 else None
        return self._pages.interrupt(lane, is_void=True)

    def _checked_mask(self, name: str, mask: Any) -> Array:
        if self._all_allowed is None:
            raise ConfigError(f"{name} was given, but the builder was made without mask_width")
        array = given_array(name, mask, bool)
        if array.shape != self._all_allowed.shape:
            raise ConfigError(
                f"{name} has shape {array.shape}, expected {self._all_allowed.shape}: an entry per action"
            )
        return array

    def _goes_to(self, next_step: int | None) -> bool:
        """Keep where the environment is behind the open steps; False if there are none."""
        lane = self._lane
        if not lane.pages:
            return False
        if next_step is not None and not lane.steps:
            raise ConfigError("a step was given for what followed, but none for the actions")
        lane.next_step = lane.steps[-1] + 1 if next_step is None and lane.steps else next_step
        return True
