"""Makes one `VectorEnvironment` out of many environments, and decides what their failures mean.

Whoever runs the environments (`VectorRunner`: a loop in this process, or a pool of workers) only writes into buffers and
reports; this file keeps the contract's promises: seeds, ids, results, and on failure either an error or a voided step and
an environment that begins anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import (
    AgentGroup,
    MultiAgentEnvironment,
    Relabelled,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    actions_by_group,
    env_seeds,
    mean_of_sums,
    new_env_ids,
)
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy, ObservationCheck
from relayrl.envs.failures import EnvFailure, EnvFailureError, FailureKind, RestartBudget, failure_set_aside
from relayrl.envs.parameters.episode_parameters import EpisodeParameters, built_with, first_values, route_to
from relayrl.envs.parameters.parameter_settings import Delivery
from relayrl.envs.recipes import EnvRecipe
from relayrl.envs.rendering import RenderMode
from relayrl.envs.vector.env_buffers import NO_SEED, allocate_buffers, copy_actions
from relayrl.envs.vector.env_loop import EnvLoop, VectorRunner
from relayrl.envs.vector.joint_loop import JointLoop
from relayrl.envs.vector.saved_buffers import read_buffers, under, write_buffers
from relayrl.envs.vector.scalar_loop import ScalarLoop
from relayrl.errors import EnvError, RelayRLError


def build_loop(recipe: EnvRecipe, first: Any, num_envs: int) -> EnvLoop[Any]:
    """A loop over `first` and as many more environments as make `num_envs`, not yet attached to buffers.

    Raises `EnvFailureError`, with everything closed that was built, when an environment cannot be built.
    """
    envs, build, values = [first], recipe.build, {}
    try:
        parameters = None
        if (plan := recipe.parameters) is not None:
            route = route_to(first, plan, recipe.name)
            parameters = EpisodeParameters(plan, route, num_envs)
            if route is Delivery.CONSTRUCTOR:
                values = first_values(plan)
                envs = []
                first.close()
                envs = [first := built_with(build, values, plan, recipe.name)]
        while len(envs) < num_envs:
            envs.append(build(values))
        if parameters is not None:
            parameters.introduce(envs)
        kind = JointLoop if isinstance(first, MultiAgentEnvironment) else ScalarLoop
        return kind(build, envs, parameters)
    except BaseException as error:
        for env in envs:
            with failure_set_aside():
                env.close()
        if isinstance(error, RelayRLError):
            raise
        failure = EnvFailure.of_exception(min(len(envs), num_envs - 1), error, "building it")
        raise EnvFailureError(failure) from error


def run_in_process(recipe: EnvRecipe, first: Any, num_envs: int, check: ObservationCheck) -> VectorRunner:
    """A loop with private buffers, ready to reset."""
    loop = build_loop(recipe, first, num_envs)
    loop.attach(allocate_buffers(loop.layout, num_envs), check)
    return loop


def vectorise(launch: Callable[[], VectorRunner], settings: EnvSettings) -> VectorisedEnvironments:
    """The vector environment over the environments that `launch` sets up."""
    try:
        runner = launch()
    except EnvFailureError as error:
        raise error.failure.as_error(uuid.uuid4(), None, 0) from error
    env = (
        StatefulVectorisedEnvironments(runner, settings)
        if runner.stateful
        else VectorisedEnvironments(runner, settings)
    )
    env.init_num_envs(runner.num_envs)
    return env


class VectorisedEnvironments(VectorEnvironment):
    """The vector environment over a runner's environments, which it owns and closes."""

    def __init__(self, runner: VectorRunner, settings: EnvSettings) -> None:
        self._runner = runner
        self._buffers = runner.buffers
        self._policy = settings.on_failure
        self._budget = RestartBudget(settings.max_restarts_per_minute)
        self._num_steps = 0
        self._has_reset = False
        self._closed = False
        self.groups: Mapping[str, AgentGroup] = runner.layout.groups
        self.state_space = runner.layout.state_space
        self.state_repeats_observations = runner.layout.state_repeats_observations
        self.drawing = runner.layout.drawing
        self.has_goals = runner.layout.has_goals
        self.give_states(True)

    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        if not self.has_goals:
            return super().relabel(achieved, desired)
        try:
            return self._runner.relabel(achieved, desired)
        except EnvFailureError as error:
            raise self._error(error.failure) from error

    def give_states(self, wanted: bool) -> None:
        self._buffers.gives_states[0] = wanted

    def begin_lessons(self, lessons: Sequence[int]) -> None:
        if len(lessons) != self._runner.layout.num_parameters:
            super().begin_lessons(lessons)
        self._buffers.lessons[: len(lessons)] = lessons

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        if num_envs != self._runner.num_envs:
            raise EnvError(f"asked for {num_envs} environments, {self._runner.num_envs} were built")
        self.env_ids = new_env_ids(num_envs)
        self._seeds: list[int | None] = [None] * num_envs
        self._seeded_at_step = [0] * num_envs
        self._num_restarts = [0] * num_envs
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        self._require_open()
        envs = range(self.num_envs) if env_ids is None else [self._env_of(env_id) for env_id in env_ids]
        if seed is not None:
            seeds = env_seeds(seed, self.num_envs)
            for b in envs:
                self._seeds[b], self._seeded_at_step[b], self._num_restarts[b] = seeds[b], self._num_steps, 0
        self._select(envs, [self._seeds[b] if seed is not None else None for b in envs])
        self._restart_until_well(self._runner.reset_selected(), may_fail=set(envs))
        self._has_reset = self._has_reset or env_ids is None
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        self._require_open()
        if not self._has_reset:
            raise EnvError("step() before reset(), or after an interrupted step; reset all environments first")
        if isinstance(next(iter(actions), None), uuid.UUID):
            actions = actions_by_group(self, actions)  # type: ignore[arg-type]
        copy_actions(self._buffers.groups, actions)
        self._has_reset = False  # An interrupt leaves some environments ahead of others: they cannot just go on.
        self._buffers.flip()
        self._num_steps += 1
        failures = self._runner.step()
        failed = self._restart_until_well(failures, may_fail=set(range(self.num_envs)), void=True) if failures else None
        self._has_reset = True
        half = self._buffers.half
        return VectorStep(
            groups={name: arrays.step(half) for name, arrays in self._buffers.groups.items()},
            episode_over=self._buffers.episode_over,
            failed=failed,
            state=self._buffers.state,
            infos=self._runner.infos,
            final_state=self._buffers.final_state,
        )

    def build_observation(self) -> VectorReset:
        """The current observations, as the last `reset` or `step` gave them."""
        half = self._buffers.half
        groups = {name: arrays.observation(half) for name, arrays in self._buffers.groups.items()}
        return VectorReset(groups, self._buffers.state)

    @property
    def rates_episodes(self) -> bool:
        return self._runner.layout.rates_episodes

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        if not self.rates_episodes:
            return mean_of_sums(rewards)
        try:
            return self._runner.performance_return(rewards)
        except EnvFailureError as error:
            raise self._error(error.failure) from error

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        if mode not in self.drawing.modes:
            return super().frames(envs, mode)
        if mode is RenderMode.HUMAN:
            return []  # they have shown themselves
        try:
            return self._runner.frames(envs)
        except EnvFailureError as error:
            raise self._error(error.failure) from error

    def final_frames(self) -> Mapping[int, Array]:
        try:
            return self._runner.final_frames() if self.drawing.modes else {}
        except EnvFailureError as error:
            raise self._error(error.failure) from error

    def close(self) -> None:
        self._closed = True
        try:
            self._runner.close()
        except EnvFailureError as error:
            # What matters is over: one line, with the environment's own traceback as the cause.
            raise self._error(replace(error.failure, traceback="")) from error

    def _restart_until_well(self, failures: list[EnvFailure], *, may_fail: set[int], void: bool = False) -> Array:
        """Restart failed environments until all are well, or raise; which environments failed, [B] bool."""
        failed = np.zeros(self.num_envs, dtype=np.bool_)
        while failures:
            lost: set[int] = set()
            for failure in failures:
                lost |= {failure.env, *failure.lost_with_it}
                if self._policy is FailurePolicy.RAISE:
                    raise self._fatal(failure)
                if not self._budget.spend():
                    limit = self._budget.max_per_minute
                    too_often = replace(failure, kind=FailureKind.STOPPED)
                    raise self._fatal(too_often, f" (not restarted: {limit} restarts in the last minute are the limit)")
                if not lost <= may_fail:
                    raise self._fatal(failure, " (not restarted: it took environments along that were not being reset)")
            if void:
                self._buffers.void([b for b in sorted(lost) if not failed[b]])
            failed[list(lost)] = True
            failures = self._restart(sorted(lost))
        return failed

    def _restart(self, envs: Sequence[int]) -> list[EnvFailure]:
        for b in envs:
            self._num_restarts[b] += 1
        self._select(envs, [_restart_seed(self._seeds[b], self._num_restarts[b]) for b in envs])
        return self._runner.restart_selected()

    def _select(self, envs: Sequence[int], seeds: Sequence[int | None]) -> None:
        self._buffers.selected.fill(False)
        self._buffers.selected[list(envs)] = True
        self._buffers.reset_seed[list(envs)] = [NO_SEED if seed is None else seed for seed in seeds]

    def _fatal(self, failure: EnvFailure, note: str = "") -> EnvError:
        # Environments that have just failed may fail to close as well; the first failure is the one to tell.
        with failure_set_aside():
            self.close()
        return self._error(failure, note)

    def _error(self, failure: EnvFailure, note: str = "") -> EnvError:
        b = failure.env
        return failure.as_error(self.env_ids[b], self._seeds[b], self._num_steps - self._seeded_at_step[b], note)

    def _env_of(self, env_id: uuid.UUID) -> int:
        if env_id not in self.env_ids:
            raise EnvError(f"{env_id} is not an environment of this environment; its ids are in env_ids")
        return self.env_ids.index(env_id)

    def _require_open(self) -> None:
        if self._closed:
            raise EnvError("this environment is closed, by close() or by a failure; make a new one")
        if not self.env_ids:
            raise EnvError("no environments yet; call init_num_envs() first")


class StatefulVectorisedEnvironments(VectorisedEnvironments, StatefulEnvironment):
    """Vectorised environments whose states can be saved."""

    def get_state(self) -> dict[str, Array]:
        self._require_open()
        if not self._has_reset:
            raise EnvError("get_state() before reset(), or after an interrupted step; there is nothing whole to save")
        state = {f"shown/{name}": array for name, array in read_buffers(self._buffers).items()}
        state["num_steps"] = np.array(self._num_steps)
        state["seeds"] = np.array([NO_SEED if seed is None else seed for seed in self._seeds])
        state["seeded_at_step"] = np.array(self._seeded_at_step)
        state["num_restarts"] = np.array(self._num_restarts)
        for b, env_state in enumerate(self._runner.get_state()):
            # Checkpoints have had this name from the first version on.
            state |= {f"world{b}/{name}": array for name, array in env_state.items()}
        return state

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._require_open()
        write_buffers(self._buffers, under("shown/", state))
        self._num_steps = int(state["num_steps"])
        self._seeds = [None if seed == NO_SEED else seed for seed in state["seeds"].tolist()]
        self._seeded_at_step = state["seeded_at_step"].tolist()
        self._num_restarts = state["num_restarts"].tolist()
        self._runner.set_state([under(f"world{b}/", state) for b in range(self.num_envs)])
        self._has_reset = True


def _restart_seed(seed: int | None, num_restarts: int) -> int | None:
    """The seed of a restarted environment: another one than before, and as reproducible."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, num_restarts]).generate_state(1, np.uint32)[0]) & 0x7FFF_FFFF
