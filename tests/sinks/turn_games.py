"""A game of turns whose state can be saved, and what its records must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.data.columns import Trajectory
from relayrl.data.trees import Array
from relayrl.envs.environment_contract import (
    MultiAgentEnvironment,
    MultiAgentReset,
    MultiAgentStep,
    StatefulEnvironment,
)
from relayrl.sinks.contract import open_source


class Standoff(MultiAgentEnvironment, StatefulEnvironment):
    """Three players in turn. Move 0 takes 1 from who moved before and ends its game, move 1 takes 0.5, others do nothing. The
    last one alive wins; after `max_moves` moves all are truncated. What is taken is given to the mover: returns sum to zero."""

    def __init__(self, *, max_moves: int = 9) -> None:
        self.possible_agents = ("player_0", "player_1", "player_2")
        box, moves = spaces.Box(-1.0, 99.0, (2,), np.float32), spaces.Discrete(4)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces = dict.fromkeys(self.possible_agents, moves)
        self._max_moves = max_moves
        self._alive: list[int] = []
        self._num_moves, self._before = 0, -1

    @property
    def agents(self) -> Sequence[str]:
        return tuple(self.possible_agents[i] for i in sorted(self._alive))

    def acting_agents(self) -> Sequence[str]:
        return tuple(self.possible_agents[i] for i in self._alive[:1])

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._alive, self._num_moves, self._before = [0, 1, 2], 0, -1
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        mover, *others = self._alive
        move, before = int(actions[self.possible_agents[mover]]), self._before
        stepped, taken = sorted(self._alive), {0: 1.0, 1: 0.5}.get(move, 0.0) if before >= 0 else 0.0
        shot = {before} if move == 0 and before >= 0 else set()
        rewards = {self.possible_agents[mover]: taken}
        if before >= 0:
            rewards[self.possible_agents[before]] = -taken
        self._num_moves += 1
        self._alive = [i for i in (*others, mover) if i not in shot]
        gone = set(stepped) if len(self._alive) == 1 else shot
        is_long = self._num_moves == self._max_moves
        self._alive = [] if is_long else [i for i in self._alive if i not in gone]
        self._before = mover
        names = {i: self.possible_agents[i] for i in stepped}
        terminated = {name: i in gone for i, name in names.items()}
        truncated = {name: is_long and i not in gone for i, name in names.items()}
        return MultiAgentStep({names[i]: self._seen() for i in stepped}, rewards, terminated, truncated, {})

    def _seen(self) -> Array:
        return np.array([self._num_moves, self._before], np.float32)

    def build_observation(self) -> Mapping[str, Any]:
        return {agent: self._seen() for agent in self.agents}

    def get_state(self) -> dict[str, Array]:
        alive = np.full(3, -1)
        alive[: len(self._alive)] = self._alive
        return {"alive": alive, "numbers": np.array([self._num_moves, self._before])}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._alive = [i for i in state["alive"].tolist() if i >= 0]
        self._num_moves, self._before = state["numbers"].tolist()


def games_in(url: str) -> dict[tuple[UUID, int], dict[str, list[Trajectory]]]:
    """What each agent did in each episode, in order of time."""
    found: dict[tuple[UUID, int], dict[str, list[Trajectory]]] = {}
    with open_source(url) as source:
        for each in sorted(source, key=lambda t: t.first_step):
            found.setdefault((each.env_id, each.episode), {}).setdefault(each.agent_id, []).append(each)
    return found


def require_whole_games(url: str, num_agents: int) -> int:
    """Every game but the last of each environment ends for everybody, with returns that sum to zero; returns their number."""
    games = games_in(url)
    last = {env: max(number for other, number in games if other == env) for env, _ in games}
    num_whole = 0
    for (env, number), agents in games.items():
        for parts in agents.values():
            assert parts[0].first_step == 0
            for one, other in pairwise(parts):
                assert one.end_step == other.first_step
                assert not one.terminated
                assert not one.truncated
        if number == last[env]:
            continue
        assert len(agents) == num_agents
        assert all(parts[-1].terminated or parts[-1].truncated for parts in agents.values())
        assert sum(each.episode_return for parts in agents.values() for each in parts) == 0.0
        num_whole += 1
    return num_whole
