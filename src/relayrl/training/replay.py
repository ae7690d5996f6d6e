"""Replay: a ring of joint transitions, one row per world and step, time-aligned over all agents of all groups.

Rows lie world by world inside each step (row `k` of world `b` is followed by row `k + B`), so that an n-step return is read
off at sampling time and memory is what the columns need. Sampling costs the same at any size: uniform draws are indices,
prioritised ones walk a binary tree of sums.

Not its job: deciding when to sample, and turning observations into features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Space, Tree, index, leaves, map_tree, space_leaves, unflatten
from relayrl.errors import ConfigError


@dataclass(slots=True)
class GroupTransitions:
    """Sampled transitions of one group, axes `[M, N, …]`."""

    obs: Tree
    action: Array
    reward: Array  # discounted sum over the n steps
    next_obs: Tree
    discount: Array  # γᵏ, or 0 where the agent's episode terminated within the k steps
    valid: Array
    mask: Array | None = None
    next_mask: Array | None = None


@dataclass(slots=True)
class JointTransitions:
    """Sampled joint transitions: all groups' rows are of the same worlds and steps."""

    groups: dict[str, GroupTransitions]
    rows: Array  # where they lie, for `set_priorities`
    weight: Array  # [M] importance of each, 1 for uniform sampling

    def __len__(self) -> int:
        return len(self.rows)


class JointReplay:
    """A ring of at least `capacity` transitions of `num_envs` worlds."""

    def __init__(self, capacity: int, num_envs: int, *, priority_exponent: float = 0.0) -> None:
        self._num_envs = num_envs
        self.capacity = -(-capacity // num_envs) * num_envs
        self._columns: dict[str, dict[str, Any]] = {}
        self._head = 0
        self._size = 0
        self._priorities = PrioritySums(self.capacity) if priority_exponent > 0 else None
        self._priority_exponent = priority_exponent
        self._largest_priority = 1.0

    def __len__(self) -> int:
        return self._size

    def add(self, rollouts: Mapping[str, Rollout]) -> None:
        """Append one block of all groups."""
        blocks = {name: _joint_columns(rollout) for name, rollout in rollouts.items()}
        first = next(iter(rollouts.values()))
        num_rows = first.num_steps * self._num_envs
        if len(first.header.env_ids) != self._num_envs or num_rows > self.capacity:
            raise ConfigError(f"a block of {num_rows} transitions does not fit a replay of {self.capacity}")
        rows = (self._head + np.arange(num_rows)) % self.capacity
        for name, columns in blocks.items():
            store = self._columns.setdefault(name, {key: self._allocate(value) for key, value in columns.items()})
            for key, value in columns.items():
                map_tree(lambda kept, new: kept.__setitem__(rows, new), store[key], value)
        if self._priorities is not None:
            self._priorities.set(rows, np.full(num_rows, self._largest_priority))
        self._head = (self._head + num_rows) % self.capacity
        self._size = min(self._size + num_rows, self.capacity)

    def _allocate(self, column: Any) -> Any:
        return map_tree(lambda leaf: np.zeros((self.capacity, *leaf.shape[1:]), leaf.dtype), column)

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
        groups = {
            name: self._transitions(columns, rows, gamma, num_step_returns) for name, columns in self._columns.items()
        }
        return JointTransitions(groups, rows, weight)

    def _transitions(self, columns: dict[str, Any], rows: Array, gamma: float, num_steps: int) -> GroupTransitions:
        reward = columns["reward"][rows].copy()
        last = np.broadcast_to(rows[:, None], reward.shape).copy()
        going = ~columns["ended"][rows]
        discount = np.full_like(reward, gamma)
        for k in range(1, num_steps):
            ahead = (rows + k * self._num_envs) % self.capacity
            # The ring's newest rows have no later ones: what lies there is the oldest, of another time.
            exists = (ahead - self._head) % self.capacity >= (rows - self._head) % self.capacity
            exists &= ahead < self._size
            going &= exists[:, None] & columns["valid"][ahead]
            reward += np.where(going, gamma**k * columns["reward"][ahead], 0.0).astype(np.float32)
            last = np.where(going, ahead[:, None], last)
            discount = np.where(going, np.float32(gamma ** (k + 1)), discount)
            going = going & ~columns["ended"][ahead]
        agents = np.arange(reward.shape[1])[None, :]
        mask, next_mask = columns.get("mask"), columns.get("next_mask")
        return GroupTransitions(
            obs=index(columns["obs"], rows),
            action=columns["action"][rows],
            reward=reward,
            next_obs=index(columns["next_obs"], (last, agents)),
            discount=discount * ~columns["terminated"][last, agents],
            valid=columns["valid"][rows],
            mask=None if mask is None else mask[rows],
            next_mask=None if next_mask is None else next_mask[last, agents],
        )

    def set_priorities(self, rows: Array, errors: Array) -> None:
        """Tell how surprising sampled rows were; does nothing for uniform replay."""
        if self._priorities is None:
            return
        priority = (np.abs(errors) + 1e-6) ** self._priority_exponent
        self._largest_priority = max(self._largest_priority, float(priority.max()))
        self._priorities.set(rows, priority)

    def get_state(self) -> dict[str, Any]:
        """Everything in it, as plain numbers and arrays by name; arrays are views, valid until the next `add`."""
        arrays = {f"{group}/{key}/{path}": leaf[: self._size] for group, key, path, leaf in self._leaves()}
        if self._priorities is not None:
            arrays["priorities"] = self._priorities.get(self._size)
        return {"head": self._head, "size": self._size, "largest_priority": self._largest_priority, "arrays": arrays}

    def set_state(self, state: Mapping[str, Any], spaces: Mapping[str, tuple[Space, Space]]) -> None:
        """Continue from `get_state`; `spaces` are each group's observation and action space."""
        self._head, self._size = int(state["head"]), int(state["size"])
        self._largest_priority = float(state["largest_priority"])
        arrays = dict(state["arrays"])
        if self._priorities is not None:
            self._priorities.set(np.arange(self._size), np.asarray(arrays.pop("priorities")))
        self._columns = {}
        for group, (observation_space, action_space) in spaces.items():
            trees = {"obs": observation_space, "next_obs": observation_space, "action": action_space}
            keys = dict.fromkeys(name.split("/")[1] for name in arrays if name.startswith(f"{group}/"))
            self._columns[group] = {key: self._restored(arrays, f"{group}/{key}/", trees.get(key)) for key in keys}

    def _restored(self, arrays: Mapping[str, Any], prefix: str, space: Space | None) -> Any:
        def full(name: str) -> Array:
            kept = np.asarray(arrays[name])
            column = np.zeros((self.capacity, *kept.shape[1:]), kept.dtype)
            column[: self._size] = kept
            return column

        if space is None:
            return full(prefix)
        return unflatten(space, (full(prefix + path) for path, _ in space_leaves(space)))

    def _leaves(self) -> Iterator[tuple[str, str, str, Array]]:
        for group, columns in self._columns.items():
            for key, column in columns.items():
                for path, leaf in leaves(column):
                    yield group, key, path, leaf

    def num_bytes(self) -> int:
        """Memory of the columns."""
        return sum(leaf.nbytes for *_, leaf in self._leaves())


class PrioritySums:
    """A binary tree of sums over `size` priorities: setting and drawing cost O(log size) each, vectorised."""

    def __init__(self, size: int) -> None:
        self._first_leaf = 1 << max(size - 1, 1).bit_length()
        self._sums = np.zeros(2 * self._first_leaf)

    def set(self, where: Array, priority: Array) -> None:
        """Replace priorities; of a row named twice, the last one counts."""
        node = where + self._first_leaf
        self._sums[node] = priority
        node = np.unique(node >> 1)
        while node[0] >= 1:
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]
            node = np.unique(node >> 1)

    def get(self, count: int) -> Array:
        """The first `count` priorities."""
        return self._sums[self._first_leaf : self._first_leaf + count]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Rows drawn by priority, one from each of `count` equal shares, and their probabilities."""
        total = self._sums[1]
        point = (np.arange(count) + rng.random(count)) * (total / count)
        node = np.ones(count, np.int64)
        while node[0] < self._first_leaf:
            left = self._sums[2 * node]
            goes_right = (point >= left) & (self._sums[2 * node + 1] > 0)
            point = np.where(goes_right, point - left, point)
            node = 2 * node + goes_right
        return node - self._first_leaf, self._sums[node] / total


def _joint_columns(rollout: Rollout) -> dict[str, Any]:
    """A rollout's columns as joint rows `[T·B, N, …]`, with what followed each."""
    T = rollout.num_steps
    worlds, agents = len(rollout.header.env_ids), len(rollout.header.agent_ids)

    def joint(leaf: Array) -> Array:
        return leaf.reshape(T * worlds, agents, *leaf.shape[2:])

    def followed(leaf: Array, successor: Array) -> Array:
        following = np.empty_like(leaf)
        following[:-1] = leaf[1:]
        following[rollout.successors.step, rollout.successors.lane] = successor
        return joint(following)

    masks = {}
    if rollout.action_mask is not None:
        following = np.ones_like(rollout.action_mask)
        # After an end, and after the block, the next mask is unknown: everything is allowed.
        following[:-1] = rollout.action_mask[1:] | rollout.ended[:-1, :, None]
        masks = {"mask": joint(rollout.action_mask), "next_mask": joint(following)}
    return masks | {
        "obs": map_tree(joint, rollout.obs),
        "action": joint(np.asarray(rollout.action)),
        "reward": joint(rollout.reward),
        "next_obs": map_tree(followed, rollout.obs, rollout.successors.obs),
        "terminated": joint(rollout.terminated),
        "ended": joint(rollout.ended),
        "valid": joint(rollout.valid),
    }
