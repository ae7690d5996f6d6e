"""Kuhn poker, and how far a strategy is from its solution; import it from `relayrl.testing`.

Two players ante 1, each gets one of three cards. They take turns in passing or betting 1 until both have passed, a bet was
called (betting again), or somebody passed after a bet and gave up. The higher card wins what is there.

    histories       "" and "pb" are player 0's turns, "p" and "b" player 1's
    strategy        the probability of betting, by (card, history): twelve numbers
    exploitability  ½ (max_σ u₀(σ, s) + max_σ u₁(s, σ)): what a best response wins on average over both seats; 0 in equilibrium
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import (
    MultiAgentEnvironment,
    MultiAgentReset,
    MultiAgentStep,
    StatefulEnvironment,
)
from relayrl.envs.generator_words import generator_from_words, generator_to_words
from relayrl.errors import ConfigError

CARDS = (0, 1, 2)
HISTORIES = ("", "p", "b", "pb")
_TURNS = {"": 0, "pb": 0, "p": 1, "b": 1}
_DEALS = tuple(itertools.permutations(CARDS, 2))
_ENDS = ("pp", "bp", "bb", "pbp", "pbb")

Strategy = Mapping[tuple[int, str], float]
"""The probability of betting, by card and history."""


def _paid(deal: tuple[int, int], history: str) -> int:
    """What player 0 wins when the game ends so."""
    higher = 1 if deal[0] > deal[1] else -1
    return {"pp": higher, "bp": 1, "pbp": -1, "bb": 2 * higher, "pbb": 2 * higher}[history]


class KuhnPoker(MultiAgentEnvironment, StatefulEnvironment):
    """The game for two players, `player_0` and `player_1`, who take turns. Action 0 passes, 1 bets.

    A player sees its card and the history, both one-hot.
    """

    def __init__(self) -> None:
        self.possible_agents = ("player_0", "player_1")
        seen = spaces.Box(0.0, 1.0, (len(CARDS) + len(HISTORIES),), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, seen)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(2))
        self._rng = np.random.default_rng()
        self._deal, self._history = _DEALS[0], "pp"

    @property
    def agents(self) -> Sequence[str]:
        return () if self._history in _ENDS else self.possible_agents

    def acting_agents(self) -> Sequence[str]:
        return () if self._history in _ENDS else (self.possible_agents[_TURNS[self._history]],)

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._deal, self._history = _DEALS[int(self._rng.integers(len(_DEALS)))], ""
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        (player,) = self.acting_agents()
        self._history += "b" if int(actions[player]) else "p"
        is_over = self._history in _ENDS
        won = float(_paid(self._deal, self._history)) if is_over else 0.0
        rewards = dict(zip(self.possible_agents, (won, -won), strict=True))
        return MultiAgentStep(self.build_observation(), rewards, dict.fromkeys(self.possible_agents, is_over), {}, {})

    def build_observation(self) -> Mapping[str, Any]:
        return {agent: _seen(card, self._history) for agent, card in zip(self.possible_agents, self._deal, strict=True)}

    def get_state(self) -> dict[str, Array]:
        game = np.array([_DEALS.index(self._deal), (*HISTORIES, *_ENDS).index(self._history)], np.int64)
        return {"generator": generator_to_words(self._rng), "game": game}

    def set_state(self, state: Mapping[str, Array]) -> None:
        deal, history = state["game"].tolist()
        self._rng = generator_from_words(state["generator"])
        self._deal, self._history = _DEALS[deal], (*HISTORIES, *_ENDS)[history]


def _seen(card: int, history: str) -> Array:
    """An ended game shows no history."""
    seen = np.zeros(len(CARDS) + len(HISTORIES), np.float32)
    seen[card] = 1.0
    if history in HISTORIES:
        seen[len(CARDS) + HISTORIES.index(history)] = 1.0
    return seen


def kuhn_strategy(distribution: Callable[[Array], Array]) -> dict[tuple[int, str], float]:
    """The strategy of a policy, by its `distribution`: log-probabilities [12, 2] of what is seen, as actors give them."""
    places = list(itertools.product(CARDS, HISTORIES))
    logp = np.asarray(distribution(np.stack([_seen(*place) for place in places])), np.float64)
    if logp.shape != (len(places), 2):
        raise ConfigError(
            f"a policy of Kuhn poker gives log-probabilities of shape {(len(places), 2)}, not {logp.shape}"
        )
    chance = np.exp(logp)
    return dict(zip(places, (chance[:, 1] / chance.sum(1)).tolist(), strict=True))


def kuhn_mixture(strategies: Sequence[Strategy]) -> dict[tuple[int, str], float]:
    """The strategy that plays like one of these, drawn before each game: betting is weighed by who gets there."""
    mixed = {}
    for place in itertools.product(CARDS, HISTORIES):
        card, history = place
        reach = [1.0 - own[card, ""] if history == "pb" else 1.0 for own in strategies]
        bets = sum(weight * own[place] for weight, own in zip(reach, strategies, strict=True))
        mixed[place] = bets / sum(reach) if sum(reach) > 0 else 0.5
    return mixed


def kuhn_exploitability(strategy: Strategy) -> float:
    """What a best response wins against it on average over both seats; every pure strategy is tried."""
    return sum(_best_response(strategy, seat) for seat in (0, 1)) / 2


def _best_response(strategy: Strategy, seat: int) -> float:
    places = [(card, history) for card in CARDS for history in HISTORIES if _TURNS[history] == seat]
    best = -np.inf
    for choices in itertools.product((0.0, 1.0), repeat=len(places)):
        own = {**strategy, **dict(zip(places, choices, strict=True))}
        value = sum(_value(own, deal, "") for deal in _DEALS) / len(_DEALS)
        best = max(best, value if seat == 0 else -value)
    return float(best)


def _value(strategy: Strategy, deal: tuple[int, int], history: str) -> float:
    """What player 0 wins on average from here on."""
    if history in _ENDS:
        return _paid(deal, history)
    bets = strategy[deal[_TURNS[history]], history]
    after = (_value(strategy, deal, history + action) for action in "pb")
    return sum(chance * value for chance, value in zip((1.0 - bets, bets), after, strict=True))
