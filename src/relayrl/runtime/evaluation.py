"""Playing whole episodes with a policy, without learning from them. However the policy plays, it ends.

evaluate(env, actors, episodes=20, seed=0)                  # every agent by its own policy
evaluate(…, scored=ScoredAgents(group="adversary"))         # returns are those of one group
evaluate(…, opponents={"random": random_actors(actors)})    # and matches, which then are what policies are scored by
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.data.trees import Array, map_tree
from relayrl.envs.environment_contract import GroupObservation, VectorEnvironment, VectorStep
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings, EvaluationBounds
from relayrl.envs.parameters.parameter_settings import last_lessons
from relayrl.envs.rendering import RenderMode
from relayrl.envs.vector.on_host import on_host
from relayrl.errors import ConfigError, PartialResetError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.lane_memory import LaneMemory
from relayrl.runtime.collector import agent_rows, allowed_actions, ended_lanes, held
from relayrl.runtime.episode_rating import EpisodeRating
from relayrl.runtime.pictures.film import Watcher, require_drawn
from relayrl.runtime.scored_agents import (
    EVERYBODY,
    RANDOM,
    Match,
    ScoredAgents,
    are_zero_sum,
    describe_returns,
    random_actors,
)

EVALUATION_ENVS = 20
"""Environments that an evaluation plays in at once, at most."""


DEFAULT_BOUNDS = EvaluationBounds()


class Bound(Enum):
    """What kept an evaluation from playing every episode to its end; the values are names of settings."""

    EPISODE_STEPS = "max_episode_steps"
    TIMEOUT = "timeout_s"


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Returns of the episodes, in the order of environments; for several agents, each is that of those who are scored.

    Where there were matches, policies are scored by the first one: its episodes are these. `agent_episodes` are always those
    that the policies played among themselves.

    Episodes that a bound cut (`is_cut`) count with what they had collected: leaving them out would rate a policy by the
    episodes in which it does not walk in circles. There may be fewer episodes than `num_asked`.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    is_cut: tuple[bool, ...]
    num_asked: int
    stopped_by: Bound | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The agents of each group."""
    agent_episodes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Each agent's return in each episode."""
    scored: ScoredAgents = EVERYBODY
    is_rated: bool = False
    """Whether returns are what the environment's own `performance_return` makes of the episodes."""
    matches: Mapping[str, Match] = field(default_factory=dict)
    """Episodes against opponents, by the opponents' name; the first decides."""
    picture: Path | None = None
    """The film of the first episode, where one was asked for."""

    @property
    def mean_return(self) -> float:
        """NaN where there is no episode: every environment failed until the time was up."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns)) if self.returns else math.nan

    @property
    def agent_returns(self) -> dict[str, float]:
        """The mean return of each agent."""
        return {agent: float(np.mean(own)) if own else math.nan for agent, own in self.agent_episodes.items()}

    @property
    def group_returns(self) -> dict[str, float]:
        """The mean return of each group's agents."""
        means = self.agent_returns
        return {name: float(np.mean([means[agent] for agent in agents])) for name, agents in self.groups.items()}

    @property
    def is_zero_sum(self) -> bool | None:
        """Whether the agents' returns cancel in every episode; None where nothing was won or lost."""
        return are_zero_sum([np.array(list(self.agent_episodes.values())).T])

    @property
    def scored_by(self) -> str:
        """Whose return `mean_return` is, in words; empty for a single agent."""
        for opponent in self.matches:
            counts_all = all(self.scored.counts_agent(agent, self.groups) for agent in self.agent_episodes)
            who = "every side in turn" if counts_all else self.scored.name
            return f"{who}, against {opponent}"
        if self.is_rated:
            return "performance_return of the environment"
        return self.scored.name if len(self.agent_episodes) > 1 else ""

    @property
    def judged_by(self) -> str:
        """The former name of `scored_by`, for one release."""
        warnings.warn(
            "judged_by is scored_by now; the old name goes with the next release", DeprecationWarning, stacklevel=2
        )
        return self.scored_by

    def describe(self) -> list[str]:
        """Lines for a person: returns by group and agent, and matches, where there are several agents."""
        matches = {name: match.to_json() for name, match in self.matches.items()}
        return describe_returns(self.group_returns, self.agent_returns, matches)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths)) if self.lengths else math.nan

    @property
    def num_cut(self) -> int:
        return sum(self.is_cut)

    @property
    def num_ended(self) -> int:
        return len(self.returns) - self.num_cut


def describe_bound(num_asked: int, num_ended: int, num_cut: int, bound: str) -> str:
    """What a bound did to an evaluation, in words."""
    shown = f"{num_ended} of {num_asked} episodes ended, {num_cut} were cut (evaluation.{bound}) and count as they were"
    return shown if num_ended else f"{shown}: the mean return is of cut episodes only"


def make_evaluation_env(
    env: str | Callable[..., Any],
    settings: EnvSettings,
    episodes: int,
    *,
    num_envs: int | None = None,
    render: RenderMode | None = None,
) -> VectorEnvironment:
    """Environments to play `episodes` in, of the kind that a run with these settings trains in, and no more than it has unless
    `num_envs` is given; to be drawn in the mode `render`, or `ConfigError`. Curricula are in their last lessons."""
    most = min(settings.num_envs, EVALUATION_ENVS) if num_envs is None else num_envs
    envs = settings.model_copy(update={"num_envs": min(episodes, most)})
    made = on_host(make_vector(env, envs, own_number=True, render=render))
    made.begin_lessons(last_lessons(settings.parameters))
    if render is not None:
        try:
            require_drawn(made, env if isinstance(env, str) else "the environment", render)
        except ConfigError:
            made.close()
            raise
    return made


def evaluate(
    env: VectorEnvironment,
    actors: Mapping[str, Actor],
    *,
    episodes: int,
    seed: int,
    rng: np.random.Generator | None = None,
    on_step: Callable[[], None] | None = None,
    film: Watcher | None = None,
    bounds: EvaluationBounds = DEFAULT_BOUNDS,
    scored: ScoredAgents = EVERYBODY,
    opponents: Mapping[str, Mapping[str, Actor]] | None = None,
    is_zero_sum: bool | None = None,
) -> EvaluationResult:
    """Play `episodes` episodes, greedily or, with `rng`, with drawn actions, within `bounds`.

    Then as many against each of the `opponents`, by name, whose groups are acted for by actors that draw. None: against random
    ones where the agents' returns cancel, which `is_zero_sum` says, or what was played.

    `film` sees the episodes that the policies play among themselves. `on_step` is called after every step, and may raise.
    """
    deadline_s = time.monotonic() + bounds.timeout_s
    scored.require_known(env.groups)
    if opponents:
        scored.require_rivals(env.groups)

    def play(count: int, side: ScoredAgents, rivals: _Rivals | None, film: Watcher | None = None) -> EvaluationResult:
        limit = bounds.max_episode_steps
        with held(actors.values()):
            return _play(env, actors, count, seed, rng, on_step, film, limit, deadline_s, side, rivals)

    result = play(episodes, scored, None, film)
    if opponents is None:
        cancels = result.is_zero_sum if is_zero_sum is None else is_zero_sum
        opponents = {RANDOM: random_actors(actors)} if cancels and not result.is_rated else {}
    matches: dict[str, Match] = {}
    for name, theirs in opponents.items():
        sides = scored.sides(env.groups)
        parts = []
        for i, side in enumerate(sides[:episodes]):
            share = episodes // len(sides) + (i < episodes % len(sides))
            rivals = _Rivals(env, theirs, side, np.random.default_rng(seed + i))
            parts.append((side, play(share, side, rivals)))
        if not matches:
            result = _decided_by([part for _, part in parts], result)
        matches[name] = _match(name, parts)
    return replace(result, scored=scored, matches=matches)


def _decided_by(parts: list[EvaluationResult], among_themselves: EvaluationResult) -> EvaluationResult:
    """The episodes of `parts`, with the agents' returns of those that the policies played among themselves."""
    return replace(
        among_themselves,
        returns=tuple(number for part in parts for number in part.returns),
        lengths=tuple(number for part in parts for number in part.lengths),
        is_cut=tuple(is_cut for part in parts for is_cut in part.is_cut),
        stopped_by=next((part.stopped_by for part in parts if part.stopped_by is not None), None),
    )


def _match(opponent: str, parts: list[tuple[ScoredAgents, EvaluationResult]]) -> Match:
    returns: list[float] = []
    others: list[float] = []
    for side, part in parts:
        returns += part.returns
        rivals = [
            part.agent_episodes[agent] for agent in part.agent_episodes if not side.counts_agent(agent, part.groups)
        ]
        others += np.max(rivals, axis=0).tolist()
    return Match(opponent, tuple(returns), tuple(others))


class _Rivals:
    """Opponents that act for everybody who is not scored; they draw their actions, so that episodes differ."""

    def __init__(
        self, env: VectorEnvironment, actors: Mapping[str, Actor], side: ScoredAgents, rng: np.random.Generator
    ) -> None:
        self._actors, self._rng = actors, rng
        self.memories = {
            name: LaneMemory(actors[name], env.num_envs * group.num_agents) for name, group in env.groups.items()
        }
        self._is_scored = {name: side.counts(group) for name, group in env.groups.items()}

    def replace(self, name: str, actions: Any, view: GroupObservation, mask: Array | None) -> Any:
        """`actions` [B, N, …] of a group, with the rivals' own for those who are not scored."""
        scored = self._is_scored[name]
        if scored.all():
            return actions
        theirs = choose_actions(self._actors[name], self.memories[name], view, mask, self._rng)
        return map_tree(
            lambda own, other: np.where(scored.reshape(1, -1, *(1,) * (own.ndim - 2)), own, other.astype(own.dtype)),
            actions,
            theirs,
        )


def _play(
    env: VectorEnvironment,
    actors: Mapping[str, Actor],
    episodes: int,
    seed: int,
    rng: np.random.Generator | None,
    on_step: Callable[[], None] | None,
    film: Watcher | None,
    max_episode_steps: int,
    deadline_s: float,
    scored: ScoredAgents,
    rivals: _Rivals | None,
) -> EvaluationResult:
    """Every environment plays the same number of episodes (one more for the first ones), and its first ones: taking whichever
    episodes end first would favour short ones."""
    played = _Played(env, episodes, scored)
    memories = {name: LaneMemory(actors[name], env.num_envs * group.num_agents) for name, group in env.groups.items()}
    both = [*memories.items(), *(() if rivals is None else rivals.memories.items())]
    remembering = [(name, memory) for name, memory in both if memory.values.shape[1]]
    env.give_states(False)  # critics look at it, and none is asked here
    views: Mapping[str, GroupObservation] = env.reset(seed=seed).groups
    if film is not None:
        film.begin(env)
    while played.quota.any():
        acts = reduce(np.logical_or, [np.asarray(view.active.any(1)) for view in views.values()])
        masks = {name: allowed_actions(env, name, view, played.num_steps) for name, view in views.items()}
        actions = {
            name: choose_actions(actors[name], memories[name], view, masks[name], rng) for name, view in views.items()
        }
        if rivals is not None:
            actions = {name: rivals.replace(name, actions[name], view, masks[name]) for name, view in views.items()}
        step = env.step(actions)
        views = step.groups
        for name, memory in remembering:
            memory.forget(ended_lanes(step, name))
        played.add(step, acts)
        if on_step is not None:
            on_step()
        long = played.long(max_episode_steps)
        if film is not None:
            film.see(env, step.episode_over | long)
        if long.any() and (again := played.cut_long(long)).any():
            try:
                views = env.reset(env_ids=[env.env_ids[b] for b in np.flatnonzero(again)]).groups
            except PartialResetError:
                played.quota[again] = 0
            for name, memory in remembering:
                memory.forget(np.repeat(again, env.groups[name].num_agents))
        if time.monotonic() >= deadline_s and played.quota.any():
            played.cut(played.quota > 0, Bound.TIMEOUT)
            played.quota[:] = 0
    return played.result()


class _Played:
    """The episodes of an evaluation, by environment: what is running, what was kept, and how many more each plays."""

    def __init__(self, env: VectorEnvironment, episodes: int, scored: ScoredAgents) -> None:
        self.quota = np.full(env.num_envs, episodes // env.num_envs)
        self.quota[: episodes % env.num_envs] += 1
        self._num_asked, self._scored, self._groups = episodes, scored, env.groups
        self._kept: list[list[tuple[dict[str, Array], int, bool]]] = [[] for _ in range(env.num_envs)]
        self._running = {name: np.zeros((env.num_envs, group.num_agents)) for name, group in env.groups.items()}
        self._length = np.zeros(env.num_envs, np.int64)
        self._rating = EpisodeRating.of(env) if scored == EVERYBODY else None
        self._rated: list[list[float]] = [[] for _ in range(env.num_envs)]
        self._stopped_by: Bound | None = None

    def num_steps(self) -> Array:
        """[B] steps of the running episodes."""
        return self._length.copy()

    def add(self, step: VectorStep, acts: Array) -> None:
        """Count a step of all environments; `acts` [B] where it was more than a reset."""
        for name, sums in self._running.items():
            sums += step.counted(name)
        if self._rating is not None:
            self._rating.add(step)
        self._length += acts
        if np.count_nonzero(step.episode_over):
            for b in np.flatnonzero(step.episode_over).tolist():
                self._end(b, keep=step.failed is None or not step.failed[b], is_cut=False)

    def long(self, max_episode_steps: int) -> Array:
        """The environments [B] whose episodes have so many steps."""
        return np.asarray((self._length >= max_episode_steps) & (self.quota > 0))

    def cut_long(self, long: Array) -> Array:
        """Cut the episodes of these environments [B]; those that begin another one."""
        self.cut(long, Bound.EPISODE_STEPS)
        return long & (self.quota > 0)

    def cut(self, envs: Array, bound: Bound) -> None:
        """Keep the running episodes of `envs` [B] as they are; one that has not begun is none."""
        self._stopped_by = bound
        for b in np.flatnonzero(envs & (self._length > 0)).tolist():
            self._end(b, keep=True, is_cut=True)

    def _end(self, b: int, *, keep: bool, is_cut: bool) -> None:
        if keep and self.quota[b]:
            self.quota[b] -= 1
            returns = {name: sums[b].copy() for name, sums in self._running.items()}
            self._kept[b].append((returns, int(self._length[b]), is_cut))
            if self._rating is not None:
                self._rated[b].append(self._rating.take(b))
        elif self._rating is not None:
            self._rating.drop(b)
        self._length[b] = 0
        for sums in self._running.values():
            sums[b] = 0.0

    def _counted(self, returns: Mapping[str, Array]) -> list[float]:
        """The return of each episode: of those who are scored, or what the environment itself makes of it."""
        if self._rating is not None:
            return [number for env in self._rated for number in env]
        counted: list[float] = self._scored.score(self._groups, returns).tolist()
        return counted

    def result(self) -> EvaluationResult:
        """All episodes that were kept."""
        kept = [episode for env in self._kept for episode in env]
        returns = {
            name: np.array([episode[0][name] for episode in kept]).reshape(len(kept), group.num_agents)
            for name, group in self._groups.items()
        }
        return EvaluationResult(
            returns=tuple(self._counted(returns)),
            lengths=tuple(episode[1] for episode in kept),
            is_cut=tuple(episode[2] for episode in kept),
            num_asked=self._num_asked,
            stopped_by=self._stopped_by,
            groups={name: group.agent_ids for name, group in self._groups.items()},
            agent_episodes={
                agent: tuple(returns[name][:, n].tolist())
                for name, group in self._groups.items()
                for n, agent in enumerate(group.agent_ids)
            },
            scored=self._scored,
            is_rated=self._rating is not None,
        )


def choose_actions(
    actor: Actor, memory: LaneMemory, view: GroupObservation, mask: Array | None, rng: np.random.Generator | None
) -> Any:
    """Actions `[B, N, …]` for what a group sees and, by `mask` [B, N, A], may do, as the environment takes them."""
    envs, agents = view.active.shape
    obs = map_tree(lambda leaf: leaf.reshape(envs * agents, *leaf.shape[2:]), view.obs)
    allowed = None if mask is None else mask.reshape(envs * agents, -1)
    active = view.active.reshape(-1)
    action = memory.decide(obs, allowed, rng, active).action
    if rng is not None:  # the most likely action is within the bounds already
        action = actor.head.to_environment(action)
    return agent_rows(action, (envs, agents))


def check_fits(env: VectorEnvironment, actors: Mapping[str, Actor]) -> None:
    """Every group of the environment needs an actor."""
    if set(env.groups) != set(actors):
        raise ConfigError(f"the model has policies {sorted(actors)}, the environment groups {sorted(env.groups)}")
