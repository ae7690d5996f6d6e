"""Policies as arrays on their way to another process, and back into policies there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from relayrl.data.trees import Array
from relayrl.models.policy import Policy

Weights = Mapping[str, Mapping[str, Array]]
"""Everything that each group's policy acts by, by the names of its `state_dict`."""


def arrays_of(policies: Mapping[str, Policy]) -> dict[str, dict[str, Any]]:
    """The weights of policies; arrays of the live parameters where they are on the CPU."""
    return {
        name: {key: tensor.detach().cpu().numpy() for key, tensor in policy.state_dict().items()}
        for name, policy in policies.items()
    }


def load_arrays(policies: Mapping[str, Policy], weights: Weights) -> None:
    """Copy weights into policies."""
    with warnings.catch_warnings():  # arrays of an object store cannot be written to, and are only copied from
        warnings.filterwarnings("ignore", message=".*not writable.*")
        for name, policy in policies.items():
            policy.load_state_dict({key: torch.from_numpy(array) for key, array in weights[name].items()})
