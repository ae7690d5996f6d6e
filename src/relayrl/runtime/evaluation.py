"""Playing whole episodes with a policy, without learning from them. However the policy plays, it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from relayrl.data.trees import Array, map_tree
from relayrl.envs.environment_contract import GroupObservation, VectorEnvironment, VectorStep
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings, EvaluationBounds
from relayrl.envs.vector.on_host import on_host
from relayrl.errors import ConfigError, PartialResetError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.lane_memory import LaneMemory
from relayrl.runtime.collector import allowed_actions, ended_lanes

EVALUATION_WORLDS = 20
"""Environments that an evaluation plays in at once, at most."""


DEFAULT_BOUNDS = EvaluationBounds()


class Bound(Enum):
    """What kept an evaluation from playing every episode to its end; the values are names of settings."""

    EPISODE_STEPS = "max_episode_steps"
    TIMEOUT = "timeout_s"


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Returns of the episodes, in the order of environments; for several agents, each is the mean over agents.

    Episodes that a bound cut (`is_cut`) count with what they had collected: leaving them out would rate a policy by the
    episodes in which it does not walk in circles. There may be fewer episodes than `num_asked`.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    is_cut: tuple[bool, ...]
    num_asked: int
    stopped_by: Bound | None = None

    @property
    def mean_return(self) -> float:
        """NaN where there is no episode: every environment failed until the time was up."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns)) if self.returns else math.nan

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


def make_evaluation_env(env: str, settings: EnvSettings, episodes: int) -> VectorEnvironment:
    """Environments to play `episodes` in, of the kind that a run with these settings trains in."""
    envs = settings.model_copy(update={"num_envs": min(episodes, EVALUATION_WORLDS)})
    return on_host(make_vector(env, envs, own_number=True))


def evaluate(
    env: VectorEnvironment,
    actors: Mapping[str, Actor],
    *,
    episodes: int,
    seed: int,
    rng: np.random.Generator | None = None,
    on_step: Callable[[VectorEnvironment], None] | None = None,
    bounds: EvaluationBounds = DEFAULT_BOUNDS,
) -> EvaluationResult:
    """Play `episodes` episodes, greedily or, with `rng`, with drawn actions, within `bounds`.

    Every environment plays the same number of episodes (one more for the first ones), and its first ones: taking whichever
    episodes end first would favour short ones.
    """
    deadline_s = time.monotonic() + bounds.timeout_s
    played = _Played(env, episodes)
    memories = {name: LaneMemory(actors[name], env.num_envs * group.num_agents) for name, group in env.groups.items()}
    views: Mapping[str, GroupObservation] = env.reset(seed=seed).groups
    while played.quota.any():
        acts = np.any([view.active.any(1) for view in views.values()], axis=0)
        masks = {name: allowed_actions(env, name, view, played.num_steps) for name, view in views.items()}
        step = env.step(
            {name: choose_actions(actors[name], memories[name], view, masks[name], rng) for name, view in views.items()}
        )
        views = step.groups
        for name, memory in memories.items():
            memory.forget(ended_lanes(step, name))
        played.add(step, acts)
        if on_step is not None:
            on_step(env)
        again = played.cut_long(bounds.max_episode_steps)
        if again.any():
            try:
                views = env.reset(env_ids=[env.env_ids[b] for b in np.flatnonzero(again)]).groups
            except PartialResetError:
                played.quota[again] = 0
            for name, memory in memories.items():
                memory.forget(np.repeat(again, env.groups[name].num_agents))
        if time.monotonic() >= deadline_s and played.quota.any():
            played.cut(played.quota > 0, Bound.TIMEOUT)
            played.quota[:] = 0
    return played.result()


class _Played:
    """The episodes of an evaluation, by environment: what is running, what was kept, and how many more each plays."""

    def __init__(self, env: VectorEnvironment, episodes: int) -> None:
        self.quota = np.full(env.num_envs, episodes // env.num_envs)
        self.quota[: episodes % env.num_envs] += 1
        self._num_asked = episodes
        self._num_agents = sum(group.num_agents for group in env.groups.values())
        self._kept: list[list[tuple[float, int, bool]]] = [[] for _ in range(env.num_envs)]
        self._running, self._length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
        self._stopped_by: Bound | None = None

    def num_steps(self) -> Array:
        """[B] steps of the running episodes."""
        return self._length.copy()

    def add(self, step: VectorStep, acts: Array) -> None:
        """Count a step of all environments; `acts` [B] where it was more than a reset."""
        self._running += sum(group.reward.sum(1, dtype=np.float64) for group in step.groups.values()) / self._num_agents
        self._length += acts
        failed = np.zeros_like(step.episode_over) if step.failed is None else step.failed
        for b in np.flatnonzero(step.episode_over).tolist():
            self._end(b, keep=not failed[b], is_cut=False)

    def cut_long(self, max_episode_steps: int) -> Array:
        """Cut the episodes that have so many steps; the environments [B] that begin another one."""
        long = (self._length >= max_episode_steps) & (self.quota > 0)
        if long.any():
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
            self._kept[b].append((float(self._running[b]), int(self._length[b]), is_cut))
        self._running[b], self._length[b] = 0.0, 0

    def result(self) -> EvaluationResult:
        """All episodes that were kept."""
        kept = [episode for env in self._kept for episode in env]
        return EvaluationResult(
            returns=tuple(episode[0] for episode in kept),
            lengths=tuple(episode[1] for episode in kept),
            is_cut=tuple(episode[2] for episode in kept),
            num_asked=self._num_asked,
            stopped_by=self._stopped_by,
        )


def choose_actions(
    actor: Actor, memory: LaneMemory, view: GroupObservation, mask: Array | None, rng: np.random.Generator | None
) -> Array:
    """Actions `[B, N, …]` for what a group sees and, by `mask` [B, N, A], may do, as the environment takes them."""
    envs, agents = view.active.shape
    obs = map_tree(lambda leaf: leaf.reshape(envs * agents, *leaf.shape[2:]), view.obs)
    allowed = None if mask is None else mask.reshape(envs * agents, -1)
    active = view.active.reshape(-1)
    action = memory.decide(obs, allowed, rng, active).action
    if rng is not None:  # the most likely action is within the bounds already
        action = actor.head.to_environment(action)
    return action.reshape(envs, agents, *action.shape[1:])


def check_fits(env: VectorEnvironment, actors: Mapping[str, Actor]) -> None:
    """Every group of the environment needs an actor."""
    if set(env.groups) != set(actors):
        raise ConfigError(f"the model has policies {sorted(actors)}, the environment groups {sorted(env.groups)}")
