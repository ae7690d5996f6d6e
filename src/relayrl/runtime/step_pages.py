"""Where the steps of running episodes lie: columns in pages, shared by all actors with equal spaces.

A page is `PAGE_ROWS` consecutive rows of every column. An actor's lane owns a list of pages; a request of `L` actors is one
indexed write per column, whatever `L` is, and memory follows the steps that are open, not the longest possible episode.

    append(…)      rewards go to each lane's previous row, then one new row per lane; gives the fragments that were cut
    end(…)         the last row's reward and the episode's end; gives the whole trajectories
    interrupt(…)   the lane stops where it is

Semantics are those of `relayrl.data.trajectory_builder`, lane by lane; a property test holds the two to each other.

Invariants: a lane's rows are in the order of its requests; a call that raises has written nothing; trajectories own their
memory. The owner holds `lock` around every call.

Not its job: choosing actions, or who the lanes belong to outside (`actor_handle`).
"""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.splitting import trajectory_id
from relayrl.data.trees import Array, Tree, allocate, index, map_tree, write
from relayrl.errors import ConfigError
from relayrl.runtime.acting_layout import ActingLayout

PAGE_ROWS = 64
_FIRST_PAGES = 16
_CLOSED = -1


class Lane:
    """One actor's place in the pages: who it is, and which episode it is in."""

    __slots__ = ("agent_id", "episode", "first_step", "key", "number", "pages")

    def __init__(self, key: UUID, number: int, agent_id: str) -> None:
        self.key, self.number, self.agent_id = key, number, agent_id
        self.episode = self.first_step = 0
        self.pages: list[int] = []


class StepPages:
    """The open steps of all lanes of one layout."""

    def __init__(self, layout: ActingLayout, max_length: int) -> None:
        self.layout, self.max_length = layout, max_length
        self.lock = threading.Lock()
        self.num_closed = 0
        """Grows whenever a lane closes: whoever remembers lane numbers checks them again then."""
        self._lanes: list[Lane | None] = []
        self._free_numbers: list[int] = []
        self._last = np.zeros(0, np.int64)  # row of the lane's last step; row 0 belongs to nobody
        self._room = np.zeros(0, np.int64)  # rows that may follow before a new page or a cut is due
        rows = _FIRST_PAGES * PAGE_ROWS
        self._columns: dict[str, Any] = {
            "obs": allocate(layout.observation_space, (rows,)),
            "action": allocate(layout.action_space, (rows,)),
            "reward": np.zeros(rows, np.float32),
            "policy_version": np.zeros(rows, np.int64),
        }
        if layout.has_logp:
            self._columns["logp"] = np.zeros(rows, np.float32)
        if layout.has_value:
            self._columns["value"] = np.zeros(rows, np.float32)
        self._free_pages = list(range(_FIRST_PAGES - 1, 0, -1))

    @property
    def num_pages(self) -> int:
        """Pages that memory is held for."""
        return len(self._columns["reward"]) // PAGE_ROWS

    def open_lane(self, key: UUID, agent_id: str) -> Lane:
        """A lane in its first episode; `key` is never used again, so that trajectory ids are unique."""
        if not self._free_numbers:
            more = max(16, len(self._lanes))
            self._free_numbers += range(len(self._lanes) + more - 1, len(self._lanes) - 1, -1)
            self._lanes += [None] * more
            self._last = np.concatenate([self._last, np.zeros(more, np.int64)])
            self._room = np.concatenate([self._room, np.full(more, _CLOSED)])
        lane = Lane(key, self._free_numbers.pop(), agent_id)
        self._lanes[lane.number] = lane
        self._last[lane.number] = self._room[lane.number] = 0
        return lane

    def close_lane(self, lane: Lane) -> None:
        """The lane's number may be given to another; its open steps must have been taken."""
        self._drop_pages(lane)
        self._lanes[lane.number] = None
        self._room[lane.number] = _CLOSED
        self._free_numbers.append(lane.number)
        self.num_closed += 1

    def is_open(self, lane: Lane) -> bool:
        return self._lanes[lane.number] is lane

    def num_open_steps(self, lane: Lane) -> int:
        """Rows of the present fragment."""
        if not lane.pages:
            return 0
        return (len(lane.pages) - 1) * PAGE_ROWS + int(self._last[lane.number]) % PAGE_ROWS + 1

    def append(
        self,
        lanes: Array,
        obs: Tree,
        action: Array,
        logp: Array | None,
        value: Array | None,
        policy_version: int,
        mask: Array | None,
        reward: Array | None,
    ) -> list[tuple[UUID, Trajectory]]:
        """One step of each of `lanes` [L], which are open and differ. `reward` [L] belongs to their steps before it."""
        last, room = self._last[lanes], self._room[lanes]
        if reward is not None:
            self._credit(lanes, last, reward)
        cut = self._make_room(lanes, last, room, obs) if room.min() < 1 else []
        rows = last + 1
        columns = self._columns
        write(columns["obs"], rows, obs)
        columns["action"][rows] = action
        columns["reward"][rows] = 0.0
        columns["policy_version"][rows] = policy_version
        if logp is not None:
            columns["logp"][rows] = logp
        if value is not None:
            columns["value"][rows] = value
        if mask is not None:
            self._mask_column()[rows] = mask
        elif "action_mask" in columns:
            columns["action_mask"][rows] = True
        self._last[lanes], self._room[lanes] = rows, room - 1
        return cut

    def append_one(
        self,
        lane: Lane,
        obs: Tree,
        action: Array,
        logp: Array | None,
        value: Array | None,
        policy_version: int,
        mask: Array | None,
        reward: float | None,
    ) -> list[tuple[UUID, Trajectory]]:
        """The same as `append` for one lane and rows [1, …], at a third of its cost."""
        number, columns = lane.number, self._columns
        row, room = self._last.item(number), self._room.item(number)
        if reward:
            if not lane.pages:
                raise ConfigError(_no_action(lane))
            columns["reward"][row] += reward
        cut: list[tuple[UUID, Trajectory]] = []
        if room < 1:
            row, room, cut = self._turn_page(lane, row, index(obs, 0))
            columns = self._columns
        row += 1
        if isinstance(obs, np.ndarray):
            columns["obs"][row] = obs[0]
        else:
            write(columns["obs"], row, index(obs, 0))
        columns["action"][row] = action[0]
        columns["reward"][row] = 0.0
        columns["policy_version"][row] = policy_version
        if logp is not None:
            columns["logp"][row] = logp[0]
        if value is not None:
            columns["value"][row] = value[0]
        if mask is not None:
            self._mask_column()[row] = mask[0]
        elif "action_mask" in columns:
            columns["action_mask"][row] = True
        self._last[number], self._room[number] = row, room - 1
        return cut

    def end(self, lane: Lane, reward: float, terminated: bool, truncated: bool, final_obs: Tree | None) -> Trajectory:
        """The lane's episode is over; where nobody gave a final observation, the last one stands in for it."""
        self.require_steps(lane)
        row = int(self._last[lane.number])
        self._columns["reward"][row] += reward
        final = index(self._columns["obs"], row) if final_obs is None else final_obs
        trajectory = self._take(lane, terminated, truncated, failed=False, final_obs=final)
        lane.episode, lane.first_step = lane.episode + 1, 0
        return trajectory

    def require_steps(self, lane: Lane) -> None:
        """Raise unless the lane is open and has acted in its present episode."""
        if not self.is_open(lane):
            raise ConfigError(f"actor {lane.agent_id} was removed; make a new one with new_actor()")
        if not lane.pages:
            raise ConfigError(_no_action(lane))

    def interrupt(self, lane: Lane) -> Trajectory | None:
        """The actor stops in the middle of an episode: what came of its last action will never be known.

        The step is kept. `failed` and `truncated` say so, and its own observation stands in for the one after it.
        """
        if not lane.pages:
            return None
        last_obs = index(self._columns["obs"], int(self._last[lane.number]))
        trajectory = self._take(lane, False, True, failed=True, final_obs=last_obs)
        lane.episode, lane.first_step = lane.episode + 1, 0
        return trajectory

    def set_max_length(self, max_length: int) -> None:
        """Cut at another length; every lane looks at it again before its next row."""
        self.max_length = max_length
        self._room[self._room > 0] = 0

    def _credit(self, lanes: Array, last: Array, reward: Array) -> None:
        if not last.all() and reward[last == 0].any():
            raise ConfigError(
                "a reward other than 0 for an actor that has not acted in this episode; rewards belong to actions"
            )
        self._columns["reward"][last] += reward

    def _make_room(self, lanes: Array, last: Array, room: Array, obs: Tree) -> list[tuple[UUID, Trajectory]]:
        """Change `last` and `room` in place so that every lane has a row after its last."""
        cut: list[tuple[UUID, Trajectory]] = []
        for i in np.flatnonzero(room < 1).tolist():
            lane = self._lanes[lanes[i]]
            assert lane is not None
            last[i], room[i], fragments = self._turn_page(lane, int(last[i]), index(obs, i))
            cut += fragments
        return cut

    def _turn_page(self, lane: Lane, last: int, obs: Tree) -> tuple[int, int, list[tuple[UUID, Trajectory]]]:
        """`(last row, room, fragments)` of a lane without room, after a cut where it is due, and with a new page."""
        cut: list[tuple[UUID, Trajectory]] = []
        length = self.num_open_steps(lane)
        if length >= self.max_length:
            fragment = self._take(lane, False, False, failed=False, final_obs=obs)
            lane.first_step += length
            cut.append((lane.key, fragment))
            length = 0
        if length % PAGE_ROWS == 0:
            if not self._free_pages:
                self._grow()
            page = self._free_pages.pop()
            lane.pages.append(page)
            last = page * PAGE_ROWS - 1
        in_page = PAGE_ROWS - length % PAGE_ROWS
        return last, min(in_page, self.max_length - length), cut

    def _take(self, lane: Lane, terminated: bool, truncated: bool, failed: bool, final_obs: Tree) -> Trajectory:
        length = self.num_open_steps(lane)
        starts = np.asarray(lane.pages, np.int64) * PAGE_ROWS
        rows = (starts[:, None] + np.arange(PAGE_ROWS)).reshape(-1)[:length]
        layout = self.layout
        final = allocate(layout.observation_space, ())
        write(final, ..., final_obs)
        trajectory = Trajectory(
            trajectory_id=trajectory_id(lane.key, lane.agent_id, lane.episode, lane.first_step),
            env_id=lane.key,
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
            **map_tree(lambda leaf: leaf[rows], self._columns),
        )
        self._drop_pages(lane)
        return trajectory

    def _drop_pages(self, lane: Lane) -> None:
        self._free_pages += lane.pages
        lane.pages = []
        self._last[lane.number] = self._room[lane.number] = 0

    def _mask_column(self) -> Array:
        """Made when the first mask comes; rows before it allowed everything."""
        if "action_mask" not in self._columns:
            width = self.layout.mask_width
            self._columns["action_mask"] = np.ones((len(self._columns["reward"]), width or 0), bool)
        mask: Array = self._columns["action_mask"]
        return mask

    def _grow(self) -> None:
        pages = self.num_pages
        self._columns = map_tree(lambda leaf: _twice_as_long(leaf), self._columns)
        self._free_pages += range(2 * pages - 1, pages - 1, -1)


def _twice_as_long(leaf: Array) -> Array:
    longer = np.zeros((2 * len(leaf), *leaf.shape[1:]), leaf.dtype)
    longer[: len(leaf)] = leaf
    return longer


def _no_action(lane: Lane) -> str:
    return f"actor {lane.agent_id} has not acted in this episode; a reward and an episode's end belong to an action"
