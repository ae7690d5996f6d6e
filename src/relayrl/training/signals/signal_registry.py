"""The built-in reward signals by name, and how to make one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayrl.config.settings import Settings, parse_settings
from relayrl.errors import ConfigError
from relayrl.training.signals.signal_settings import EXTRINSIC, CuriositySettings, GailSettings, RndSettings

if TYPE_CHECKING:
    import torch

    from relayrl.data.columns import LaneHeader
    from relayrl.training.signals.reward_signals import RewardSignal


@dataclass(frozen=True, slots=True)
class SignalGroup:
    """A policy group as a built-in signal must know it before the first rollout."""

    header: LaneHeader
    gamma: float
    seed: int
    device: str | torch.device = "cpu"
    """Where its networks compute."""


@dataclass(frozen=True, slots=True)
class SignalEntry:
    """A built-in signal: its options, and `module:Class`, which is imported when it is made."""

    options: type[Settings]
    signal: str


SIGNALS: Mapping[str, SignalEntry] = {
    "rnd": SignalEntry(RndSettings, "relayrl.training.signals.rnd:RandomNetworkDistillation"),
    "gail": SignalEntry(GailSettings, "relayrl.training.signals.gail:Gail"),
    "curiosity": SignalEntry(CuriositySettings, "relayrl.training.signals.curiosity:Curiosity"),
}


def signal_names() -> tuple[str, ...]:
    """Names that no plugin can have."""
    return (EXTRINSIC, *SIGNALS)


def parse_options(name: str, options: Mapping[str, Any]) -> Settings:
    """The options of a built-in signal; a wrong one is a `ConfigError` that names it."""
    try:
        return parse_settings(SIGNALS[name].options, dict(options))
    except ConfigError as error:
        raise ConfigError(f"in reward_signals.{name}.options: {error}") from error


def make_signal(name: str, options: Mapping[str, Any], groups: Sequence[SignalGroup]) -> RewardSignal:
    """A built-in signal for the groups of a run."""
    module, _, what = SIGNALS[name].signal.partition(":")
    made: RewardSignal = getattr(importlib.import_module(module), what)(parse_options(name, options), groups)
    return made
