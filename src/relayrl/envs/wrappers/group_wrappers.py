"""Gymnasium's common wrappers over all lanes of a group at once: pictures, rewards, flat vectors, running normalisation.

Each gives the numbers of the wrapper of the same name, one call for all environments and agents instead of one for each.
Stacks of frames are in `frame_stack`; who applies them is `wrapped_vector`.

Wrappers of rewards are for learning: the rewards that an environment gives itself go on as `VectorStep.scores`, which returns
are made of.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd

from relayrl.data.trees import Array, Space, leaves, space_leaves
from relayrl.envs.environment_contract import AgentGroup, GroupObservation, GroupStep
from relayrl.envs.wrappers.area_resize import AreaResize

_LUMINANCE = np.array([0.2125, 0.7154, 0.0721])
_PICTURE_AXES = 3


class GroupWrapper(ABC):
    """A wrapper of one group's lanes. `space` is what the lanes observe behind it."""

    changes_rewards = False
    space: Space

    def __init__(self, group: AgentGroup, num_envs: int) -> None:
        self.space = group.observation_space
        self._lanes = num_envs, group.num_agents

    def begin(self, seen: GroupObservation, began: Array) -> GroupObservation:
        """What is seen after a reset of the environments `began` [B]."""
        del began
        return self.observe(seen)

    def observe(self, seen: GroupObservation) -> GroupObservation:
        """What is seen now, with nothing changed by looking."""
        return replace(seen, obs=self.observation(seen.obs))

    def advance(self, step: GroupStep, over: Array, failed: Array | None) -> GroupStep:
        """The result of a step; `over` [B] where the episode ended, `failed` [B] where the environment did."""
        del over, failed
        final = None if step.final is None else replace(step.final, obs=self.observation(step.final.obs))
        return replace(step, obs=self.observation(step.obs), final=final)

    def observation(self, obs: Any) -> Any:
        """Observations with any leading axes, of wrappers that change nothing but them."""
        return obs

    def get_state(self) -> dict[str, Array]:
        """What the wrapper remembers."""
        return {}

    def set_state(self, state: Mapping[str, Array]) -> None:  # noqa: B027 - most wrappers remember nothing
        """Go on from `get_state`."""


def _picture_space(group: AgentGroup, name: str) -> spaces.Box:
    space = group.observation_space
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        raise ValueError(f"{name} needs pictures of uint8, {group.name!r} observes {space!s:.80}")
    return space


class Grayscale(GroupWrapper):
    """`GrayscaleObservation`: the luminance of RGB pictures."""

    def __init__(self, group: AgentGroup, num_envs: int, *, keep_dim: bool = False) -> None:
        super().__init__(group, num_envs)
        space = _picture_space(group, "GrayscaleObservation")
        if len(space.shape) != _PICTURE_AXES or space.shape[-1] != _PICTURE_AXES:
            raise ValueError(f"GrayscaleObservation needs pictures with 3 channels, not of shape {space.shape}")
        self._keeps = keep_dim
        self.space = spaces.Box(0, 255, (*space.shape[:2], *((1,) * keep_dim)), np.uint8)

    def observation(self, obs: Any) -> Any:
        grey = np.sum(np.multiply(obs, _LUMINANCE), axis=-1).astype(np.uint8)
        return grey[..., None] if self._keeps else grey


class Resize(GroupWrapper):
    """`ResizeObservation`, for smaller pictures."""

    def __init__(self, group: AgentGroup, num_envs: int, *, shape: tuple[int, int]) -> None:
        super().__init__(group, num_envs)
        old = _picture_space(group, "ResizeObservation").shape
        if len(shape) != 2 or len(old) not in (2, _PICTURE_AXES):
            raise ValueError(f"ResizeObservation needs pictures and a height and width, not {old} and {shape}")
        self._has_channels = len(old) == _PICTURE_AXES
        self._resize = AreaResize((old[0], old[1]), (int(shape[0]), int(shape[1])))
        self.space = spaces.Box(0, 255, (*(int(side) for side in shape), *old[2:]), np.uint8)

    def observation(self, obs: Any) -> Any:
        return self._resize(obs, has_channels=self._has_channels)


class Flatten(GroupWrapper):
    """`FlattenObservation`: one vector, in the order and with the one-hot numbers of `gymnasium.spaces.flatten`."""

    def __init__(self, group: AgentGroup, num_envs: int) -> None:
        super().__init__(group, num_envs)
        self._parts = [leaf for _, leaf in space_leaves(group.observation_space)]
        flat = spaces.flatten_space(group.observation_space)
        if not isinstance(flat, spaces.Box | spaces.MultiBinary):
            raise ValueError(f"{group.observation_space!s:.80} has no flat form")
        self.space = flat if isinstance(flat, spaces.Box) else spaces.Box(0, 1, flat.shape, np.int8)

    def observation(self, obs: Any) -> Any:
        found = [leaf for _, leaf in leaves(obs)]
        lead = found[0].shape[: found[0].ndim - len(self._parts[0].shape or ())]
        flat = [_flat(part, leaf, lead) for part, leaf in zip(self._parts, found, strict=True)]
        return np.concatenate(flat, axis=-1, dtype=self.space.dtype, casting="unsafe")


def _flat(space: Space, values: Array, lead: tuple[int, ...]) -> Array:
    """`[lead, D]` of one leaf."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(np.arange(space.n) == (values - space.start)[..., None])
    if isinstance(space, spaces.MultiDiscrete):
        counts, numbers = space.nvec.reshape(-1), (values - space.start).reshape(*lead, -1)
        return np.concatenate([np.arange(n) == numbers[..., i, None] for i, n in enumerate(counts)], axis=-1)
    return values.reshape(*lead, -1)


class ClipReward(GroupWrapper):
    """`ClipReward`."""

    changes_rewards = True

    def __init__(
        self, group: AgentGroup, num_envs: int, *, min_reward: float | None = None, max_reward: float | None = None
    ) -> None:
        super().__init__(group, num_envs)
        if min_reward is None and max_reward is None:
            raise ValueError("ClipReward needs min_reward, max_reward or both")
        if min_reward is not None and max_reward is not None and min_reward > max_reward:
            raise ValueError(f"min_reward {min_reward} is larger than max_reward {max_reward}")
        self._bounds = min_reward, max_reward

    def advance(self, step: GroupStep, over: Array, failed: Array | None) -> GroupStep:
        return replace(step, reward=np.clip(step.reward, *self._bounds).astype(np.float32))


class NormalizeReward(GroupWrapper):
    """`NormalizeReward`: rewards over the running deviation of their discounted sums, of all lanes together."""

    changes_rewards = True

    def __init__(self, group: AgentGroup, num_envs: int, *, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        super().__init__(group, num_envs)
        if not 0 <= gamma <= 1 or epsilon <= 0:
            raise ValueError(f"NormalizeReward needs a gamma in [0, 1] and a positive epsilon, not {gamma}, {epsilon}")
        self._gamma, self._epsilon = gamma, epsilon
        self._moments: Any = RunningMeanStd(shape=())  # type: ignore[no-untyped-call]
        self._sums = np.zeros(self._lanes, np.float32)
        self._acts = np.zeros(self._lanes, np.bool_)

    def begin(self, seen: GroupObservation, began: Array) -> GroupObservation:
        self._sums[began] = 0
        self._acts = seen.active.copy()
        return seen

    def advance(self, step: GroupStep, over: Array, failed: Array | None) -> GroupStep:
        ended = step.terminated | step.truncated | over[:, None]
        self._sums = (self._sums * self._gamma * (1 - step.terminated) + step.reward).astype(np.float32)
        acted = self._acts if failed is None else self._acts & ~failed[:, None]
        if acted.any():
            self._moments.update(self._sums[acted])
        self._sums[ended], self._acts = 0, step.active.copy()
        reward = step.reward / np.sqrt(self._moments.var + self._epsilon)
        return replace(step, reward=reward.astype(np.float32))

    def get_state(self) -> dict[str, Array]:
        return {"sums": self._sums.copy(), "acts": self._acts.copy(), **moments_state(self._moments)}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._sums, self._acts = np.array(state["sums"], np.float32), np.array(state["acts"], np.bool_)
        set_moments(self._moments, state)


class NormalizeObservation(GroupWrapper):
    """`NormalizeObservation`: running mean and deviation of everything that acting agents have seen, of all lanes together."""

    def __init__(self, group: AgentGroup, num_envs: int, *, epsilon: float = 1e-8) -> None:
        super().__init__(group, num_envs)
        space = group.observation_space
        if not isinstance(space, spaces.Box) or epsilon <= 0:
            raise ValueError(f"NormalizeObservation needs a Box and a positive epsilon, not {space!s:.80}, {epsilon}")
        self._epsilon = epsilon
        self.space = spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        self._moments: Any = RunningMeanStd(shape=space.shape, dtype=np.float32)  # type: ignore[no-untyped-call]

    def begin(self, seen: GroupObservation, began: Array) -> GroupObservation:
        self._count(seen.obs, seen.active & began[:, None])
        return self.observe(seen)

    def advance(self, step: GroupStep, over: Array, failed: Array | None) -> GroupStep:
        begins = step.terminated | step.truncated | over[:, None]
        final = step.final
        if final is None:
            self._count(step.obs, step.active & ~begins)
        else:
            # What ended lanes saw last belongs to this step; what they see next begins another episode.
            self._count(step.obs, step.active & ~begins, final.obs)
            final = replace(final, obs=self.observation(final.obs))
            self._count(step.obs, step.active & begins)
        return replace(step, obs=self.observation(step.obs), final=final)

    def _count(self, obs: Any, lanes: Array, last: Any = ()) -> None:
        rows = np.concatenate([obs[lanes], last]) if len(last) else obs[lanes]
        if len(rows):
            self._moments.update(rows)

    def observation(self, obs: Any) -> Any:
        centred: Array = obs - self._moments.mean
        return (centred / np.sqrt(self._moments.var + self._epsilon)).astype(np.float32)

    def get_state(self) -> dict[str, Array]:
        return moments_state(self._moments)

    def set_state(self, state: Mapping[str, Array]) -> None:
        set_moments(self._moments, state)


def moments_state(moments: Any) -> dict[str, Array]:
    """What Gymnasium's running moments hold."""
    return {name: np.array(getattr(moments, name)) for name in ("mean", "var", "count")}


def set_moments(moments: Any, state: Mapping[str, Array]) -> None:
    """Go on from `moments_state`."""
    moments.mean, moments.var = (np.array(state[name])[()] for name in ("mean", "var"))
    moments.count = float(state["count"])  # a number of NumPy's would make the sums more precise than they were
