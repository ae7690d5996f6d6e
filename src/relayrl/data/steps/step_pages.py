"""Steps of lanes that each step at their own pace, and how they are cut into trajectories: behind agents and behind
`TrajectoryBuilder`.

Lanes with equal layouts share rows, which are handed out in pages of `PAGE_ROWS` consecutive rows of `StepRows`. A step of `L`
lanes is one indexed write for all small fields and one for each large field, whatever `L` is. Memory follows the most steps
that have been open at once, not the longest possible episode: pages are used again and never given back.

    append(…)       adds rewards to each lane's previous row, then a row per lane; returns the fragments that were cut
    append_one(…)   the same for one lane
    end(…)          the last row's reward and the episode's end; returns the lane's trajectory
    cut(…)          takes the lane's rows while its episode goes on
    interrupt(…)    ends the lane's episode as truncated and failed; returns its trajectory, if it has rows

The rules, which nothing else has for such lanes:

- A reward belongs to the lane's last action. Several add up.
- A fragment that is cut did not end: its flags are False, its `final_obs` is the observation before the next action, and the
  next fragment of the episode begins at the step at which it stops.
- Rows are numbered by the lane itself, by the clock of an environment that lanes share, or by a program (`trajectory_builder`).

Invariants: a lane's rows are in the order of its requests; a call that raises `ConfigError` has written nothing; trajectories
own their memory. Observations and masks are checked before (`step_rows`).

Threads: any thread may call `append_one` and `end`, which concern one lane, without holding `lock`. The owner holds `lock`
around all other calls that change anything. Threads of different lanes do not wait for each other: behind one lock they would
hand it around, and waking a thread takes longer than five actions. So a lane's work runs under the lane's own lock; if `lock`
is held by then, it waits for `lock` instead. Whoever holds `lock` first waits for the lanes that threads already work on. Each
side first announces itself and then checks for the other. What lanes share (free pages, idle lanes) changes in atomic steps.

Not its job: choosing actions, or who owns a lane (`state_manager`, `trajectory_builder`); lanes that step together
(`rollout_builder`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.steps.env_clock import EnvClock
from relayrl.data.steps.step_rows import ActingLayout, Step, StepRows
from relayrl.data.trees import Array, Tree, allocate, index, write
from relayrl.errors import ConfigError

PAGE_ROWS = 64
FIRST_PAGES = 16
T = TypeVar("T")
Given = TypeVarTuple("Given")


class Lane:
    """A place in the pages: who it is, and which episode it is in."""

    __slots__ = (
        *(
            "agent_id",
            "clock",
            "counts_rows",
            "episode",
            "first_step",
            "key",
            "lock",
            "memory",
            "memory_episode",
            "next_step",
            "number",
        ),
        *("pages", "steps"),
    )

    def __init__(self, key: UUID, number: int, agent_id: str, clock: EnvClock | None) -> None:
        self.key, self.number, self.agent_id = key, number, agent_id
        self.clock = clock  # None: the lane is its environment's only one
        self.counts_rows = clock is None  # every step of the environment is a row; otherwise somebody gives steps
        self.next_step: int | None = (
            0  # of the environment, where rows are not counted: that of the next row, or of the end
        )
        self.steps: list[int] = []  # of the open rows, where somebody gives them
        self.lock = threading.Lock()
        self.episode = self.first_step = 0
        self.pages: list[int] = []
        self.memory: Array | None = None  # what a policy with a memory remembers, and of which episode
        self.memory_episode = 0


class StepPages:
    """The open steps of all lanes of one layout."""

    def __init__(self, layout: ActingLayout, max_length: int, num_pages: int = FIRST_PAGES) -> None:
        """`num_pages` are there at first, of which lanes do not use the first one."""
        self.layout, self.max_length = layout, max_length
        self.lock = threading.Lock()
        self.num_closed = 0
        """Grows whenever a lane closes: callers that keep lane numbers check them again then."""
        self._lanes: list[Lane | None] = []
        self._free_numbers: list[int] = []
        self._at_work: set[Lane] = set()  # lanes that a thread works on, or is about to
        self._idle: set[int] = set()  # numbers of open lanes without rows
        self._num_clocked = 0  # open lanes that share an environment
        self._last = np.zeros(0, np.int64)  # row of the lane's last step; row 0 belongs to no lane
        self._stop = np.zeros(0, np.int64)  # the last row before a new page or a cut is due; 0 for lanes without rows
        self._rows = StepRows(layout.columns, num_pages * PAGE_ROWS)
        self._free_pages = list(range(num_pages - 1, 0, -1))

    @property
    def num_pages(self) -> int:
        """Pages that memory is held for."""
        return len(self._rows) // PAGE_ROWS

    def open_lane(self, key: UUID, agent_id: str, clock: EnvClock | None = None) -> Lane:
        """A lane in its first episode; `key` is never used again, so that trajectory ids are unique."""
        self._wait_for_lanes()
        if not self._free_numbers:
            more = max(16, len(self._lanes))
            self._free_numbers += range(len(self._lanes) + more - 1, len(self._lanes) - 1, -1)
            self._lanes += [None] * more
            self._last = np.concatenate([self._last, np.zeros(more, np.int64)])
            self._stop = np.concatenate([self._stop, np.zeros(more, np.int64)])
        lane = Lane(key, self._free_numbers.pop(), agent_id, clock)
        self._num_clocked += clock is not None
        self._lanes[lane.number] = lane
        self._idle.add(lane.number)
        return lane

    def close_lane(self, lane: Lane) -> None:
        """The lane's number may be given to another; its open steps must have been taken."""
        self._wait_for_lanes()
        self._drop_pages(lane)
        if lane.clock is not None:
            self._num_clocked -= 1
            lane.clock.leave(lane, is_removed=True)
        self._lanes[lane.number] = None
        self._idle.discard(lane.number)
        self._free_numbers.append(lane.number)
        self.num_closed += 1

    def is_open(self, lane: Lane) -> bool:
        return self._lanes[lane.number] is lane

    def num_open_steps(self, lane: Lane) -> int:
        """Rows of the present fragment."""
        if not lane.pages:
            return 0
        return (len(lane.pages) - 1) * PAGE_ROWS + int(self._last[lane.number]) % PAGE_ROWS + 1

    def append(self, lanes: Array, step: Step, reward: Array | None) -> list[tuple[UUID, Trajectory]]:
        """One step of each of `lanes` [L], which are open and differ. `reward` [L] belongs to their steps before it."""
        self._wait_for_lanes()
        last = self._last[lanes]
        if reward is not None:
            if self._idle and reward[last == 0].any():
                raise ConfigError("a reward for an actor that has not acted in this episode; rewards belong to actions")
            self._rows.set_rewards(last, reward)
        is_due = last == self._stop[lanes]
        cut = self._make_room(lanes, last, is_due, step) if np.count_nonzero(is_due) else []
        last += 1
        self._rows.write(last, step)
        self._last[lanes] = last
        for number in lanes.tolist() if self._num_clocked else ():
            lane = self._lanes[number]
            if lane is not None and lane.clock is not None:
                lane.clock.act(lane)
        return cut

    def append_one(self, lane: Lane, step: Step, reward: float | None) -> list[tuple[UUID, Trajectory]]:
        """The same for one lane, whose arrays have no axis before the row's own, at a third of the cost."""
        while (cut := self._at(lane, self._append_one, step, reward)) is None:
            with self.lock:
                self._wait_for_lanes()
                self._provide_page()
        return cut

    def append_alone(self, lane: Lane, step: Step) -> Trajectory | None:
        """The same where no other thread uses the pages, nor another lane; rewards are given to `add_reward`."""
        while (cut := self._append_one(lane, step, None)) is None:
            self._provide_page()
        return cut[0][1] if cut else None

    def end(
        self,
        lane: Lane,
        reward: float,
        terminated: bool,
        truncated: bool,
        final_obs: Tree | None,
        final_mask: Array | None = None,
    ) -> Trajectory:
        """The lane's episode is over; without a final observation, the last one stands in for it.

        `final_mask` [A] is what was allowed then; None means everything. Where lanes share an environment, the end lies on the
        step at which that is.
        """
        return self._at(lane, self._end, reward, terminated, truncated, final_obs, final_mask)

    def require_steps(self, lane: Lane) -> None:
        """Raise unless the lane is open and has acted in its present episode."""
        if not self.is_open(lane):
            raise ConfigError(_removed(lane))
        if not lane.pages:
            raise ConfigError(_no_action(lane))

    def add_reward(self, lane: Lane, reward: float) -> None:
        """Add to the reward of the last step of a lane that has steps."""
        self._rows.add_reward(self._last.item(lane.number), reward)

    def cut(self, lane: Lane, next_obs: Tree, next_mask: Array | None) -> Trajectory:
        """The steps of a lane that has any, while its episode goes on; `next_obs` followed, where `next_mask` was allowed."""
        end_step = lane.first_step + self.num_open_steps(lane) if lane.counts_rows else lane.next_step
        fragment = self._take(lane, end_step, False, False, False, next_obs, next_mask)
        lane.first_step += fragment.num_env_steps
        return fragment

    def interrupt(self, lane: Lane, *, is_void: bool = False) -> Trajectory | None:
        """The lane stops in the middle of an episode: what came of its last action will never be known.

        The step is kept, unless it `is_void`. `failed` and `truncated` say so, and its own observation stands in for the one
        after it.
        """
        self._wait_for_lanes()
        if not lane.pages:
            return None
        row, end_step = int(self._last[lane.number]), self._end_step(lane)
        last_obs, last_mask = self._rows.observation(row), self._rows.mask(row)
        if end_step is not None and not is_void:
            end_step += 1  # behind the step whose outcome is unknown, there is one that is void
        length = self.num_open_steps(lane) - is_void
        trajectory = self._take(lane, end_step, False, True, True, last_obs, last_mask, length) if length else None
        self._drop_pages(lane)
        self.leave(lane)
        return trajectory

    def rename(self, lane: Lane, agent_id: str) -> None:
        """The lane's steps, the open ones included, are somebody else's."""
        self._wait_for_lanes()
        lane.agent_id = agent_id

    def set_max_length(self, max_length: int) -> None:
        """Cut at another length; every lane looks at it again before its next row."""
        self._wait_for_lanes()
        self.max_length = max_length
        self._stop[:] = self._last

    def _at(self, lane: Lane, work: Callable[[Lane, *Given], T], *given: *Given) -> T:
        """The result of `work`, run while no other thread works on the lane."""
        with lane.lock:
            self._at_work.add(lane)
            try:
                if not self.lock.locked():
                    return work(lane, *given)
            finally:
                self._at_work.discard(lane)
        with self.lock:
            self._wait_for_lanes()
            return work(lane, *given)

    def _wait_for_lanes(self) -> None:
        """Block until no thread works on a lane. New ones wait while the caller holds `lock`."""
        if self._at_work:
            for lane in tuple(self._at_work):
                with lane.lock:
                    pass

    def _append_one(self, lane: Lane, step: Step, reward: float | None) -> list[tuple[UUID, Trajectory]] | None:
        """None, with nothing written, where the step needs a page and none is free."""
        number = lane.number
        if self._lanes[number] is not lane:
            raise ConfigError(_removed(lane))
        last = self._last.item(number)
        if reward and not last:
            raise ConfigError(_no_action(lane))
        is_due = last == self._stop.item(number)
        if is_due:
            try:
                page = self._free_pages.pop()
            except IndexError:
                return None
        if reward:
            self._rows.add_reward(last, reward)
        cut: list[tuple[UUID, Trajectory]] = []
        if is_due:
            obs, *_, mask, _ = step
            last, cut = self._turn_page(lane, last, obs, mask, page)
        try:
            self._rows.write_one(last + 1, step)
        except Exception:  # NumPy's, where a program gives what is no row: the lane keeps those it has
            if is_due:
                self._turn_back(lane, page)
            raise
        self._last[number] = last + 1
        if lane.clock is not None:
            lane.clock.act(lane)
        return cut

    def _end(
        self,
        lane: Lane,
        reward: float,
        terminated: bool,
        truncated: bool,
        final_obs: Tree | None,
        final_mask: Array | None,
    ) -> Trajectory:
        self.require_steps(lane)
        row = int(self._last[lane.number])
        self._rows.add_reward(row, reward)
        self._rows.has_masks |= final_mask is not None
        final = self._rows.observation(row) if final_obs is None else final_obs
        trajectory = self._take(lane, self._end_step(lane), terminated, truncated, False, final, final_mask)
        self.leave(lane)
        return trajectory

    def _end_step(self, lane: Lane) -> int | None:
        """The step behind the one at which the lane's environment is; None where nobody knows."""
        if lane.counts_rows:
            return lane.first_step + self.num_open_steps(lane)
        return lane.next_step if lane.clock is None else lane.clock.step + 1

    @staticmethod
    def leave(lane: Lane) -> None:
        """The lane's next action begins an episode."""
        lane.episode, lane.first_step = lane.episode + 1, 0
        if lane.clock is not None:
            lane.clock.leave(lane)

    def _provide_page(self) -> None:
        if not self._free_pages:
            self._free_pages += range(2 * self.num_pages - 1, self.num_pages - 1, -1)
            self._rows.grow()

    def _make_room(self, lanes: Array, last: Array, is_due: Array, step: Step) -> list[tuple[UUID, Trajectory]]:
        """Change `last` in place so that every lane that is due has a row after its last."""
        obs, *_, mask, _ = step
        cut: list[tuple[UUID, Trajectory]] = []
        for i in np.flatnonzero(is_due).tolist():
            lane = self._lanes[lanes[i]]
            assert lane is not None
            self._provide_page()
            allowed = None if mask is None else mask[i]
            last[i], fragments = self._turn_page(lane, int(last[i]), index(obs, i), allowed, self._free_pages.pop())
            cut += fragments
        return cut

    def _turn_page(
        self, lane: Lane, last: int, obs: Tree, mask: Array | None, page: int
    ) -> tuple[int, list[tuple[UUID, Trajectory]]]:
        """`(last row, fragments)` of a lane that is due: cut where it is long enough, with `page` where its own is full."""
        cut: list[tuple[UUID, Trajectory]] = []
        length = self.num_open_steps(lane)
        if length >= self.max_length:
            try:
                cut.append((lane.key, self.cut(lane, obs, mask)))
            except Exception:
                self._free_pages.append(page)
                raise
            length = 0
        if length % PAGE_ROWS == 0:
            self._idle.discard(lane.number)
            lane.pages.append(page)
            last = page * PAGE_ROWS - 1
        else:
            self._free_pages.append(page)
        self._stop[lane.number] = last + min(PAGE_ROWS - length % PAGE_ROWS, self.max_length - length)
        return last, cut

    def _turn_back(self, lane: Lane, page: int) -> None:
        """Nothing was written to `page`; the lane is due again."""
        if lane.pages[-1] == page:
            self._free_pages.append(lane.pages.pop())
        if not lane.pages:
            self._idle.add(lane.number)
        self._stop[lane.number] = self._last[lane.number]

    def _take(
        self,
        lane: Lane,
        end_step: int | None,
        terminated: bool,
        truncated: bool,
        failed: bool,
        final_obs: Tree,
        final_mask: Array | None,
        length: int | None = None,
    ) -> Trajectory:
        """The first `length` rows, by default all; the lane then has none."""
        if length is None:
            length = self.num_open_steps(lane)
        starts = [page * PAGE_ROWS for page in lane.pages]
        parts = [slice(start, start + min(PAGE_ROWS, length - i * PAGE_ROWS)) for i, start in enumerate(starts)]
        layout = self.layout
        final = allocate(layout.observation_space, ())
        write(final, ..., final_obs)
        columns = self._rows.gather(parts)
        last_mask = None
        if "action_mask" in columns:
            last_mask = np.ones(columns["action_mask"].shape[1:], bool)
            last_mask[...] = True if final_mask is None else final_mask
        trajectory = Trajectory(
            trajectory_id=trajectory_id(lane.key, lane.agent_id, lane.episode, lane.first_step),
            env_id=lane.key if lane.clock is None else lane.clock.env_id,
            agent_id=lane.agent_id,
            group=layout.group,
            observation_space=layout.observation_space,
            action_space=layout.action_space,
            episode=lane.episode,
            first_step=lane.first_step,
            terminated=terminated,
            truncated=truncated,
            failed=failed,
            final_obs=final,
            final_mask=last_mask,
            step=_steps(lane, length),
            end_step=end_step,
            **columns,
        )
        self._drop_pages(lane)
        return trajectory

    def _drop_pages(self, lane: Lane) -> None:
        self._idle.add(lane.number)
        self._free_pages += lane.pages
        lane.pages, lane.steps = [], []
        self._last[lane.number] = self._stop[lane.number] = 0


def _steps(lane: Lane, length: int) -> Array | None:
    """The environment's steps of the first rows; None where there are none, or where a clock counted on from the first."""
    steps = lane.steps[:length]
    counted_on = lane.clock is not None and steps[:1] == [lane.first_step] and steps[-1] - steps[0] == length - 1
    return None if counted_on or not steps else np.array(steps, np.int64)


def _removed(lane: Lane) -> str:
    return f"actor {lane.agent_id} was removed; make a new one with new_actor()"


def _no_action(lane: Lane) -> str:
    return f"actor {lane.agent_id} has not acted in this episode; a reward and an episode's end belong to an action"
