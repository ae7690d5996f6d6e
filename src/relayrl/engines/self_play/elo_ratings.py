"""Elo ratings of players who meet in games, with their standard errors.

    E = 1 / (1 + 10^((R_b − R_a) / 400)),   Δ = K (S − E),   R_a += Δ,   R_b −= Δ

What one gains the other loses, so that the sum of all ratings stays. The error is that of this estimate, linearised: with
e = R − R*, u = 1 at a and −1 at b, and g = E (1 − E) ln 10 / 400,

    e ← (I − K g u uᵀ) e + K ε u,   Var ε ≤ E (1 − E),   Σ ← (I − K g u uᵀ) Σ (I − K g u uᵀ) + K² E (1 − E) u uᵀ

and the standard error of a rating is the root of its entry of Σ: as if players had stayed as they are. Who is copied hands
rating and covariances to the copy. Draws make Var ε smaller than the bound that is used here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from relayrl.data.trees import Array

K_FACTOR = 8.0
"""A pair of ratings forgets in 1 / (2 K g) ≈ 43 games, and a difference of theirs moves around its mean by about ±37."""
SCALE = 400.0 / math.log(10.0)


class EloRatings:
    """Ratings of players, who are called by numbers."""

    def __init__(self) -> None:
        self._players: list[int] = []
        self._rating = np.zeros(0)
        self._covariance = np.zeros((0, 0))

    def __contains__(self, player: int) -> bool:
        return player in self._players

    def enter(self, player: int, rating: float) -> None:
        """Add a player whose rating is known, or agreed on."""
        self._players.append(player)
        self._rating = np.append(self._rating, rating)
        self._covariance = np.pad(self._covariance, (0, 1))

    def enter_copy(self, player: int, of: int) -> None:
        """Add a player that plays as another one does now."""
        i = self._players.index(of)
        self._players.append(player)
        self._rating = np.append(self._rating, self._rating[i])
        order = [*range(len(self._covariance)), i]
        self._covariance = self._covariance[np.ix_(order, order)]

    def leave(self, player: int) -> None:
        """Forget a player; the ratings of the others stay."""
        i = self._players.index(player)
        del self._players[i]
        self._rating = np.delete(self._rating, i)
        self._covariance = np.delete(np.delete(self._covariance, i, 0), i, 1)

    def rating(self, player: int) -> float:
        """The player's rating."""
        return float(self._rating[self._players.index(player)])

    def error(self, player: int) -> float:
        """The standard error of the player's rating."""
        i = self._players.index(player)
        return math.sqrt(max(0.0, float(self._covariance[i, i])))

    def count(self, player: int, opponent: int, score: float, weight: float = 1.0) -> float:
        """Rate one game, of which the player got `score` in [0, 1]; gives what it gained and the opponent lost."""
        a, b = self._players.index(player), self._players.index(opponent)
        expected = 1.0 / (1.0 + math.exp((self._rating[b] - self._rating[a]) / SCALE))
        factor = weight * K_FACTOR
        gained = factor * (score - expected)
        self._rating[a] += gained
        self._rating[b] -= gained
        variance = expected * (1.0 - expected)
        self._propagate(a, b, factor * variance / SCALE, factor**2 * variance)
        return gained

    def _propagate(self, a: int, b: int, pull: float, noise: float) -> None:
        """Σ ← (I − pull u uᵀ) Σ (I − pull u uᵀ) + noise u uᵀ."""
        sigma = self._covariance
        along = sigma[a] - sigma[b]  # uᵀ Σ
        variance = float(along[a] - along[b])  # uᵀ Σ u
        u = np.zeros(len(sigma))
        u[a], u[b] = 1.0, -1.0
        cross = np.outer(u, along)
        self._covariance = sigma - pull * (cross + cross.T) + (pull**2 * variance + noise) * np.outer(u, u)

    def state_dict(self) -> dict[str, Any]:
        """Everything in it."""
        return {"players": list(self._players), "rating": self._rating.copy(), "covariance": self._covariance.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._players = [int(player) for player in state["players"]]
        self._rating, self._covariance = (_as_doubles(state[name]) for name in ("rating", "covariance"))


def _as_doubles(numbers: Any) -> Array:
    return np.array(numbers, np.float64)
