"""The ONNX file of a policy that is exported again and again: only its numbers change, so only they are written anew.

Tracing a policy takes tens of milliseconds, as long as an update of a small one. A template is traced once. Its parameters are
found by name, and a second trace of a copy with other numbers must differ in nothing else; where it does (a network that folds
its parameters into constants), every file is traced.

The critic is left out: actors do not need it, and it may still be learning when its policy is published.

Not its job: files (`export`), or metadata.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relayrl.models.compute_device import CPU, on_cpu
from relayrl.models.exports.export import ExportGraph, onnx_bytes, probe_of
from relayrl.models.exports.exported import PolicyMetadata
from relayrl.models.exports.mlp_policy import described_mlp
from relayrl.models.policy import Policy


class OnnxTemplate:
    """Gives the bytes of one policy's file, as the policy is now."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._source: _Source | None = None
        self._model: Any = None
        self._initializers: list[Any] = []

    def filled(self, metadata: PolicyMetadata) -> bytes:
        """The file with the policy's present parameters."""
        import onnx

        source, is_known = self._source, self._source is not None and self._source.masked is metadata.masked
        if source is None or not is_known or source.policy is not self._policy:  # a policy on a GPU is copied each time
            source = self._source = _Source(on_cpu(self._policy), metadata)
        metadata = source.described(metadata)
        if not is_known:
            self._trace(metadata)
        if self._model is None:
            return onnx_bytes(source.policy, metadata, with_value=False)
        own = source.graph.state_dict()
        for initializer in self._initializers:
            initializer.raw_data = own[initializer.name].numpy().tobytes()
        onnx.helper.set_model_props(self._model, metadata.as_strings())
        return bytes(self._model.SerializeToString())

    def _trace(self, metadata: PolicyMetadata) -> None:
        import onnx

        self._model, self._initializers = None, []
        copies = [_with_other_numbers(self._policy, seed) for seed in (1, 2)]
        model, changed = (
            onnx.load_from_string(onnx_bytes(each, metadata, with_value=False, folds_constants=False))
            for each in copies
        )
        traced = ExportGraph(copies[0], metadata.masked, with_value=False).state_dict()
        names = {each.name for each in model.graph.initializer if _is_of(each, traced.get(each.name))}
        if _without(model, names) == _without(changed, names):
            self._initializers = [each for each in model.graph.initializer if each.name in names]
            self._model = model


class _Source:
    """A policy on the CPU, and what every file says of its present numbers."""

    def __init__(self, policy: Policy, metadata: PolicyMetadata) -> None:
        self.policy, self.masked = policy, metadata.masked
        self.graph = ExportGraph(policy, metadata.masked, with_value=False)
        self._mlp = described_mlp(policy, with_value=False)

    def described(self, metadata: PolicyMetadata) -> PolicyMetadata:
        text = "" if self._mlp is None else self._mlp.to_text()
        metadata = replace(metadata, memory_width=self.policy.memory_width, mlp=text)
        return replace(metadata, probe=probe_of(self.graph.eval(), metadata))


def _with_other_numbers(policy: Policy, seed: int) -> Policy:
    """A copy in which no two numbers are alike: the exporter merges equal tensors, such as biases that begin at zero."""
    other, generator = copy.deepcopy(policy).to(CPU), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in other.state_dict().items():
            if tensor.is_floating_point() and name not in policy.head.scales:  # those follow from the action space
                tensor.add_(torch.rand(tensor.shape, generator=generator).to(tensor) + 0.125)
    return other


def _is_of(initializer: Any, tensor: Tensor | None) -> bool:
    """Whether an initializer holds exactly the tensor of its name."""
    if tensor is None or tuple(initializer.dims) != tuple(tensor.shape):
        return False
    return bool(initializer.raw_data == tensor.detach().cpu().numpy().tobytes())


def _without(model: Any, names: set[str]) -> bytes:
    """The model without the numbers of some initializers."""
    rest = type(model)()
    rest.CopyFrom(model)
    for initializer in rest.graph.initializer:
        if initializer.name in names:
            initializer.raw_data = b""
    return bytes(rest.SerializeToString(deterministic=True))
