"""The collector of a cluster's run as the learner sees it: collectors elsewhere, each with a part of the environments.

Synchronously, one rollout of all environments is the parts' rollouts side by side, and everything that follows is the local
engine's: learning, records, evaluations, checkpoints. Where the members are is a `Fleet`'s business.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relayrl.data.columns import LaneHeader, Rollout
from relayrl.engines.cluster.joined_lanes import RolloutColumns, joined_episodes, joined_lanes, joined_states
from relayrl.engines.cluster.part_collector import CollectCall, PartPlan, State, Weights
from relayrl.engines.local.run_parts import Assembly
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.errors import EnvError
from relayrl.models.acting.exploration import Exploration
from relayrl.models.policy import Policy
from relayrl.runtime.collector import EndedEpisodes, RolloutCollector

LOOK_S = 1.0
"""After so long, whoever waits for members looks whether they still live."""


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

    def __init__(self, settings: RunSettings, env: VectorEnvironment, parts: Assembly, fleet: Fleet) -> None:
        self._trainer, self._policies, self.fleet = parts.trainer, parts.policies, fleet
        self.rollout_steps, self.settings = parts.rollout_steps, settings
        self._env, self._groups = env, env.groups
        self.bounds = part_bounds(settings)
        self._ended: list[EndedEpisodes] = []
        self._published: dict[str, dict[str, Any]] = {}
        self._snapshot = 0
        self.name_envs(env.env_ids)
        fleet.on_break = lambda _: parts.trainer.worlds_restarted()

    def name_envs(self, env_ids: Sequence[Any]) -> None:
        """Have these ids of environments in rollouts."""
        self.headers = {
            name: LaneHeader(name, tuple(env_ids), group.agent_ids, group.observation_space, group.action_space)
            for name, group in self._groups.items()
        }

    def call(self, policy_version: int, num_steps: int) -> CollectCall:
        """A call that acts with the newest policies; their weights are published where they are new."""
        weights = weights_of(self._policies)
        if not _are_same(weights, self._published):
            self._snapshot += 1
            self._published = {name: {key: np.array(own) for key, own in one.items()} for name, one in weights.items()}
            self.fleet.publish(self._published)
        exploration = self._trainer.exploration(self._policies)
        return CollectCall(self._snapshot, exploration, policy_version, num_steps, self._trainer.num_env_steps)

    def collect(self, policy_version: int | Mapping[str, int], num_steps: int | None = None) -> dict[str, Rollout]:
        version = policy_version if isinstance(policy_version, int) else max(policy_version.values())
        results = self.fleet.collect(self.call(version, self.rollout_steps if num_steps is None else num_steps))
        self._ended.append(joined_episodes([result.ended for result in results]))
        return {
            name: joined_lanes([result.rollouts[name] for result in results], header)
            for name, header in self.headers.items()
        }

    @property
    def num_steps(self) -> int:
        return self._trainer.num_env_steps // len(self._env.env_ids)

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
        error.add_note("the steps of this rollout are lost: its collector is in another process")
        return {}

    def restart(self) -> None:
        raise EnvError("episodes of a cluster's collectors cannot be given up between two rollouts")

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
            for name in self._groups:
                whole.group_returns[name] += each.group_returns[name]
                whole.agent_returns[name] += each.agent_returns[name]
        return whole

    def state_dict(self) -> dict[str, Any]:
        return joined_states(self.fleet.states(), self.bounds)

    def load_state_dict(self, state: dict[str, Any], *, seed: int) -> bool:
        self.name_envs(_ids(state["env_ids"]))
        if state.get("bounds") == self.bounds:
            return self.fleet.go_on(state["parts"], seed)
        # Another number of collectors, or another engine: numbers of episodes go on, environments begin anew.
        return self.fleet.go_on([self._without_envs(state, part) for part in range(len(self.bounds) - 1)], seed)

    def _without_envs(self, state: Mapping[str, Any], part: int) -> dict[str, Any]:
        first, last = self.bounds[part : part + 2]
        num_envs = len(state["env_ids"])
        builders = {
            name: {key: _rows_of(own, num_envs, first, last) for key, own in numbers.items()}
            for name, numbers in state["builders"].items()
        }
        return {
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
        PartPlan(settings, registered, first, last, tuple(env_ids), num_steps)
        for first, last in itertools.pairwise(bounds)
    ]


def weights_of(policies: Mapping[str, Policy]) -> dict[str, dict[str, Any]]:
    """Everything that a policy acts by, as arrays of the live parameters where they are on the CPU."""
    return {
        name: {key: tensor.detach().cpu().numpy() for key, tensor in policy.state_dict().items()}
        for name, policy in policies.items()
    }


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
    from uuid import UUID

    return [UUID(text) for text in texts]
