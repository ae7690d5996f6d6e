"""Policies that need torch: TorchScript files and live policies. The one file of the runtime that loads it, when it must."""

from __future__ import annotations

import copy
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relayrl.data.trees import Array, Tree, leaves, map_tree
from relayrl.errors import ConfigError, DecodeError
from relayrl.models.action_head import LikelihoodHead
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.export import has_own_critic
from relayrl.models.exported import METADATA_PREFIX, PolicyMetadata
from relayrl.models.head_registry import head_of_kind
from relayrl.models.lane_memory import MEMORY_DECIDES
from relayrl.models.numpy_policy import NumpyActorCritic, NumpyPolicy, acts_in_numpy, judges_in_numpy
from relayrl.models.policy import Policy
from relayrl.models.recurrent_policy import RecurrentActorCritic
from relayrl.runtime.acting_layout import ActingLayout
from relayrl.runtime.policy_model import CPU, PolicyModel, example_row, layout_of

_METADATA_KEYS = tuple(METADATA_PREFIX + field.name for field in fields(PolicyMetadata))


class TorchScriptModel(PolicyModel):
    """A policy from a TorchScript file."""

    def __init__(self, path: Path, device: str) -> None:
        if not path.exists():
            raise ConfigError(f"no model at {path}")
        extra: dict[str, Any] = dict.fromkeys(_METADATA_KEYS, "")
        try:
            self._device = torch.device(device)
            self._module = _load(path, self._device, extra)
        except RuntimeError as error:
            raise DecodeError(f"{path} is not a TorchScript model that runs on {device}: {error}") from error
        strings = {key: value.decode() if isinstance(value, bytes) else value for key, value in extra.items()}
        metadata = PolicyMetadata.from_strings({key: value for key, value in strings.items() if value})
        self.head = head_of_kind(metadata.action_space, metadata.head, metadata.noise_scale)
        self._masked, self.policy_version = metadata.masked, metadata.policy_version
        self._remembers = metadata.memory_width > 0
        nothing = np.zeros((1, metadata.memory_width), np.float32)
        outputs = self._outputs(*example_row(metadata, self.head), nothing)
        self.layout = layout_of(metadata, self.head, has_value=len(outputs) > 2 + self._remembers)

    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        if self._remembers:
            raise ConfigError(MEMORY_DECIDES)
        return self.step(obs, mask, np.zeros((0, 0), np.float32))[:2]

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array | None, Array]:
        outputs = self._outputs(obs, mask, memory)
        after = outputs.pop() if self._remembers else memory
        distribution = outputs[0]
        if mask is not None and not self._masked:
            distribution = self.head.parameters_numpy(distribution, mask)
        return distribution, outputs[2] if len(outputs) > 2 else None, after

    def _outputs(self, obs: Tree, mask: Array | None, memory: Array) -> list[Array]:
        inputs = [_tensor(leaf, self._device) for _, leaf in leaves(obs)]
        if self._masked and mask is not None:
            inputs.append(_tensor(mask, self._device))
        if self._remembers:
            inputs.append(_tensor(memory, self._device))
        with torch.inference_mode():
            return [output.cpu().numpy() for output in self._module(*inputs)]


class LiveModel(PolicyModel):
    """A frozen copy of a policy of this process."""

    def __init__(self, policy: Policy, device: str) -> None:
        self._policy = copy.deepcopy(policy).to(device).eval().requires_grad_(False)
        self._device, self.head = torch.device(device), self._policy.head
        self.policy_version = None
        self.layout = ActingLayout(
            group="agent",
            observation_space=policy.observation_space,
            action_space=policy.action_space,
            mask_width=self.head.mask_width,
            needs_mask=False,
            has_logp=isinstance(self.head, LikelihoodHead),
            has_value=has_own_critic(self._policy),
            memory_width=self._policy.memory_width,
        )
        self._numpy = _numpy_policy(self._policy)

    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        if self._numpy is not None:
            features = self._numpy.features(obs)
            distribution = self._numpy.distribution(features, mask)
            value = self._numpy.value(features) if isinstance(self._numpy, NumpyActorCritic) else None
            return distribution, value
        with torch.inference_mode():
            allowed = None if mask is None else _tensor(mask, self._device)
            seen = self._policy.features(map_tree(lambda leaf: _tensor(leaf, self._device), obs))
            parameters = self._policy.distribution(seen, allowed).cpu().numpy()
            if not isinstance(self._policy, ActorCritic) or self._policy.is_central:
                return parameters, None
            return parameters, self._policy.value(seen).cpu().numpy()

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array | None, Array]:
        if not isinstance(self._policy, RecurrentActorCritic):
            return super().step(obs, mask, memory)
        with torch.inference_mode():
            allowed = None if mask is None else _tensor(mask, self._device)
            seen = self._policy.features(map_tree(lambda leaf: _tensor(leaf, self._device), obs))
            distribution, value, after = self._policy.step(seen, allowed, _tensor(memory, self._device))
            judged = None if value is None else value.cpu().numpy()
            return distribution.cpu().numpy(), judged, after.cpu().numpy()


def live_model(source: Any, device: str) -> LiveModel:
    """The model of a policy that lives in this process."""
    if not isinstance(source, Policy):
        raise ConfigError(
            f"a {type(source).__name__} is no model; give a path to .onnx or .pt, a Policy, or a CustomPolicy of an Actor"
        )
    return LiveModel(source, device)


def _load(path: Path, device: torch.device, extra: dict[str, Any]) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():  # deprecated, and still the only way to run files that others have
        warnings.simplefilter("ignore", DeprecationWarning)
        module: torch.jit.ScriptModule = torch.jit.load(str(path), map_location=device, _extra_files=extra)  # type: ignore[no-untyped-call]
        return module.eval()


def _numpy_policy(policy: Policy) -> NumpyPolicy | None:
    if isinstance(policy, ActorCritic) and not policy.is_central:
        return NumpyActorCritic(policy) if judges_in_numpy(policy) else None
    return NumpyPolicy(policy) if acts_in_numpy(policy) else None


def _tensor(leaf: Array, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(leaf)
    return tensor if device.type == CPU else tensor.to(device)
