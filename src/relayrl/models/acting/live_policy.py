"""`LivePolicy`: a policy that a trainer of this process hands to agents, with what a file would say of itself.

Agents take a copy of it when they are given it, in the thread that gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayrl.models.acting.exploration import Exploration

if TYPE_CHECKING:
    from relayrl.models.policy import Policy


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """One group's policy at one version."""

    policy: Policy
    group: str
    version: int
    exploration: Exploration
    masks_actions: bool = False
