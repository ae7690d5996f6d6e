"""The collector of a cluster's run as the learner sees it: collectors elsewhere, each with a part of the environments.

Synchronously, one rollout of all environments is the parts' rollouts side by side, and everything that follows is the local
engine's: learning, records, evaluations, checkpoints. Where the members are is a `Fleet`'s business.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from relayrl.data.columns import LaneHeader, Rollout
from relayrl.engines.cluster.joined_lanes import RolloutColumns, joined_episodes, joined_lanes, joined_states
from relayrl.engines.cluster.part_collector import GAMES, SHARD, CollectCall, PartPlan, State
from relayrl.engines.local.run_parts import Assembly
from relayrl.engines.self_play.league import League
from relayrl.engines.self_play.part_games import joined_games
from relayrl.engines.settings.cluster_settings import ReplayPlace
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment, VectorReset, VectorStep, new_env_ids
from relayrl.envs.vector.vector_proxy import VectorProxy
from relayrl.errors import ConfigError, EnvError
from relayrl.models.acting.exploration import Exploration
from relayrl.models.policy_arrays import Weights, arrays_of
from relayrl.runtime.collector import EndedEpisodes, RolloutCollector
from relayrl.training.replay.sharded_replay import ReplayDraws, ShardedReplay, rows_of_shards
from relayrl.training.trainers.off_policy_trainer import OffPolicyTrainer
from relayrl.training.trainers.policy_trainer import PolicyTrainer
from relayrl.training.trainers.seeding import Stream, stream_seed

LOOK_S = 1.0
"""After so long, whoever waits for members looks whether they still live."""


class EnvironmentsElsewhere(VectorProxy):
    """`num_envs` environments of which this process has one, to ask what they are like; it never steps."""

    def __init__(self, env: VectorEnvironment, num_envs: int) -> None:
        super().__init__(env)
        self.env_ids = new_env_ids(num_envs)
        self.lessons: tuple[int, ...] = ()
        """Of the environment parameters; every call to a collector says them."""

    def begin_lessons(self, lessons: Sequence[int]) -> None:
        super().begin_lessons(lessons)
        self.lessons = tuple(lessons)

    def init_num_envs(self, num_envs: int) -> tuple[UUID, ...]:
        raise EnvError("the environments of a cluster's run are made by its collectors")

    def reset(self, *, seed: int | None = None, env_ids: Sequence[UUID] | None = None) -> VectorReset:
        raise EnvError("the environments of a cluster's run are reset by its collectors")

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        raise EnvError("the environments of a cluster's run are stepped by its collectors")

    def build_observation(self) -> Any:
        raise EnvError("the environments of a cluster's run are seen by its collectors")


class PartResult(NamedTuple):
    """What one member collected."""

    part: int
    version: int
    rollouts: Mapping[str, RolloutColumns]
    ended: EndedEpisodes


class Fleet(ABC):
    """Collectors in other processes, one for each part of the environments."""

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts
        self.on_break: Callable[[int], None] = lambda part: None
        """Called with a part whose environments had to begin new episodes, because its collector was lost with their state."""

    @abstractmethod
    def start(self) -> None:
        """Have all members begin; returns at once."""

    @abstractmethod
    def await_start(self) -> None:
        """Return when all have begun; raises what keeps one from it."""

    @abstractmethod
    def publish(self, weights: Weights) -> None:
        """Have the next calls act with these weights."""

    @abstractmethod
    def send(self, part: int, call: CollectCall) -> None:
        """Ask a member for a rollout with the weights that were published last; returns at once."""

    @abstractmethod
    def num_flights(self, part: int) -> int:
        """Calls of a member that are on their way."""

    @abstractmethod
    def take_ready(self, timeout_s: float) -> list[PartResult]:
        """What has arrived, of each member one call at most; waits for `timeout_s` where there is nothing."""

    def collect(self, call: CollectCall) -> list[PartResult]:
        """One rollout of every part, in their order."""
        for part in range(self.num_parts):
            self.send(part, call)
        results: dict[int, PartResult] = {}
        while len(results) < self.num_parts:
            results |= {result.part: result for result in self.take_ready(LOOK_S)}
        return [results[part] for part in range(self.num_parts)]

    @abstractmethod
    def states(self) -> list[State]:
        """Each member's state behind the last rollout that was taken of it."""

    @abstractmethod
    def go_on(self, states: Sequence[State], seed: int) -> bool:
        """Continue from `states`; gives whether all episodes go on."""

    @abstractmethod
    def close(self) -> None:
        """End the members."""


class ClusterCollector(RolloutCollector):
    """Collects with a fleet."""

    def __init__(
        self,
        settings: RunSettings,
        env: EnvironmentsElsewhere,
        parts: Assembly,
        fleet: Fleet,
        league: League | None = None,
    ) -> None:
        self._trainer, self._policies, self.fleet, self._league = parts.trainer, parts.policies, fleet, league
        self.rollout_steps, self.settings = parts.rollout_steps, settings
        self._env, self._groups = env, env.groups
        self.bounds = part_bounds(settings)
        self._shards = _sharded(parts.trainer, self.bounds) if is_sharded(settings) else None
        self._ended: list[EndedEpisodes] = []
        self._published: dict[str, dict[str, Any]] = {}
        self._snapshot = self._num_steps = 0
        self._is_whole = True
        """Whether the last rollout came; after an error, its collectors answer no more."""
        self.name_envs(env.env_ids)
        fleet.on_break = lambda _: parts.trainer.environments_restarted()

    def name_envs(self, env_ids: Sequence[Any]) -> None:
        """Have these ids of environments in rollouts."""
        self.headers = {
            name: LaneHeader(name, tuple(env_ids), group.agent_ids, group.observation_space, group.action_space)
            for name, group in self._groups.items()
        }

    def call(self, policy_version: int, num_steps: int) -> CollectCall:
        """A call that acts with the newest policies; their weights are published where they are new."""
        weights = arrays_of(self._policies)
        if not _are_same(weights, self._published):
            self._snapshot += 1
            self._published = {name: {key: np.array(own) for key, own in one.items()} for name, one in weights.items()}
            self.fleet.publish(self._published)
        exploration = self._trainer.exploration(self._policies)
        steps, lessons = self._trainer.num_env_steps, tuple(self._env.lessons)
        return CollectCall(self._snapshot, exploration, policy_version, num_steps, steps, lessons)

    def collect(self, policy_version: int | Mapping[str, int], num_steps: int | None = None) -> dict[str, Rollout]:
        version = policy_version if isinstance(policy_version, int) else max(policy_version.values())
        num_steps = self.rollout_steps if num_steps is None else num_steps
        self._is_whole = False
        table = None if self._league is None else self._league.table()
        call = replace(self.call(version, num_steps), draws=self._draws(num_steps), table=table)
        results = self.fleet.collect(call)
        self._is_whole = True
        if self._league is not None:
            games: list[Any] = [result.rollouts[GAMES] for result in results]
            self._league.follow(num_steps, joined_games(games))
        if self._shards is not None:
            drawn: list[Any] = [result.rollouts[SHARD] for result in results]
            self._shards.take(drawn)
        self._ended.append(joined_episodes([result.ended for result in results], self._num_steps))
        self._num_steps += num_steps
        return self._joined(results)

    def _draws(self, num_steps: int) -> ReplayDraws | None:
        """What the shards of the replay give behind a rollout of so many steps of each environment."""
        if self._shards is None:
            return None
        trainer = self._trainer
        assert isinstance(trainer, OffPolicyTrainer)
        params, before = trainer.params_of(next(iter(self._groups))), trainer.num_env_steps
        return ReplayDraws(
            trainer.num_batches_after(num_steps * len(self._env.env_ids)),
            rows_of_shards(params.batch_size, self.bounds),
            (stream_seed(self.settings.seed, Stream.SHARDS), before),
            params.gamma,
            params.num_step_returns,
        )

    def _joined(self, results: Sequence[PartResult]) -> dict[str, Rollout]:
        return {
            name: joined_lanes([result.rollouts[name] for result in results], header)
            for name, header in self.headers.items()
        }

    @property
    def num_steps(self) -> int:
        return self._num_steps

    def part_rollouts(self, result: PartResult) -> dict[str, Rollout]:
        """The rollouts of one part alone."""
        self._ended.append(joined_episodes([result.ended]))
        return {
            name: joined_lanes([result.rollouts[name]], self.part_header(result.part, name)) for name in self.headers
        }

    def part_header(self, part: int, group: str) -> LaneHeader:
        """The lanes of one part."""
        whole, (first, last) = self.headers[group], self.bounds[part : part + 2]
        return LaneHeader(
            group, whole.env_ids[first:last], whole.agent_ids, whole.observation_space, whole.action_space
        )

    def cut_off(self, policy_version: int | Mapping[str, int], error: BaseException) -> dict[str, Rollout]:
        if not self._is_whole:
            error.add_note("the steps of this rollout are lost: its collector is in another process")
            return {}
        version = policy_version if isinstance(policy_version, int) else max(policy_version.values())
        results = self.fleet.collect(replace(self.call(version, 0), gives_up=True))
        return self._joined(results) if all(result.rollouts for result in results) else {}

    def restart(self) -> None:
        """Nothing: collectors begin new episodes when they have cut off the old ones."""

    def explore(self, exploration: Mapping[str, Exploration]) -> None:
        """Nothing: every call says how to explore."""

    def take_ended(self) -> EndedEpisodes:
        taken, self._ended = self._ended, []
        if not taken:
            names = list(self._groups)
            return EndedEpisodes(group_returns={n: [] for n in names}, agent_returns={n: [] for n in names})
        whole, *rest = taken
        for each in rest:
            whole.returns += each.returns
            whole.lengths += each.lengths
            whole.began_at += each.began_at
            whole.num_steps += each.num_steps
            for name in self._groups:
                whole.group_returns[name] += each.group_returns[name]
                whole.agent_returns[name] += each.agent_returns[name]
        return whole

    def state_dict(self) -> dict[str, Any]:
        states = self.fleet.states()
        if self._shards is not None:
            saved = self.fleet.collect(replace(self.call(self._trainer.policy_version, 0), saves_shard=True))
            states = [{**state, SHARD: part.rollouts[SHARD]} for state, part in zip(states, saved, strict=True)]
        return joined_states(states, self.bounds)

    def load_state_dict(self, state: dict[str, Any], *, seed: int) -> bool:
        self.name_envs(_ids(state["env_ids"]))
        if state.get("bounds") == self.bounds:
            return self.fleet.go_on([self._with_lessons(part) for part in state["parts"]], seed)
        # Another number of collectors, or another engine: numbers of episodes go on, environments begin anew.
        return self.fleet.go_on([self._without_envs(state, part) for part in range(len(self.bounds) - 1)], seed)

    def _with_lessons(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """A collector's state as the lessons are now, which may have begun behind its last rollout."""
        return {**part, "lessons": list(self._env.lessons)}

    def _without_envs(self, state: Mapping[str, Any], part: int) -> dict[str, Any]:
        first, last = self.bounds[part : part + 2]
        num_envs = len(state["env_ids"])
        builders = {
            name: {key: _rows_of(own, num_envs, first, last) for key, own in numbers.items()}
            for name, numbers in state["builders"].items()
        }
        return {
            "lessons": list(self._env.lessons),
            "rng": state["rng"],
            "env_ids": state["env_ids"][first:last],
            "builders": builders,
            "episodes": {},
            "memories": {},
            "environment": None,
        }


def part_bounds(settings: RunSettings) -> list[int]:
    """Where the environments of each collector begin, and the end of the last."""
    num_envs, workers = settings.environment.num_envs, max(1, settings.environment.workers)
    return [int(bound) for bound in np.linspace(0, num_envs, min(workers, num_envs) + 1).astype(int)]


def part_plans(
    settings: RunSettings, registered: Mapping[Any, Mapping[str, Any]], env_ids: Sequence[Any], num_steps: int
) -> list[PartPlan]:
    """What each collector is built from."""
    bounds, settings = part_bounds(settings), settings.model_copy(update={"learners": 1, "record": None})
    return [
        PartPlan(settings, registered, first, last, tuple(env_ids), num_steps, number)
        for number, (first, last) in enumerate(itertools.pairwise(bounds))
    ]


def is_sharded(settings: RunSettings) -> bool:
    """Whether each collector keeps a shard of the replay."""
    return settings.cluster.replay is ReplayPlace.SHARDED


def _sharded(trainer: PolicyTrainer, bounds: Sequence[int]) -> ShardedReplay:
    """The trainer's replay, from now on that of the collectors."""
    if not isinstance(trainer, OffPolicyTrainer):
        raise ConfigError(
            f"{type(trainer).__name__} keeps no replay that collectors could have; leave out cluster.replay"
        )
    replay = trainer.replay = ShardedReplay(trainer.replay.capacity, bounds)
    return replay


def _are_same(weights: Mapping[str, Mapping[str, Any]], others: Mapping[str, Mapping[str, Any]]) -> bool:
    if not others:
        return False
    return all(
        np.array_equal(own, others[name][key], equal_nan=own.dtype.kind == "f")
        for name, one in weights.items()
        for key, own in one.items()
    )


def _rows_of(numbers: Any, num_envs: int, first: int, last: int) -> Any:
    per_env = len(numbers) // num_envs
    return numbers[first * per_env : last * per_env]


def _ids(texts: Sequence[str]) -> list[Any]:
    return [UUID(text) for text in texts]
