"""By whose returns policies are scored, and against whom: what makes an evaluation of a competitive game mean something.

Where agents compete, the mean over all of them says nothing: in a zero-sum game it is always 0. `ScoredAgents` are the group or
agent whose returns count. A `Match` is episodes in which they play against opponents that do not learn: random ones, or
earlier policies. Playing the episodes is `evaluation`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.warmup_actor import WarmupActor

RANDOM, PREVIOUS = "random", "previous"
MAX_AGENTS_SHOWN = 16
"""Agents whose returns are shown, and written as statistics, each by itself."""
ZERO_SUM_TOLERANCE = 1e-6
"""Of the sum over agents, relative to the sum of magnitudes: rewards are often float32."""

Groups = Mapping[str, AgentGroup]


@dataclass(frozen=True, slots=True)
class ScoredAgents:
    """Whose returns count: those of one agent, of one group, of the agents of a team, or of all agents alike."""

    group: str | None = None
    agent: str | None = None
    team: tuple[str, ...] = ()
    teams: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    """The agents of each team, where several play together: then teams play against opponents, not groups or agents."""

    def __post_init__(self) -> None:
        if self.group is not None and self.agent is not None:
            raise ConfigError("evaluation.group and evaluation.agent: give one of them, or none")

    @property
    def name(self) -> str:
        """In words."""
        if self.agent is not None:
            return f"agent {self.agent}"
        if self.team:
            return f"team of {', '.join(self.team)}"
        return "mean over agents" if self.group is None else f"group {self.group}"

    def require_known(self, groups: Groups) -> None:
        """Raise where the environment has no such group or agent."""
        if self.group is not None and self.group not in groups:
            raise UnknownNameError("group of evaluation.group", self.group, groups)
        agents = [agent for group in groups.values() for agent in group.agent_ids]
        if self.agent is not None and self.agent not in agents:
            raise UnknownNameError("agent of evaluation.agent", self.agent, agents)

    def require_rivals(self, groups: Groups) -> None:
        """Raise where opponents that were named would have nobody to act for."""
        if sum(group.num_agents for group in groups.values()) < 2:
            raise ConfigError("evaluation.opponents: nobody plays against each other where one agent is; leave it out")
        if self.group is not None and self.counts_all(groups):
            raise ConfigError(
                f"evaluation.opponents: all agents are in group {self.group!r}, and nobody is left to play against it; "
                "leave evaluation.group out, so that every agent plays in turn, or name one with evaluation.agent"
            )

    def counts(self, group: AgentGroup) -> Array:
        """[N] which agents of a group are scored."""
        if self.agent is not None:
            return np.array([agent == self.agent for agent in group.agent_ids])
        if self.team:
            return np.array([agent in self.team for agent in group.agent_ids])
        return np.full(group.num_agents, self.group is None or self.group == group.name)

    def counts_agent(self, agent: str, groups: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether an agent is scored, where `groups` have these agents."""
        if self.agent is not None:
            return agent == self.agent
        if self.team:
            return agent in self.team
        return self.group is None or agent in groups[self.group]

    def counts_all(self, groups: Groups) -> bool:
        """Whether nobody is left to play against."""
        return all(bool(self.counts(group).all()) for group in groups.values())

    def score(self, groups: Groups, returns: Mapping[str, Array]) -> Array:
        """[E] the mean return of those who are scored, from the returns `[E, N]` of each group."""
        who = {name: self.counts(group) for name, group in groups.items()}
        total = np.sum([returns[name][:, own].sum(1) for name, own in who.items()], axis=0)
        return np.asarray(total / sum(int(own.sum()) for own in who.values()))

    def sides(self, groups: Groups) -> list[ScoredAgents]:
        """Who plays against opponents: the one that is named, else every team in turn, every group, or every agent of the only
        group.

        The only group leaves nobody to play against; naming it is like naming nobody.
        """
        if not self.counts_all(groups):
            return [self]
        if self.teams:
            return [ScoredAgents(team=team) for team in self.teams]
        if len(groups) > 1:
            return [ScoredAgents(group=name) for name in groups]
        return [ScoredAgents(agent=agent) for group in groups.values() for agent in group.agent_ids]


EVERYBODY = ScoredAgents()


def are_zero_sum(returns: Sequence[Array]) -> bool | None:
    """Whether the agents' returns cancel in every episode, from returns `[E, N]` of each group; None: nothing was won yet."""
    every = np.concatenate(returns, axis=1)
    if not every.size or every.shape[1] < 2:
        return None
    size = np.abs(every).sum(1)
    if not size.any():
        return None
    return bool((np.abs(every.sum(1)) <= ZERO_SUM_TOLERANCE * size).all())


@dataclass(frozen=True, slots=True)
class Match:
    """Episodes against an opponent. `returns` are those of the scored side, `best_others` the best return of any other agent.

    An episode is won where the scored side has the higher return, drawn where both are equal.
    """

    opponent: str
    returns: tuple[float, ...]
    best_others: tuple[float, ...]

    @property
    def mean_return(self) -> float:
        return _mean(self.returns)

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns)) if self.returns else math.nan

    @property
    def win_rate(self) -> float:
        """Share of episodes that were won."""
        return _mean([own > other for own, other in zip(self.returns, self.best_others, strict=True)])

    @property
    def draw_rate(self) -> float:
        """Share of episodes that nobody won."""
        return _mean([own == other for own, other in zip(self.returns, self.best_others, strict=True)])

    @property
    def loss_rate(self) -> float:
        """Share of episodes that were lost."""
        return _mean([own < other for own, other in zip(self.returns, self.best_others, strict=True)])

    def to_json(self) -> dict[str, float | int | None]:
        """Its numbers; null where there was no episode."""
        values = {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "win_rate": self.win_rate,
            "draw_rate": self.draw_rate,
            "loss_rate": self.loss_rate,
        }
        return {"episodes": len(self.returns), **{k: None if math.isnan(v) else v for k, v in values.items()}}


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if len(numbers) else math.nan


def describe_returns(
    group_returns: Mapping[str, float], agent_returns: Mapping[str, float], matches: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Lines for a person: returns by group and by agent where there are several, and matches as `Match.to_json` has them."""
    lines = []
    if len(group_returns) > 1:
        lines.append("return by group: " + _named(group_returns))
    if 1 < len(agent_returns) <= MAX_AGENTS_SHOWN:
        lines.append("return by agent: " + _named(agent_returns))
    elif len(agent_returns) > 1:
        lowest, highest = (pick(agent_returns, key=agent_returns.__getitem__) for pick in (min, max))
        ends = f"lowest {lowest} {agent_returns[lowest]:.2f}, highest {highest} {agent_returns[highest]:.2f}"
        lines.append(f"return by agent: {len(agent_returns)} agents, {ends}; --json lists all")
    for name, numbers in matches.items():
        if numbers["episodes"]:
            lines.append(
                "against {}: won {win_rate:.0%}, drawn {draw_rate:.0%}, lost {loss_rate:.0%} of {episodes} episodes, "
                "return {mean_return:.2f} ± {std_return:.2f}".format(name, **numbers)
            )
        else:
            lines.append(f"against {name}: no episode was played before the time was up")
    return lines


def _named(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.2f}" for name, number in numbers.items())


def random_actors(actors: Mapping[str, Actor]) -> dict[str, Actor]:
    """Opponents that draw uniformly among what is allowed, for the groups of `actors`."""
    indifferent = Exploration(is_warming_up=True)
    return {name: WarmupActor(actor, lambda: indifferent) for name, actor in actors.items()}
