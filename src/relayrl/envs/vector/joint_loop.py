"""Steps environments with several agents each: `MultiAgentEnvironment`.

Turns dicts keyed by agent into rows `[b, n]`, and keeps the book that the contract asks for: who is in the episode, who
acts next, and that every lane ends once. An agent that leaves without a flag is truncated; one that has ended gets no more
rows or rewards in that episode; the episode is over when nobody is left who has not ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Tree, index, map_tree, write
from relayrl.envs.agent_groups import flat_mask, group_agents
from relayrl.envs.environment_contract import MultiAgentEnvironment, MultiAgentStep
from relayrl.envs.environment_settings import ObservationCheck
from relayrl.envs.failures import EnvFailure
from relayrl.envs.parameters.episode_parameters import EpisodeParameters
from relayrl.envs.parameters.parameter_settings import Values
from relayrl.envs.rendering import drawing_of
from relayrl.envs.vector.env_buffers import EnvBuffers, EnvLayout, GroupBuffers
from relayrl.envs.vector.env_loop import EnvLoop, EnvState, verify_observation
from relayrl.errors import EnvError

_ENDED = "ended_agents"
"""Name of the loop's own array within an environment's saved state."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an agent's rows are: column `n` of its group's arrays."""

    group: str
    arrays: GroupBuffers
    n: int


@dataclass(slots=True)
class _Cast:
    """Who is who in one environment's running episode."""

    alive: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    acting: tuple[str, ...] = ()


class JointLoop(EnvLoop[MultiAgentEnvironment]):
    """Environments whose agents step together or take turns."""

    def __init__(
        self,
        build: Callable[[Values], MultiAgentEnvironment],
        envs: Sequence[MultiAgentEnvironment],
        parameters: EpisodeParameters | None = None,
    ) -> None:
        first = envs[0]
        groups = group_agents(
            first.possible_agents, first.observation_spaces, first.action_spaces, masks_actions=first.masks_actions
        )
        repeats, drawing = first.state_repeats_observations, drawing_of(first)
        layout = EnvLayout(groups, first.state_space, repeats, first.rates_episodes, drawing)
        super().__init__(build, envs, layout, parameters)
        self._observation_spaces = first.observation_spaces

    def _rate(self, env: MultiAgentEnvironment, rewards: Mapping[str, Sequence[float]]) -> float:
        return env.performance_return(rewards)

    def attach(self, buffers: EnvBuffers, check: ObservationCheck) -> None:
        self._places = {
            agent: _Place(name, buffers.groups[name], n)
            for name, group in self.layout.groups.items()
            for n, agent in enumerate(group.agent_ids)
        }
        self._casts = [_Cast() for _ in range(self.num_envs)]
        self._infos: list[Mapping[str, Any]] = [{}] * self.num_envs
        super().attach(buffers, check)

    @property
    def infos(self) -> Sequence[Mapping[str, Any]]:
        return self._infos

    def get_state(self) -> list[EnvState]:
        return [{**state, _ENDED: self._is_ended(b)} for b, state in enumerate(super().get_state())]

    def set_state(self, states: Sequence[EnvState]) -> None:
        super().set_state([{name: array for name, array in state.items() if name != _ENDED} for state in states])
        half = self.buffers.half
        for b, state in enumerate(states):
            alive = {agent for agent, place in self._places.items() if place.arrays.alive[half][b, place.n]}
            ended = {agent for agent, is_ended in zip(self._places, state[_ENDED], strict=True) if is_ended}
            acting = tuple(agent for agent in self._envs[b].acting_agents() if agent in alive)
            self._casts[b] = _Cast(alive, ended, acting)

    def _is_ended(self, b: int) -> Array:
        return np.array([agent in self._casts[b].ended for agent in self._places], dtype=np.bool_)

    def _install(self, b: int, env: MultiAgentEnvironment) -> None:
        if tuple(env.possible_agents) != tuple(self._envs[0].possible_agents):
            raise EnvError("its possible_agents differ from those of the first environment")
        self._casts[b] = _Cast()

    def _begin(self, b: int, seed: int | None) -> None:
        observations = self._reset_env(b, seed).observations
        env = self._envs[b]
        cast = self._casts[b] = _Cast(alive=set(env.agents))
        half = self.buffers.half
        for arrays in self.buffers.groups.values():
            arrays.alive[half][b] = False
        for agent in cast.alive:
            place = self._place(agent)
            place.arrays.alive[half][b, place.n] = True
            if agent not in observations:
                map_tree(partial(_zero, where=(b, place.n)), place.arrays.obs[half])
        for agent, observation in observations.items():
            self._put_first(b, agent, observation)
        self._write_turn(b, env.action_masks() if env.masks_actions else {})

    def _step_envs(self) -> list[EnvFailure]:
        half = self.buffers.half
        actions: dict[str, Tree] = {}
        for name, arrays in self.buffers.groups.items():
            np.copyto(arrays.alive[half], arrays.alive[half ^ 1])
            # A copy: environments may keep the action that they were given, and the buffer is overwritten by the next step.
            actions[name] = map_tree(np.copy, arrays.action)
        failures = []
        for b in range(self.num_envs):
            self._busy[0] = b
            try:
                self._step_env(b, actions)
            except BaseException as error:  # noqa: BLE001 - the seam to user code: whatever an environment raises is its failure
                failures.append(EnvFailure.of_exception(b, error, "step()"))
        return failures

    def _step_env(self, b: int, actions: Mapping[str, Tree]) -> None:
        env, cast = self._envs[b], self._casts[b]
        taken = {}
        for agent in cast.acting:
            place = self._places[agent]
            taken[agent] = index(actions[place.group], (b, place.n))
        result = env.step(taken)
        self._infos[b] = result.infos
        present = env.agents
        self._welcome(b, present, result.observations)
        self._write_results(b, result)
        truncated = self._end_lanes(b, result, present)
        masks = env.action_masks() if env.masks_actions and (cast.alive or truncated) else {}
        for arrays, row, agent in truncated:
            if arrays.final_mask is not None:
                kept = arrays.final_mask[row]
                kept[:] = flat_mask(masks[agent], len(kept)) if agent in masks else True
        if cast.alive:
            self._write_turn(b, masks)
        else:
            self.buffers.episode_over[b] = True
            self._write_final_state(b)
            self._keep_final_frame(b)
            self._begin(b, None)

    def _write_final_state(self, b: int) -> None:
        """The state in which an episode ended; the one before, where the environment cannot say it any more."""
        states = self.buffers.states
        if states is None or not self.buffers.gives_states[0]:
            return
        try:
            write(states.final, b, self._envs[b].state())
        except Exception:  # noqa: BLE001 - the seam to user code: many a `state()` works only while there are agents
            write(states.final, b, index(states.now[self.buffers.half ^ 1], b))

    def _welcome(self, b: int, present: Sequence[str], observations: Mapping[str, Any]) -> None:
        """Take in agents that have appeared in the middle of the episode."""
        cast = self._casts[b]
        for agent in present:
            if agent not in cast.alive and agent not in cast.ended:
                place = self._place(agent)
                cast.alive.add(agent)
                place.arrays.alive[self.buffers.half][b, place.n] = True
                if agent in observations:
                    self._put_first(b, agent, observations[agent])

    def _write_results(self, b: int, result: MultiAgentStep) -> None:
        half, observations, rewards = self.buffers.half, result.observations, result.rewards
        for agent in self._casts[b].alive:
            place = self._places[agent]
            arrays, row = place.arrays, (b, place.n)
            seen = observations[agent] if agent in observations else index(arrays.obs[half ^ 1], row)
            write(arrays.obs[half], row, seen)
            if agent in rewards:
                arrays.reward[row] = rewards[agent]

    def _end_lanes(
        self, b: int, result: MultiAgentStep, present: Sequence[str]
    ) -> list[tuple[GroupBuffers, tuple[int, int], str]]:
        """Write the ends of agents; gives arrays, row and id of those that bootstrap from what they saw last."""
        cast, half, cut = self._casts[b], self.buffers.half, []
        for agent in tuple(cast.alive):
            terminated, truncated = result.terminated.get(agent, False), result.truncated.get(agent, False)
            if terminated or truncated or agent not in present:
                self._lanes_ended = True
                place = self._places[agent]
                arrays, row = place.arrays, (b, place.n)
                arrays.terminated[row] = terminated
                arrays.truncated[row] = truncated or not terminated
                arrays.alive[half][row] = False
                write(arrays.final_obs, row, index(arrays.obs[half], row))
                if arrays.final_mask is not None:
                    arrays.final_mask[row] = True
                if not terminated:
                    cut.append((arrays, row, agent))
                cast.alive.remove(agent)
                cast.ended.add(agent)
        return cut

    def _write_turn(self, b: int, masks: Mapping[str, Array]) -> None:
        """Who acts next, under which masks, and the global state that goes with it."""
        env, cast = self._envs[b], self._casts[b]
        cast.acting = tuple(agent for agent in env.acting_agents() if agent in cast.alive)
        for arrays in self.buffers.groups.values():
            arrays.active[b] = False
            if arrays.action_mask is not None:
                arrays.action_mask[b] = True
        for agent in cast.acting:
            place = self._places[agent]
            place.arrays.active[b, place.n] = True
        self._write_masks(b, masks, cast.acting)
        if self.buffers.state is not None:
            write(self.buffers.state, b, env.state())

    def _write_masks(self, b: int, masks: Mapping[str, Any], acting: Iterable[str]) -> None:
        for agent in acting:
            place = self._places[agent]
            if agent in masks and place.arrays.action_mask is not None:
                row = place.arrays.action_mask[b, place.n]
                row[:] = flat_mask(masks[agent], len(row))

    def _put_first(self, b: int, agent: str, observation: Any) -> None:
        place = self._place(agent)
        verify_observation(observation, self._observation_spaces[agent])
        write(place.arrays.obs[self.buffers.half], (b, place.n), observation)

    def _place(self, agent: str) -> _Place:
        if agent not in self._places:
            raise EnvError(f"agent {agent!r} is not one of possible_agents, {sorted(self._places)}")
        return self._places[agent]


def _zero(leaf: Any, where: tuple[int, int]) -> None:
    leaf[where] = 0
