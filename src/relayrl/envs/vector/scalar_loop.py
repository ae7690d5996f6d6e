"""Steps environments with one agent each: anything with Gymnasium's `reset` and `step`.

The loop over environments is the hot path of every plain Python environment: methods are bound once, observations and
rewards are gathered in lists and copied into the buffers by one call each, flags are touched only where an episode ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Tree, index, map_tree, write
from relayrl.envs.agent_groups import LATE_MASK, flat_mask, mask_size
from relayrl.envs.conversions.goal_rewards import has_goals
from relayrl.envs.environment_contract import LIFE_LOST, SINGLE_AGENT, AgentGroup, ScalarEnvironment
from relayrl.envs.environment_settings import ObservationCheck
from relayrl.envs.failures import EnvFailure, FailureKind
from relayrl.envs.parameters.episode_parameters import EpisodeParameters
from relayrl.envs.parameters.parameter_settings import Values
from relayrl.envs.rendering import drawing_of
from relayrl.envs.vector.env_buffers import EnvBuffers, EnvLayout
from relayrl.envs.vector.env_loop import EnvLoop, verify_observation
from relayrl.errors import ConfigError, EnvError

_NUM_LANE_AXES = 2
_NO_INFO: Mapping[str, Any] = {}
_OLD_API = (
    "this looks like an environment of the old Gym API; RelayRL runs Gymnasium's, where reset() gives (observation, info) and "
    "step() gives (observation, reward, terminated, truncated, info); wrap it, for example with shimmy"
)


class ScalarLoop(EnvLoop[Any]):
    """Environments that satisfy `ScalarEnvironment`, by inheritance or by shape as `gymnasium.Env` does."""

    def __init__(
        self, build: Callable[[Values], Any], envs: Sequence[Any], parameters: EpisodeParameters | None = None
    ) -> None:
        first = envs[0]
        spaces: list[Any] = [getattr(first, f"{what}_space", None) for what in ("observation", "action")]
        group = AgentGroup(SINGLE_AGENT, (SINGLE_AGENT,), *spaces)
        self._mask_size = mask_size(group.action_space)
        masked = "action_mask" in _info_of_reset(first) and self._mask_size > 0
        self._may_mask = self._mask_size > 0 and not masked
        group = replace(group, masks_actions=masked)
        rates, goals, drawing = _rates_episodes(first), has_goals(first), drawing_of(first)
        layout = EnvLayout({SINGLE_AGENT: group}, rates_episodes=rates, has_goals=goals, drawing=drawing)
        super().__init__(build, envs, layout, parameters)
        self._space = group.observation_space

    def _rate(self, env: Any, rewards: Mapping[str, Sequence[float]]) -> float:
        rated: float = getattr(env, "unwrapped", env).performance_return(list(rewards[SINGLE_AGENT]))
        return rated

    def attach(self, buffers: EnvBuffers, check: ObservationCheck) -> None:
        group = self._group = buffers.groups[SINGLE_AGENT]
        num_envs = self.num_envs
        self._steps: list[Callable[[Any], Any]] = [_not_installed] * num_envs
        self._actions: Tree = index(group.action, (slice(None), 0))  # [B, …]
        self._batches = tuple(_concatenation_target(obs) for obs in group.obs)
        self._infos: list[Mapping[str, Any]] = [_NO_INFO] * num_envs
        self._masks: list[Any] = [None] * num_envs
        for alive in group.alive:
            alive.fill(True)
        group.active.fill(True)
        super().attach(buffers, check)

    @property
    def infos(self) -> Sequence[Mapping[str, Any]]:
        return self._infos

    def _install(self, b: int, env: Any) -> None:
        if env.observation_space != self._space or env.action_space != self.layout.groups[SINGLE_AGENT].action_space:
            raise EnvError("its spaces differ from those of the first environment")
        self._steps[b] = env.step

    def _begin(self, b: int, seed: int | None) -> None:
        observation, info = self._reset_env(b, seed)
        verify_observation(observation, self._space)
        write(self._group.obs[self.buffers.half], (b, 0), observation)
        if self._group.action_mask is not None:
            self._group.action_mask[b, 0] = flat_mask(info["action_mask"], self._mask_size)
        elif self._may_mask and "action_mask" in info:
            raise EnvError(LATE_MASK)

    def _step_envs(self) -> list[EnvFailure]:
        num_envs = self.num_envs
        observations: list[Any] = [None] * num_envs
        rewards: list[Any] = [0.0] * num_envs
        self._infos = [_NO_INFO] * num_envs
        self._masks = [None] * num_envs
        # A copy: environments may keep the action that they were given, and the buffer is overwritten by the next step.
        actions = _rows(self._actions, num_envs)
        envs = zip(range(num_envs), self._steps, actions, strict=True)
        failures: list[EnvFailure] = []
        while True:
            try:
                self._advance(envs, observations, rewards)
                break
            except BaseException as error:  # noqa: BLE001 - the seam to user code: whatever an environment raises is its failure
                b = self._busy[0]
                failures.append(_failure_of_step(b, error))
                observations[b], rewards[b] = index(self._group.obs[self.buffers.half ^ 1], (b, 0)), 0.0
        failures += self._write_observations(observations)
        failures += self._write_rewards(rewards)
        if self._group.action_mask is not None:
            failures += self._write_masks({failure.env for failure in failures})
        elif self._may_mask:
            late = [b for b, info in enumerate(self._infos) if info and "action_mask" in info]
            failures += [EnvFailure(b, FailureKind.RAISED, f"step(): {LATE_MASK}") for b in late]
        return failures

    def _advance(self, envs: Iterator[tuple[int, Any, Any]], observations: list[Any], rewards: list[Any]) -> None:
        """Step environments until the iterator is exhausted; where one raises, the next call goes on after it."""
        busy, infos = self._busy, self._infos
        for b, step, action in envs:
            busy[0] = b
            observations[b], rewards[b], terminated, truncated, infos[b] = step(action)
            if terminated or truncated:
                observations[b] = self._end_episode(b, observations[b], terminated, truncated)

    def _end_episode(self, b: int, observation: Any, terminated: bool, truncated: bool) -> Any:
        group = self._group
        self._lanes_ended = True
        group.terminated[b, 0] = terminated
        group.truncated[b, 0] = truncated
        self.buffers.episode_over[b] = not self._infos[b].get(LIFE_LOST, False)
        write(group.final_obs, (b, 0), observation)
        if group.final_mask is not None:
            last_mask = self._infos[b].get("action_mask")
            group.final_mask[b, 0] = True if last_mask is None else flat_mask(last_mask, self._mask_size)
        self._keep_final_frame(b)
        if self._parameters is not None and self.buffers.episode_over[b]:
            first_observation, info = self._reset_env(b, None)
        else:
            first_observation, info = self._envs[b].reset()
        if group.action_mask is not None:
            self._masks[b] = info.get("action_mask")
        elif self._may_mask and "action_mask" in info:
            raise EnvError(LATE_MASK)
        return first_observation

    def _write_observations(self, observations: list[Any]) -> list[EnvFailure]:
        batch = self._batches[self.buffers.half]
        if batch is not None:
            with contextlib.suppress(TypeError, ValueError):
                np.concatenate(observations, out=batch)
                return []
        failures = []
        for b, observation in enumerate(observations):
            try:
                verify_observation(observation, self._space)
                write(self._group.obs[self.buffers.half], (b, 0), observation)
            except EnvError as error:
                failures.append(EnvFailure.of_exception(b, error, "step()"))
        return failures

    def _write_rewards(self, rewards: list[Any]) -> list[EnvFailure]:
        try:
            self._group.reward[:, 0] = rewards
        except (TypeError, ValueError):
            return [failure for b, reward in enumerate(rewards) if (failure := self._write_reward(b, reward))]
        return []

    def _write_reward(self, b: int, reward: Any) -> EnvFailure | None:
        try:
            self._group.reward[b, 0] = float(reward)
        except (TypeError, ValueError) as error:
            return EnvFailure.of_exception(b, error, f"the reward {reward!r}")
        return None

    def _write_masks(self, skip: set[int]) -> list[EnvFailure]:
        """Masks come in `info`; after an episode's end, in the `info` of the reset."""
        failures = []
        begins = (self._group.terminated | self._group.truncated)[:, 0]
        for b in range(self.num_envs):
            mask = self._masks[b] if begins[b] else self._infos[b].get("action_mask")
            if b in skip:
                continue
            try:
                if mask is None:
                    raise EnvError("info has no 'action_mask', though the first reset had one")
                self._group.action_mask[b, 0] = flat_mask(mask, self._mask_size)  # type: ignore[index]
            except EnvError as error:
                failures.append(EnvFailure.of_exception(b, error, "step()"))
        return failures


def _failure_of_step(b: int, error: BaseException) -> EnvFailure:
    where = error.__traceback__
    # An environment's own code may say the same of something else, from further in.
    is_ours = where is not None and where.tb_next is not None and where.tb_next.tb_next is None
    if is_ours and str(error) == "not enough values to unpack (expected 5, got 4)":
        return EnvFailure(b, FailureKind.RAISED, f"step() gave 4 values: {_OLD_API}")
    return EnvFailure.of_exception(b, error, "step()")


def _info_of_reset(env: Any) -> Mapping[str, Any]:
    result = env.reset()
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise ConfigError(f"reset() gave a {type(result).__name__}, not observation and info: {_OLD_API}")
    return result[1]


def _rates_episodes(env: Any) -> bool:
    """Whether an environment has a `performance_return` of its own; one of Gymnasium's may bring one as well."""
    own = getattr(env, "unwrapped", env)
    return (
        own.rates_episodes if isinstance(own, ScalarEnvironment) else callable(getattr(own, "performance_return", None))
    )


def _not_installed(action: Any) -> Any:
    raise EnvError("this row has no environment yet")


def _concatenation_target(obs: Tree) -> Array | None:
    """The `[B, 1, D, …]` array as `[B * D, …]`, into which observations can be laid end to end; None where they cannot."""
    if not isinstance(obs, np.ndarray) or obs.ndim == _NUM_LANE_AXES:
        return None
    return obs.reshape(-1, *obs.shape[_NUM_LANE_AXES + 1 :])


def _rows(actions: Any, num_envs: int) -> Sequence[Any]:
    """One action per environment: scalars or arrays of their own for plain spaces, trees for nested ones."""
    if isinstance(actions, np.ndarray):
        return list(actions.copy())
    own = map_tree(np.copy, actions)
    return [index(own, b) for b in range(num_envs)]
