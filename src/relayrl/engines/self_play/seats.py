"""Who plays which team in every environment, and how an environment takes its seats when an episode begins.

Between two rollouts the league decides who is drawn and which teams learn. Inside a rollout, seats follow from the episodes
that end: whoever steps an environment knows them without asking the league.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from relayrl.data.trees import Array

LEARNER = -1
"""The player that learns; others have numbers from 0 on."""


@dataclass(slots=True)
class Seats:
    """Seats of B environments."""

    players: Array
    """[B, teams] who plays."""
    turns: Array
    """[B] episodes begun, from another number in each environment."""
    drawn: tuple[int, ...]
    """By team, who takes its seat in episodes that begin from now on."""
    learning: tuple[int, ...]
    """Teams that the learner plays in turn."""

    def take(self, envs: Array) -> None:
        """Begin an episode in `envs`."""
        teams = np.array(self.learning)
        players = self.players.copy()  # rows that were noted stay
        players[envs] = self.drawn
        players[envs, teams[self.turns[envs] % len(teams)]] = LEARNER
        self.turns[envs] += 1
        self.players = players

    def lanes(self, teams_of_agents: Array) -> Array:
        """[L] who plays the lanes of a group, given the team of each of its agents."""
        return self.players[:, teams_of_agents].reshape(-1)

    def part(self, first: int, last: int) -> Seats:
        """Seats of the environments `first … last - 1`, to go on with by themselves."""
        return Seats(self.players[first:last], self.turns[first:last].copy(), self.drawn, self.learning)

    @property
    def opponents(self) -> set[int]:
        """Everybody but the learner who plays, or will when an episode begins."""
        return {*self.drawn, *np.unique(self.players).tolist()} - {LEARNER}


class EndedGames(NamedTuple):
    """Games of `envs` [E] that ended with the same step."""

    row: int
    """The row of the rollout."""
    envs: Array
    is_whole: Array
    """[E] False: a failure cut it."""
    returns: Mapping[str, Array]
    """[E, N] of the agents, by group."""
