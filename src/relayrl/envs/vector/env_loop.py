"""How a slice of environments is stepped one after the other, whatever kind they are and whichever process runs them.

A loop owns its environments and writes what they give into `EnvBuffers`. It reports failures and goes on with the other
environments; what a failure means is decided by the vector environment (`vectorise`). The two kinds are `scalar_loop` and
`joint_loop`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, leaf_dtype
from relayrl.envs.conversions import goal_rewards
from relayrl.envs.environment_contract import Relabelled, StatefulEnvironment
from relayrl.envs.environment_settings import ObservationCheck
from relayrl.envs.failures import EnvFailure, EnvFailureError, failure_set_aside
from relayrl.envs.parameters.episode_parameters import EpisodeParameters, setter_of
from relayrl.envs.parameters.parameter_settings import Delivery, Values
from relayrl.envs.rendering import RenderMode, picture_of
from relayrl.envs.vector.env_buffers import NO_SEED, EnvBuffers, EnvLayout
from relayrl.envs.vector.result_check import ResultChecker
from relayrl.envs.wrappers.wrapper_state import state_port
from relayrl.errors import EnvError

Env = TypeVar("Env")
EnvState: TypeAlias = Mapping[str, Array]
"""One environment's state as named arrays."""


class VectorRunner(ABC):
    """Environments that write into buffers: a loop in this process, or a pool of workers."""

    layout: EnvLayout
    buffers: EnvBuffers
    stateful: bool

    @property
    @abstractmethod
    def num_envs(self) -> int: ...

    @abstractmethod
    def step(self) -> list[EnvFailure]:
        """Advance every environment with the actions in the buffers; rows of failed environments are left undefined."""

    @abstractmethod
    def reset_selected(self) -> list[EnvFailure]:
        """Begin an episode in the selected environments."""

    @abstractmethod
    def restart_selected(self) -> list[EnvFailure]:
        """Build the selected environments anew and begin an episode in them."""

    @property
    def infos(self) -> Sequence[Mapping[str, Any]]:
        """What the environments said beside their results in the last step, where they run in this process."""
        return ()

    @abstractmethod
    def get_state(self) -> list[EnvState]:
        """Every environment's own state; only of stateful environments."""

    @abstractmethod
    def set_state(self, states: Sequence[EnvState]) -> None:
        """Put every environment into the state that `get_state` gave; the buffers hold what the environments showed last
        already."""

    @abstractmethod
    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        """What an environment makes of the rewards of an episode, by agent; `EnvFailureError` where it raises."""

    @abstractmethod
    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        """What other goals would have paid; `EnvFailureError` where an environment raises."""

    @abstractmethod
    def frames(self, envs: Sequence[int]) -> list[Array]:
        """Pictures of some environments; `EnvFailureError` where one cannot be drawn."""

    @abstractmethod
    def final_frames(self) -> Mapping[int, Array]:
        """Last pictures of episodes that ended in the last step, of environments that were made to be drawn."""

    @abstractmethod
    def close(self) -> None:
        """Release the environments; may be called again. `EnvFailureError` where one cannot be closed."""


class EnvLoop(VectorRunner, Generic[Env]):
    """What the loops over scalar and over multi-agent environments share."""

    def __init__(
        self,
        build: Callable[[Values], Env],
        envs: Sequence[Env],
        layout: EnvLayout,
        parameters: EpisodeParameters | None = None,
    ) -> None:
        self._build, self._parameters = build, parameters
        self._envs = list(envs)
        self._lanes_ended = False  # in the step being made
        self.layout = layout if parameters is None else replace(layout, num_parameters=len(parameters.plan.parameters))
        self._is_drawn = RenderMode.RGB_ARRAY in layout.drawing.modes
        self._final_frames: dict[int, Array] = {}
        self.stateful = all(state_port(env) is not None for env in envs)

    @property
    def num_envs(self) -> int:
        return len(self._envs)

    def attach(self, buffers: EnvBuffers, check: ObservationCheck) -> None:
        """Use these buffers, one row per environment; called once, before the first reset."""
        self.buffers = buffers
        self._checker = ResultChecker(self.layout, buffers, check)
        self._busy = memoryview(buffers.busy_env.data)
        for b, env in enumerate(self._envs):
            self._install(b, env)

    def step(self) -> list[EnvFailure]:
        for group in self.buffers.groups.values():
            group.clear_results()
        self.buffers.episode_over.fill(False)
        self._lanes_ended = False
        if self._final_frames:
            self._final_frames = {}
        failures = self._step_envs()
        skip = {failure.env for failure in failures}
        return failures + self._checker.find_failures(lanes_ended=self._lanes_ended, skip=skip)

    def reset_selected(self) -> list[EnvFailure]:
        return self._on_selected(self._begin, "reset()")

    def restart_selected(self) -> list[EnvFailure]:
        return self._on_selected(self._rebuild, "rebuilding it")

    def close(self) -> None:
        envs, self._envs = self._envs, []
        failures = []
        for b, env in enumerate(envs):
            try:
                self._close_env(env)
            except BaseException as error:  # noqa: BLE001 - the others are closed even where one cannot be
                failures.append(EnvFailure.of_exception(b, error, "close()"))
        if failures:
            raise EnvFailureError(failures[0])

    def get_state(self) -> list[EnvState]:
        states: list[EnvState] = [self._port(env).get_state() for env in self._envs]
        own = self._parameters
        return states if own is None else [{**state, **own.get_state(b)} for b, state in enumerate(states)]

    def set_state(self, states: Sequence[EnvState]) -> None:
        own = self._parameters
        for b, state in enumerate(states):
            if own is not None:
                before = own.values[b]
                self._give(b, own.set_state(b, state), before)
                state = {name: array for name, array in state.items() if not name.startswith("parameters/")}
            self._port(self._envs[b]).set_state(state)

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        try:
            return float(self._rate(self._envs[0], rewards))
        except BaseException as error:
            raise EnvFailureError(EnvFailure.of_exception(0, error, "performance_return()")) from error

    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        try:
            return goal_rewards.relabel(self._envs[0], achieved, desired)
        except BaseException as error:
            raise EnvFailureError(EnvFailure.of_exception(0, error, "compute_reward()")) from error

    def frames(self, envs: Sequence[int]) -> list[Array]:
        return [self._frame(b) for b in envs]

    def final_frames(self) -> Mapping[int, Array]:
        return self._final_frames

    def _frame(self, b: int) -> Array:
        env: Any = self._envs[b]
        try:
            return picture_of(env.render)
        except BaseException as error:
            raise EnvFailureError(EnvFailure.of_exception(b, error, "render()")) from error

    def _keep_final_frame(self, b: int) -> None:
        """Draw environment `b` at the end of its episode, before the next one begins."""
        if self._is_drawn:
            self._final_frames[b] = self._frame(b)

    @abstractmethod
    def _rate(self, env: Env, rewards: Mapping[str, Sequence[float]]) -> float: ...

    @abstractmethod
    def _install(self, b: int, env: Env) -> None:
        """Make `env` the one in row `b`."""

    @abstractmethod
    def _begin(self, b: int, seed: int | None) -> None:
        """Begin an episode in environment `b` and write its first row."""

    @abstractmethod
    def _step_envs(self) -> list[EnvFailure]: ...

    def _rebuild(self, b: int, seed: int | None) -> None:
        # An environment that has just failed may fail to close as well; its successor is what matters.
        with failure_set_aside():
            self._close_env(self._envs[b])
        self._build_for(b)
        self._begin(b, seed)

    def _build_for(self, b: int) -> None:
        own = self._parameters
        is_built_with = own is not None and own.route is Delivery.CONSTRUCTOR
        self._envs[b] = self._build(own.values[b] if own is not None and is_built_with else {})
        self._install(b, self._envs[b])

    def _reset_env(self, b: int, seed: int | None) -> Any:
        """Begin an episode in environment `b`, with the parameters of its own; gives what its `reset` gives."""
        own = self._parameters
        if own is None:
            return self._reset_of(b)(seed=seed)
        before = own.values[b]
        values = own.begin(b, seed, self.buffers.lessons)
        if self._give(b, values, before) and seed is None:
            seed = own.rebuilt_seed(b)
        options = {"options": dict(values)} if own.route is Delivery.RESET_OPTIONS else {}
        return self._reset_of(b)(seed=seed, **options)

    def _reset_of(self, b: int) -> Callable[..., Any]:
        env: Any = self._envs[b]
        reset: Callable[..., Any] = env.reset
        return reset

    def _give(self, b: int, values: Values, before: Values) -> bool:
        """Give parameters to environment `b`; whether it was built anew for them."""
        env, route = self._envs[b], None if self._parameters is None else self._parameters.route
        if route is Delivery.SET_PARAMETERS and (setter := setter_of(env)) is not None:
            setter(dict(values))
        if route is not Delivery.CONSTRUCTOR or values == before:
            return False
        self._close_env(env)
        self._build_for(b)
        return True

    def _on_selected(self, begin: Callable[[int, int | None], None], doing: str) -> list[EnvFailure]:
        buffers = self.buffers
        failures = []
        for b in np.flatnonzero(buffers.selected).tolist():
            self._busy[0] = b
            seed = int(buffers.reset_seed[b])
            try:
                begin(b, None if seed == NO_SEED else seed)
            except BaseException as error:  # noqa: BLE001 - the seam to user code: whatever an environment raises is its failure
                failures.append(EnvFailure.of_exception(b, error, doing))
        skip = {failure.env for failure in failures}
        return failures + self._checker.find_failures(lanes_ended=False, skip=skip)

    def _port(self, env: Env) -> StatefulEnvironment:
        port = state_port(env)
        if port is None:
            raise EnvError("these environments cannot be saved")
        return port

    def _close_env(self, env: Any) -> None:
        env.close()


def verify_observation(observation: Any, space: Space, path: str = "") -> None:
    """Raise `EnvError` when an observation has not the structure, shapes and kinds of dtype of its space.

    Rows are written by assignment, which would broadcast or cast such an observation without a word.
    """
    name = f"observation{path}"
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping) or observation.keys() != space.spaces.keys():
            raise EnvError(f"{name} is not a dict with the keys of its space, {sorted(space.spaces)}")
        for key, part in space.spaces.items():
            verify_observation(observation[key], part, f"{path}[{key!r}]")
        return
    if isinstance(space, spaces.Tuple):
        if not isinstance(observation, Sequence) or len(observation) != len(space.spaces):
            raise EnvError(f"{name} is not a tuple of {len(space.spaces)} parts")
        for i, part in enumerate(space.spaces):
            verify_observation(observation[i], part, f"{path}[{i}]")
        return
    array, dtype, shape = np.asarray(observation), leaf_dtype(space), tuple(space.shape or ())
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvError(f"{name} is {array.dtype}{list(array.shape)}, its space is {dtype}{list(shape)}")
