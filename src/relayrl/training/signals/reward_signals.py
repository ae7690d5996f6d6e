"""Reward signals: numbers that are added to the environment's rewards before anything is learned from them.

    class Calm(RewardSignal):
        def evaluate(self, rollout: Rollout) -> Array:
            return -np.square(rollout.action).sum(-1)

Signals are built in (`signal_registry`) or plug in by entry point (`docs/plugins.md`), and are switched on by
`reward_signals: {calm: {strength: 0.01}}`. Returns of episodes that statistics show stay those of the environment. A signal
that learns does so after it has rewarded a rollout, and keeps its state in checkpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array
from relayrl.errors import ConfigError
from relayrl.training.signals.signal_settings import EXTRINSIC


class RewardSignal(ABC):
    """Gives a number for every row of a rollout."""

    @abstractmethod
    def evaluate(self, rollout: Rollout) -> Array:
        """[T, L] what to add to each row's reward."""

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout that was rewarded, on its `valid` rows; gives metrics, which become `signals/NAME/…`."""
        del rollout
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What the signal has learned; nothing unless overridden."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - not every signal learns
        """Continue from `state_dict`."""


class RewardSignals:
    """All signals of a run, by name, each with its strength; the environment's reward has one too, `extrinsic_strength`."""

    def __init__(
        self, signals: Mapping[str, tuple[RewardSignal, float]], extrinsic_strength: float | None = None
    ) -> None:
        self._signals = dict(signals)
        self._extrinsic_strength = extrinsic_strength

    def add_to(self, rollouts: Mapping[str, Rollout]) -> dict[str, float]:
        """Add every signal to the rollouts' rewards, on rows where the agent acted; gives metrics, means over the groups.

        Every signal sees the environment's own rewards, and learns after it has rewarded.
        """
        metrics: dict[str, list[float]] = {}
        sums = {name: self._extrinsic(rollout, metrics) for name, rollout in rollouts.items()}
        for name, (signal, strength) in self._signals.items():
            for group, rollout in rollouts.items():
                number = strength * _checked(name, signal.evaluate(rollout), rollout)
                sums[group] += np.where(rollout.valid, number, 0.0)
                _add(metrics, name, {"reward_mean": _mean(number, rollout)})
            for rollout in rollouts.values():
                _add(metrics, name, signal.learn(rollout))
        for group, rollout in rollouts.items():
            rollout.reward[...] = sums[group]
        return {name: sum(numbers) / len(numbers) for name, numbers in metrics.items()}

    def _extrinsic(self, rollout: Rollout, metrics: dict[str, list[float]]) -> Array:
        """The environment's rewards with their strength, also those that arrive while an agent waits."""
        if self._extrinsic_strength is None:
            return np.array(rollout.reward)
        reward = np.asarray(rollout.reward * self._extrinsic_strength, rollout.reward.dtype)
        _add(metrics, EXTRINSIC, {"reward_mean": _mean(reward, rollout)})
        return reward

    def state_dict(self) -> dict[str, Any]:
        """What the signals have learned."""
        return {name: signal.state_dict() for name, (signal, _) in self._signals.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; signals that are new to the run begin afresh."""
        for name, (signal, _) in self._signals.items():
            if name in state:
                signal.load_state_dict(state[name])


def _checked(name: str, number: Array, rollout: Rollout) -> Array:
    number = np.asarray(number)
    if number.shape != rollout.reward.shape or not np.isfinite(number).all():
        raise ConfigError(
            f"reward signal {name!r} gave {number.shape} numbers, or not finite ones, for rewards of shape "
            f"{rollout.reward.shape}"
        )
    return number


def _mean(number: Array, rollout: Rollout) -> float:
    """Over rows on which the agents acted."""
    return float(number[rollout.valid].mean(dtype=np.float64)) if rollout.valid.any() else 0.0


def _add(metrics: dict[str, list[float]], name: str, found: Mapping[str, float]) -> None:
    for metric, number in found.items():
        metrics.setdefault(f"signals/{name}/{metric}", []).append(number)
