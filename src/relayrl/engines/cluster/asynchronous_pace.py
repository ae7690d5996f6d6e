"""Asynchronous collection: every collector goes on at its own pace, and the learner takes what has arrived.

Each member has at most `MAX_FLIGHTS` calls on their way, and gets another one only when the learner has taken one: the learner
sets the pace, and nothing piles up. One that is slow or lost holds up nobody.

- Algorithms that learn from rollouts once correct for the age of what they are given (V-trace). Steps that are older than
  `params.max_policy_lag` versions, by default `MAX_LAG`, are not learned from; `data/dropped_stale_steps` counts them.
- Algorithms with replay take steps of any policy, environment by environment, as a training server does.

A checkpoint holds every collector's state behind the last rollout that was learned from. What is on its way then is collected
anew after a resume, by newer policies: such runs are not reproducible.
"""

from __future__ import annotations

import numpy as np

from relayrl.data.open_rows import RolloutSplitter
from relayrl.engines.cluster.cluster_collector import LOOK_S, ClusterCollector, Fleet, PartResult
from relayrl.engines.local.overlap import Pace
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.local.run_parts import RunParts
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import ConfigError
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.policy_groups import PolicyGroup

MAX_FLIGHTS = 2
MAX_LAG = 16


def require_corrected(settings: RunSettings) -> None:
    """Raise where a run would learn from older policies' steps as if they were its own."""
    params = settings.params
    if getattr(params, "is_on_policy", False) and not getattr(params, "corrects_policy_lag", False):
        raise ConfigError(
            f"{settings.algo} does not correct for steps of older policies, which cluster.asynchronous gives it; use impala, "
            "appo or an algorithm with replay, or leave cluster.asynchronous out"
        )
    if any(len(each.curriculum) > 1 for each in settings.environment.parameters.values()):
        raise ConfigError(
            "lessons begin in all environments at one step, which asynchronous collectors do not have; leave "
            "cluster.asynchronous out, or give environment.parameters values or samplers"
        )
    if settings.self_play is not None:
        raise ConfigError(
            "self_play draws opponents and rates games at one step of all environments, which asynchronous collectors do not "
            "have; leave cluster.asynchronous out"
        )
    if settings.reward_signals:
        raise ConfigError("reward signals see all environments step together; leave cluster.asynchronous out")


class Asynchronous(Pace):
    """Learns from whichever rollouts have arrived."""

    def __init__(
        self, parts: RunParts, fleet: Fleet, collector: ClusterCollector, statistics: Statistics, clock: PhaseClock
    ) -> None:
        super().__init__(collector, clock, lambda _: {})
        self._members, self._fleet, self._recorder = collector, fleet, parts.recorder
        self._trainer, self._statistics = parts.trainer, statistics
        self._num_envs = parts.env.num_envs
        self._groups = {
            name: PolicyGroup(name, own.observation_space, own.action_space, own.masks_actions, own.agent_ids)
            for name, own in parts.env.groups.items()
        }
        self._splitters: dict[tuple[int, str], RolloutSplitter] = {}
        self._lags: list[int] = []
        if parts.trainer.uses_logp:
            for name in self._groups:
                params = parts.trainer.params_of(name)
                if getattr(params, "max_policy_lag", MAX_LAG) is None:
                    parts.trainer.configure(name, params.model_copy(update={"max_policy_lag": MAX_LAG}))
        fleet.on_break = self._forget

    def _forget(self, part: int) -> None:
        """The episodes of a part were lost: what waits for their next steps waits in vain."""
        for name in self._groups:
            self._splitters.pop((part, name), None)

    @property
    def num_env_steps(self) -> int:
        return self._trainer.num_env_steps

    def advance(self, num_steps: int) -> None:
        enough = self._trainer.num_env_steps + max(1, num_steps) * self._num_envs
        while self._trainer.num_env_steps < enough:
            self._keep_busy()
            for result in self._fleet.take_ready(LOOK_S):
                self._receive(result)
        self._clock.lap("collect")
        finish = self._trainer.begin()
        self._keep_busy()  # with what acts now, while critics still learn
        self._statistics.add(finish())
        if self._lags:
            self._statistics.add({"policy/lag_versions": float(np.mean(self._lags))})
            self._lags.clear()
        self._clock.lap("learn")

    def _keep_busy(self) -> None:
        """Send calls with the newest policies to whoever has fewer than two."""
        idle = [part for part in range(self._fleet.num_parts) if self._fleet.num_flights(part) < MAX_FLIGHTS]
        if not idle:
            return
        call = self._members.call(self._trainer.policy_version, self._members.rollout_steps)
        for part in idle:
            while self._fleet.num_flights(part) < MAX_FLIGHTS:
                self._fleet.send(part, call)

    def _receive(self, result: PartResult) -> None:
        rollouts = self._members.part_rollouts(result)
        if self._recorder is not None:
            # Under a name for each part: the blocks of one part follow each other.
            self._recorder.record({f"{name}/{result.part}": rollout for name, rollout in rollouts.items()})
        self.on_collected(rollouts)
        if self._trainer.uses_logp:
            self._trainer.receive(rollouts)
            return
        self._lags.append(self._trainer.policy_version - result.version)  # trainers that learn once give it themselves
        trajectories = [
            trajectory
            for name, rollout in rollouts.items()
            for trajectory in self._splitter(result.part, name).split(rollout)
        ]
        self._trainer.receive_trajectories(trajectories, self._groups)

    def _splitter(self, part: int, group: str) -> RolloutSplitter:
        return self._splitters.setdefault((part, group), RolloutSplitter())
