"""Whole episodes of one environment into a sink: what a policy does, or what a person does by keys.

    record_demonstrations("CartPole-v1", "arrow:demos", policy="runs/expert", episodes=10)

The collector steps and the recorder of runs writes, so that a record of demonstrations is like any other. An episode is
written when it has ended: one that is given up leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.config.settings import parse_settings
from relayrl.data.columns import Rollout, copied_rollout
from relayrl.data.trees import Array, Tree, same_columns
from relayrl.engines.demos.key_actor import KeyActor, KeySource
from relayrl.engines.demos.key_map import KeyMap
from relayrl.engines.local.run_recorder import Recorder
from relayrl.engines.runs.named_opponents import named_opponents
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.rendering import RenderMode
from relayrl.envs.vector.on_host import on_host
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor, Decision
from relayrl.runtime.collector import Collector
from relayrl.sinks.contract import open_sink

MAX_DEMO_STEPS = 100_000
"""Of an episode: an environment that never ends is given up, with what was played of it."""


@dataclass(frozen=True, slots=True)
class RecordedDemos:
    """What was recorded: returns and lengths of whole episodes."""

    url: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


class Greedy(Actor):
    """Another actor's most likely actions."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.head, self.memory_width = actor.head, actor.memory_width

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self._actor.distribution(obs, mask)

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        return self._actor.decide(obs, mask, memory, None)


def record_demonstrations(
    env: str | Callable[..., Any],
    to: str,
    *,
    policy: str | Path,
    episodes: int = 10,
    seed: int = 0,
    stochastic: bool = False,
    environment: Mapping[str, Any] | None = None,
) -> RecordedDemos:
    """Play whole episodes with the policies of a run directory or an .onnx file, and write them to the sink at URL `to`.

    `environment` are settings as in a run (`options`, `wrappers`, …). Actions are the most likely ones unless `stochastic`.
    """
    made = demo_env(env, environment or {})
    try:
        actors = _policies(made, Path(policy), stochastic=stochastic)
        return play_and_record(made, actors, to, episodes=episodes, seed=seed)
    finally:
        made.close()


def record_keys(
    env: VectorEnvironment, keys: KeySource, to: str, *, key_map: str | None, episodes: int, seed: int
) -> RecordedDemos:
    """Play by keys until so many episodes have ended or the person stops, and write the whole ones."""
    agents = [(group, agent) for group in env.groups.values() for agent in group.agent_ids]
    if len(agents) != 1:
        raise ConfigError(
            f"keys play one agent, and the environment has {len(agents)}; record a policy's play: --policy"
        )
    group = agents[0][0]
    actor = KeyActor(group.action_space, KeyMap.of(group.action_space, key_map), keys)
    keys.begin(env)
    return play_and_record(
        env, {group.name: actor}, to, episodes=episodes, seed=seed, goes_on=lambda: keys.goes_on, on_step=keys.show
    )


def demo_env(
    env: str | Callable[..., Any], environment: Mapping[str, Any], *, render: RenderMode | None = None
) -> VectorEnvironment:
    """One environment to demonstrate in."""
    settings = parse_settings(EnvSettings, {**environment, "num_envs": 1})
    return on_host(make_vector(env, settings, render=render))


def play_and_record(
    env: VectorEnvironment,
    actors: Mapping[str, Actor],
    to: str,
    *,
    episodes: int,
    seed: int,
    goes_on: Callable[[], bool] = lambda: True,
    on_step: Callable[[], None] = lambda: None,
) -> RecordedDemos:
    """Play until `episodes` have ended, or while `goes_on`; whole episodes are written."""
    collector = Collector(env, actors, num_steps=1, seed=seed, rng=np.random.default_rng(seed))
    sink = open_sink(to)
    recorder = Recorder(sink)
    returns: list[float] = []
    lengths: list[int] = []
    running: list[dict[str, Rollout]] = []
    try:
        while len(returns) < episodes and goes_on():
            running.append({name: copied_rollout(each) for name, each in collector.collect(0).items()})
            on_step()
            ended = collector.take_ended()
            if len(running) > MAX_DEMO_STEPS:
                raise ConfigError(
                    f"an episode did not end in {MAX_DEMO_STEPS:,} steps; set environment.max_episode_steps"
                )
            if ended.returns:
                for rollouts in running:
                    recorder.record(rollouts)
                running.clear()
                returns += ended.returns
                lengths += ended.lengths
        recorder.end()
    finally:
        recorder.close()
    return RecordedDemos(sink.url, tuple(returns), tuple(lengths))


def _policies(env: VectorEnvironment, path: Path, *, stochastic: bool) -> dict[str, Actor]:
    groups: dict[str, Any] = dict(env.groups)
    found = named_opponents([str(path)], groups)[str(path)]
    for name, actor in found.items():
        metadata, group = actor.metadata, env.groups[name]  # type: ignore[attr-defined]
        pairs = ((metadata.observation_space, group.observation_space), (metadata.action_space, group.action_space))
        if not all(same_columns(one, other) for one, other in pairs):
            raise ConfigError(
                f"the policy {name!r} of {path} has other spaces than the environment; name its environment"
            )
    return {name: actor if stochastic else Greedy(actor) for name, actor in found.items()}
