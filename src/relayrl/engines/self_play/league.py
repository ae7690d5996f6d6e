"""The league of a run: who plays against whom, how games ended, and how strong everybody is.

    save_steps     the policies that learn are copied; a side keeps its newest `window` snapshots, and rates them
    team_change    the next side learns, in games where sides have policies of their own
    swap_steps     an opponent is drawn for every team: a snapshot of its side or, unrated, its newest policies, frozen

An environment takes its seats when an episode begins, and keeps them to its end: one team is the learner's, the others' are
the drawn opponents. Teams of the side that learns take turns in being the learner's, so that it knows every place of the game.

What happens when is a function of the steps of the run and of one random generator, all of which checkpoints hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array
from relayrl.engines.self_play.elo_ratings import EloRatings
from relayrl.engines.self_play.game_teams import GameTeams, Groups, form_teams
from relayrl.engines.self_play.ladder import LadderRow
from relayrl.engines.self_play.own_rows import learner_rows
from relayrl.engines.self_play.part_games import Table
from relayrl.engines.self_play.seated_actor import SeatedActor
from relayrl.engines.self_play.seats import LEARNER, EndedGames, Seats
from relayrl.engines.self_play.snapshots import Snapshot, Snapshots
from relayrl.engines.settings.self_play_settings import SelfPlaySettings
from relayrl.models.acting.actor import Actor

DRAW_TOLERANCE = 1e-6
"""Difference of two teams' returns, relative to their magnitudes, below which a game is drawn: rewards are float32."""


class League:
    """Seats, snapshots and ratings of one run."""

    def __init__(
        self, settings: SelfPlaySettings, groups: Groups, num_envs: int, snapshots: Snapshots, rng: np.random.Generator
    ) -> None:
        self._settings, self._snapshots, self._rng = settings, snapshots, rng
        self.teams: GameTeams = form_teams(groups, settings.teams)
        self._ratings = EloRatings()
        self._ladder: dict[int, LadderRow] = {}
        self._window: list[list[int]] = [[] for _ in self.teams.sides]
        self._learning = 0  # the side
        nobody = np.full((num_envs, len(self.teams.names)), LEARNER)
        self._seats = Seats(nobody, np.arange(num_envs), (), self.teams.sides[0].teams)
        self._num_games = np.zeros(len(self.teams.sides), np.int64)
        self._num_env_steps = self._version = 0
        self._has_begun = False
        self._rows: dict[str, list[Array]] = {name: [] for name in groups}
        self._played: list[tuple[float, float]] = []  # score and return of games since the last rollout

    def seat(self, actors: Mapping[str, Actor], *, equal_numbers: bool = True) -> dict[str, Actor]:
        """Actors by group that act for the learner where it plays, and for its opponents elsewhere."""

        def seated(group: str, learner: Actor) -> Actor:
            return SeatedActor(
                learner,
                lambda: self._note_seats(group),
                lambda number: self._snapshots[number].actors[group],
                len(self._lanes(group)),
                equal_numbers=equal_numbers,
            )

        return {name: seated(name, actor) for name, actor in actors.items()}

    def _note_seats(self, group: str) -> Array:
        self._begin()
        seats = self._lanes(group)
        self._rows[group].append(seats)
        return seats

    def _lanes(self, group: str) -> Array:
        """[L] who plays the lanes of a group."""
        return self._seats.lanes(self.teams.of_agents[group])

    def table(self) -> Table:
        """What collectors elsewhere need in order to play the next rollout; `follow` then takes what they saw."""
        self._begin()
        seats = self._seats.part(0, len(self._seats.turns))
        return Table(seats, {number: self._snapshots[number].player() for number in sorted(seats.opponents)})

    def follow(self, num_steps: int, ended: Sequence[EndedGames]) -> None:
        """Take the seats of a rollout of so many rows that was collected elsewhere, and rate the games that `ended` in it."""
        games = {each.row: each for each in ended}
        for row in range(num_steps):
            for group in self._rows:
                self._note_seats(group)
            if row in games:
                _, envs, is_whole, returns = games[row]
                self.end_games(envs, is_whole, returns)

    def _begin(self) -> None:
        """At the first step, when the policies have what they begin with."""
        if self._has_begun:
            return
        self._has_begun = True
        for side in range(len(self.teams.sides)):
            self._ratings.enter(_learner_of(side), self._settings.initial_elo)
            self._save(side)
        self._draw_opponents()
        self._seats.take(np.arange(len(self._seats.turns)))

    def is_due(self, num_env_steps: int) -> bool:
        """Whether `advance` to this step copies policies or draws opponents."""
        own = self._settings
        return any(self._crosses(every, num_env_steps) for every in (own.save_steps, own.team_change, own.swap_steps))

    def _crosses(self, interval: int, num_env_steps: int) -> bool:
        return num_env_steps // interval > self._num_env_steps // interval

    def advance(self, num_env_steps: int, version: int | None) -> None:
        """Do what is due when the run has taken so many steps, while nobody changes a policy; `version` is that of the
        policies, None where they are still those that acted last."""
        self._begin()
        own, sides = self._settings, len(self.teams.sides)
        is_change_due = self._crosses(own.team_change, num_env_steps) and sides > 1
        is_save_due = self._crosses(own.save_steps, num_env_steps) or is_change_due
        is_swap_due = self._crosses(own.swap_steps, num_env_steps)
        self._num_env_steps, self._version = num_env_steps, self._version if version is None else version
        if is_save_due:
            self._save(self._learning)
        if is_change_due:
            self._learning = (self._learning + 1) % sides
            self._seats.learning = self.teams.sides[self._learning].teams
        if is_swap_due:
            self._draw_opponents()
        if is_save_due or is_swap_due:
            window = (number for own_window in self._window for number in own_window)
            self._snapshots.forget_all_but([*window, *self._seats.opponents])

    def _copy(self, side: int) -> Snapshot:
        return self._snapshots.take(side, self.teams.sides[side].groups, self._num_env_steps, self._version)

    def _save(self, side: int) -> None:
        snapshot, window = self._copy(side), self._window[side]
        self._ratings.enter_copy(snapshot.number, of=_learner_of(side))
        name = self.teams.sides[side].name
        self._ladder[snapshot.number] = LadderRow(name, snapshot.step, *self._rating(snapshot.number))
        window.append(snapshot.number)
        if len(window) > self._settings.window:
            self._ratings.leave(window.pop(0))

    def _rating(self, player: int) -> tuple[float, float]:
        return self._ratings.rating(player), self._ratings.error(player)

    def _draw_opponents(self) -> None:
        newest: dict[int, int] = {}
        drawn = []
        for team in range(len(self.teams.names)):
            side = self.teams.side_of(team)
            # Both numbers are drawn in any case: what comes later does not depend on the ratio.
            is_newest = self._rng.random() < self._settings.play_against_latest_model_ratio
            place = int(self._rng.integers(len(self._window[side])))
            if is_newest and side not in newest:
                newest[side] = self._copy(side).number
            drawn.append(newest[side] if is_newest else self._window[side][place])
        self._seats.drawn = tuple(drawn)

    def end_games(self, envs: Array, is_whole: Array, returns: Mapping[str, Array]) -> None:
        """Episodes of `envs` [E] have ended with the agents' `returns` [E, N] by group; those that a failure cut decide
        nothing."""
        for b, counts, result in zip(envs.tolist(), is_whole.tolist(), self.teams.results(returns), strict=True):
            if counts:
                self._rate(self._seats.players[b], result)
        self._seats.take(envs)

    def _rate(self, seats: Array, result: Array) -> None:
        """Count one game: seats and returns of all teams."""
        mine = int(np.flatnonzero(seats == LEARNER)[0])
        side, scores = self.teams.side_of(mine), []
        rivals = [team for team in range(len(seats)) if team != mine]
        for team in rivals:
            score, opponent = _score(float(result[mine]), float(result[team])), int(seats[team])
            scores.append(score)
            if opponent in self._ratings:  # neither the newest policies nor a snapshot that has left the window
                self._ratings.count(_learner_of(side), opponent, score, 1.0 / len(rivals))
                row = self._ladder[opponent]
                self._ladder[opponent] = row.after_game(1.0 - score, *self._rating(opponent))
        self._num_games[side] += 1
        self._played.append((sum(scores) / len(scores), float(result[mine])))

    def take_learner_rows(self, rollouts: Mapping[str, Rollout]) -> dict[str, Rollout]:
        """What the learner itself did in a new rollout, to be learned from; opponents' rows in `rollouts` itself, which is what
        records keep, get the versions that acted."""
        found = {}
        for name, rollout in rollouts.items():
            seats, self._version = self._noted(name, rollout.num_steps), int(rollout.policy_version[0, 0])
            found[name] = learner_rows(rollout, seats, self._lanes(name))
            for number in np.unique(seats[seats != LEARNER]).tolist():
                rollout.policy_version[seats == number] = self._snapshots[number].version
            self._rows[name].clear()
        return found

    def _noted(self, group: str, num_steps: int) -> Array:
        """[T, L] who played in the last rows; a row on which the environment failed may have been decided on by nobody."""
        noted = self._rows[group][-num_steps:] or [self._lanes(group)]
        return np.stack([*noted, *noted[-1:] * (num_steps - len(noted))])

    def take_metrics(self) -> dict[str, float]:
        """Ratings as they are now, and results of the games that ended since the last call."""
        self._begin()
        elo, error = self._rating(_learner_of(self._learning))
        metrics = {"self_play/elo": elo, "self_play/elo_error": error, "self_play/games": float(self._num_games.sum())}
        if len(self.teams.sides) > 1:
            for i, side in enumerate(self.teams.sides):
                elo, error = self._rating(_learner_of(i))
                metrics |= {f"{side.name}/self_play/elo": elo, f"{side.name}/self_play/elo_error": error}
        if self._played:
            scores, returns = zip(*self._played, strict=True)
            metrics["self_play/score_mean"] = sum(scores) / len(scores)
            metrics["self_play/return_mean"] = sum(returns) / len(returns)
            self._played.clear()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides later games and ratings; between two rollouts."""
        self._begin()
        learners = {
            side.name: [*self._rating(_learner_of(i)), int(self._num_games[i])]
            for i, side in enumerate(self.teams.sides)
        }
        return {
            "snapshots": self._snapshots.state_dict(),
            "ratings": self._ratings.state_dict(),
            "ladder": {number: row.to_list() for number, row in self._ladder.items()},
            "learners": learners,
            "window": [list(own) for own in self._window],
            "drawn": list(self._seats.drawn),
            "learning": self._learning,
            "seats": self._seats.players.copy(),
            "turns": self._seats.turns.copy(),
            "num_games": self._num_games.copy(),
            "num_env_steps": self._num_env_steps,
            "version": self._version,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._has_begun = True
        self._snapshots.load_state_dict(state["snapshots"])
        self._ratings.load_state_dict(state["ratings"])
        self._ladder = {int(number): LadderRow(*row) for number, row in state["ladder"].items()}
        self._window = [list(own) for own in state["window"]]
        self._learning = state["learning"]
        players, turns, self._num_games = (np.array(state[name], np.int64) for name in ("seats", "turns", "num_games"))
        self._seats = Seats(players, turns, tuple(state["drawn"]), self.teams.sides[self._learning].teams)
        self._num_env_steps, self._version = state["num_env_steps"], state["version"]
        self._rng.bit_generator.state = state["rng"]


def _learner_of(side: int) -> int:
    """The number by which the learner of a side is rated."""
    return LEARNER - side


def _score(own: float, other: float) -> float:
    if abs(own - other) <= DRAW_TOLERANCE * (abs(own) + abs(other)):
        return 0.5
    return 1.0 if own > other else 0.0
