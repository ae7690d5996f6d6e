"""What a collector of the cluster does, in whatever process it runs: a part of the environments, and policies to act with.

It is built from the run's settings as the local engine builds its own, with the environments `first … last - 1` of all. Weights
come with every call, as arrays. It knows nothing of Ray.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import torch

from relayrl.config.plugin_registry import PluginKind, take_registrations
from relayrl.data.trees import Array
from relayrl.engines.cluster.joined_lanes import RolloutColumns, columns_of
from relayrl.engines.cluster.lane_slices import SlicedActor
from relayrl.engines.local.run_parts import assemble_checked, collector_of, limit_threads
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import PartSeed, env_seeds
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.vector.on_host import on_host
from relayrl.models.acting.exploration import Exploration
from relayrl.models.policy import Policy
from relayrl.runtime.collector import EndedEpisodes
from relayrl.training.trainers.seeding import Stream, stream_seed

Weights = Mapping[str, Mapping[str, Array]]
"""Parameters of every group's policy, by their names."""


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


State = dict[str, Any]
"""Of a collector, behind a rollout: another one can go on from there."""
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
        settings = plan.settings
        take_registrations(plan.registered)
        limit_threads(settings.threads)
        self._plan, own = plan, plan.last - plan.first
        own_envs = settings.environment_here.model_copy(update={"num_envs": own})
        self._env = on_host(make_vector(settings.env, own_envs))
        try:
            parts = assemble_checked(settings, self._env)
            total = len(plan.env_ids)
            actors = {
                name: SlicedActor(
                    parts.actors[name],
                    plan.first * group.num_agents,
                    own * group.num_agents,
                    total * group.num_agents,
                    equal_numbers=settings.cluster.equal_numbers and not settings.cluster.asynchronous,
                )
                for name, group in self._env.groups.items()
            }
            self._policies: Mapping[str, Policy] = parts.policies
            sliced = replace(parts, actors=dict(actors), rollout_steps=plan.num_steps)
            seed = self.seed_of(stream_seed(settings.seed, Stream.ENVIRONMENT))
            self._collector = collector_of(settings, self._env, sliced, seed)
        except BaseException:
            self._env.close()
            raise
        self._snapshot, self._num_steps = -1, 0
        self._collector.name_envs(plan.env_ids[plan.first : plan.last])

    def seed_of(self, seed: int) -> int:
        """The seed that this part of the environments is reset with where all of them have `seed`."""
        if self._env.independent_streams:
            return PartSeed(seed, self._plan.first)
        # One generator for all: each part needs a stream of its own, and the first has that of a run in one process.
        return seed if not self._plan.first else int(env_seeds(seed, self._plan.first + 1)[-1] or 0)

    def go_on(self, state: State, seed: int) -> bool:
        """Continue from the state of a report; where environments were not saved, they begin anew from `seed`: gives False."""
        return self._collector.load_state_dict(state, seed=self.seed_of(seed))

    def report(self, ended: EndedEpisodes) -> tuple[PartReport, State]:
        """The state as it is now, in two parts."""
        state = self._collector.state_dict()
        heavy = {name: state.pop(name) for name in HEAVY}
        return PartReport(ended, state), heavy

    def begin(self) -> tuple[PartReport, State]:
        """The state before the first rollout."""
        return self.report(self._collector.take_ended())

    def collect(self, call: CollectCall, weights: Weights) -> tuple[dict[str, RolloutColumns], PartReport, State]:
        """A rollout of every group, and what happened beside it. The columns are overwritten two calls later."""
        if call.snapshot != self._snapshot:
            _load(self._policies, weights)
            self._snapshot = call.snapshot
        self._collector.explore(call.exploration)
        rollouts = self._collector.collect(call.version, call.num_steps)
        ended = self._collector.take_ended()
        own_steps = [step - self._num_steps for step in ended.num_steps]
        self._num_steps += call.num_steps
        columns = {name: columns_of(rollout) for name, rollout in rollouts.items()}
        return columns, *self.report(replace(ended, num_steps=own_steps))

    def close(self) -> None:
        """Release the environments."""
        self._env.close()


def _load(policies: Mapping[str, Policy], weights: Weights) -> None:
    with warnings.catch_warnings():  # arrays of the object store cannot be written to, and are only copied from
        warnings.filterwarnings("ignore", message=".*not writable.*")
        for name, policy in policies.items():
            policy.load_state_dict({key: torch.from_numpy(array) for key, array in weights[name].items()})
