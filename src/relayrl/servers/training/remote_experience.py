"""How a run learns from what remote actors send: a queue between the thread that receives and the thread that learns.

`Intake` holds what is durable and not learned from yet. `LearningFromActors` is the run's pace: it waits for as many steps as a
local rollout has, drops what is too old, learns, and publishes.

- Order is the journal's, so that a position in it says what was learned from: checkpoints hold it, and a server that was killed
  goes on with what follows.
- Staleness is decided here, where data enters an update: the lag of a trajectory is the number of versions between the policy
  of its oldest step and the newest one. Beyond the bound it is dropped, and counted.
- Actors are asked to wait while enough is here (`flow`). Nothing here waits for an actor: whoever is slow, absent, or in
  an endless episode only sends less.

Not its job: the wire and the journal (`ingest`), files of policies (`model_publisher`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.stacking import count_env_steps
from relayrl.engines.local.overlap import LearningHere
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.local.run_parts import RunParts
from relayrl.runtime.collector import EndedEpisodes
from relayrl.servers.training.training_metrics import TrainingMetrics
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.policy_groups import Groups

_log = logging.getLogger("relayrl.servers.training.remote_experience")
_LOOK_S = 0.2
_MAX_OPEN_EPISODES = 100_000
_SAVE_SHARE = 10
"""Saving may take one part in so many of the time."""


class Received:
    """One entry of the journal: the trajectories of a message, none where they were refused."""

    __slots__ = ("_decode", "_trajectories", "num_bytes", "num_env_steps")

    def __init__(
        self,
        trajectories: Sequence[Trajectory] | Callable[[], Sequence[Trajectory]] = (),
        num_env_steps: int = 0,
        num_bytes: int = 0,
    ) -> None:
        """Trajectories that are not decoded yet are what a function gives: it is called by who learns from them."""
        self._decode = trajectories if callable(trajectories) else None
        self._trajectories: Sequence[Trajectory] = () if callable(trajectories) else trajectories
        self.num_env_steps, self.num_bytes = num_env_steps, num_bytes

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        if self._decode is not None:
            self._trajectories, self._decode = self._decode(), None
        return self._trajectories

    @staticmethod
    def of(trajectories: Sequence[Trajectory], *, is_single_agent: bool) -> Received:
        """Count the steps of environments, however many agents took part in each."""
        num_bytes = sum(t.reward.nbytes * 16 + 512 for t in trajectories)
        if is_single_agent:
            return Received(trajectories, sum(len(t) for t in trajectories), num_bytes)
        return Received(trajectories, count_env_steps(trajectories), num_bytes)


class Intake:
    """What is durable and not learned from yet, in the journal's order."""

    def __init__(self, enough_steps: int, max_bytes: int) -> None:
        self._enough_steps, self._max_bytes = enough_steps, max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Received] = deque()
        self._num_unlearned_steps = 0
        self._num_bytes = 0
        self._wanted_more, self._turn = True, 0
        self.is_strict = False
        """Whether actors wait while an update goes on: what they would send meanwhile would be too old."""
        self._is_learning = False

    @property
    def num_steps(self) -> int:
        """Environment steps that wait for an update."""
        return self._num_unlearned_steps

    def flow(self) -> dict[str, Any]:
        """Whether actors should wait, and a number by which they know which of two answers is newer."""
        with self._changed:
            return {"wait": not self._wants_more(), "turn": self._turn}

    def _wants_more(self) -> bool:
        if self._is_learning and self.is_strict:
            return False
        return self._num_unlearned_steps < self._enough_steps

    def _note_turn(self) -> None:
        """Count the moments at which waiting actors may go on."""
        wanted_more, self._wanted_more = self._wanted_more, self._wants_more()
        self._turn += not wanted_more and self._wanted_more

    @property
    def turn(self) -> int:
        """How often actors that waited could go on."""
        return self._turn

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be taken: actors do not wait when they are asked to."""
        return self._num_bytes >= self._max_bytes

    def put(self, group: Sequence[Received]) -> None:
        """Hand over what has become durable together."""
        with self._changed:
            self._waiting += group
            self._num_unlearned_steps += sum(received.num_env_steps for received in group)
            self._num_bytes += sum(received.num_bytes for received in group)
            self._note_turn()
            self._changed.notify_all()

    def take(self, timeout_s: float) -> list[Received]:
        """Everything that waits; empty if nothing comes within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting), timeout_s)
            taken = list(self._waiting)
            self._waiting.clear()
            return taken

    def done_with(self, received: Received) -> None:
        """It was given to an update, or dropped."""
        with self._changed:
            self._num_unlearned_steps -= received.num_env_steps
            self._num_bytes -= received.num_bytes
            self._note_turn()

    def add_back(self, received: Received) -> None:
        """What is left of something that was partly dropped."""
        with self._changed:
            self._num_unlearned_steps += received.num_env_steps
            self._num_bytes += received.num_bytes

    def learning(self, is_so: bool) -> None:
        """Whether an update goes on."""
        with self._changed:
            self._is_learning = is_so
            self._note_turn()


class LearningFromActors(LearningHere):
    """Learns from what the intake holds; `publish` is called with every new version. Actors play while critics learn on."""

    def __init__(
        self,
        parts: RunParts,
        groups: Groups,
        statistics: Statistics,
        clock: PhaseClock,
        intake: Intake,
        metrics: TrainingMetrics,
        *,
        max_policy_lag: int | None,
        publish: Callable[[], None],
        on_room: Callable[[], None],
        save_interval_s: float,
        num_learned: int,
        learned_version: int,
    ) -> None:
        """`num_learned` entries of the journal, and `learned_version` versions, were learned before this began."""
        super().__init__(parts.trainer, statistics, parts.collector, clock, lambda _: {})
        self._groups, self._intake, self._metrics = groups, intake, metrics
        self._max_policy_lag, self._publish, self._on_room = max_policy_lag, publish, on_room
        self._save_interval_s = save_interval_s
        self._num_envs = parts.env.num_envs
        self._is_on_policy = parts.trainer.uses_logp
        self._waiting: deque[Received] = deque()
        self._num_learned, self._learned_version = num_learned, learned_version
        self._first_version = parts.trainer.policy_version
        self._episodes = EpisodeReturns(groups)
        self._saved_at_s, self._next_save_s, self._has_news = time.monotonic(), save_interval_s, False
        self._save_began_s: float | None = None
        self._announced_turn = intake.turn
        intake.is_strict = max_policy_lag == 0

    def advance(self, num_steps: int) -> None:
        """Learn from one block, of `num_steps` steps of each environment or more; returns without having learned where the
        actors have not sent enough within a moment."""
        self._note_save()
        wanted = max(1, num_steps * self._num_envs)
        has_enough = sum(received.num_env_steps for received in self._waiting) >= wanted
        taken = self._intake.take(0.0 if has_enough else _LOOK_S)
        if not taken:
            self.settle()  # or the last row of statistics would wait for actors
        for received in taken:
            self._episodes.add(received.trajectories)
            self._waiting.append(received)
        self._clock.lap("wait")
        block = self._take_block(wanted)
        if not block:
            return
        self._intake.learning(True)
        try:
            self._learn(block)
        finally:
            self._intake.learning(False)
        self._announce_turn()

    def _announce_turn(self) -> None:
        """Call actors that wait and may go on, unless a policy was announced since, which says so as well: every announcement
        wakes all of them."""
        turn = self._intake.turn
        if turn != self._announced_turn:
            self._announced_turn = turn
            self._on_room()

    def _take_block(self, block_steps: int) -> list[Trajectory]:
        """Trajectories of as many steps as an update takes, or none."""
        self._drop_stale()
        if sum(received.num_env_steps for received in self._waiting) < block_steps:
            return []
        block: list[Trajectory] = []
        num_steps = 0
        while self._waiting and (num_steps < block_steps or not self._is_on_policy):
            received = self._waiting.popleft()
            self._intake.done_with(received)
            self._num_learned += 1
            num_steps += received.num_env_steps
            block += received.trajectories
        return block

    def _drop_stale(self) -> None:
        """Make room for what actors will send instead; entries keep their place in the journal's order."""
        num_dropped = 0
        for i, received in enumerate(self._waiting):
            kept = [t for t in received.trajectories if not self._is_stale(t)]
            if len(kept) < len(received.trajectories):
                num_dropped += len(received.trajectories) - len(kept)
                share = len(kept) / len(received.trajectories)
                left = Received(kept, received.num_env_steps if kept else 0, int(share * received.num_bytes))
                self._waiting[i] = left
                self._intake.done_with(received)
                self._intake.add_back(left)
        if num_dropped:
            self._metrics.stale.inc(num_dropped)
            _log.info("%d trajectories were older than %s versions and dropped", num_dropped, self._max_policy_lag)
            self._announce_turn()

    def _is_stale(self, trajectory: Trajectory) -> bool:
        bound = self._max_policy_lag
        return bound is not None and self._lag(trajectory) > bound

    def _lag(self, trajectory: Trajectory) -> int:
        """Versions learned since its first step; those that a restart left out are none."""
        acted = int(trajectory.policy_version[0])
        if acted < self._first_version:
            acted = self._first_version - max(0, self._learned_version - acted)
        return self._trainer.policy_version - acted

    def _learn(self, block: list[Trajectory]) -> None:
        self.settle()
        lags = [self._lag(trajectory) for trajectory in block]
        if not self._is_on_policy:  # trainers that learn from data once say so themselves
            self._statistics.add({"policy/lag_versions": float(np.mean(lags))})
        self._metrics.lag.set(float(np.max(lags)))
        version = self._trainer.policy_version
        self._trainer.receive_trajectories(block, self._groups)
        self._finish = self._trainer.begin()
        if self._trainer.policy_version != version:
            self._metrics.updates.inc(self._trainer.policy_version - version)
        self._metrics.learned.inc(len(block))
        self._announced_turn = self._intake.turn
        self._publish()
        self._has_news = True
        self._clock.lap("learn")

    def take_ended(self) -> EndedEpisodes:
        return self._episodes.take()

    @property
    def is_save_due(self) -> bool:
        return self._has_news and time.monotonic() - self._saved_at_s >= self._next_save_s

    def state_dict(self) -> dict[str, Any]:
        self._saved_at_s, self._has_news = time.monotonic(), False
        self._save_began_s = self._saved_at_s
        return {"num_learned": self._num_learned}

    def _note_save(self) -> None:
        """A save that took long is followed by a longer time without one."""
        if self._save_began_s is not None:
            took_s = time.monotonic() - self._save_began_s
            self._next_save_s = max(self._save_interval_s, _SAVE_SHARE * took_s)
            self._save_began_s = None


class EpisodeReturns:
    """Puts the returns of episodes together from the fragments that trajectories are."""

    def __init__(self, groups: Groups) -> None:
        self._agent_ids = {name: group.agent_ids for name, group in groups.items()}
        self._open: OrderedDict[tuple[UUID, int], _OpenEpisode] = OrderedDict()
        self._ended = self._none()

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Count trajectories of one message, in which all agents of an environment go equally far."""
        touched: dict[tuple[UUID, int], _OpenEpisode] = {}
        for t in trajectories:
            key = (t.env_id, t.episode)
            episode = self._open.setdefault(key, _OpenEpisode())
            episode.add(t)
            touched[key] = episode
        for key, episode in touched.items():
            if not episode.acting:
                del self._open[key]
                if episode.is_whole:
                    self._end(episode)
        while len(self._open) > _MAX_OPEN_EPISODES:  # of actors that never came back
            self._open.popitem(last=False)

    def take(self) -> EndedEpisodes:
        """Episodes that ended since the last call."""
        taken, self._ended = self._ended, self._none()
        return taken

    def _end(self, episode: _OpenEpisode) -> None:
        own = {name: [episode.sums.get((name, agent), 0.0) for agent in ids] for name, ids in self._agent_ids.items()}
        everybody = [each for returns in own.values() for each in returns]
        self._ended.returns.append(sum(everybody) / max(1, len(everybody)))
        self._ended.lengths.append(episode.length)
        for name, returns in own.items():
            self._ended.group_returns[name].append(sum(returns) / max(1, len(returns)))
            self._ended.agent_returns[name].append(np.array([returns]))

    def _none(self) -> EndedEpisodes:
        return EndedEpisodes(
            group_returns={name: [] for name in self._agent_ids}, agent_returns={name: [] for name in self._agent_ids}
        )


class _OpenEpisode:
    """What is known of one episode of one environment."""

    __slots__ = ("acting", "is_whole", "length", "sums")

    def __init__(self) -> None:
        self.acting: set[tuple[str, str]] = set()
        self.is_whole, self.length = True, 0
        self.sums: dict[tuple[str, str], float] = {}

    def add(self, t: Trajectory) -> None:
        who = (t.group, t.agent_id)
        if t.first_step == 0 or who in self.acting:
            self.acting.add(who)
        else:
            self.is_whole = False  # its beginning was never here
        self.is_whole &= not t.failed
        self.sums[who] = self.sums.get(who, 0.0) + t.episode_return
        self.length = max(self.length, t.first_step + t.num_env_steps - t.failed)
        if t.terminated or t.truncated:
            self.acting.discard(who)
        else:
            self.acting.add(who)


def learned_before(state: Mapping[str, Any]) -> int:
    """Entries of the journal that a checkpoint's policies have learned from."""
    return int(state.get("num_learned", 0))
