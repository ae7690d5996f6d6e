"""Random actions that keep to the masks: for all environments from one generator, or with a stream of its own for each
environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, index, leaf_dtype, map_tree, space_leaves, unflatten
from relayrl.envs.environment_contract import AgentGroup, GroupObservation


def random_actions(
    groups: Mapping[str, AgentGroup], observations: Mapping[str, GroupObservation], rng: np.random.Generator
) -> dict[str, Any]:
    """Allowed actions for every lane: `random_actions(env.groups, result.groups, rng)` after a `reset` or `step`.

    Drawn uniformly from what each lane's mask allows. Where a mask allows nothing, as it may for lanes that do not act, it
    counts as absent. The number of draws does not depend on the masks.
    """
    actions = {}
    for name, group in groups.items():
        seen = observations[name]
        mask = None if seen.action_mask is None else np.asarray(seen.action_mask, bool)
        lanes = tuple(np.shape(seen.active))
        flat = (_draw(leaf, lanes, mask, rng) for _, leaf in space_leaves(group.action_space))
        actions[name] = unflatten(group.action_space, flat)
    return actions


class Player:
    """Random actions from one stream per environment, so that an environment is played alike however many environments there
    are.

    Lanes that do not act draw from other streams, which `idle_seed` decides: actions that an environment must ignore.
    """

    def __init__(self, groups: Mapping[str, AgentGroup], num_envs: int, seed: int, idle_seed: int = 0) -> None:
        self._groups = groups
        self._acting = [np.random.default_rng([seed, b]) for b in range(num_envs)]
        self._idle = [np.random.default_rng([idle_seed, seed, b]) for b in range(num_envs)]

    def act(self, observations: Mapping[str, GroupObservation]) -> dict[str, Any]:
        """Actions for all lanes, `[B, N, …]` by group."""
        envs = [self._act_in(b, observations) for b in range(len(self._acting))]
        return {name: map_tree(lambda *rows: np.stack(rows), *(env[name] for env in envs)) for name in self._groups}

    def _act_in(self, b: int, observations: Mapping[str, GroupObservation]) -> dict[str, Any]:
        here = {name: _env(observations[name], b) for name in self._groups}
        acting = random_actions(self._groups, here, self._acting[b])
        unmasked = {name: GroupObservation(seen.obs, seen.active) for name, seen in here.items()}
        idle = random_actions(self._groups, unmasked, self._idle[b])

        def choose(active: Array) -> Any:
            return lambda one, other: np.where(active.reshape(-1, *[1] * (one.ndim - 2)), one[0], other[0])

        return {name: map_tree(choose(here[name].active), acting[name], idle[name]) for name in self._groups}


def _env(seen: GroupObservation, b: int) -> GroupObservation:
    mask = None if seen.action_mask is None else seen.action_mask[b : b + 1]
    return GroupObservation(index(seen.obs, slice(b, b + 1)), seen.active[b : b + 1], mask)


def _draw(space: Space, lanes: tuple[int, ...], mask: Array | None, rng: np.random.Generator) -> Array:
    values: Any
    if isinstance(space, spaces.Discrete):
        values = space.start + _draw_allowed(rng, lanes, int(space.n), mask)
    elif isinstance(space, spaces.MultiDiscrete):
        values = space.start.ravel() + _draw_components(rng, lanes, space.nvec.ravel().tolist(), mask)
        values = values.reshape(*lanes, *space.shape)
    elif isinstance(space, spaces.MultiBinary):
        values = rng.integers(0, 2, (*lanes, *space.shape))
    elif isinstance(space, spaces.Box):
        low, high = _finite_bounds(space)
        whole = np.issubdtype(space.dtype, np.integer)
        values = rng.uniform(low, high + whole, (*lanes, *space.shape))
        values = np.clip(np.floor(values) if whole else values, space.low, space.high)
    else:
        raise TypeError(f"no random actions for the space {space}")
    return np.asarray(values, leaf_dtype(space))


def _draw_allowed(rng: np.random.Generator, lanes: tuple[int, ...], num_actions: int, mask: Array | None) -> Array:
    """Uniform over the allowed actions: the `floor(u · count)`th of them, so that one number is drawn per lane."""
    allowed = np.ones((*lanes, num_actions), bool) if mask is None else mask.copy()
    allowed[~allowed.any(axis=-1)] = True
    rank = np.floor(rng.random(lanes) * allowed.sum(axis=-1)).astype(np.int64)
    choice: Array = np.argmax(np.cumsum(allowed, axis=-1) > rank[..., None], axis=-1)
    return choice


def _draw_components(
    rng: np.random.Generator, lanes: tuple[int, ...], sizes: Sequence[int], mask: Array | None
) -> Array:
    starts = np.concatenate([[0], np.cumsum(sizes)])
    parts = [
        _draw_allowed(rng, lanes, size, None if mask is None else mask[..., start : start + size])
        for size, start in zip(sizes, starts, strict=False)
    ]
    return np.stack(parts, axis=-1)


def _finite_bounds(space: spaces.Box) -> tuple[Array, Array]:
    """The bounds, with an infinite one put 1 away from the other, or at ±1 where both are infinite."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    finite_low, finite_high = np.isfinite(low), np.isfinite(high)
    lows = np.where(finite_low, low, np.where(finite_high, high - 1.0, -1.0))
    highs = np.where(finite_high, high, np.where(finite_low, low + 1.0, 1.0))
    return lows, highs
