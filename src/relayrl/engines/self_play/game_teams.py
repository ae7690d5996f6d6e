"""Which agents play together, and which teams are played by the same policies.

A *team* are the agents whose common result decides a game. A *side* are the teams whose agents act by the same policies: one
side in a symmetric game, where the learner plays every team in turn; several in an asymmetric one, where they learn in turn.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relayrl.data.trees import Array
from relayrl.engines.settings.self_play_settings import SelfPlaySettings
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import ConfigError

Groups = Mapping[str, AgentGroup]
_TEAM = re.compile(r"\?team=(\d+)")


@dataclass(frozen=True, slots=True)
class Side:
    """Teams that the same groups' policies play."""

    name: str
    groups: tuple[str, ...]
    teams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GameTeams:
    """The teams by number, and the sides."""

    names: tuple[str, ...]
    of_agents: Mapping[str, Array]  # by group, [N] the team of each agent
    sides: tuple[Side, ...]

    def side_of(self, team: int) -> int:
        """The side that a team is of."""
        return next(i for i, side in enumerate(self.sides) if team in side.teams)

    def results(self, returns: Mapping[str, Array]) -> Array:
        """[E, teams] the mean return of each team's agents, from the agents' own [E, N] by group."""
        columns = np.concatenate([returns[group] for group in self.of_agents], axis=1)
        team = np.concatenate(list(self.of_agents.values()))
        return np.stack([columns[:, team == t].mean(1) for t in range(len(self.names))], axis=1)


def agents_of_teams(self_play: SelfPlaySettings | None, groups: Groups) -> tuple[tuple[str, ...], ...]:
    """The agents of each team of a run with self-play; without it, of the teams that all agents name (`?team=1`), if there are
    several; else nothing."""
    if self_play is None:
        declared = [_TEAM.search(agent) for group in groups.values() for agent in group.agent_ids]
        if len({None if each is None else each.group(1) for each in declared}) < 2 or None in declared:
            return ()
    teams = form_teams(groups, None if self_play is None else self_play.teams)
    members: list[list[str]] = [[] for _ in teams.names]
    for name, group in groups.items():
        for agent, team in zip(group.agent_ids, teams.of_agents[name].tolist(), strict=True):
            members[team].append(agent)
    return tuple(tuple(agents) for agents in members)


def form_teams(groups: Groups, given: Mapping[str, str] | None) -> GameTeams:
    """The teams that the settings say, or that follow from the agents' names."""
    named = {
        name: [_team_of(agent, group, given, len(groups)) for agent in group.agent_ids]
        for name, group in groups.items()
    }
    names = tuple(dict.fromkeys(team for own in named.values() for team in own))
    if len(names) < 2:
        agents = [agent for group in groups.values() for agent in group.agent_ids]
        raise ConfigError(
            f"self_play needs two teams, and agents {agents} are one; give self_play.teams, or leave self_play out"
        )
    of_agents = {name: np.array([names.index(team) for team in own]) for name, own in named.items()}
    return GameTeams(names, of_agents, _sides(names, of_agents))


def _team_of(agent: str, group: AgentGroup, given: Mapping[str, str] | None, num_groups: int) -> str:
    if given is not None:
        for key in (agent, group.name):
            if key in given:
                return given[key]
        found = next((team for pattern, team in given.items() if fnmatch.fnmatchcase(agent, pattern)), None)
        if found is None:
            raise ConfigError(f"self_play.teams names no team for agent {agent!r}; it has {sorted(given)}")
        return found
    declared = _TEAM.search(agent)
    if declared is not None:
        return f"team {declared.group(1)}"
    return agent if num_groups == 1 else group.name


def _sides(names: tuple[str, ...], of_agents: Mapping[str, Array]) -> tuple[Side, ...]:
    played_by = [tuple(group for group, team in of_agents.items() if (team == t).any()) for t in range(len(names))]
    sides = []
    for groups in dict.fromkeys(played_by):
        teams = tuple(t for t in range(len(names)) if played_by[t] == groups)
        sides.append(Side("+".join(groups), groups, teams))
    return tuple(sides)
