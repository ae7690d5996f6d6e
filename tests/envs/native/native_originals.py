"""Driving native environments and their originals side by side: one state, the same actions, two answers.

`Twin` is one original environment whose state can be set from a native one's; the particle worlds and the classic ones
differ only in how. The comparison itself is `compare_run`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np

from relayrl.data.trees import Array
from relayrl.envs import native
from relayrl.envs.environment_contract import SINGLE_AGENT, VectorStep
from relayrl.envs.native import BatchedEnvironment

MPE2_VERSIONS = {
    "simple_spread": "v3",
    "simple_speaker_listener": "v4",
    "simple_reference": "v3",
    "simple_tag": "v3",
    "simple_adversary": "v3",
    "simple_push": "v3",
    "simple_crypto": "v3",
    "simple_world_comm": "v3",
}
GYMNASIUM_IDS = {
    "CartPole": "CartPole-v1",
    "Pendulum": "Pendulum-v1",
    "MountainCarContinuous": "MountainCarContinuous-v0",
    "Acrobot": "Acrobot-v1",
}


class Twin(ABC):
    """An original environment; agents by their ids."""

    @abstractmethod
    def begin(self, state: dict[str, Array]) -> None:
        """Begin an episode in `state`, one world's part of a native environment's."""

    @abstractmethod
    def put(self, state: dict[str, Array]) -> None:
        """Continue from `state`."""

    @abstractmethod
    def observe(self, agent: str) -> Array:
        """What the agent sees now, in double precision where the original has it."""

    @abstractmethod
    def step(self, actions: dict[str, Any]) -> tuple[dict[str, float], dict[str, bool], dict[str, bool]]: ...

    @abstractmethod
    def spaces(self, agent: str) -> tuple[Any, Any]: ...

    @abstractmethod
    def close(self) -> None: ...


class ParticleTwin(Twin):
    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._env = importlib.import_module(f"mpe2.{name}_{MPE2_VERSIONS[name]}").parallel_env(**options)
        self._raw = self._env.unwrapped
        self._name = name
        self.agents = list(self._env.possible_agents)
        self.state_space = self._raw.state_space

    def begin(self, state: dict[str, Array]) -> None:
        self._env.reset(seed=0)
        self.put(state)

    def put(self, state: dict[str, Array]) -> None:
        world = self._raw.world
        for body, position in zip(world.entities, state["position"], strict=True):
            body.state.p_pos = position.astype(np.float64)
        for agent, velocity in zip(world.agents, state["velocity"], strict=True):
            agent.state.p_vel = velocity.astype(np.float64)
        speakers = [agent for agent in world.agents if not agent.silent]
        for agent, message in zip(speakers, state.get("message", ()), strict=True):
            agent.state.c = message.astype(np.float64)
        if "choice" in state:
            getattr(self, f"_choose_{self._name}")(world, state["choice"])

    def _choose_simple_adversary(self, world: Any, choice: Array) -> None:
        for agent in world.agents:
            agent.goal_a = world.landmarks[choice[0]]

    def _choose_simple_push(self, world: Any, choice: Array) -> None:
        self._choose_simple_adversary(world, choice)
        world.agents[1].color = np.array([0.25, 0.25, 0.25])
        world.agents[1].color[choice[0] + 1] += 0.5

    def _choose_simple_speaker_listener(self, world: Any, choice: Array) -> None:
        world.agents[0].goal_b = world.landmarks[choice[0]]

    def _choose_simple_reference(self, world: Any, choice: Array) -> None:
        for agent, landmark in zip(world.agents, choice, strict=True):
            agent.goal_b = world.landmarks[landmark]

    def _choose_simple_crypto(self, world: Any, choice: Array) -> None:
        self._choose_simple_adversary(world, choice)
        world.agents[2].key = world.landmarks[choice[1]].color

    def observe(self, agent: str) -> Array:
        return self._raw.scenario.observation(self._raw.world.agents[self.agents.index(agent)], self._raw.world)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, float], dict[str, bool], dict[str, bool]]:
        _, rewards, terminated, truncated, _ = self._env.step(actions)
        return rewards, terminated, truncated

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return self._env.observation_space(agent), self._env.action_space(agent)

    def global_state(self) -> Array:
        return self._raw.state()

    def close(self) -> None:
        self._env.close()


class ClassicTwin(Twin):
    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._env = gymnasium.make(GYMNASIUM_IDS[name], disable_env_checker=True, **options)
        # MountainCarContinuous computes in the dtype of its state, and stores it as float32
        self._dtype = np.float32 if name == "MountainCarContinuous" else np.float64
        self._name = name
        self.agents = [SINGLE_AGENT]
        self.state_space = None

    def begin(self, state: dict[str, Array]) -> None:
        self._env.reset(seed=0)
        self.put(state)

    def put(self, state: dict[str, Array]) -> None:
        self._env.unwrapped.state = state["motion"].astype(self._dtype)

    def observe(self, agent: str) -> Array:
        state = self._env.unwrapped.state
        if self._name == "Pendulum":
            return np.array([np.cos(state[0]), np.sin(state[0]), state[1]])
        if self._name == "Acrobot":
            return np.array([f(angle) for angle in state[:2] for f in (np.cos, np.sin)] + list(state[2:]))
        return np.array(state)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, float], dict[str, bool], dict[str, bool]]:
        self.returned, reward, terminated, truncated, _ = self._env.step(actions[SINGLE_AGENT])
        return {SINGLE_AGENT: reward}, {SINGLE_AGENT: terminated}, {SINGLE_AGENT: truncated}

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return self._env.observation_space, self._env.action_space

    def close(self) -> None:
        self._env.close()


def twin_of(name: str, options: dict[str, Any]) -> Twin:
    """The original of a native environment, made with the same options."""
    return (ParticleTwin if name in MPE2_VERSIONS else ClassicTwin)(name, options)


def random_actions(env: BatchedEnvironment, rng: np.random.Generator, outside: float = 0.0) -> dict[str, Array]:
    """Uniform actions of all lanes; continuous ones reach `outside` of their bounds by that fraction."""
    actions = {}
    for name, group in env.groups.items():
        shape = (env.num_envs, group.num_agents)
        space = group.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            actions[name] = rng.integers(space.n, size=shape)
        else:
            margin = outside * (space.high - space.low)
            drawn = rng.uniform(space.low - margin, space.high + margin, size=(*shape, *space.shape))
            actions[name] = drawn.astype(np.float32)
    return actions


def world_state(env: BatchedEnvironment, world: int) -> dict[str, Array]:
    """One world's part of the state, without counters."""
    state = env.get_state()
    return {name: state[name][world] for name in env.worlds.state}


class Comparison:
    """Pairs of numbers, ours and the original's, collected along a run and compared at its end in one go."""

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[list[Array], list[Array]]] = {"double": ([], []), "single": ([], [])}
        self._flags: tuple[list[bool], list[bool]] = ([], [])

    def add(self, precision: str, ours: Any, original: Any) -> None:
        for side, value in zip(self._pairs[precision], (ours, original), strict=True):
            side.append(np.array(value, np.float64).reshape(-1))

    def add_flag(self, ours: Any, original: Any) -> None:
        self._flags[0].append(bool(ours))
        self._flags[1].append(bool(original))

    def check(self) -> None:
        """At most 1e-10 apart in double precision and 1e-5 in single, relative to the value; flags are equal."""
        assert self._flags[0] == self._flags[1]
        double, single = ([np.concatenate(side) for side in self._pairs[key]] for key in ("double", "single"))
        # values near zero are differences of numbers near one: there the bound is on the absolute error
        np.testing.assert_allclose(*double, rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(*single, rtol=1e-5, atol=2e-6)


def compare_run(
    name: str, options: dict[str, Any], *, num_steps: int, num_worlds: int, sync_every: int, outside: float = 0.0
) -> tuple[int, int]:
    """Drive a native environment in double and in single precision beside its original.

    Gives how many episodes ended, and how many of them with a termination.

    In double precision the episode runs freely (or is synchronised every `sync_every` steps); in single precision every
    step begins from the double-precision state, because rounding errors of 1e-7 grow along a trajectory.
    """
    exact = native.make(name, dtype="float64", **options)
    single = native.make(name, dtype="float32", **options)
    for env in (exact, single):
        env.init_num_envs(num_worlds)
        env.reset(seed=17)
    twins = [twin_of(name, options) for _ in range(num_worlds)]
    rng = np.random.default_rng(5)
    comparison = Comparison()
    num_ended = num_terminated = 0
    for world, twin in enumerate(twins):
        twin.begin(world_state(exact, world))
    for t in range(num_steps):
        if t == 7 and num_worlds > 1:  # from here on the worlds' episodes end at different times
            exact.reset(env_ids=exact.env_ids[:1])
            twins[0].begin(world_state(exact, 0))
        elif t % sync_every == 0:
            for world, twin in enumerate(twins):
                twin.put(world_state(exact, world))
        single.set_state(exact.get_state())
        actions = random_actions(exact, rng, outside)
        steps = exact.step(actions), single.step(actions)
        for world, twin in enumerate(twins):
            _compare_world(comparison, exact, steps, world, twin, actions)
            if steps[0].episode_over[world]:
                num_ended += 1
                num_terminated += any(group.terminated[world].any() for group in steps[0].groups.values())
                twin.begin(world_state(exact, world))
                for group, n, agent in _lanes(exact):
                    comparison.add("double", exact.worlds.observations[group][world, n], twin.observe(agent))
    for twin in twins:
        twin.close()
    comparison.check()
    return num_ended, num_terminated


def _lanes(env: BatchedEnvironment) -> list[tuple[str, int, str]]:
    return [(name, n, agent) for name, group in env.groups.items() for n, agent in enumerate(group.agent_ids)]


def _compare_world(
    comparison: Comparison,
    exact: BatchedEnvironment,
    steps: tuple[VectorStep, VectorStep],
    world: int,
    twin: Twin,
    actions: dict[str, Array],
) -> None:
    lanes = _lanes(exact)
    rewards, terminated, truncated = twin.step({agent: actions[g][world, n][...] for g, n, agent in lanes})
    if twin.state_space is not None:
        for step in steps:
            comparison.add("single", last_state(step, world), twin.global_state())
    for group, n, agent in lanes:
        seen = twin.observe(agent)
        comparison.add("double", exact.worlds.rewards[group][world, n], rewards[agent])
        if not steps[0].episode_over[world]:
            comparison.add("double", exact.worlds.observations[group][world, n], seen)
        for step in steps:
            result = step.groups[group]
            comparison.add_flag(result.terminated[world, n], terminated[agent])
            comparison.add_flag(result.truncated[world, n], truncated[agent])
            comparison.add("single", last_seen(step, group, world, n), seen)
            comparison.add("single", result.reward[world, n], rewards[agent])


def last_state(step: VectorStep, world: int) -> Array:
    """The global state that an action led to: the final one where it ended the episode."""
    if not step.episode_over[world]:
        return step.state[world]
    return step.final_state[np.flatnonzero(step.episode_over).tolist().index(world)]


def last_seen(step: VectorStep, group: str, world: int, agent: int) -> Array:
    """What an agent saw after its action: the final observation where that ended the episode."""
    result = step.groups[group]
    if not step.episode_over[world]:
        return result.obs[world, agent]
    assert result.final is not None
    (row,) = np.flatnonzero((result.final.env == world) & (result.final.agent == agent))
    return result.final.obs[row]
