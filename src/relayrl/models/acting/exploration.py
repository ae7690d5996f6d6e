"""How actors deviate from their policy in order to explore: part of every policy snapshot, so that it reaches all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exploration:
    """The exploration state of one policy at one version."""

    is_warming_up: bool = False
    """Whether actions are drawn uniformly, since there is nothing to learn from yet."""
    noise_scale: float = 0.0
    """Noise that a deterministic policy's draws have, in units of half the action range."""
