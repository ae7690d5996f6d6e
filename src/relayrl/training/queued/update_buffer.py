"""What waits for the next update: trajectories, and of several agents whole environments.

Where agents share environments, an episode of an environment is held until every agent has delivered it: up to its end or,
where episodes are cut into fragments, up to the step that the slowest agent has reached. What lies before that step is ready;
a trajectory that reaches beyond it is cut there, so that the rows of all agents that are ready belong to the same steps.

An agent has nothing more to deliver for an episode when

- a trajectory of it has ended there,
- somebody declared it absent, or named those who take part, or
- it has delivered a trajectory of a later episode of that environment: agents deliver their trajectories in order.

The wait is bounded. An environment that holds more than `max_held_steps` steps, or that has heard of nobody for `max_held_s`
seconds, gives up waiting in its oldest episode: what is there is ready as it is, `num_incomplete` counts it, and the log names
who was missing. What arrives of a missing agent afterwards is ready by itself, and counted too.

All methods may be called from any thread. Not its job: checking trajectories, and learning from them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_parts import cut_at_step, end_of

logger = logging.getLogger(__name__)
MAX_GIVEN_UP = 4096
"""Episodes that were given up are remembered, so that late trajectories are known as such: the newest of them."""
DEFAULT_MAX_HELD_STEPS = 10_000


class Incomplete(NamedTuple):
    """An episode of an environment that waits for agents."""

    env_id: UUID
    episode: int
    missing: tuple[str, ...]


class _Waiting(NamedTuple):
    """A trajectory, or what is left of it, and the id under which it came."""

    trajectory: Trajectory
    source_id: UUID


@dataclass(slots=True)
class _Episode:
    """One episode of one environment."""

    touched_s: float
    held: list[_Waiting] = field(default_factory=list)
    reached: dict[str, float] = field(default_factory=dict)  # by agent: the step up to which it has delivered; inf: all
    ready_to: float = 0  # the step before which everything was handed over
    num_ready: Counter[str] = field(default_factory=Counter)  # trajectories handed over since the last update, by agent

    @property
    def num_held_steps(self) -> int:
        if not self.held:
            return 0
        first = min(each.trajectory.first_step for each in self.held)
        return max(end_of(each.trajectory) for each in self.held) - first


@dataclass(slots=True)
class _Environment:
    """The episodes of an environment that are not over, by number."""

    episodes: dict[int, _Episode] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)  # by agent: the latest episode that it delivered something of


class UpdateBuffer:
    """See the module's docstring. Without agents to expect, every trajectory is ready as it comes."""

    def __init__(self, max_held_steps: int = DEFAULT_MAX_HELD_STEPS, max_held_s: float | None = None) -> None:
        self._max_held_steps, self._max_held_s = max_held_steps, max_held_s
        self._lock = threading.Lock()
        self._expected: tuple[str, ...] = ()
        self._envs: dict[UUID, _Environment] = {}
        self._never: set[tuple[UUID, str]] = set()  # agents that are absent from an environment altogether
        self._only: dict[UUID, frozenset[str]] = {}  # environments of which somebody said who plays in them
        self._given_up: OrderedDict[tuple[UUID, int], None] = OrderedDict()
        self._ready: list[_Waiting] = []
        self._num_ready = 0  # joint trajectories of episodes that are over, since the last update
        self._sources: Counter[UUID] = Counter()
        self._covered: dict[tuple[UUID, int], int] = {}  # by running episode: the step up to which it was counted
        self.num_incomplete = 0
        """Parts of episodes that became ready without an agent that was expected."""
        self.num_duplicates = 0
        """Trajectories that waited already when they came again."""

    def expect(self, agent_ids: Collection[str]) -> None:
        """The agents that play in every environment; with fewer than two, nobody is waited for."""
        with self._lock:
            self._expected = tuple(agent_ids) if len(agent_ids) > 1 else ()
            for env_id in list(self._envs):
                self._settle(env_id)

    def __len__(self) -> int:
        """Trajectories here, ready or held."""
        with self._lock:
            return len(self._sources)

    @property
    def num_held(self) -> int:
        """Trajectories, or parts of them, that wait for other agents."""
        with self._lock:
            return sum(len(episode.held) for _, _, episode in self._running())

    @property
    def num_ready(self) -> int:
        """Joint trajectories that are ready: of each episode as many as its busiest agent has."""
        with self._lock:
            self._give_up_silent()
            return self._num_ready + sum(max(e.num_ready.values(), default=0) for _, _, e in self._running())

    @property
    def groups_ready(self) -> set[str]:
        """Groups of which something is ready."""
        with self._lock:
            return {each.trajectory.group for each in self._ready}

    def num_steps_with(self, new: Iterable[Trajectory]) -> int:
        """Steps of all agents that would be here with `new` as well."""
        with self._lock:
            waiting = sum(len(each.trajectory) for each in self._all())
            return waiting + sum(len(t) for t in new if t.trajectory_id not in self._sources)

    def incomplete(self) -> list[Incomplete]:
        """Episodes that are held, and whom they wait for."""
        with self._lock:
            return [Incomplete(env_id, n, self._missing(e)) for env_id, n, e in self._running() if e.held]

    def add(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Take trajectories, those that wait already left out; gives the new ones."""
        with self._lock:
            different = {t.trajectory_id: t for t in trajectories}
            new = [t for key, t in different.items() if key not in self._sources]
            self.num_duplicates += len(trajectories) - len(new)
            for trajectory in new:
                self._take(trajectory)
            for env_id in {t.env_id: None for t in new}:
                self._settle(env_id)
            self._give_up_silent()
            return new

    def declare_absent(self, env_id: UUID, episode: int | None, agent_id: str) -> None:
        """Do not wait for an agent in an episode of an environment or, without one, in any of its episodes."""
        with self._lock:
            if episode is None:
                self._never.add((env_id, agent_id))
            else:
                self._episode(env_id, episode).reached[agent_id] = math.inf
            self._settle(env_id)

    def expect_only(self, env_id: UUID, episode: int | None, agent_ids: Collection[str]) -> None:
        """Wait for nobody else in an episode of an environment or, without one, in any of its episodes."""
        with self._lock:
            if episode is None:
                self._only[env_id] = frozenset(agent_ids)
            elif not self._is_over(env_id, episode):
                for agent_id in set(self._expected).difference(agent_ids):
                    self._episode(env_id, episode).reached[agent_id] = math.inf
            self._settle(env_id)

    def release(self) -> list[Incomplete]:
        """Wait for nobody any more: what is held is ready as it is. Gives what was incomplete."""
        with self._lock:
            return [self._give_up(env_id, number) for env_id, number, e in self._running() if e.held]

    def take(self) -> list[Trajectory]:
        """Everything that is ready, in the order in which it became so."""
        with self._lock:
            ready, self._ready = self._ready, []
            self._num_ready = 0
            for _, _, episode in self._running():
                episode.num_ready.clear()
            for each in ready:
                self._forget_source(each.source_id)
            return [each.trajectory for each in ready]

    def num_covered(self, taken: Sequence[Trajectory]) -> int:
        """Steps of environments that trajectories of an earlier `take` covered too; call it once with those of each.

        An agent that waits covers steps without acting on them; what others do there may be ready later.
        """
        with self._lock:
            num_steps, spans = 0, dict[tuple[UUID, int], tuple[int, int]]()
            for t in taken:
                key, first = (t.env_id, t.episode), int(t.steps[0])
                known = spans.get(key, (first, 0))
                spans[key] = min(known[0], first), max(known[1], end_of(t))
            for key, (first, end) in spans.items():
                before = self._covered.get(key, 0)
                num_steps += max(0, min(before, end) - first)
                self._covered[key] = max(before, end)
            running = {(env_id, number) for env_id, number, _ in self._running()}
            self._covered = {key: step for key, step in self._covered.items() if key in running}
            return num_steps

    def clear(self) -> None:
        """Drop everything that waits, and begin to count anew."""
        with self._lock:
            self._envs, self._ready, self._num_ready = {}, [], 0
            self._sources.clear()
            self._covered.clear()
            self.num_incomplete = self.num_duplicates = 0

    def state(self) -> tuple[list[Trajectory], dict[str, Any]]:
        """What waits, and what is known of it, for `restore`; steps are −1 for an episode's end."""
        with self._lock:
            waiting = self._all()
            return [each.trajectory for each in waiting], {
                "sources": [str(each.source_id) for each in waiting],
                "num_ready": len(self._ready),  # they come first
                "num_joint_ready": self._num_ready,
                "absent": [[str(env_id), agent_id] for env_id, agent_id in sorted(self._never, key=str)],
                "only": [[str(env_id), sorted(agent_ids)] for env_id, agent_ids in self._only.items()],
                "given_up": [[str(env_id), number] for env_id, number in self._given_up],
                "covered": [[str(env_id), number, step] for (env_id, number), step in self._covered.items()],
                "newest": [[str(env_id), dict(env.newest)] for env_id, env in self._envs.items()],
                "episodes": [
                    {
                        "env_id": str(env_id),
                        "number": number,
                        "reached": {agent_id: _finite(step) for agent_id, step in episode.reached.items()},
                        "ready_to": _finite(episode.ready_to),
                        "num_ready": dict(episode.num_ready),
                    }
                    for env_id, number, episode in self._running()
                ],
            }

    def restore(self, trajectories: Sequence[Trajectory], known: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.clear()
        with self._lock:
            self._never = {(UUID(env_id), agent_id) for env_id, agent_id in known["absent"]}
            self._only = {UUID(env_id): frozenset(agent_ids) for env_id, agent_ids in known["only"]}
            self._covered = {(UUID(env_id), int(number)): int(step) for env_id, number, step in known["covered"]}
            self._given_up = OrderedDict.fromkeys((UUID(env_id), int(number)) for env_id, number in known["given_up"])
            for own in known["episodes"]:
                episode = self._episode(UUID(own["env_id"]), int(own["number"]))
                episode.reached = {agent_id: _endless(step) for agent_id, step in own["reached"].items()}
                episode.ready_to = _endless(own["ready_to"])
                episode.num_ready = Counter(own["num_ready"])
            for env_id, newest in known["newest"]:
                self._envs[UUID(env_id)].newest = dict(newest)
            sources = [UUID(source_id) for source_id in known["sources"]]
            waiting = [_Waiting(*each) for each in zip(trajectories, sources, strict=True)]
            self._sources.update(sources)
            self._ready, self._num_ready = waiting[: known["num_ready"]], known["num_joint_ready"]
            for each in waiting[known["num_ready"] :]:
                self._episode(each.trajectory.env_id, each.trajectory.episode).held.append(each)

    def _running(self) -> list[tuple[UUID, int, _Episode]]:
        return [(env_id, number, e) for env_id, env in self._envs.items() for number, e in env.episodes.items()]

    def _all(self) -> list[_Waiting]:
        return [*self._ready, *(each for _, _, episode in self._running() for each in episode.held)]

    def _episode(self, env_id: UUID, number: int) -> _Episode:
        env = self._envs.setdefault(env_id, _Environment())
        return env.episodes.setdefault(number, _Episode(time.monotonic()))

    def _forget_source(self, source_id: UUID) -> None:
        self._sources[source_id] -= 1
        if not self._sources[source_id]:
            del self._sources[source_id]

    def _is_over(self, env_id: UUID, number: int) -> bool:
        """Whether an episode was given up, to its end."""
        env = self._envs.get(env_id)
        return (env_id, number) in self._given_up and (env is None or number not in env.episodes)

    def _take(self, trajectory: Trajectory) -> None:
        waiting = _Waiting(trajectory, trajectory.trajectory_id)
        self._sources[trajectory.trajectory_id] += 1
        env_id, number, agent_id = trajectory.env_id, trajectory.episode, trajectory.agent_id
        if not self._expected:
            self._ready.append(waiting)
            self._num_ready += 1
            return
        if self._is_over(env_id, number):
            self._ready.append(waiting)
            self.num_incomplete += 1
            return
        episode, newest = self._episode(env_id, number), self._envs[env_id].newest
        self.num_incomplete += trajectory.first_step < episode.ready_to
        ended = trajectory.terminated or trajectory.truncated
        reached = math.inf if ended else float(end_of(trajectory))
        episode.reached[agent_id] = max(reached, episode.reached.get(agent_id, 0))
        episode.held.append(waiting)
        episode.touched_s = time.monotonic()
        newest[agent_id] = max(number, newest.get(agent_id, number))

    def _settle(self, env_id: UUID) -> None:
        """Make ready what all agents have delivered, and give up the oldest episodes of an environment that holds too much."""
        env = self._envs.get(env_id, _Environment())
        for number, episode in sorted(env.episodes.items()):
            for agent_id in self._expected:
                plays = (env_id, agent_id) not in self._never and agent_id in self._only.get(env_id, (agent_id,))
                if number < env.newest.get(agent_id, 0) or not plays:
                    episode.reached[agent_id] = math.inf
            everyone = [episode.reached.get(agent_id, 0) for agent_id in self._expected]
            self._hand_over(env_id, number, min(everyone, default=math.inf))
        while sum(each.num_held_steps for each in env.episodes.values()) > self._max_held_steps:
            self._give_up(env_id, min(number for number, each in env.episodes.items() if each.held))

    def _hand_over(self, env_id: UUID, number: int, step: float) -> None:
        """Make the rows of an episode before `step` ready; after the last one, the episode is over."""
        env = self._envs[env_id]
        episode = env.episodes[number]
        if step > episode.ready_to:
            held, episode.held, episode.ready_to = episode.held, [], step
            for each in held:
                whole = (each.trajectory, None)
                before, rest = whole if math.isinf(step) else cut_at_step(each.trajectory, int(step))
                if before is not None:
                    self._ready.append(_Waiting(before, each.source_id))
                    self._sources[each.source_id] += 1
                if rest is not None:
                    episode.held.append(_Waiting(rest, each.source_id))
                else:
                    self._forget_source(each.source_id)
                    episode.num_ready[each.trajectory.agent_id] += 1
        if math.isinf(step):
            self._num_ready += max(episode.num_ready.values(), default=0)
            del env.episodes[number]
            if not env.episodes:
                del self._envs[env_id]

    def _missing(self, episode: _Episode) -> tuple[str, ...]:
        furthest = max(episode.reached.values(), default=0)
        return tuple(agent_id for agent_id in self._expected if episode.reached.get(agent_id, 0) < furthest)

    def _give_up(self, env_id: UUID, number: int) -> Incomplete:
        """Wait no longer for those who are behind in an episode."""
        episode = self._envs[env_id].episodes[number]
        found = Incomplete(env_id, number, self._missing(episode))
        furthest = max(episode.reached.values(), default=0)
        for agent_id in found.missing:
            episode.reached[agent_id] = furthest
        self.num_incomplete += 1
        self._given_up[env_id, number] = None
        if len(self._given_up) > MAX_GIVEN_UP:
            self._given_up.popitem(last=False)
        logger.warning(
            "episode %d of environment %s is incomplete: %s delivered nothing up to %s; it is learned from without them",
            number,
            env_id,
            ", ".join(found.missing),
            "its end" if math.isinf(furthest) else f"step {furthest:.0f}",
        )
        self._hand_over(env_id, number, furthest)
        return found

    def _give_up_silent(self) -> None:
        if self._max_held_s is None:
            return
        before_s = time.monotonic() - self._max_held_s
        for env_id, number, episode in self._running():
            if episode.held and episode.touched_s < before_s:
                self._give_up(env_id, number)


def _finite(step: float) -> int:
    return -1 if math.isinf(step) else int(step)


def _endless(step: int) -> float:
    return math.inf if step < 0 else step
