"""A toy environment for every action space; import it from `relayrl.testing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.action_masks import mask_parts
from relayrl.data.trees import Array, Space, leaves, space_leaves, unflatten
from relayrl.envs.environment_contract import ScalarEnvironment, ScalarReset, ScalarStep, StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words


def hybrid_space() -> spaces.Dict:
    """Moves, a tool, an integer dial and a grid of switches: what simulators with several kinds of controls have."""
    return spaces.Dict(
        {
            "move": spaces.Box(-2.0, 2.0, (2,), np.float32),
            "tool": spaces.Discrete(3, start=1),
            "rest": spaces.Tuple((spaces.Box(0, 3, (2, 1), np.int32), spaces.MultiBinary((1, 2)))),
        }
    )


class FollowSignal(ScalarEnvironment, StatefulEnvironment):
    """The observation is a signal, −1 or 1; the right action has everything low, or everything high.

    Reward is the mean over the entries of an action, 1 for the right value and 0 for its opposite: who ignores the signal gets
    1/2. Actions may be of any space. With `masks`, all options of a choice but its first and last are forbidden, and raise.
    """

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, *, action_space: Space | None = None, episode_length: int = 8, masks: bool = False) -> None:
        self.action_space = hybrid_space() if action_space is None else action_space
        self._episode_length, self._masks = episode_length, masks
        self._num_steps, self._signal = 0, 1.0
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._num_steps = 0
        self._draw()
        return ScalarReset(self.build_observation(), self._info())

    def step(self, action: Any) -> ScalarStep:
        given = [leaf for _, leaf in leaves(action)]
        parts = [leaf for _, leaf in space_leaves(self.action_space)]
        scores = np.concatenate([_height(leaf, own) for leaf, own in zip(parts, given, strict=True)])
        if self._masks:
            self._require_allowed(parts, given)
        reward = float((scores if self._signal > 0 else 1.0 - scores).mean())
        self._num_steps += 1
        self._draw()
        return ScalarStep(
            self.build_observation(), reward, False, self._num_steps >= self._episode_length, self._info()
        )

    def build_observation(self) -> Array:
        return np.array([self._signal], np.float32)

    def get_state(self) -> dict[str, Array]:
        numbers = {"num_steps": np.array(self._num_steps), "signal": np.array(self._signal)}
        return {**numbers, "random": generator_to_words(self._random)}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._random = generator_from_words(state["random"])
        self._num_steps, self._signal = int(state["num_steps"]), float(state["signal"])

    def right_action(self) -> Any:
        """What gets a reward of 1 now."""
        return unflatten(
            self.action_space, (_extreme(leaf, self._signal > 0) for _, leaf in space_leaves(self.action_space))
        )

    def _draw(self) -> None:
        self._signal = float(self._random.choice([-1.0, 1.0]))

    def _info(self) -> dict[str, Any]:
        if not self._masks:
            return {}
        mask = [np.ones(size, bool) for size in mask_parts(self.action_space)]
        for part in mask:
            part[1:-1] = False
        return {"action_mask": np.concatenate(mask)}

    def _require_allowed(self, parts: list[Space], given: list[Any]) -> None:
        for leaf, own in zip(parts, given, strict=True):
            heights = _height(leaf, own)
            if mask_parts(leaf) and not np.isin(heights, (0.0, 1.0)).all():
                raise ValueError(f"{own} is masked in {leaf}")


def _height(leaf: Space, action: Any) -> Array:
    """[entries] where each number lies between its lowest, 0, and its highest, 1."""
    low, high = _bounds(leaf)
    numbers = np.asarray(action, np.float64).reshape(-1)
    return np.asarray(np.clip((numbers - low) / np.maximum(high - low, 1e-9), 0.0, 1.0))


def _extreme(leaf: Space, is_high: bool) -> Any:
    chosen = _bounds(leaf)[int(is_high)]
    return np.asarray(chosen, leaf.dtype).reshape(leaf.shape or ())


def _bounds(leaf: Space) -> tuple[Array, Array]:
    if isinstance(leaf, spaces.Discrete):
        return np.array([float(leaf.start)]), np.array([float(leaf.start + leaf.n - 1)])
    if isinstance(leaf, spaces.MultiDiscrete):
        start = leaf.start.reshape(-1).astype(np.float64)
        return start, start + leaf.nvec.reshape(-1) - 1.0
    if isinstance(leaf, spaces.MultiBinary):
        return np.zeros(leaf.shape).reshape(-1), np.ones(leaf.shape).reshape(-1)
    assert isinstance(leaf, spaces.Box)
    low, high = leaf.low.reshape(-1).astype(np.float64), leaf.high.reshape(-1).astype(np.float64)
    return np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
