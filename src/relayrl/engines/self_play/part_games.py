"""Games in a part of a run's environments: what a collector that is not in the league's process knows of self-play.

The league says with every rollout who sits where and who is drawn next (`Table`). Here seats are taken as episodes end, and the
ended games go back; the league rates them, and follows the same seats. Only the copies of players outlive a rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.engines.self_play.game_teams import GameTeams
from relayrl.engines.self_play.seated_actor import SeatedActor
from relayrl.engines.self_play.seats import EndedGames, Seats
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.exploration import Exploration
from relayrl.models.policy import Policy
from relayrl.models.policy_arrays import Weights, load_arrays


@dataclass(frozen=True, slots=True)
class FrozenPlayer:
    """What a snapshot's policies act by, by group."""

    weights: Weights
    noise_scales: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Table:
    """The games of all environments when a rollout begins."""

    seats: Seats
    players: Mapping[int, Any]
    """A `FrozenPlayer` for each number that may play, or whatever stands for it on the way to a collector."""


class PartGames:
    """Seats and players of the environments `first … last - 1`; players are copies of `policies` with weights of their own."""

    def __init__(
        self,
        teams: GameTeams,
        policies: Mapping[str, Policy],
        make_actor: Callable[[Policy], Actor],
        first: int,
        last: int,
    ) -> None:
        self._teams, self._policies, self._make_actor = teams, policies, make_actor
        self._first, self._last = first, last
        num_teams, nobody = len(teams.names), (0,) * len(teams.names)
        self._seats = Seats(np.zeros((last - first, num_teams), np.int64), np.arange(first, last), nobody, (0,))
        self._players: dict[int, dict[str, Actor]] = {}
        self._noise: dict[int, Mapping[str, float]] = {}
        self._num_rows: dict[str, int] = {}
        self._ended: list[EndedGames] = []

    def seat(self, actors: Mapping[str, Actor], num_envs: int, *, equal_numbers: bool) -> dict[str, Actor]:
        """Actors by group for the environments here, of `num_envs`."""

        def seated(group: str, learner: Actor) -> Actor:
            num_agents = len(self._teams.of_agents[group])
            return SeatedActor(
                learner,
                lambda: self._next_row(group),
                lambda number: self._players[number][group],
                num_envs * num_agents,
                self._first * num_agents,
                equal_numbers=equal_numbers,
            )

        return {name: seated(name, actor) for name, actor in actors.items()}

    def _next_row(self, group: str) -> Array:
        self._num_rows[group] += 1
        return self._seats.lanes(self._teams.of_agents[group])

    @property
    def known(self) -> frozenset[int]:
        """Players whose weights are here."""
        return frozenset(self._players)

    def begin(self, table: Table, exploration: Mapping[str, Exploration]) -> None:
        """Begin a rollout; weights are taken of players that are not known, and those that do not play are forgotten."""
        self._seats = table.seats.part(self._first, self._last)
        self._ended, self._num_rows = [], dict.fromkeys(self._teams.of_agents, 0)
        self._players = {number: own for number, own in self._players.items() if number in table.players}
        for number in table.players.keys() - self._players.keys():
            self._players[number] = self._copy(number, table.players[number])
        for number, actors in self._players.items():
            for name, actor in actors.items():
                # Noise is the snapshot's own; that nothing is learned yet is known to the learner alone.
                actor.explore(Exploration(exploration[name].is_warming_up, self._noise[number][name]))

    def _copy(self, number: int, player: FrozenPlayer) -> dict[str, Actor]:
        policies = {name: copy.deepcopy(self._policies[name]).requires_grad_(False) for name in player.weights}
        load_arrays(policies, player.weights)
        self._noise[number] = player.noise_scales
        return {name: self._make_actor(policy) for name, policy in policies.items()}

    def end_games(self, envs: Array, is_whole: Array, returns: Mapping[str, Array]) -> None:
        """Note games that ended with the present row, and take seats for the next ones."""
        row = next(iter(self._num_rows.values())) - 1
        self._ended.append(EndedGames(row, envs + self._first, is_whole, dict(returns)))
        self._seats.take(envs)

    def take_ended(self) -> list[EndedGames]:
        """Games that ended since `begin`, in their order, with the run's numbers of environments."""
        taken, self._ended = self._ended, []
        return taken


def joined_games(parts: list[list[EndedGames]]) -> list[EndedGames]:
    """Games of all parts in the order in which one collector of all environments would have seen them end."""
    by_row: dict[int, list[EndedGames]] = {}
    for games in parts:
        for each in games:
            by_row.setdefault(each.row, []).append(each)
    return [_joined(row, by_row[row]) for row in sorted(by_row)]


def _joined(row: int, games: list[EndedGames]) -> EndedGames:
    envs, is_whole = (np.concatenate([getattr(each, name) for each in games]) for name in ("envs", "is_whole"))
    returns = {name: np.concatenate([each.returns[name] for each in games]) for name in games[0].returns}
    return EndedGames(row, envs, is_whole, returns)
