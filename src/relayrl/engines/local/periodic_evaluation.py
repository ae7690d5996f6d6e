"""Evaluating policies of a run: now and then while it learns, and at its end; in environments and with seeds of their own.

Nothing that learning draws from is touched, so a run with evaluations has the parameters of one without. The evaluations of
one run all play the same episodes; the final one plays others, since the best policy was chosen by the former.

Competing agents are scored against opponents that do not learn (`runtime.scored_agents`): where the settings say so, or
where the returns of all agents have cancelled in every episode so far. Best checkpoint and target follow that score.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.accelerator.live_actor import live_actor
from relayrl.engines.lessons.curriculum import Curriculum
from relayrl.engines.self_play.game_teams import agents_of_teams
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.models.acting.actor import Actor
from relayrl.models.policy import Policy
from relayrl.runtime.collector import EndedEpisodes
from relayrl.runtime.evaluation import EvaluationResult, describe_bound, evaluate, make_evaluation_env
from relayrl.runtime.pictures.film import Film, require_drawn
from relayrl.runtime.scored_agents import EVERYBODY, MAX_AGENTS_SHOWN, ScoredAgents, are_zero_sum, random_actors
from relayrl.training.files.atomic_files import write_whole
from relayrl.training.trainer_settings import Opponent
from relayrl.training.trainers.seeding import Stream, stream_seed

logger = logging.getLogger(__name__)

FINAL, DURING = 0, 1
"""Which evaluation: each has seeds of its own."""


@dataclass(frozen=True, slots=True)
class ScoredEpisodes:
    """Training episodes that ended: the returns that count, and each agent's own where they are few."""

    returns: list[float]
    agent_returns: Mapping[str, list[float]] = field(default_factory=dict)


class PeriodicEvaluation:
    """Evaluates a run's policies and remembers how well they did; `check` may stop the final evaluation."""

    def __init__(
        self,
        settings: RunSettings,
        env: VectorEnvironment,
        policies: Mapping[str, Policy],
        check: Callable[[], None],
        lend: Callable[[], AbstractContextManager[VectorEnvironment]],
        videos: Path,
        curriculum: Curriculum,
    ) -> None:
        """`env` is the one that is trained in, of which this only asks what it is like; `lend` gives it away for a while, where
        there can be no other. Episodes are those of the lessons that `curriculum`
        is in. Films are written into the folder `videos`."""
        groups, self._curriculum = env.groups, curriculum
        self._settings, self._groups, self._policies, self._check = settings, groups, policies, check
        self._scored = ScoredAgents(
            settings.evaluation.group, settings.evaluation.agent, teams=agents_of_teams(settings.self_play, groups)
        )
        self._scored.require_known(groups)
        self._opponents = settings.evaluation.opponents
        if env.rates_episodes and self._scored == EVERYBODY and self._opponents is None:
            self._opponents = ()  # the environment itself says what counts
        num_agents = sum(group.num_agents for group in groups.values())
        if self._opponents:
            self._scored.require_rivals(groups)
        self._competes = num_agents > 1
        self._shows_agents = 1 < num_agents <= MAX_AGENTS_SHOWN
        self._env: VectorEnvironment | None = None
        self._previous: dict[str, Policy] | None = None
        self.is_zero_sum: bool | None = None
        """Whether the agents' returns cancelled in every episode so far; None before anything was won or lost."""
        self.best_return, self.last_return = -math.inf, -math.inf
        self._lend, self._videos = lend, videos
        self._require_drawn(env)

    def _require_drawn(self, env: VectorEnvironment) -> None:
        """Draw one picture before the run begins, if there are to be any: what is missing is missed now."""
        video = self._settings.evaluation.video
        if video is None:
            return
        film = Film(video)
        if self._settings.environment.exclusive:
            require_drawn(env, self._settings.env, film.mode)
            film.begin(env)
            return
        self._env = self._make_env(self._settings.evaluation.interval_episodes)
        try:
            self._env.reset(seed=stream_seed(self._settings.seed, Stream.EVALUATION, DURING))
            film.begin(self._env)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """The run is about to begin, or to go on: the policies as they are now are the first to be beaten."""
        if self._previous is None and Opponent.PREVIOUS in (self._opponents or ()):
            self._previous = copy.deepcopy(dict(self._policies))

    @property
    def last_or_nan(self) -> float:
        """What the latest evaluation gave; NaN before the first one."""
        return self.last_return if math.isfinite(self.last_return) else math.nan

    def score_training(self, ended: EndedEpisodes) -> ScoredEpisodes:
        """Training episodes as they count; they also show whether the agents' returns cancel."""
        is_asked = self._opponents is None and self.is_zero_sum is not False
        if not ended.returns or not (self._shows_agents or self._scored != EVERYBODY or (is_asked and self._competes)):
            return ScoredEpisodes(ended.returns)
        by_group = {name: np.concatenate(own) for name, own in ended.agent_returns.items()}
        self._see(are_zero_sum(list(by_group.values())))
        own = {agent: by_group[g.name][:, n] for g in self._groups.values() for n, agent in enumerate(g.agent_ids)}
        returns = ended.returns if self._scored == EVERYBODY else self._scored.score(self._groups, by_group).tolist()
        return ScoredEpisodes(returns, {a: r.tolist() for a, r in own.items()} if self._shows_agents else {})

    def _see(self, cancels: bool | None) -> None:
        if cancels is None or self.is_zero_sum is False:
            return
        if cancels and self.is_zero_sum is None and self._opponents is None:
            who = "every side in turn" if self._scored.counts_all(self._groups) else self._scored.name
            logger.warning(
                "%s: the agents' returns cancel (zero-sum), so evaluations score %s against random opponents; "
                "set evaluation.opponents, evaluation.group or evaluation.agent to choose otherwise",
                self._settings.env,
                who,
            )
            self.best_return = -math.inf  # of evaluations in which nobody won
        if not cancels and self.is_zero_sum and self._opponents is None:
            logger.warning("%s is not zero-sum after all: scored by the %s", self._settings.env, self._scored.name)
            self.best_return = -math.inf
        self.is_zero_sum = cancels

    def is_due(self, steps_before: int, num_env_steps: int) -> bool:
        """Whether a multiple of the interval lies between the two."""
        interval = self._settings.evaluation.interval
        return interval is not None and num_env_steps // interval > steps_before // interval

    @property
    def has_reached_target(self) -> bool:
        """Whether the latest evaluation is good enough to stop."""
        target = self._settings.evaluation.target_return
        return target is not None and self._curriculum.is_final and self.last_return >= target

    def forget_returns(self) -> None:
        """A new lesson has begun: returns so far were those of an easier one."""
        self.best_return = self.last_return = -math.inf

    def during(self, num_env_steps: int) -> tuple[dict[str, float], bool]:
        """Evaluate; gives metrics, and whether the policies are the best so far."""
        episodes = self._settings.evaluation.interval_episodes
        with self._environments(episodes, is_kept=True) as env:
            film = self._film() if self._is_video_due(num_env_steps) else None
            # Never interrupted: a checkpoint at this step must come with this step's evaluation.
            result = self._play(env, episodes, DURING, None, film)
        self._write(film, f"step-{num_env_steps:010d}")
        if self._previous is not None:
            self._previous = copy.deepcopy(dict(self._policies))
        self.last_return = result.mean_return
        is_best = self.last_return > self.best_return
        self.best_return = max(self.best_return, self.last_return)
        metrics = {
            "evaluation/return_mean": result.mean_return,
            "evaluation/return_std": result.std_return,
            "evaluation/length_mean": result.mean_length,
            "evaluation/episodes_cut": result.num_cut,
            "evaluation/best_return": self.best_return,
        }
        return metrics | self._metrics_of_agents(result), is_best

    def _metrics_of_agents(self, result: EvaluationResult) -> dict[str, float]:
        metrics = {}
        for name, match in result.matches.items():
            metrics[f"evaluation/{name}/return_mean"] = match.mean_return
            metrics[f"evaluation/{name}/win_rate"] = match.win_rate
            metrics[f"evaluation/{name}/draw_rate"] = match.draw_rate
        if len(result.groups) > 1:
            metrics |= {f"{name}/evaluation/return_mean": own for name, own in result.group_returns.items()}
        if self._shows_agents:
            metrics |= {f"agents/{agent}/evaluation/return_mean": own for agent, own in result.agent_returns.items()}
        return metrics

    def final(self) -> EvaluationResult | None:
        """The evaluation that ends the run; None where none was asked for."""
        episodes = self._settings.evaluation.episodes
        if not episodes:
            return None
        film = self._film()
        with self._environments(episodes, is_kept=False) as env:
            result = self._play(env, episodes, FINAL, self._check, film)
        self._write(film, "final")
        return result

    @contextlib.contextmanager
    def _environments(self, episodes: int, *, is_kept: bool) -> Iterator[VectorEnvironment]:
        """Environments to play in: some of their own, kept for the next time or not, or those that are trained in."""
        if self._settings.environment.exclusive:
            with self._lend() as env:
                yield env
        elif is_kept:
            if self._env is None:
                self._env = self._make_env(episodes)
            self._env.begin_lessons(self._curriculum.numbers)
            yield self._env
        else:
            self.close()
            env = self._make_env(episodes)
            try:
                env.begin_lessons(self._curriculum.numbers)
                yield env
            finally:
                env.close()

    def _make_env(self, episodes: int) -> VectorEnvironment:
        own, environment = self._settings.evaluation, self._settings.environment_here
        render = None if own.video is None else Film.mode
        return make_evaluation_env(self._settings.env, environment, episodes, num_envs=own.max_envs, render=render)

    def _film(self) -> Film | None:
        own = self._settings.evaluation
        return None if own.video is None else Film(own.video, own.video_envs)

    def _is_video_due(self, num_env_steps: int) -> bool:
        """Whether a multiple of `video_interval` lies since the evaluation before."""
        every, interval = self._settings.evaluation.video_interval, self._settings.evaluation.interval
        return every is None or interval is None or num_env_steps // every > (num_env_steps - interval) // every

    def _write(self, film: Film | None, name: str) -> None:
        if film is not None:
            write_whole(self._videos / f"{name}.{film.format.value}", film.content())

    def _play(
        self,
        env: VectorEnvironment,
        episodes: int,
        which: int,
        on_step: Callable[[], None] | None,
        film: Film | None,
    ) -> EvaluationResult:
        actors = {name: live_actor(policy) for name, policy in self._policies.items()}
        seed = stream_seed(self._settings.seed, Stream.EVALUATION, which)
        result = evaluate(
            env,
            actors,
            episodes=episodes,
            seed=seed,
            on_step=on_step,
            film=film,
            bounds=self._settings.evaluation,
            scored=self._scored,
            opponents=self._rivals(actors),
            is_zero_sum=self.is_zero_sum,
        )
        self._see(result.is_zero_sum)
        if result.stopped_by is not None:
            bound = result.stopped_by.value
            logger.warning("evaluation: %s", describe_bound(result.num_asked, result.num_ended, result.num_cut, bound))
        return result

    def _rivals(self, actors: Mapping[str, Actor]) -> dict[str, Mapping[str, Actor]] | None:
        if self._opponents is None:
            return None
        found: dict[str, Mapping[str, Actor]] = {}
        for opponent in self._opponents:
            if opponent is Opponent.RANDOM:
                found[opponent.value] = random_actors(actors)
            elif self._previous is not None:
                found[opponent.value] = {name: live_actor(policy) for name, policy in self._previous.items()}
        return found

    def _scored_by(self) -> str:
        """What the returns so far were of; other settings make them incomparable."""
        return f"{self._scored.name}, {[one.value for one in self._opponents or ()][:1]}"

    def state_dict(self) -> dict[str, Any]:
        """How well the policies did so far, by which scoring, and those that the next ones are to beat."""
        previous = self._previous
        return {
            "best_return": self.best_return,
            "last_return": self.last_return,
            "scored_by": self._scored_by(),
            "is_zero_sum": self.is_zero_sum,
            "previous": None if previous is None else {name: own.state_dict() for name, own in previous.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.is_zero_sum = state.get("is_zero_sum")
        # Checkpoints of earlier versions call it judged_by.
        if state.get("scored_by", state.get("judged_by", self._scored_by())) == self._scored_by():
            self.best_return, self.last_return = state["best_return"], state["last_return"]
        else:
            logger.info("scored otherwise than before: the best return so far does not count any more")
        previous = state.get("previous")
        if previous is not None and Opponent.PREVIOUS in (self._opponents or ()):
            self._previous = copy.deepcopy(dict(self._policies))
            for name, policy in self._previous.items():
                policy.load_state_dict(previous[name])

    def close(self) -> None:
        """Close the environments."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
