"""What a collector of the cluster does, in whatever process it runs: a part of the environments, and policies to act with.

It is built from the run's settings as the local engine builds its own, with the environments `first … last - 1` of all. Weights
come with every call, as arrays. It knows nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from relayrl.config.plugin_registry import PluginKind, take_registrations
from relayrl.data.columns import Rollout
from relayrl.engines.cluster.joined_lanes import RolloutColumns, columns_of
from relayrl.engines.local.run_parts import Assembly, assemble_checked, collector_of, limit_threads
from relayrl.engines.self_play.game_teams import form_teams
from relayrl.engines.self_play.part_games import PartGames, Table
from relayrl.engines.settings.cluster_settings import ReplayPlace
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import PartSeed, env_seeds
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.vector.on_host import on_host
from relayrl.errors import EnvError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.lane_slices import SlicedActor
from relayrl.models.policy import Policy
from relayrl.models.policy_arrays import Weights, load_arrays
from relayrl.runtime.collector import EndedEpisodes
from relayrl.training.replay.joint_replay import JointReplay
from relayrl.training.replay.sharded_replay import ReplayDraws, draw_from, shard_capacity
from relayrl.training.trainers.off_policy_trainer import OffPolicyTrainer
from relayrl.training.trainers.seeding import Stream, stream_seed


@dataclass(frozen=True, slots=True)
class PartPlan:
    """Which of a run's environments a collector has."""

    settings: RunSettings
    registered: Mapping[PluginKind, Mapping[str, Any]]
    """What the learner's process has registered."""
    first: int
    last: int
    env_ids: tuple[UUID, ...]
    """Of all environments of the run."""
    num_steps: int
    """Steps of each environment in a rollout, at most."""
    number: int = 0
    """Which of the collectors it is."""


@dataclass(frozen=True, slots=True)
class CollectCall:
    """One rollout: what to act with, and how far."""

    snapshot: int
    """A number of the weights: those that a collector has already are not loaded again."""
    exploration: Mapping[str, Exploration]
    version: int
    num_steps: int
    num_env_steps: int
    """Steps that the run had learned from: environments that must begin anew are seeded by it."""
    lessons: tuple[int, ...] = ()
    """The lesson of each environment parameter, for episodes that begin from now on."""
    gives_up: bool = False
    """Instead of a rollout: end the running episodes behind their last step, and begin new ones."""
    draws: ReplayDraws | None = None
    """What the collector's shard of the replay gives behind the rollout."""
    saves_shard: bool = False
    """Instead of a rollout: give what the shard holds."""
    table: Table | None = None
    """Who plays against whom, in self-play."""


State = dict[str, Any]
"""Of a collector, behind a rollout: another one can go on from there."""
SHARD = "//replay"
"""Beside the groups of an answer, and in a state: what the collector's shard of the replay gives."""
GAMES = "//games"
"""Beside the groups of an answer: games of self-play that ended."""
HEAVY = ("episodes", "memories", "environment")
"""What of a state may be large, and is only needed where running episodes go on."""


@dataclass(frozen=True, slots=True)
class PartReport:
    """What happened beside the rollout, and the light part of the state behind it."""

    ended: EndedEpisodes
    numbers: State

    def state(self, heavy: State | None) -> State:
        """The whole state; without its heavy part, environments begin new episodes."""
        return {**self.numbers, **({"episodes": {}, "memories": {}, "environment": None} if heavy is None else heavy)}


class PartCollector:
    """Collects in a part of the environments."""

    def __init__(self, plan: PartPlan) -> None:
        settings = plan.settings.model_copy(update={"device": "cpu"})  # the device is that of the process that learns
        take_registrations(plan.registered)
        limit_threads(settings.threads)
        self._plan, own = plan, plan.last - plan.first
        is_sharded = settings.cluster.replay is ReplayPlace.SHARDED
        if is_sharded:
            settings = _with_own_share(settings, plan)
        own_envs = settings.environment_here.model_copy(update={"num_envs": own})
        self._env = on_host(make_vector(settings.env, own_envs))
        try:
            parts = assemble_checked(settings, self._env)
            self._policies: Mapping[str, Policy] = parts.policies
            self._games = self._make_games(settings, parts)
            sliced = replace(parts, actors=self._actors(settings, parts), rollout_steps=plan.num_steps)
            seed = self.seed_of(stream_seed(settings.seed, Stream.ENVIRONMENT))
            on_ended = None if self._games is None else self._games.end_games
            self._collector = collector_of(settings, self._env, sliced, seed, on_ended)
        except BaseException:
            self._env.close()
            raise
        self._shard: JointReplay | None = None
        if is_sharded:
            assert isinstance(parts.trainer, OffPolicyTrainer)
            self._shard = parts.trainer.replay
        self._snapshot, self._num_steps = -1, 0
        self._lessons: tuple[int, ...] = ()
        self._collector.name_envs(plan.env_ids[plan.first : plan.last])

    def _make_games(self, settings: RunSettings, parts: Assembly) -> PartGames | None:
        if settings.self_play is None:
            return None
        teams = form_teams(self._env.groups, settings.self_play.teams)
        return PartGames(teams, parts.policies, parts.trainer.actor_for, self._plan.first, self._plan.last)

    def _actors(self, settings: RunSettings, parts: Assembly) -> dict[str, Actor]:
        """Actors that decide for the lanes here as they would among all lanes of the run."""
        plan, total = self._plan, len(self._plan.env_ids)
        is_equal = settings.cluster.equal_numbers and not settings.cluster.asynchronous
        if self._games is not None:
            return self._games.seat(parts.actors, total, equal_numbers=is_equal)

        def sliced(name: str, per_env: int) -> Actor:
            first, own = plan.first * per_env, (plan.last - plan.first) * per_env
            return SlicedActor(parts.actors[name], first, own, total * per_env, equal_numbers=is_equal)

        return {name: sliced(name, group.num_agents) for name, group in self._env.groups.items()}

    @property
    def players(self) -> frozenset[int]:
        """Frozen players of self-play whose weights are here: a call need not bring them."""
        return frozenset() if self._games is None else self._games.known

    def seed_of(self, seed: int) -> int:
        """The seed that this part of the environments is reset with where all of them have `seed`."""
        if self._env.independent_streams:
            return PartSeed(seed, self._plan.first)
        # One generator for all: each part needs a stream of its own, and the first has that of a run in one process.
        return seed if not self._plan.first else int(env_seeds(seed, self._plan.first + 1)[-1] or 0)

    def go_on(self, state: State, seed: int) -> bool:
        """Continue from the state of a report; where environments were not saved, they begin anew from `seed`: gives False."""
        self._begin_lessons(tuple(state.get("lessons", ())))  # before new episodes begin, where they must
        goes_on = self._collector.load_state_dict(state, seed=self.seed_of(seed))
        if self._shard is not None:
            if SHARD in state:
                spaces = {name: (own.observation_space, own.action_space) for name, own in self._env.groups.items()}
                self._shard.set_state(state[SHARD], spaces)
            if not goes_on:
                self._shard.cut()
        return goes_on

    def _begin_lessons(self, lessons: tuple[int, ...]) -> None:
        if lessons != self._lessons:
            self._env.begin_lessons(lessons)
            self._lessons = lessons

    def report(self, ended: EndedEpisodes) -> tuple[PartReport, State]:
        """The state as it is now, in two parts."""
        state = self._collector.state_dict()
        heavy = {name: state.pop(name) for name in HEAVY}
        return PartReport(ended, {**state, "lessons": list(self._lessons)}), heavy

    def begin(self) -> tuple[PartReport, State]:
        """The state before the first rollout."""
        return self.report(self._collector.take_ended())

    def collect(self, call: CollectCall, weights: Weights) -> tuple[dict[str, RolloutColumns], PartReport, State]:
        """A rollout of every group, and what happened beside it. The columns are overwritten two calls later."""
        if call.snapshot != self._snapshot:
            load_arrays(self._policies, weights)
            self._snapshot = call.snapshot
        self._begin_lessons(call.lessons)
        if call.gives_up:
            rollouts = self._collector.cut_off(call.version, EnvError("the episode was given up"))
            self._collector.restart()
            if self._shard is not None:
                self._shard.cut()
            return _columns(rollouts), *self.report(self._collector.take_ended())
        if call.saves_shard and self._shard is not None:
            return {SHARD: self._shard.get_state()}, *self.report(self._collector.take_ended())
        self._collector.explore(call.exploration)
        if self._games is not None and call.table is not None:
            self._games.begin(call.table, call.exploration)
        rollouts = self._collector.collect(call.version, call.num_steps)
        ended, before = self._collector.take_ended(), self._num_steps
        self._num_steps += call.num_steps
        # Counted from the beginning of the call: a collector that replaces another one does not know of earlier ones.
        began_at, over_at = ([step - before for step in steps] for steps in (ended.began_at, ended.num_steps))
        columns = _columns(rollouts) | self._drawn(rollouts, call) | self._ended_games()
        return columns, *self.report(replace(ended, began_at=began_at, num_steps=over_at))

    def _drawn(self, rollouts: Mapping[str, Rollout], call: CollectCall) -> dict[str, Any]:
        """Keep the rollout in the shard, where there is one, and draw from it."""
        if self._shard is None or call.draws is None:
            return {}
        self._shard.add(rollouts)
        return {SHARD: draw_from(self._shard, call.draws, self._plan.number)}

    def _ended_games(self) -> dict[str, Any]:
        return {} if self._games is None else {GAMES: self._games.take_ended()}

    def close(self) -> None:
        """Release the environments."""
        self._env.close()


def _with_own_share(settings: RunSettings, plan: PartPlan) -> RunSettings:
    """The settings with the replay of the collector's own environments."""
    params: Any = settings.params
    own = shard_capacity(params.buffer_size, plan.first, plan.last, len(plan.env_ids))
    return settings.model_copy(update={"params": params.model_copy(update={"buffer_size": own})})


def _columns(rollouts: Mapping[str, Rollout]) -> dict[str, RolloutColumns]:
    return {name: columns_of(rollout) for name, rollout in rollouts.items()}
