"""Numbers that are not finite stop a run before they reach the parameters."""

from __future__ import annotations

import math

import numpy as np

from relayrl.errors import TrainingDivergedError

NOT_FINITE_IS_RAISED = np.errstate(invalid="ignore", over="ignore")
"""Losses that are not finite stop the run by `require_finite`; NumPy need not warn before that."""


def require_finite(loss: float, network: str, rate: str) -> None:
    """Raise where a loss is not a number that can be learned from."""
    if not math.isfinite(loss):
        raise TrainingDivergedError(f"the {network} loss became {loss}; lower {rate}, or check the rewards")
