"""Replay: a ring of joint transitions, one row per environment and step, time-aligned over all agents of all groups.

Rows lie environment by environment inside each step (a row of environment `b` is followed by the row `B` further on), so
that what followed, and n-step returns, are read off at sampling time. A group's row is one record in memory: drawing a
transition touches one
place, whatever the number of columns, and memory is what the columns need. Images lie beside the records, every frame once
(`frame_store`).

Not its job: deciding when to sample, and turning observations into features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Space, Tree, leaves, map_tree, space_leaves, unflatten
from relayrl.errors import CheckpointError, ConfigError
from relayrl.training.replay.frame_store import frame_stores
from relayrl.training.replay.priority_sums import PrioritySums
from relayrl.training.replay.state_replay import StateRecords

_STATES_PREFIX = "world//"  # as checkpoints of earlier versions have it
FRAMES = "frames//"
"""What the names of saved states and of saved images begin with; no group's do."""


@dataclass(slots=True)
class GroupTransitions:
    """Sampled transitions of one group, axes `[M, N, …]`."""

    obs: Tree
    action: Any  # an array, or a tree of them
    reward: Array  # discounted sum over the n steps
    next_obs: Tree
    discount: Array  # γᵏ, or 0 where the agent's episode terminated within the k steps
    valid: Array
    next_valid: Array  # whether the others' critics see the agent beside `next_obs`; its own does so in any case
    mask: Array | None = None
    next_mask: Array | None = None
    is_everybody: bool = False
    """Whether all rows are known to be `valid` and `next_valid` without looking at them."""


@dataclass(slots=True)
class JointTransitions:
    """Sampled joint transitions: all groups' rows are of the same environments and steps."""

    groups: dict[str, GroupTransitions]
    rows: Array  # where they lie, for `set_priorities`
    weight: Array  # [M] importance of each, 1 for uniform sampling
    state: Tree | None = None  # [M, …] global states, where they are kept
    next_state: Tree | None = None  # those after the n steps

    def __len__(self) -> int:
        return len(self.rows)


class JointReplay:
    """A ring of at least `capacity` transitions of `num_envs` environments."""

    is_resident = False
    """Whether transitions are tensors of a device."""

    def __init__(
        self, capacity: int, num_envs: int, *, priority_exponent: float = 0.0, state_space: Space | None = None
    ) -> None:
        """With `state_space`, global states are kept as well."""
        self.num_envs = num_envs
        self.capacity = -(-capacity // num_envs) * num_envs
        self._groups: dict[str, _GroupRecords] = {}
        self._states = None if state_space is None else StateRecords(state_space, self.capacity)
        self._looks_ahead = False
        """Whether transitions depend on the rows behind them: on who was there, where that ever changed."""
        self._head = 0
        self._size = 0
        self._priorities = PrioritySums(self.capacity) if priority_exponent > 0 else None
        self._priority_exponent = priority_exponent
        self._largest_priority = 1.0

    def __len__(self) -> int:
        return self._size

    def add(self, rollouts: Mapping[str, Rollout]) -> None:
        """Append one block of all groups."""
        first = next(iter(rollouts.values()))
        num_rows = first.num_steps * self.num_envs
        if len(first.header.env_ids) != self.num_envs or num_rows > self.capacity:
            raise ConfigError(
                f"a block of {num_rows} transitions does not fit a replay of {self.capacity}; raise buffer_size"
            )
        rows: Array | slice = slice(self._head, self._head + num_rows)
        if self._head + num_rows > self.capacity:
            rows = (self._head + np.arange(num_rows)) % self.capacity
        for name, rollout in rollouts.items():
            if name not in self._groups:
                self._groups[name] = _GroupRecords.for_rollout(rollout, self.capacity)
            elif rollout.action_mask is not None and self._size:
                self._groups[name].see_masks_after(self._newest(), rollout)
            self._groups[name].write(rows, rollout, self._newest() if self._size else None)
        self._look_at(rows)
        if self._states is not None:
            self._states.write(rows, rollouts)
        if self._priorities is not None:
            numbers = np.arange(self._head, self._head + num_rows) % self.capacity
            self._priorities.set(numbers, np.full(num_rows, self._largest_priority))
        self._head = (self._head + num_rows) % self.capacity
        self._size = min(self._size + num_rows, self.capacity)

    def sample(
        self,
        num_rows: int,
        rng: np.random.Generator,
        *,
        gamma: float,
        num_step_returns: int = 1,
        correction: float = 1.0,
    ) -> JointTransitions:
        """Draw transitions, with replacement."""
        weight = np.ones(num_rows, np.float32)
        if self._priorities is None:
            rows = rng.integers(self._size, size=num_rows)
        else:
            rows, share = self._priorities.draw(num_rows, rng)
            weight = ((self._size * share) ** -correction).astype(np.float32)
            weight /= weight.max()
        looks_ahead = num_step_returns > 1 or self._looks_ahead
        path = [rows, *(self._ahead(rows, k) for k in range(1, num_step_returns + 1) if looks_ahead)]
        # A return of several steps stops, for all agents of an environment at once, where one of them ends, before a row on
        # which
        # the environment failed, and where the ring does.
        going = np.ones(num_rows, bool)
        length = np.zeros(num_rows, np.int64)
        for k in range(1, num_step_returns):
            going &= path[k] >= 0
            for group in self._groups.values():
                going &= ~group.ended(path[k - 1]).any(1) & ~group.failed(path[k]).any(1)
            length += going
        last = np.stack(path)[length, np.arange(num_rows)] if looks_ahead else rows
        # Nobody waits here, so an environment goes on exactly where somebody acted and did not end.
        goes_on = (
            np.logical_or.reduce([group.goes_on(last) for group in self._groups.values()]) if looks_ahead else None
        )
        groups = {name: group.transitions(path, length, gamma, goes_on) for name, group in self._groups.items()}
        if self._states is None:
            return JointTransitions(groups, rows, weight)
        states = self._states.states(rows, "state"), self._states.states(last, "next_state")
        return JointTransitions(groups, rows, weight, *states)

    def _look_at(self, rows: Array | slice) -> None:
        """Notice what new rows hold that makes transitions depend on the rows behind them."""
        if self._looks_ahead or not self._groups:
            return
        groups = list(self._groups.values())
        ended = np.concatenate([group.records["ended"][rows] for group in groups], 1)
        self._looks_ahead = (
            any(not group.records["valid"][rows].all() for group in groups) or (ended != ended[:, :1]).any()
        )

    def _ahead(self, rows: Array, k: int) -> Array:
        """The rows `k` steps later, −1 where the ring does not hold them."""
        distance = k * self.num_envs
        num_newer = (self._head - 1 - rows) % self.capacity
        ahead = rows + distance
        return np.where(num_newer >= distance, np.where(ahead < self.capacity, ahead, ahead - self.capacity), -1)

    def set_priorities(self, rows: Array, errors: Array) -> None:
        """Set the priorities of sampled rows by their TD errors; does nothing for uniform replay."""
        if self._priorities is None:
            return
        priority = (np.abs(errors) + 1e-6) ** self._priority_exponent
        self._largest_priority = max(self._largest_priority, float(priority.max()))
        self._priorities.set(rows, priority)

    def cut(self) -> None:
        """The environments have begun anew: no return may run on from the newest rows."""
        for group in self._groups.values() if self._size else ():
            group.cut(self._newest())

    def _newest(self) -> Array:
        """The newest row of each environment, in order."""
        return (self._head - self.num_envs + np.arange(self.num_envs)) % self.capacity

    def num_bytes(self) -> int:
        """Memory of the records and priorities."""
        tree = 0 if self._priorities is None else self._priorities.num_bytes()
        states = 0 if self._states is None else self._states.records.nbytes
        return tree + states + sum(group.num_bytes() for group in self._groups.values())

    def get_state(self) -> dict[str, Any]:
        """Everything in it, oldest rows first, as plain numbers and arrays by name."""
        order = (self._head - self._size + np.arange(self._size)) % self.capacity
        arrays: dict[str, Array] = {}
        for name, group in self._groups.items():
            fields, frames = group.get(order)
            arrays |= {f"{name}/{field}": array for field, array in fields.items()}
            arrays |= {f"{FRAMES}{name}/{path}": array for path, array in frames.items()}
        if self._priorities is not None:
            arrays["priorities"] = self._priorities.get(order)
        if self._states is not None:
            arrays |= {f"{_STATES_PREFIX}{name}": array for name, array in self._states.get(order).items()}
        numbers = {"num_envs": self.num_envs, "capacity": self.capacity, "head": self._head, "size": self._size}
        return {**numbers, "largest_priority": self._largest_priority, "arrays": arrays}

    def set_state(self, state: Mapping[str, Any], spaces: Mapping[str, tuple[Space, Space]]) -> None:
        """Continue from `get_state`; `spaces`: observation and action of each group.

        Rows lie where they lay, so that the same draws give the same transitions; in a ring of another size, the newest
        that fit are kept.
        """
        if state["num_envs"] != self.num_envs:
            raise CheckpointError(f"the replay was filled by {state['num_envs']} environments; resume with as many")
        size = min(int(state["size"]), self.capacity)
        self._size, self._head = size, size % self.capacity
        if state["capacity"] == self.capacity:
            self._head = int(state["head"])
        rows = (self._head - size + np.arange(size)) % self.capacity
        self._largest_priority = float(state["largest_priority"])
        num_dropped = int(state["size"]) - size
        arrays = {
            name: np.asarray(array) if name.startswith(FRAMES) else np.asarray(array)[num_dropped:]
            for name, array in state["arrays"].items()
        }
        if self._priorities is not None and "priorities" in arrays:
            self._priorities.set(rows, arrays["priorities"])
        if self._states is not None:
            self._states.set(
                rows,
                {k.removeprefix(_STATES_PREFIX): array for k, array in arrays.items() if k.startswith(_STATES_PREFIX)},
            )
        self._groups = {}
        for name, own_spaces in spaces.items() if size else ():
            own = {key.removeprefix(f"{name}/"): a for key, a in arrays.items() if key.startswith(f"{name}/")}
            if "mask" in own and "next_mask" not in own:  # saved before masks of final observations were kept
                own["next_mask"] = _masks_of_following_rows(own["mask"], own["ended"], self.num_envs)
            frames = {
                k.removeprefix(f"{FRAMES}{name}/"): a for k, a in arrays.items() if k.startswith(f"{FRAMES}{name}/")
            }
            group = _GroupRecords(own, own_spaces, self.capacity)
            group.set(rows, own, frames, self.num_envs)
            self._groups[name] = group
        self._looks_ahead = False
        self._look_at(rows)


class _GroupRecords:
    """One group's rows: a structured array, one record per joint transition."""

    def __init__(self, fields: Mapping[str, Array], spaces: tuple[Space, Space], capacity: int) -> None:
        """`fields` are examples `[…, N, …]` of what each field holds, `spaces` those of observations and actions."""
        num_agents = next(iter(fields.values())).shape[1]
        self.observation_space, self.action_space = spaces
        self._stores = frame_stores(self.observation_space, capacity * num_agents)
        kept = {name: (array.dtype, array.shape[1:]) for name, array in fields.items()}
        for path, store in self._stores.items():
            for root in _ROOTS:
                kept.pop(f"{root}/{path}", None)
                kept[_numbers_of(root, path)] = np.dtype(np.int32), (num_agents, store.num_frames)
        self.fields = list(kept)
        # Aligned, so that fields of sampled records are arrays that torch can take as they are.
        record = np.dtype([(name, *kind) for name, kind in kept.items()], align=True)
        try:
            self.records = np.zeros(capacity, record)
        except MemoryError as error:
            size = capacity * record.itemsize / 2**30
            raise ConfigError(
                f"a replay of {capacity:,} transitions of {record.itemsize:,} bytes takes {size:,.1f} GiB; lower buffer_size"
            ) from error
        self._waiting: Array | None = None

    @classmethod
    def for_rollout(cls, rollout: Rollout, capacity: int) -> _GroupRecords:
        spaces = rollout.header.observation_space, rollout.header.action_space
        return cls(dict(_fields(rollout)), spaces, capacity)

    def write(self, rows: Array | slice, rollout: Rollout, newest: Array | None) -> None:
        """Keep a rollout on `rows`, which come after the `newest` row of each environment."""
        self._refuse_turns(rollout)
        fields = dict(_fields(rollout))
        self._write_frames(rows, fields, newest, rollout.num_steps)
        for name, array in fields.items():
            self.records[name][rows] = array

    def _write_frames(
        self, rows: Array | slice, fields: dict[str, Array], newest: Array | None, num_steps: int
    ) -> None:
        """Take the images out of `fields`, and keep them on `rows`."""
        for path, store in self._stores.items():
            names = [_numbers_of(root, path) for root in _ROOTS]
            # Held, since a block may replace the very rows that it comes after.
            before = None if newest is None else self.records[names[1]][newest].reshape(-1, store.num_frames)
            if before is not None:
                store.hold(before)
            for name in names:
                store.let_go(self.records[name][rows])
            obs, following = (fields.pop(f"{root}/{path}") for root in _ROOTS)
            lanes, lanes_next = (part.reshape(num_steps, -1, *part.shape[2:]) for part in (obs, following))
            for name, numbers in zip(names, store.write(lanes, lanes_next, before), strict=True):
                store.hold(numbers)
                self.records[name][rows] = numbers.reshape(*obs.shape[:2], -1)
            if before is not None:
                store.let_go(before)

    def num_bytes(self) -> int:
        """Memory of the records and of the images beside them."""
        return self.records.nbytes + sum(store.num_bytes() for store in self._stores.values())

    def get(self, rows: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """What `rows` hold by field, and the images' frames by path."""
        fields = {field: np.ascontiguousarray(self.records[field][rows]) for field in self.fields}
        frames = {}
        for path, store in self._stores.items():
            numbers = {name: fields[name] for name in (_numbers_of(root, path) for root in _ROOTS)}
            compact, frames[path] = store.compact(numbers)
            fields |= compact
        return fields, frames

    def set(self, rows: Array, fields: Mapping[str, Array], frames: Mapping[str, Array], num_envs: int) -> None:
        """Put back what `get` gave, or what versions gave that kept every image whole."""
        left = dict(fields)
        if self._stores and not frames:
            self._write_frames(rows, left, None, len(rows) // num_envs)
        for name, array in left.items():
            self.records[name][rows] = array
        for path, own in frames.items():
            store = self._stores[path]
            store.load(own)
            for root in _ROOTS:
                store.hold(self.records[_numbers_of(root, path)])
            store.free_unused()

    def see_masks_after(self, rows: Array, rollout: Rollout) -> None:
        """What may be done after `rows` where lanes go on: what they are allowed in the first rows of `rollout`."""
        assert rollout.action_mask is not None
        goes_on = ~self.records["ended"][rows]
        self.records["next_mask"][rows] = np.where(
            goes_on[..., None],
            rollout.action_mask[0].reshape(*goes_on.shape, -1),
            self.records["next_mask"][rows],
        )

    def _refuse_turns(self, rollout: Rollout) -> None:
        """An agent that pauses inside an episode gets rewards between its decisions; a row here holds one step."""
        goes_on = rollout.valid & ~rollout.ended
        waiting, self._waiting = self._waiting, goes_on[-1:]
        if np.count_nonzero(rollout.valid) == rollout.valid.size:
            return
        before = np.concatenate([goes_on[:1] if waiting is None else waiting, goes_on[:-1]])
        if (before & ~rollout.valid & ~rollout.failed).any():
            raise ConfigError(
                f"agents of group {rollout.header.group!r} take turns, which replay does not hold; use ppo or reinforce"
            )

    def ended(self, rows: Array) -> Array:
        return np.asarray(self.records["ended"][rows])

    def goes_on(self, rows: Array) -> Array:
        """[M] whether an agent acted on a row and did not end there."""
        return np.asarray((self.records["valid"][rows] & ~self.records["ended"][rows]).any(1))

    def failed(self, rows: Array) -> Array:
        """Ends on which the agent did not act: replay takes no others that do so."""
        return np.asarray(self.records["ended"][rows] & ~self.records["valid"][rows])

    def cut(self, rows: Array) -> None:
        self.records["ended"][rows] = True
        self._waiting = None

    def transitions(self, path: list[Array], length: Array, gamma: float, goes_on: Array | None) -> GroupTransitions:
        """Transitions from `path[0]`, over `length` further rows of the path each, after which the environment `goes_on`;
        with nothing but `path[0]`, all agents act on all rows and end together."""
        now = self.records.take(path[0])
        if goes_on is None:
            return self._transitions(now, now, now["reward"], np.float32(gamma), now["valid"])
        last, reward = now, now["reward"]
        for k in range(1, len(path) - 1):
            counted = length >= k
            later = self.records.take(np.where(counted, path[k], path[0]))
            reward = reward + np.where(counted[:, None], np.float32(gamma**k) * later["reward"] * later["valid"], 0.0)
            last = np.where(counted, later, last)
        follows = np.stack(path[1:])[length, np.arange(len(length))]
        known = (follows >= 0)[:, None] & ~last["ended"]
        reach = np.array([gamma**k for k in range(1, len(path))], np.float32)[length][:, None]
        following = np.maximum(follows, 0)
        # Whoever acted is there next, unless it ended and the environment goes on without it; others may have appeared.
        appeared = known & goes_on[:, None] & self.records["valid"][following]
        next_valid = np.where(last["valid"], ~(last["ended"] & goes_on[:, None]), appeared)
        return self._transitions(now, last, np.asarray(reward, np.float32), reach, next_valid)

    def _transitions(self, now: Array, last: Array, reward: Array, reach: Any, next_valid: Array) -> GroupTransitions:
        """Transitions from the records `now` to what followed `last`, whose value counts `reach`."""
        is_masked = "mask" in self.fields
        return GroupTransitions(
            obs=self._tree(now, "obs"),
            action=unflatten(
                self.action_space, (now[_action_field(path)] for path, _ in space_leaves(self.action_space))
            ),
            reward=reward,
            next_obs=self._tree(last, "next_obs"),
            discount=reach * ~last["terminated"],
            valid=now["valid"],
            next_valid=next_valid,
            mask=now["mask"] if is_masked else None,
            next_mask=last["next_mask"] if is_masked else None,
        )

    def _tree(self, records: Array, root: str) -> Any:
        flat = (
            self._stores[path].observations(records[_numbers_of(root, path)])
            if path in self._stores
            else records[f"{root}/{path}"]
            for path, _ in space_leaves(self.observation_space)
        )
        return unflatten(self.observation_space, flat)


_ROOTS = ("obs", "next_obs")


def _numbers_of(root: str, path: str) -> str:
    """The field of an image's frame numbers."""
    return f"{root}_frames/{path}"


def _fields(rollout: Rollout) -> Iterator[tuple[str, Array]]:
    """A rollout's columns as joint rows `[T·B, N, …]`, with what followed each."""
    envs, agents = len(rollout.header.env_ids), len(rollout.header.agent_ids)

    def joint(leaf: Array) -> Array:
        return leaf.reshape(rollout.num_steps * envs, agents, *leaf.shape[2:])

    def followed(leaf: Array, successor: Array) -> Array:
        following = np.empty_like(leaf)
        following[:-1] = leaf[1:]
        following[rollout.successors.step, rollout.successors.lane] = successor
        return joint(following)

    for path, leaf in leaves(rollout.obs):
        yield f"obs/{path}", joint(leaf)
    for path, leaf in leaves(map_tree(followed, rollout.obs, rollout.successors.obs)):
        yield f"next_obs/{path}", leaf
    for path, leaf in leaves(rollout.action):
        yield _action_field(path), joint(np.asarray(leaf))
    columns = {"reward": rollout.reward, "valid": rollout.valid}
    columns |= {"terminated": rollout.terminated, "ended": rollout.ended}
    if rollout.action_mask is not None:
        columns["mask"] = rollout.action_mask
        yield "next_mask", followed(rollout.action_mask, _masks_after(rollout))
    for name, column in columns.items():
        yield name, joint(column)


def _action_field(path: str) -> str:
    return f"action/{path}" if path else "action"


def _masks_after(rollout: Rollout) -> Any:
    """[K, A] what lanes could do after the rollout's successors: everything, where it is not known.

    Environments often forbid everything after an end. Nobody acts there, so that it says nothing about the next action.
    """
    mask = rollout.successors.action_mask
    if mask is None:
        return True
    return mask | allows_nothing(mask, mask_parts(rollout.header.action_space))[:, None]


def _masks_of_following_rows(mask: Array, ended: Array, num_envs: int) -> Array:
    """[R, N, A] the next masks of rows in order, of which each follows the one `num_envs` before it."""
    following = np.ones_like(mask)
    following[:-num_envs] = mask[num_envs:] | ended[:-num_envs, :, None]
    return following
