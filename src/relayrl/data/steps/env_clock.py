"""The clock of an environment whose actors a program drives itself: which episode it is in, and at which step.

Actors made with the same `env_id` share one. The rule, where the program does not give steps itself:

- Actors of one request act at the same step. The step advances when one of them has acted at the present step already.
- An actor's end (`flag_last_action`) lies on the present step: what it saw last is what followed that step.
- The episode is over when every actor that acted in it has ended; the next action begins the next one. Until then, an actor
  that has ended stays out; one that was removed is not replaced by another for the same agent. `on_over` then gets the
  environment, the episode and the agents that acted in it: whoever waits for trajectories need not wait for others.

So a program that makes one request per step of its environment, of all actors that act then, has exact steps. Where actors are
asked one by one and take turns, or come late, nobody can tell from the requests alone: such a program gives `step=`.

Not its job: rows and pages (`step_pages`), environments that the runtime steps (`env_runner`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from relayrl.data.steps.step_pages import Lane


EpisodeOver = Callable[[UUID, int, frozenset[str]], None]


class EnvClock:
    """Of one environment. Any thread may call."""

    __slots__ = ("_acted", "_ended", "_left", "_lock", "_members", "_on_over", "agent_ids", "env_id", "episode", "step")

    def __init__(self, env_id: UUID, on_over: EpisodeOver = lambda *_: None) -> None:
        self.env_id, self._on_over = env_id, on_over
        self.agent_ids: set[str] = set()
        self.episode = self.step = 0
        self._lock = threading.Lock()
        self._acted: set[Lane] = set()  # at the present step
        self._members: set[Lane] = set()  # acted in the episode
        self._ended: set[Lane] = set()
        self._left: set[str] = set()  # agents whose actors were removed after they had acted in the episode

    def stamp(self, lanes: Sequence[Lane], step: int | None) -> None:
        """Lanes of one request are about to act, at `step` where the program knows; each then has its `next_step`."""
        with self._lock:
            for lane in lanes:
                if lane in self._ended or lane.agent_id in self._left:
                    others = sorted(other.agent_id for other in self._members - self._ended)
                    raise ConfigError(
                        f"agent {lane.agent_id!r} has ended in episode {self.episode} of environment {self.env_id}, which goes "
                        f"on with {others}; it acts again when flag_last_action() has named them all"
                    )
            has_acted = not self._acted.isdisjoint(lanes)
            if step is None:
                step = self.step + has_acted
            elif step < self.step + has_acted:
                raise ConfigError(
                    f"step {step} of environment {self.env_id}, which is at step {self.step} of episode {self.episode}, "
                    "where an agent acts once; steps increase until the episode is over"
                )
            for lane in lanes:
                lane.next_step = step
                if lane not in self._members:
                    lane.episode, lane.first_step = self.episode, 0

    def act(self, lane: Lane) -> None:
        """The lane has acted at its `next_step`."""
        step = lane.next_step
        assert step is not None
        with self._lock:
            if step > self.step:
                self.step = step
                self._acted.clear()
            self._acted.add(lane)
            self._members.add(lane)
            lane.steps.append(step)

    def move_to(self, step: int) -> None:
        """The environment has come as far as `step`."""
        with self._lock:
            if step < self.step:
                raise ConfigError(f"step {step} of environment {self.env_id}, which is at step {self.step} already")
            if step > self.step:
                self.step = step
                self._acted.clear()

    def leave(self, lane: Lane, *, is_removed: bool = False) -> None:
        """The lane's episode is over; with the last of them, the environment's is. A lane that is removed does not return."""
        with self._lock:
            self._ended.add(lane)
            if is_removed:
                self.agent_ids.discard(lane.agent_id)
                if lane in self._members:
                    self._left.add(lane.agent_id)
                self._members.discard(lane)
            if self._members <= self._ended:
                episode, acted = self.episode, frozenset({each.agent_id for each in self._members} | self._left)
                self.episode, self.step = self.episode + bool(self._members or is_removed), 0
                for each in (self._acted, self._members, self._ended, self._left):
                    each.clear()
                if acted:
                    self._on_over(self.env_id, episode, acted)
