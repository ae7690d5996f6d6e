"""PettingZoo environments as `MultiAgentEnvironment`s: the parallel API where the library offers it, turns (AEC) otherwise.

Responsible for PettingZoo's own conventions: the two APIs, dead agents that want a `None` action, action masks inside
observations or infos, spaces behind methods, the global state. Not responsible for running many environments (the vectorisers
do that), for finding environments by name (`pettingzoo_modules`) nor for the state of mpe2's environments (`mpe2_state`).

What the adapter adds to PettingZoo's promises:

- an agent's end is reported once, in the step in which PettingZoo flags it, with what the agent sees then; one that is still
  listed afterwards is dead all the same, and one that leaves without a flag is truncated;
- rewards of all agents are delivered in the step that produced them, whoever acted;
- `Box` actions are clipped to their bounds here, because PettingZoo's own clipping prints a line for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, Tree
from relayrl.envs.adapters import mpe2_state
from relayrl.envs.adapters.pettingzoo_modules import import_pettingzoo, load, missing_import
from relayrl.envs.agent_groups import LATE_MASK, flat_mask, mask_size
from relayrl.envs.environment_contract import (
    MultiAgentEnvironment,
    MultiAgentReset,
    MultiAgentStep,
    StatefulEnvironment,
)
from relayrl.errors import ConfigError, EnvError

MASK = "action_mask"
"""Key of the action mask in a PettingZoo observation or info."""


def make(library: str, name: str, /, **options: Any) -> MultiAgentEnvironment:
    """Make `mpe2:simple_spread_v3` or `pettingzoo:classic.connect_four_v3` with the library's own keyword `options`."""
    return wrap(make_plain(library, name, **options))


def make_plain(library: str, name: str, /, **options: Any) -> Any:
    """The same before it is adapted: what PettingZoo's wrappers take."""
    module = load(library, name)
    metadata = getattr(getattr(module, "raw_env", None), "metadata", {})
    parallel = hasattr(module, "parallel_env") and metadata.get("is_parallelizable", True)
    factory = module.parallel_env if parallel else module.env
    try:
        return factory(**options)
    except ImportError as error:
        raise missing_import(library, name, error) from error
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{library}:{name} does not accept the options {options}: {error}") from error


def wrap(env: Any) -> MultiAgentEnvironment:
    """Adapt a `pettingzoo.ParallelEnv` or `pettingzoo.AECEnv` object."""
    zoo = import_pettingzoo()
    if isinstance(env, zoo.ParallelEnv):
        return Mpe2Adapter(env) if mpe2_state.can_save(env) else ParallelAdapter(env)
    if isinstance(env, zoo.AECEnv):
        return TurnsAdapter(env)
    raise ConfigError(f"{type(env).__name__} is no PettingZoo environment; give a ParallelEnv or an AECEnv")


def _declared_space(env: Any, agent: str, kind: str) -> Space:
    """The space of one agent; the dict is read where the author overrode no method, which would only warn and read it."""
    zoo = import_pettingzoo()
    author = type(env.unwrapped)
    inherited = {getattr(base, kind) for base in (zoo.ParallelEnv, zoo.AECEnv)}
    space: Space = (
        getattr(env.unwrapped, f"{kind}s")[agent] if getattr(author, kind) in inherited else getattr(env, kind)(agent)
    )
    return space


def _without_mask(space: Space) -> Space:
    """The observation space once the action mask is taken out; a dict left with `observation` alone is unwrapped."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space
    rest = {key: part for key, part in space.spaces.items() if key != MASK}
    return rest["observation"] if list(rest) == ["observation"] else spaces.Dict(rest)


class _PettingZooAdapter(MultiAgentEnvironment):
    """What both APIs share: spaces, masks, actions, the global state."""

    def __init__(self, env: Any) -> None:
        agents = getattr(env, "possible_agents", None)
        if not agents:
            raise ConfigError(f"{env} names no possible_agents; RelayRL needs every agent id before the first reset")
        self._env = env
        self.metadata: Mapping[str, Any] = getattr(env, "metadata", {})
        self.render_mode: str | None = getattr(env.unwrapped, "render_mode", None)
        self.possible_agents = tuple(agents)
        raw = {agent: _declared_space(env, agent, "observation_space") for agent in agents}
        self.observation_spaces = {agent: _without_mask(space) for agent, space in raw.items()}
        self.action_spaces = {agent: _declared_space(env, agent, "action_space") for agent in agents}
        self._in_observation = {agent for agent in agents if raw[agent] is not self.observation_spaces[agent]}
        self._state_space: Space | None = getattr(env, "state_space", None)
        self._alive: tuple[str, ...] = ()
        self._ended: set[str] = set()
        self._observations: dict[str, Any] = {}
        self._masks: dict[str, Array] = {}
        self._closed = False
        self._masks_actions = True  # until the first reset has shown none
        self._masks_actions = bool(self._in_observation) or self._infos_hold_masks()

    def _infos_hold_masks(self) -> bool:
        """Masks in infos are declared nowhere, so one unseeded reset looks for them."""
        self.reset()
        return bool(self._masks)

    @property
    def agents(self) -> Sequence[str]:
        return self._alive

    @property
    def masks_actions(self) -> bool:
        return self._masks_actions

    def action_masks(self) -> Mapping[str, Array]:
        asked = {*self.acting_agents(), *self._ended}  # masks are of the last step: so are those who ended, with one
        return {agent: mask for agent, mask in self._masks.items() if agent in asked}

    @property
    def state_space(self) -> Space | None:
        return self._state_space

    @property
    def state_repeats_observations(self) -> bool:
        return self._state_space is not None and type(self._env.unwrapped).__module__.startswith("mpe2.")

    def state(self) -> Tree | None:
        state: Tree | None = None if self._state_space is None else self._env.state()
        return state

    def build_observation(self) -> Mapping[str, Any]:
        return self._observations

    def render(self) -> Any:
        """What PettingZoo draws of the environment, in the mode that it was made with."""
        return self._env.render()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()

    def _see(self, agent: str, raw: Any, info: Mapping[str, Any]) -> None:
        """Keep an agent's observation and mask, apart from each other."""
        mask = info.get(MASK)
        if agent in self._in_observation:
            mask = raw[MASK]
            rest = {key: part for key, part in raw.items() if key != MASK}
            raw = rest["observation"] if list(rest) == ["observation"] else rest
        self._observations[agent] = raw
        if mask is not None and (size := mask_size(self.action_spaces[agent])):
            if not self._masks_actions:
                raise EnvError(LATE_MASK)
            self._masks[agent] = flat_mask(mask, size)

    def _action_for(self, agent: str, actions: Mapping[str, Any]) -> Any:
        if agent not in actions:
            raise EnvError(f"no action for agent {agent!r}; give one for each of {list(self.acting_agents())}")
        action, space = actions[agent], self.action_spaces[agent]
        if isinstance(space, spaces.Discrete):
            return int(action)
        if isinstance(space, spaces.Box):
            # A copy: an environment may keep its action, while the caller's array is written again.
            return np.clip(np.array(action, space.dtype), space.low, space.high)
        return action

    def _ends(self, terminated: Mapping[str, bool], truncated: Mapping[str, bool]) -> dict[str, tuple[bool, bool]]:
        """Flags of the agents that lived until now; from here on they are dead. One that left unflagged is truncated."""
        ends = {}
        present = self._env.agents  # once: each of PettingZoo's wrappers looks for an attribute before it passes it on
        for agent in self._alive:
            flags = bool(terminated.get(agent)), bool(truncated.get(agent))
            if any(flags) or agent not in present:
                ends[agent] = flags if any(flags) else (False, True)
        self._ended.update(ends)
        self._alive = tuple(agent for agent in present if agent not in self._ended)
        return ends


class ParallelAdapter(_PettingZooAdapter):
    """A `pettingzoo.ParallelEnv`: all living agents act in each step."""

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._ended, self._observations, self._masks = set(), {}, {}
        observations, infos = self._env.reset(seed=seed)
        self._alive = tuple(self._env.agents)
        for agent in self._alive:
            self._see(agent, observations[agent], infos.get(agent, {}))
        return MultiAgentReset(self._observations, infos)

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        sent = {agent: self._action_for(agent, actions) for agent in self._alive}
        observations, rewards, terminated, truncated, infos = self._env.step(sent)
        before, masks_before = self._observations, self._masks
        self._observations, self._masks = {}, {}
        ends = self._ends(terminated, truncated)
        for agent in (*self._alive, *ends):
            if agent in observations:
                self._see(agent, observations[agent], infos.get(agent, {}))
            elif agent in self._env.agents:
                raise EnvError(f"{self._env}: no observation of agent {agent!r}, which is in the episode")
            else:
                self._observations[agent] = before[agent]
                if agent in masks_before:
                    self._masks[agent] = masks_before[agent]
        return MultiAgentStep(
            self._observations,
            {agent: float(reward) for agent, reward in rewards.items()},
            {agent: flags[0] for agent, flags in ends.items()},
            {agent: flags[1] for agent, flags in ends.items()},
            infos,
        )


class TurnsAdapter(_PettingZooAdapter):
    """A `pettingzoo.AECEnv`: one agent acts in each step, everybody may be rewarded or end in it."""

    def acting_agents(self) -> Sequence[str]:
        return (self._env.agent_selection,) if self._alive else ()

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._ended, self._observations, self._masks = set(), {}, {}
        self._env.reset(seed=seed)
        self._alive = tuple(self._env.agents)
        self._observe(self._alive)
        return MultiAgentReset(self._observations, dict(self._env.infos))

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        action = self._action_for(self._env.agent_selection, actions)
        self._observations, self._masks = {}, {}
        rewards: dict[str, float] = {}
        ends: dict[str, tuple[bool, bool]] = {}
        infos: dict[str, Mapping[str, Any]] = {}
        while True:
            num_agents = len(self._env.agents) if action is None else 0
            self._env.step(action)
            if action is None and len(self._env.agents) >= num_agents:
                raise EnvError(f"{self._env}: step(None) did not remove the dead agent {self._env.agent_selection!r}")
            for agent, reward in self._env.rewards.items():
                rewards[agent] = rewards.get(agent, 0.0) + float(reward)
            infos.update(self._env.infos)
            ended_now = self._ends(self._env.terminations, self._env.truncations)
            self._observe(ended_now)
            ends |= ended_now
            if not self._env.agents or self._env.agent_selection not in self._ended:
                break
            action = None  # what PettingZoo wants for a dead agent, whom this removes
        self._observe(self._alive)
        return MultiAgentStep(
            self._observations,
            rewards,
            {agent: flags[0] for agent, flags in ends.items()},
            {agent: flags[1] for agent, flags in ends.items()},
            infos,
        )

    def _observe(self, agents: Iterable[str]) -> None:
        for agent in agents:
            self._see(agent, self._env.observe(agent), self._env.infos.get(agent, {}))


class Mpe2Adapter(ParallelAdapter, StatefulEnvironment):
    """A parallel environment of mpe2, whose environments can be saved and continued; steps without PettingZoo's layers.

    mpe2's agents take turns, and the environment moves with the last of them. PettingZoo's conversion looks at every agent
    before its turn, through two wrappers that only check, which is half of a step's cost; here the turns are taken directly.
    """

    def __init__(self, env: Any) -> None:
        self._turns = env.unwrapped
        super().__init__(env)

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        turns, acting = self._turns, self._alive
        # All of them before the first turn: an action that is refused must leave the environment as it was.
        for action in [self._action_for(agent, actions) for agent in acting]:
            turns.step(action)
        self._observations = {agent: turns.observe(agent) for agent in acting}
        terminated = {agent: True for agent in acting if turns.terminations[agent]}
        truncated = {agent: True for agent in acting if turns.truncations[agent]}
        self._alive = tuple(agent for agent in acting if not (agent in terminated or agent in truncated))
        rewards = {agent: float(reward) for agent, reward in turns.rewards.items()}
        return MultiAgentStep(self._observations, rewards, terminated, truncated, dict(turns.infos))

    def state(self) -> Tree:
        return np.concatenate([self._observations[agent] for agent in self.possible_agents])

    def get_state(self) -> dict[str, Array]:
        if not self._alive:
            raise EnvError("get_state() after the end of an episode; reset() first")
        return mpe2_state.read(self._turns)

    def set_state(self, state: Mapping[str, Array]) -> None:
        self.reset()
        mpe2_state.write(self._turns, state)
        self._observations = {agent: self._turns.observe(agent) for agent in self._alive}

    def _action_for(self, agent: str, actions: Mapping[str, Any]) -> Any:
        action, space = super()._action_for(agent, actions), self.action_spaces[agent]
        if isinstance(space, spaces.Discrete) and not 0 <= action < space.n:
            raise EnvError(f"agent {agent!r} cannot do {action}; its actions are 0 to {space.n - 1}")
        return action
