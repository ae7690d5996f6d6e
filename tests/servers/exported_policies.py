"""Exported policies for tests of servers."""

from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportFormat, PolicyMetadata
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.models.recurrent_policy import RecurrentActorCritic

OBS = spaces.Box(-10.0, 10.0, (4,), np.float32)
ACT = spaces.Discrete(3)


def exported_policy(
    path: Path,
    *,
    version: int = 1,
    seed: int = 0,
    group: str = "agent",
    observation=OBS,
    action=ACT,
    masked: bool = False,
    has_memory: bool = False,
    is_warming_up: bool = False,
) -> Path:
    """A policy with weights away from zero, so that versions differ clearly."""
    network = NetworkSettings(hidden_sizes=(8, 8))
    make = ActorCritic
    if has_memory:
        network, make = network.model_copy(update={"memory": MemorySettings(size=4)}), RecurrentActorCritic
    generator = torch.Generator().manual_seed(seed)
    policy = make(observation, action, network, generator)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    metadata = PolicyMetadata(
        "Env-v0", "ppo", group, version, masked, observation, action, policy.head.kind, is_warming_up=is_warming_up
    )
    return export_policy(policy, metadata, path, ExportFormat.ONNX)
