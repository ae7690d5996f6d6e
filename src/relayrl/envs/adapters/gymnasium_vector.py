"""Any `gymnasium.vector.VectorEnv` as a `VectorEnvironment`.

Gymnasium knows three ways to begin the next episode; the contract knows one, in the same step:

- `SAME_STEP`   is the contract's; the last observations are in `info["final_obs"]`;
- `NEXT_STEP`   spends a step on the reset: the row after an end is handed out as inactive, its action ignored;
- `DISABLED`    leaves it to the caller: ended environments are reset here, through `options["reset_mask"]`.

Action masks come in `info["action_mask"]`, as from scalar environments; the first reset shows whether there are any.

An environment's randomness depends on `(seed, b)` alone where the environment takes a list of seeds; where it takes only one
number, `independent_streams` is False.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from relayrl.data.trees import Array, Tree, allocate, index, map_tree, write
from relayrl.envs.agent_groups import LATE_MASK, flat_mask, mask_size
from relayrl.envs.environment_contract import (
    SINGLE_AGENT,
    AgentGroup,
    FinalObservations,
    GroupObservation,
    GroupStep,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    env_seeds,
    new_env_ids,
)
from relayrl.envs.rendering import RenderMode, drawing_of, pictures_of
from relayrl.errors import ConfigError, EnvError, PartialResetError


class GymnasiumVector(VectorEnvironment):
    """A Gymnasium vector environment; `num_envs` is what it was built with."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ConfigError(f"{env} does not say in metadata['autoreset_mode'] how it begins the next episode")
        # Gymnasium's own environments take a list of seeds, though the base class does not say so.
        self._env: Any = env
        self._mode = mode
        self._resets_some = mode is AutoresetMode.DISABLED or isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._takes_seed_list = True
        self._closed = False
        self.drawing = drawing_of(env)
        width = mask_size(env.single_action_space)
        is_masked = width > 0 and "action_mask" in env.reset()[1]
        self._may_mask = width > 0
        self._mask = np.ones((env.num_envs, 1, width), np.bool_) if is_masked else None
        self.groups: Mapping[str, AgentGroup] = {
            SINGLE_AGENT: AgentGroup(
                SINGLE_AGENT, (SINGLE_AGENT,), env.single_observation_space, env.single_action_space, is_masked
            )
        }
        self._obs: Tree = allocate(env.single_observation_space, (env.num_envs,))
        self._active = np.zeros((env.num_envs, 1), dtype=np.bool_)

    @property
    def built_num_envs(self) -> int:
        """How many environments there are, whatever number is asked for."""
        return int(self._env.num_envs)

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        if num_envs != self._env.num_envs:
            raise ConfigError(
                f"the vector environment was built with {self._env.num_envs} environments; set num_envs to that"
            )
        self.env_ids = new_env_ids(num_envs)
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        everyone = env_ids is None
        chosen = (
            np.ones(self.num_envs, np.bool_) if env_ids is None else np.isin(self._ids(), [str(i) for i in env_ids])
        )
        if not everyone and not self._resets_some:
            raise PartialResetError(f"{self._env} can only reset all environments at once")
        obs, info = self._reset_envs(seed, None if everyone else chosen)
        write(self._obs, chosen, index(obs, chosen))
        self._take_masks(info, chosen)
        self._active[chosen] = True
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        taken = map_tree(lambda leaf: np.array(leaf[:, 0]), actions[SINGLE_AGENT])
        idle = ~self._active[:, 0]
        obs, reward, terminated, truncated, info = self._env.step(taken)
        over = np.logical_or(terminated, truncated)
        self._take_masks(info, np.ones_like(over) if self._mode is AutoresetMode.SAME_STEP else ~over)
        final = None
        if over.any():
            envs = np.flatnonzero(over)
            rows, masks = self._final_rows(obs, info, envs), self._final_masks(info, envs)
            final = FinalObservations(envs, np.zeros_like(envs), rows, action_mask=masks)
            if self._mode is AutoresetMode.DISABLED:
                first, info = self._reset_envs(None, over)
                self._take_masks(info, over)
                obs = map_tree(np.array, obs)
                write(obs, over, index(first, over))
        write(self._obs, ..., obs)
        self._active[:, 0] = ~over if self._mode is AutoresetMode.NEXT_STEP else True
        step = GroupStep(
            **self._observation(),
            reward=np.where(idle, 0.0, reward).astype(np.float32)[:, None],
            terminated=np.asarray(terminated, np.bool_)[:, None],
            truncated=np.asarray(truncated, np.bool_)[:, None],
            final=final,
        )
        return VectorStep({SINGLE_AGENT: step}, episode_over=over)

    def build_observation(self) -> VectorReset:
        """The current observations, as the last `reset` or `step` gave them."""
        return VectorReset({SINGLE_AGENT: GroupObservation(**self._observation())})

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        if mode not in self.drawing.modes:
            return super().frames(envs, mode)
        return pictures_of(self._env.render, envs) if mode is RenderMode.RGB_ARRAY else []

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()

    def _observation(self) -> dict[str, Any]:
        seen = {"obs": map_tree(lambda leaf: leaf[:, None], self._obs), "active": self._active}
        return seen if self._mask is None else {**seen, "action_mask": self._mask}

    def _take_masks(self, info: Mapping[str, Any], envs: Array) -> None:
        """Keep the masks of those `envs` [B] that act next."""
        if self._mask is None:
            if self._may_mask and "action_mask" in info:
                raise EnvError(LATE_MASK)
            return
        if not envs.any():
            return
        if "action_mask" not in info or not np.asarray(info.get("_action_mask", envs))[envs].all():
            raise EnvError("info has no 'action_mask', though the first reset had one")
        self._mask[envs, 0] = _rows_of(info["action_mask"], np.flatnonzero(envs), self._mask.shape[-1])

    def _ids(self) -> list[str]:
        return [str(env_id) for env_id in self.env_ids]

    def _reset_envs(self, seed: int | None, chosen: Array | None) -> tuple[Any, Mapping[str, Any]]:
        """Reset the chosen environments, all when None; observations of all environments, and infos of the chosen."""
        options = None if chosen is None else {"reset_mask": chosen.copy()}
        result: tuple[Any, Mapping[str, Any]]
        if seed is not None and self._takes_seed_list:
            try:
                result = self._env.reset(seed=env_seeds(seed, self.num_envs), options=options)
            except (gymnasium.error.Error, TypeError, ValueError):
                self._takes_seed_list = self.independent_streams = False
            else:
                return result
        result = self._env.reset(seed=seed, options=options)
        return result

    def _final_rows(self, obs: Tree, info: Mapping[str, Any], envs: Array) -> Tree:
        if self._mode is not AutoresetMode.SAME_STEP:
            ended: Tree = map_tree(np.array, index(obs, envs))
            return ended
        if "final_obs" not in info:
            raise EnvError(f"{self._env} ended an episode in SAME_STEP mode without info['final_obs']")
        rows: Tree = allocate(self._env.single_observation_space, (len(envs),))
        for k, env in enumerate(envs.tolist()):
            write(rows, k, info["final_obs"][env])
        return rows

    def _final_masks(self, info: Mapping[str, Any], envs: Array) -> Array | None:
        """[K, A] what was allowed at the ends of `envs`; None where the environment gives none."""
        if self._mask is None:
            return None
        given = info.get("final_info", {}) if self._mode is AutoresetMode.SAME_STEP else info
        if (
            "action_mask" not in given
            or not np.asarray(given.get("_action_mask", np.ones(self.num_envs, bool)))[envs].all()
        ):
            return None
        return _rows_of(given["action_mask"], envs, self._mask.shape[-1])


def _rows_of(masks: Any, envs: Array, size: int) -> Array:
    """[K, A] the masks of `envs`; Gymnasium stacks arrays of numbers, and keeps tuples and what differs in shape as objects."""
    if isinstance(masks, np.ndarray) and masks.dtype != object and masks.shape[1:] == (size,):
        return np.asarray(masks[envs], np.bool_)
    return np.stack([flat_mask(masks[env], size) for env in envs.tolist()])
