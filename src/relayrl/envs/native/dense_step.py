"""What a step gives whose caller must not wait for the device: arrays of one shape, whatever ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relayrl.envs.native.array_namespace import XArray


@dataclass(frozen=True, slots=True)
class DenseGroupStep:
    """One group's part, `[B, N, …]`. The arrays are the environment's own, and change with its next step."""

    obs: XArray
    """What the agents see now: the first observation of the next episode where one ended."""
    reward: XArray
    terminated: XArray
    truncated: XArray


@dataclass(frozen=True, slots=True)
class DenseStep:
    """All groups' parts."""

    groups: Mapping[str, DenseGroupStep]
    final: Mapping[str, XArray]
    """By group, `[B, N, …]`: what the agents saw before any episode began anew, of all worlds."""
    over: XArray
    """[B] whose episode ended."""
