"""Reward signals: numbers that are added to the environment's rewards before anything is learned from them.

    class Calm(RewardSignal):
        def evaluate(self, rollout: Rollout) -> Array:
            return -np.square(rollout.action).sum(-1)

Signals plug in by entry point (`docs/plugins.md`) and are switched on by `reward_signals: {calm: {strength: 0.01}}`. Returns
of episodes that statistics show stay those of the environment. A signal that learns keeps its state in checkpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from relayrl.config.settings import Settings
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array
from relayrl.errors import ConfigError


class RewardSignalSettings(Settings):
    """One reward signal of a run."""

    strength: float = Field(1.0, description="what the signal is multiplied with before it is added to the reward")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments for the signal itself")


class RewardSignal(ABC):
    """Gives a number for every row of a rollout."""

    @abstractmethod
    def evaluate(self, rollout: Rollout) -> Array:
        """[T, L] what to add to each row's reward."""

    def state_dict(self) -> dict[str, Any]:
        """What the signal has learned; nothing unless overridden."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - not every signal learns
        """Continue from `state_dict`."""


class RewardSignals:
    """All signals of a run, by name, each with its strength."""

    def __init__(self, signals: Mapping[str, tuple[RewardSignal, float]]) -> None:
        self._signals = dict(signals)

    def add_to(self, rollouts: Mapping[str, Rollout]) -> None:
        """Add every signal to the rollouts' rewards, on rows where the agent acted."""
        for name, (signal, strength) in self._signals.items():
            for rollout in rollouts.values():
                number = np.asarray(signal.evaluate(rollout))
                if number.shape != rollout.reward.shape or not np.isfinite(number).all():
                    raise ConfigError(
                        f"reward signal {name!r} gave {number.shape} numbers, or not finite ones, for rewards of shape "
                        f"{rollout.reward.shape}"
                    )
                rollout.reward[...] += np.where(rollout.valid, strength * number, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """What the signals have learned."""
        return {name: signal.state_dict() for name, (signal, _) in self._signals.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; signals that are new to the run begin afresh."""
        for name, (signal, _) in self._signals.items():
            if name in state:
                signal.load_state_dict(state[name])
