"""Acting through torch: any live policy, always with its newest parameters, and TorchScript files. The reference of acting."""

from __future__ import annotations

import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.data.trees import Array, Tree, leaves, map_tree, space_leaves
from relayrl.errors import ConfigError, DecodeError
from relayrl.models.acting.actor import ForwardActor, Outputs
from relayrl.models.compute_device import device_of, fetched, moved
from relayrl.models.exports.exported import METADATA_PREFIX, PolicyMetadata, example_rows
from relayrl.models.exports.mlp_policy import has_own_critic
from relayrl.models.heads.head_registry import head_of_kind
from relayrl.models.policy import ActorCritic, Policy
from relayrl.models.recurrent_policy import RecurrentActorCritic

_METADATA_KEYS = tuple(METADATA_PREFIX + field.name for field in fields(PolicyMetadata))


class TorchActor(ForwardActor):
    """Acts through the policy's own functions, with values where they are asked for and it has a critic of its own.

    On a GPU, what a batch of rows gives comes back in one transfer.
    """

    def __init__(self, policy: Policy, *, with_value: bool = False) -> None:
        self.policy, self.head, self.memory_width = policy, policy.head, policy.memory_width
        self.observation_space = policy.observation_space
        self._with_value, self._device = with_value and has_own_critic(policy), device_of(policy)

    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        policy = self.policy
        with torch.inference_mode():
            allowed = None if mask is None else moved(mask, self._device)
            features = policy.features(map_tree(lambda leaf: moved(leaf, self._device), obs))
            if isinstance(policy, RecurrentActorCritic) and memory is not None:
                return self._outputs(*policy.step(features, allowed, moved(memory, self._device)))
            parameters = policy.distribution(features, allowed)
            if not self._with_value:
                return self._outputs(parameters)
            assert isinstance(policy, ActorCritic)
            return self._outputs(parameters, policy.value(features))

    def _outputs(self, *columns: Tensor | None) -> Outputs:
        if self._device.type != "cpu":
            return Outputs(*fetched(*columns))  # type: ignore[arg-type]
        return Outputs(*(None if column is None else _array(column) for column in columns))  # type: ignore[arg-type]


class ScriptActor(ForwardActor):
    """Acts through a TorchScript file, with values where it has a critic."""

    def __init__(self, path: Path, device: str = "cpu") -> None:
        if not path.exists():
            raise ConfigError(f"no model at {path}")
        extra: dict[str, Any] = dict.fromkeys(_METADATA_KEYS, "")
        try:
            self._device = torch.device(device)
            self._module = _load(path, self._device, extra)
        except RuntimeError as error:
            raise DecodeError(f"{path} is not a TorchScript model that runs on {device}: {error}") from error
        strings = {key: value.decode() if isinstance(value, bytes) else value for key, value in extra.items()}
        self.metadata = PolicyMetadata.from_strings({key: value for key, value in strings.items() if value})
        self.head = head_of_kind(self.metadata.action_space, self.metadata.head, self.metadata.noise_scale)
        self.memory_width = self.metadata.memory_width
        self.observation_space = self.metadata.observation_space
        nothing = np.zeros((1, self.memory_width), np.float32)
        outputs = self._outputs(*example_rows(self.metadata, self.head), nothing)
        self._value_at = 1 + len(list(space_leaves(self.metadata.action_space)))  # behind distribution and actions
        self.has_value = len(outputs) > self._value_at + bool(self.memory_width)

    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        outputs = self._outputs(obs, mask, memory)
        parameters = outputs[0]
        if mask is not None and not self.metadata.masked:
            parameters = self.head.parameters_numpy(parameters, mask)
        after = outputs[-1] if self.memory_width else None
        return Outputs(parameters, outputs[self._value_at] if self.has_value else None, after)

    def _outputs(self, obs: Tree, mask: Array | None, memory: Array | None) -> list[Array]:
        inputs = [moved(leaf, self._device) for _, leaf in leaves(obs)]
        if self.metadata.masked and mask is not None:
            inputs.append(moved(mask, self._device))
        if self.memory_width and memory is not None:
            inputs.append(moved(memory, self._device))
        with torch.inference_mode():
            return [_array(output) for output in self._module(*inputs)]


def _load(path: Path, device: torch.device, extra: dict[str, Any]) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():  # deprecated, and still the only way to run files that others have
        warnings.simplefilter("ignore", DeprecationWarning)
        module: torch.jit.ScriptModule = torch.jit.load(str(path), map_location=device, _extra_files=extra)  # type: ignore[no-untyped-call]
        return module.eval()


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.cpu().numpy())
