"""Playing whole episodes with a policy, without learning from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from relayrl.data.trees import Array, map_tree
from relayrl.envs.contract import GroupObservation, VectorEnvironment
from relayrl.errors import ConfigError
from relayrl.models.actor import Actor
from relayrl.models.lane_memory import LaneMemory
from relayrl.runtime.collector import allowed_actions, ended_lanes

EVALUATION_WORLDS = 20
"""Worlds that an evaluation plays in at once, at most."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Returns of the episodes, in the order of worlds; for several agents, each is the mean over agents."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))


def evaluate(
    env: VectorEnvironment,
    actors: Mapping[str, Actor],
    *,
    episodes: int,
    seed: int,
    rng: np.random.Generator | None = None,
    on_step: Callable[[VectorEnvironment], None] | None = None,
) -> EvaluationResult:
    """Play `episodes` episodes, greedily or, with `rng`, with drawn actions.

    Every world plays the same number of episodes (one more for the first ones), and its first ones: taking whichever
    episodes end first would favour short ones.
    """
    quota = np.full(env.num_envs, episodes // env.num_envs)
    quota[: episodes % env.num_envs] += 1
    num_agents = sum(group.num_agents for group in env.groups.values())
    returns: list[list[float]] = [[] for _ in range(env.num_envs)]
    lengths: list[list[int]] = [[] for _ in range(env.num_envs)]
    running, length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    memories = {name: LaneMemory(actors[name], env.num_envs * group.num_agents) for name, group in env.groups.items()}
    views: Mapping[str, GroupObservation] = env.reset(seed=seed).groups
    while quota.any():
        masks = {name: allowed_actions(env, name, view, length.copy) for name, view in views.items()}
        step = env.step(
            {name: choose_actions(actors[name], memories[name], view, masks[name], rng) for name, view in views.items()}
        )
        views = step.groups
        for name, memory in memories.items():
            memory.forget(ended_lanes(step, name))
        running += sum(group.reward.sum(1, dtype=np.float64) for group in step.groups.values()) / num_agents
        length += 1
        if on_step is not None:
            on_step(env)
        for b in np.flatnonzero(step.episode_over):
            if step.failed is not None and step.failed[b]:
                running[b], length[b] = 0.0, 0
                continue
            if quota[b]:
                quota[b] -= 1
                returns[b].append(float(running[b]))
                lengths[b].append(int(length[b]))
            running[b], length[b] = 0.0, 0
    return EvaluationResult(tuple(r for world in returns for r in world), tuple(n for world in lengths for n in world))


def choose_actions(
    actor: Actor, memory: LaneMemory, view: GroupObservation, mask: Array | None, rng: np.random.Generator | None
) -> Array:
    """Actions `[B, N, …]` for what a group sees and, by `mask` [B, N, A], may do, as the environment takes them."""
    worlds, agents = view.active.shape
    obs = map_tree(lambda leaf: leaf.reshape(worlds * agents, *leaf.shape[2:]), view.obs)
    allowed = None if mask is None else mask.reshape(worlds * agents, -1)
    active = view.active.reshape(-1)
    if rng is None:
        action = memory.act_greedily(obs, allowed, active)
    else:
        action = actor.head.to_environment(memory.act(obs, allowed, rng, active))
    return action.reshape(worlds, agents, *action.shape[1:])


def check_fits(env: VectorEnvironment, actors: Mapping[str, Actor]) -> None:
    """Every group of the environment needs an actor."""
    if set(env.groups) != set(actors):
        raise ConfigError(f"the model has policies {sorted(actors)}, the environment groups {sorted(env.groups)}")
