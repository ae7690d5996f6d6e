"""Exported policies: ONNX and TorchScript files that hold everything between observation and action distribution.

Inputs, each with a free batch axis first:

    obs            the observation; one input per leaf of a nested space, named `obs.<path>`
    action_mask    bool, True = allowed; only where the policy was trained with masks
    memory         what the policy remembers before this step, zeros at an episode's first; only where it has a memory

Outputs:

    distribution   parameters of the action distribution, as `action_head` lays them out
    action         the most likely action, clipped to the space's bounds; one output per leaf of a nested space, `action.<path>`
    value          the critic's value, in units of reward; only where the policy has a critic of its own
    next_memory    the `memory` of the episode's next step; only where the policy has a memory

Both formats carry the same metadata (`PolicyMetadata`), so that a file alone is enough to act: spaces as JSON, the group's
name, the policy version and how it explores. An ONNX file also holds the policy's answer to a probe, for whoever validates it
(`model_validation`), and one of plain MLPs describes them for the accelerator (`mlp_description`). An export is compared with
the live policy before it counts as written.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.data.trees import Array, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.errors import ConfigError, ExportError
from relayrl.models.compute_device import on_cpu
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata, action_name
from relayrl.models.exports.mlp_policy import has_own_critic, mlp_text
from relayrl.models.exports.model_validation import probe_inputs, probe_text
from relayrl.models.policy import ActorCritic, Policy
from relayrl.models.recurrent_policy import RecurrentActorCritic

OPSET = 17
TOLERANCE = 1e-4
"""Of the largest output: what rounding in another order leaves. Networks that mix rows are off by far more."""


class ExportGraph(nn.Module):
    """The policy with flat inputs and the documented outputs; `with_value` False leaves its critic out."""

    def __init__(self, policy: Policy, masked: bool, *, with_value: bool = True) -> None:
        super().__init__()
        self.policy, self.masked = policy, masked
        self._has_value = with_value and has_own_critic(policy)
        for name, numbers in policy.head.bounds.items():
            self.register_buffer(name, torch.from_numpy(numbers))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        names = input_names(self.policy, self.masked)
        given = dict(zip(names, inputs, strict=True))
        mask, memory = given.pop("action_mask", None), given.pop("memory", None)
        features = self.policy.features(unflatten(self.policy.observation_space, iter(given.values())))
        if isinstance(self.policy, RecurrentActorCritic):
            assert memory is not None
            distribution, value, after = self.policy.step(features, mask, memory)
            values = () if value is None or not self._has_value else (value,)
            return (distribution, *self._mode(distribution), *values, after)
        distribution = self.policy.distribution(features, mask)
        outputs = (distribution, *self._mode(distribution))
        if self._has_value and isinstance(self.policy, ActorCritic):
            return (*outputs, self.policy.value(features))
        return outputs

    @property
    def output_names(self) -> list[str]:
        """Names of what `forward` gives."""
        actions = [action_name(path) for path, _ in space_leaves(self.policy.action_space)]
        names = ["distribution", *actions, *(["value"] if self._has_value else [])]
        return [*names, "next_memory"] if self.policy.memory_width else names

    def _mode(self, distribution: Tensor) -> list[Tensor]:
        head = self.policy.head
        bounds = {name: getattr(self, name) for name in head.bounds}
        return [leaf for _, leaf in leaves(head.mode_torch(distribution, {**self.policy.constants, **bounds}))]


def metadata_of(
    policy: Policy,
    *,
    env: str,
    algo: str,
    group: str,
    version: int,
    masked: bool,
    is_warming_up: bool = False,
    environment: Mapping[str, Any] | None = None,
) -> PolicyMetadata:
    """What the file of a policy says of it: everything that acting as it was trained needs."""
    return PolicyMetadata(
        env=env,
        algo=algo,
        group=group,
        policy_version=version,
        masked=masked,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        head=policy.head.kind,
        noise_scale=policy.head.noise_scale,
        memory_width=policy.memory_width,
        is_warming_up=is_warming_up,
        environment=json.dumps(environment) if environment else "",
    )


def export_policy(policy: Policy, metadata: PolicyMetadata, path: Path, file_format: ExportFormat) -> Path:
    """Write `policy` to `path`, whole or not at all, and check the file against the policy."""
    if not path.name:
        raise ConfigError(f"cannot export to {str(path)!r}: name a file")
    policy = on_cpu(policy)
    mlp = mlp_text(policy) if file_format is ExportFormat.ONNX else ""
    metadata = replace(metadata, memory_width=policy.memory_width, mlp=mlp)
    graph = ExportGraph(policy, metadata.masked).eval()
    if file_format is ExportFormat.ONNX:
        metadata = replace(metadata, probe=probe_of(graph, metadata))
    example = _example_inputs(policy, metadata.masked, num_rows=3)
    write = _onnx_bytes if file_format is ExportFormat.ONNX else _torchscript_bytes
    content = write(graph, example, metadata)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        _verify(graph, temporary, file_format)
        os.replace(temporary, path)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _example_inputs(policy: Policy, masked: bool, num_rows: int) -> tuple[Tensor, ...]:
    """Plausible random inputs: samples of the observation space, everything allowed, any memory."""
    rng = np.random.default_rng(0)
    inputs = []
    for _, leaf in space_leaves(policy.observation_space):
        leaf.seed(int(rng.integers(2**31)))
        rows = np.stack([np.asarray(leaf.sample(), leaf_dtype(leaf)) for _ in range(num_rows)])
        inputs.append(torch.from_numpy(rows))
    if masked:
        inputs.append(torch.ones((num_rows, policy.head.mask_width or 0), dtype=torch.bool))
    if policy.memory_width:
        inputs.append(torch.from_numpy(rng.uniform(-1, 1, (num_rows, policy.memory_width)).astype(np.float32)))
    return tuple(inputs)


def input_names(policy: Policy, masked: bool) -> list[str]:
    """Names of the graph's inputs, in order."""
    names = [f"obs.{path}" if path else "obs" for path, _ in space_leaves(policy.observation_space)]
    names += ["action_mask"] if masked else []
    return [*names, "memory"] if policy.memory_width else names


def probe_of(graph: ExportGraph, metadata: PolicyMetadata) -> str:
    """What the policy answers to the probe, for whoever validates the file."""
    inputs = [torch.from_numpy(rows) for rows in probe_inputs(metadata, graph.policy.head).values()]
    with torch.no_grad():
        return probe_text(graph(*inputs)[0].numpy())


def onnx_bytes(
    policy: Policy, metadata: PolicyMetadata, *, with_value: bool = True, folds_constants: bool = True
) -> bytes:
    """The content of a policy's ONNX file, unchecked. Without folding, its parameters are in it as they are."""
    policy = on_cpu(policy)
    graph = ExportGraph(policy, metadata.masked, with_value=with_value).eval()
    return _onnx_bytes(graph, _example_inputs(policy, metadata.masked, 3), metadata, folds_constants=folds_constants)


def _onnx_bytes(
    graph: ExportGraph, example: tuple[Tensor, ...], metadata: PolicyMetadata, *, folds_constants: bool = True
) -> bytes:
    import onnx

    names = input_names(graph.policy, graph.masked)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # The graph-capturing exporter takes 3 s where this one takes 20 ms, for the same file: see ADR 0004.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            graph,
            example,
            buffer,  # type: ignore[arg-type]  # a file object is what this exporter takes besides a path
            input_names=names,
            output_names=graph.output_names,
            dynamic_axes={name: {0: "batch"} for name in [*names, *graph.output_names]},
            opset_version=OPSET,
            do_constant_folding=folds_constants,
            dynamo=False,
        )
    model = onnx.load_from_string(buffer.getvalue())
    onnx.helper.set_model_props(model, metadata.as_strings())
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _torchscript_bytes(graph: ExportGraph, example: tuple[Tensor, ...], metadata: PolicyMetadata) -> bytes:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(graph, example, check_trace=False)  # type: ignore[no-untyped-call]
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer, _extra_files=metadata.as_strings())
    return buffer.getvalue()


def _verify(graph: ExportGraph, path: Path, file_format: ExportFormat) -> None:
    """Run the file on other inputs, and more of them, than it was traced with."""
    inputs = _example_inputs(graph.policy, graph.masked, num_rows=64)
    with torch.no_grad():
        expected = [output.numpy() for output in graph(*inputs)]
    try:
        got = _run_onnx(path, inputs) if file_format is ExportFormat.ONNX else _run_torchscript(path, inputs)
    except (RuntimeError, ValueError) as error:
        raise ExportError(f"{path.name} cannot be run with another number of rows: {error}") from error
    modes = {action_name(path): leaf for path, leaf in leaves(graph.policy.head.mode(expected[0]))}
    for name, want, have in zip(graph.output_names, expected, got, strict=True):
        if name in modes:
            if not np.allclose(modes[name], want, rtol=0.0, atol=TOLERANCE):
                kind = type(graph.policy.head).__name__
                raise ExportError(f"{path.name}: {kind}.mode() chooses other actions than its mode_torch()")
            continue
        atol = TOLERANCE * max(1.0, float(np.abs(want).max(initial=0.0)))
        if want.shape != have.shape or not np.allclose(want, have, rtol=0.0, atol=atol):
            raise ExportError(
                f"{path.name}: output {name!r} differs from the policy's; its networks mix rows or guess shapes"
            )


def _run_onnx(path: Path, inputs: tuple[Tensor, ...]) -> list[Array]:
    actor = ExportedActor(path)
    try:
        return actor.run([tensor.numpy() for tensor in inputs])
    except Exception as error:  # onnxruntime's exceptions share no public base class
        raise ValueError(str(error)) from error


def _run_torchscript(path: Path, inputs: tuple[Tensor, ...]) -> list[Array]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        return [output.numpy() for output in torch.jit.load(path)(*inputs)]  # type: ignore[no-untyped-call]
