"""Which agents share a policy: an environment whose groups are cut anew.

An environment groups its agents by their spaces, and a group shares a policy. `regrouped` gives every agent a group of its
own, or the groups that a mapping names; everything above sees just another environment.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relayrl.data.trees import Array, allocate, index, leaves, map_tree
from relayrl.envs.environment_contract import (
    AgentGroup,
    FinalObservations,
    GroupObservation,
    GroupStep,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    actions_by_group,
)
from relayrl.envs.vector.vector_proxy import StatefulProxy, VectorProxy
from relayrl.errors import ConfigError, EnvError, UnknownNameError

SHARED, SEPARATE = "shared", "separate"


def regrouped(env: VectorEnvironment, sharing: str | Mapping[str, str]) -> VectorEnvironment:
    """`env` itself for "shared"; one group per agent for "separate"; for a mapping, one per name that agents map to."""
    if sharing == SHARED:
        return env
    parts = _parts(env, sharing)
    return _StatefulRegrouped(env, parts, env) if isinstance(env, StatefulEnvironment) else _Regrouped(env, parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """A new group: some agents of an old one."""

    name: str
    source: AgentGroup
    agents: Array

    def group(self) -> AgentGroup:
        source = self.source
        ids = tuple(source.agent_ids[i] for i in self.agents)
        return AgentGroup(self.name, ids, source.observation_space, source.action_space, source.masks_actions)


def _parts(env: VectorEnvironment, sharing: str | Mapping[str, str]) -> list[_Part]:
    known = [agent for group in env.groups.values() for agent in group.agent_ids]
    if isinstance(sharing, str):
        sharing = {agent: agent for agent in known}
    for agent in sharing:
        if agent not in known:
            raise UnknownNameError("agent", agent, known)
    for agent in known:
        if agent not in sharing:
            raise ConfigError(f"sharing names no policy for agent {agent!r}; map every agent")
    parts: dict[str, _Part] = {}
    for group in env.groups.values():
        for name in dict.fromkeys(sharing[agent] for agent in group.agent_ids):
            if name in parts:
                first = parts[name].source.agent_ids[0]
                raise ConfigError(
                    f"policy {name!r} cannot serve {first!r} and {group.agent_ids[0]!r}: their spaces differ"
                )
            agents = np.array([i for i, agent in enumerate(group.agent_ids) if sharing[agent] == name])
            parts[name] = _Part(name, group, agents)
    return list(parts.values())


class _Regrouped(VectorProxy):
    """New groups in front, the environment's own behind."""

    def __init__(self, env: VectorEnvironment, parts: list[_Part]) -> None:
        super().__init__(env)
        self._parts = parts
        self.groups = {part.name: part.group() for part in parts}

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        result = self._env.reset(seed=seed, env_ids=env_ids)
        return self._seen(result)

    def _seen(self, result: VectorReset) -> VectorReset:
        groups = {p.name: GroupObservation(*_columns(result.groups[p.source.name], p)) for p in self._parts}
        return VectorReset(groups, result.state)

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        if isinstance(next(iter(actions), None), uuid.UUID):
            actions = actions_by_group(self, actions)  # type: ignore[arg-type]
        result = self._env.step(self._joined(actions))
        groups = {part.name: _stepped(result.groups[part.source.name], part) for part in self._parts}
        scores = result.scores
        if scores is not None:
            scores = {part.name: scores[part.source.name][:, part.agents] for part in self._parts}
        return replace(result, groups=groups, scores=scores)

    def _joined(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        joined = {
            name: allocate(group.action_space, (self.num_envs, group.num_agents))
            for name, group in self._env.groups.items()
        }
        for part in self._parts:
            if part.name not in actions:
                raise EnvError(f"step() without actions for group {part.name!r}; give every group's")
            expected = (self.num_envs, len(part.agents))
            for _, leaf in leaves(actions[part.name]):
                if np.shape(leaf)[:2] != expected:
                    raise EnvError(
                        f"actions of {part.name!r} have shape {np.shape(leaf)}; they must begin with {expected}"
                    )
            where = (slice(None), part.agents)
            map_tree(
                lambda target, own, w=where: target.__setitem__(w, own), joined[part.source.name], actions[part.name]
            )
        return joined

    def build_observation(self) -> VectorReset:
        return self._seen(self._env.build_observation())


class _StatefulRegrouped(_Regrouped, StatefulProxy):
    """The same for an environment whose state can be saved."""

    def __init__(self, env: VectorEnvironment, parts: list[_Part], saved: StatefulEnvironment) -> None:
        super().__init__(env, parts)
        self._saved = saved


def _columns(view: GroupObservation, part: _Part) -> tuple[Any, Array, Array | None]:
    where = (slice(None), part.agents)
    mask = None if view.action_mask is None else view.action_mask[where]
    return index(view.obs, where), view.active[where], mask


def _stepped(step: GroupStep, part: _Part) -> GroupStep:
    where = (slice(None), part.agents)
    return GroupStep(
        *_columns(step, part),
        reward=step.reward[where],
        terminated=step.terminated[where],
        truncated=step.truncated[where],
        final=_final(step.final, part),
    )


def _final(final: FinalObservations | None, part: _Part) -> FinalObservations | None:
    if final is None:
        return None
    rows = np.flatnonzero(np.isin(final.agent, part.agents))
    if not len(rows):
        return None
    agent = np.searchsorted(part.agents, final.agent[rows])
    mask = None if final.action_mask is None else final.action_mask[rows]
    return FinalObservations(final.env[rows], agent, index(final.obs, rows), mask)
