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
from relayrl.models.exports.mlp_policy import mlp_text
from relayrl.models.policy import Policy


class OnnxTemplate:
    """Gives the bytes of one policy's file, as the policy is now."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._masked: bool | None = None
        self._model: Any = None
        self._initializers: list[Any] = []

    def filled(self, metadata: PolicyMetadata) -> bytes:
        """The file with the policy's present parameters."""
        import onnx

        policy = on_cpu(self._policy)
        metadata = replace(metadata, memory_width=policy.memory_width, mlp=mlp_text(policy, with_value=False))
        graph = ExportGraph(policy, metadata.masked, with_value=False).eval()
        metadata = replace(metadata, probe=probe_of(graph, metadata))
        if self._masked is not metadata.masked:
            self._trace(metadata)
        if self._model is None:
            return onnx_bytes(policy, metadata, with_value=False)
        own = graph.state_dict()
        for initializer in self._initializers:
            initializer.raw_data = own[initializer.name].numpy().tobytes()
        onnx.helper.set_model_props(self._model, metadata.as_strings())
        return bytes(self._model.SerializeToString())

    def _trace(self, metadata: PolicyMetadata) -> None:
        import onnx

        self._masked, self._model, self._initializers = metadata.masked, None, []
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
