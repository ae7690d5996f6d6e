"""Toy environments with several agents; import them from `relayrl.testing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space
from relayrl.envs.environment_contract import SINGLE_AGENT, MultiAgentEnvironment, MultiAgentReset, MultiAgentStep

PRISONERS_DILEMMA = (((-1.0, -3.0), (0.0, -2.0)), ((-1.0, 0.0), (-3.0, -2.0)))
"""`[player][row action][column action]`; action 0 keeps silent, action 1 betrays."""


class DyingAgents(MultiAgentEnvironment):
    """Agents with different spaces that die and appear at known steps; actions do nothing.

    `sheep_0` terminates in step 2, `wolf_0` appears in step 3, `sheep_1` is truncated in step 5, `wolf_0` terminates in
    step 6, which ends the episode. A sheep sees `[k]` after step `k` and gets 1 a step, a wolf sees `[k, living agents]`
    and gets 10. The global state is `[k]`.
    """

    _LAST_STEP = 6

    def __init__(self) -> None:
        self.possible_agents = ("sheep_0", "sheep_1", "wolf_0")
        self.observation_spaces = {
            agent: spaces.Box(0.0, 100.0, (2 if agent.startswith("wolf") else 1,), np.float32)
            for agent in self.possible_agents
        }
        self.action_spaces = {
            agent: spaces.Discrete(3 if agent.startswith("wolf") else 2) for agent in self.possible_agents
        }
        self._num_steps = 0
        self._alive: list[str] = []
        self._observations: dict[str, Any] = {}

    @property
    def agents(self) -> Sequence[str]:
        return tuple(self._alive)

    @property
    def state_space(self) -> Space | None:
        return spaces.Box(0.0, 100.0, (1,), np.float32)

    def state(self) -> Array:
        return np.array([self._num_steps], np.float32)

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._num_steps = 0
        self._alive = ["sheep_0", "sheep_1"]
        self._observe(self._alive)
        return MultiAgentReset(self._observations, {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        self._num_steps += 1
        stepped = list(self._alive)
        rewards = {agent: 10.0 if agent.startswith("wolf") else 1.0 for agent in stepped}
        terminated = {"sheep_0": self._num_steps == 2, "wolf_0": self._num_steps == self._LAST_STEP}
        truncated = {"sheep_1": self._num_steps == 5}
        self._alive = [agent for agent in stepped if not (terminated.get(agent) or truncated.get(agent))]
        if self._num_steps == 3:
            self._alive.append("wolf_0")
        self._observe(dict.fromkeys([*stepped, *self._alive]))
        return MultiAgentStep(self._observations, rewards, terminated, truncated, {})

    def build_observation(self) -> Mapping[str, Any]:
        return self._observations

    def _observe(self, agents: Any) -> None:
        self._observations = {
            agent: np.array([self._num_steps, len(self._alive)][: 2 if agent.startswith("wolf") else 1], np.float32)
            for agent in agents
        }


class TakingTurns(MultiAgentEnvironment):
    """Two players move in turn; a move `a` (0, 1 or 2) gives `a` to the *other* player and may not repeat the last move.

    A player sees `[moves made, last move]`, with -1 before the first. Both terminate after `num_rounds` moves each. A
    repeated move costs its player 1, gives the other nothing and terminates both at once.
    """

    _NUM_MOVES = 3

    def __init__(self, *, num_rounds: int = 3) -> None:
        self.possible_agents = ("player_0", "player_1")
        self.observation_spaces = {
            agent: spaces.Box(-1.0, 2.0 * num_rounds, (2,), np.float32) for agent in self.possible_agents
        }
        self.action_spaces = {agent: spaces.Discrete(self._NUM_MOVES) for agent in self.possible_agents}
        self._num_rounds = num_rounds
        self._num_moves = 0
        self._last_move = -1
        self._over = True

    @property
    def agents(self) -> Sequence[str]:
        return () if self._over else self.possible_agents

    @property
    def masks_actions(self) -> bool:
        return True

    def acting_agents(self) -> Sequence[str]:
        return () if self._over else (self.possible_agents[self._num_moves % 2],)

    def action_masks(self) -> Mapping[str, Array]:
        allowed = np.arange(self._NUM_MOVES) != self._last_move
        return {agent: allowed.copy() for agent in self.acting_agents()}

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._num_moves, self._last_move, self._over = 0, -1, False
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        mover = self.possible_agents[self._num_moves % 2]
        other = self.possible_agents[(self._num_moves + 1) % 2]
        move = int(actions[mover])
        illegal = move == self._last_move
        self._num_moves, self._last_move = self._num_moves + 1, move
        self._over = illegal or self._num_moves == 2 * self._num_rounds
        rewards = {mover: -1.0} if illegal else {other: float(move)}
        terminated = dict.fromkeys(self.possible_agents, self._over)
        return MultiAgentStep(self.build_observation(), rewards, terminated, {}, {})

    def build_observation(self) -> Mapping[str, Any]:
        return {agent: np.array([self._num_moves, self._last_move], np.float32) for agent in self.possible_agents}


class MatrixGame(MultiAgentEnvironment):
    """Two players choose at the same time and are paid from a table `[player][row action][column action]`.

    A player sees the other's last action, or the number of actions before the first round. Terminates after `num_rounds`.
    """

    def __init__(
        self, *, payoffs: Sequence[Sequence[Sequence[float]]] = PRISONERS_DILEMMA, num_rounds: int = 1
    ) -> None:
        self._payoffs = np.asarray(payoffs, np.float64)
        num_actions = self._payoffs.shape[1]
        self.possible_agents = ("player_0", "player_1")
        self.observation_spaces = {agent: spaces.Discrete(num_actions + 1) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(num_actions) for agent in self.possible_agents}
        self._nothing = num_actions
        self._num_rounds = num_rounds
        self._round = num_rounds
        self._played = (num_actions, num_actions)

    @property
    def agents(self) -> Sequence[str]:
        return self.possible_agents if self._round < self._num_rounds else ()

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._round, self._played = 0, (self._nothing, self._nothing)
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        row, column = (int(actions[agent]) for agent in self.possible_agents)
        self._round, self._played = self._round + 1, (row, column)
        rewards = {agent: float(self._payoffs[i, row, column]) for i, agent in enumerate(self.possible_agents)}
        over = dict.fromkeys(self.possible_agents, self._round == self._num_rounds)
        return MultiAgentStep(self.build_observation(), rewards, over, {}, {})

    def build_observation(self) -> Mapping[str, Any]:
        return {agent: np.int64(self._played[1 - i]) for i, agent in enumerate(self.possible_agents)}


class MaskedBandit(MultiAgentEnvironment):
    """One agent, one allowed arm at a time: pulling it pays 1, any other arm costs 100.

    The allowed arm is drawn anew (seeded) before each step and only the mask tells it; the observation is always `[0]`.
    Truncated in step `episode_length`.
    """

    def __init__(self, *, num_arms: int = 4, episode_length: int = 8) -> None:
        self.possible_agents = (SINGLE_AGENT,)
        self.observation_spaces = {SINGLE_AGENT: spaces.Box(0.0, 0.0, (1,), np.float32)}
        self.action_spaces = {SINGLE_AGENT: spaces.Discrete(num_arms)}
        self._num_arms = num_arms
        self._episode_length = episode_length
        self._num_steps = episode_length
        self._allowed = 0
        self._random = np.random.default_rng()

    @property
    def agents(self) -> Sequence[str]:
        return self.possible_agents if self._num_steps < self._episode_length else ()

    @property
    def masks_actions(self) -> bool:
        return True

    def action_masks(self) -> Mapping[str, Array]:
        return {agent: np.arange(self._num_arms) == self._allowed for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._num_steps = 0
        self._allowed = int(self._random.integers(self._num_arms))
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        reward = 1.0 if int(actions[SINGLE_AGENT]) == self._allowed else -100.0
        self._num_steps += 1
        self._allowed = int(self._random.integers(self._num_arms))
        over = self._num_steps == self._episode_length
        return MultiAgentStep(self.build_observation(), {SINGLE_AGENT: reward}, {}, {SINGLE_AGENT: over}, {})

    def build_observation(self) -> Mapping[str, Any]:
        return {SINGLE_AGENT: np.zeros(1, np.float32)}


class HiddenSign(MultiAgentEnvironment):
    """Two agents that see nothing, in an environment with a sign that only the global state holds.

    Every episode draws −1 or 1 (seeded) and pays it to both agents in each step, whatever they do; observations are always
    `[0]`, the state is `[sign]`. Truncated in step `episode_length`, so that under a discount γ an agent's value is
    sign / (1 − γ).
    """

    def __init__(self, *, episode_length: int = 1) -> None:
        self.possible_agents = ("agent_0", "agent_1")
        self.observation_spaces = {agent: spaces.Box(0.0, 0.0, (1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Box(-1.0, 1.0, (1,), np.float32) for agent in self.possible_agents}
        self._episode_length = episode_length
        self._num_steps = episode_length
        self._sign = 1.0
        self._random = np.random.default_rng()

    @property
    def agents(self) -> Sequence[str]:
        return self.possible_agents if self._num_steps < self._episode_length else ()

    @property
    def state_space(self) -> Space | None:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def state(self) -> Array:
        return np.array([self._sign], np.float32)

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._num_steps, self._sign = 0, float(self._random.choice([-1.0, 1.0]))
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        self._num_steps += 1
        over = dict.fromkeys(self.possible_agents, self._num_steps == self._episode_length)
        rewards = dict.fromkeys(self.possible_agents, self._sign)
        return MultiAgentStep(self.build_observation(), rewards, {}, over, {})

    def build_observation(self) -> Mapping[str, Any]:
        return {agent: np.zeros(1, np.float32) for agent in self.possible_agents}
