"""Policies that act in the runtime, wherever they come from: an actor, what its requests look like, and its version.

    ONNX file          compiled kernels where the file describes small MLPs, else onnxruntime; torch is not loaded
    TorchScript file   torch, on any device
    live policy        a frozen copy of it, by compiled kernels where it is an MLP, else torch; a trainer's knows its group
    Actor              any object of yours with `head` and `distribution`; it has no value

A model never changes once it was loaded: hot reload replaces it (`published_policy`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from gymnasium import spaces

from relayrl.accelerator.mlp_actor import accelerated
from relayrl.data.steps.step_rows import ActingLayout
from relayrl.data.trees import Space
from relayrl.errors import ConfigError, DecodeError
from relayrl.models.acting.actor import Actor, ForwardActor
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.live_policy import LivePolicy
from relayrl.models.acting.warmup_actor import WarmupActor
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata, example_rows

if TYPE_CHECKING:
    from relayrl.models.policy import Policy

ModelSource: TypeAlias = "str | Path | Policy | LivePolicy | CustomPolicy | PolicyModel"
CPU = "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class PolicyModel:
    """What acts, and what a request to it looks like."""

    actor: Actor
    layout: ActingLayout
    policy_version: int | None
    """What the source says of itself; None where it says nothing."""


class CustomPolicy:
    """An `Actor` of yours with what a file would say of itself."""

    def __init__(
        self, actor: Actor, observation_space: Space, *, group: str = "agent", policy_version: int = 0
    ) -> None:
        self.actor, self.observation_space = actor, observation_space
        self.group, self.policy_version = group, policy_version


def load_model(source: ModelSource, device: str = CPU, group: str | None = None) -> PolicyModel:
    """The model of a file (by its suffix), a live policy or a `CustomPolicy`, ready to act on `device`.

    `group` is whose policy a live one is, which it does not say itself: `"agent"`, unless given.
    """
    if group is not None and not _says_no_group(source):
        raise ConfigError(f"group={group!r} is for a live policy; a file or CustomPolicy says itself whose it is")
    if isinstance(source, PolicyModel):
        return source
    if isinstance(source, LivePolicy):
        return _trainers_model(source, device)
    if isinstance(source, CustomPolicy):
        has_value = source.actor.gives_value
        layout = _layout(source.actor, source.group, source.observation_space, has_value=has_value)
        return PolicyModel(source.actor, layout, source.policy_version)
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix == ExportFormat.ONNX.suffix:
            if device != CPU:
                raise ConfigError(f"ONNX files act on {CPU!r}, not on {device!r}; use a TorchScript file there")
            policy = load_onnx(path)
            return file_model(policy.actor, policy.metadata, has_value=policy.layout.has_value)
        if path.suffix == ExportFormat.TORCHSCRIPT.suffix:
            from relayrl.models.acting.torch_actor import ScriptActor

            script = ScriptActor(path, device)
            return file_model(script, script.metadata, has_value=script.has_value)
        raise ConfigError(f"{path} is neither .onnx nor .pt; export one with: relayrl export RUN_DIR --format onnx")
    return _live_model(source, device, group or "agent")


def _says_no_group(source: ModelSource) -> bool:
    return not isinstance(source, str | Path | CustomPolicy | LivePolicy | PolicyModel)


def fitting_group(source: ModelSource, layouts: Iterable[ActingLayout], device: str) -> str | None:
    """Whose policy a live one must be to replace some of `layouts`; None where it says so itself, or where it fits none."""
    if not _says_no_group(source):
        return None
    own = load_model(source, device).layout
    found = {layout.group for layout in layouts if replace(own, group=layout.group).key == layout.key}
    if len(found) > 1:
        raise ConfigError(f"the policy fits actors of {sorted(found)}; say with group= whose it is")
    return next(iter(found), None)


@dataclass(frozen=True, slots=True, eq=False)
class OnnxPolicy:
    """A policy's ONNX file, loaded: what passes its graph, and what it says of itself. It does not explore by itself."""

    actor: ForwardActor
    metadata: PolicyMetadata
    layout: ActingLayout


def load_onnx(file: Path | bytes) -> OnnxPolicy:
    """The policy of an ONNX file or of its bytes, validated where they came from elsewhere; kernels act for small MLPs."""
    reference = ExportedActor(file, with_value=True)
    metadata, width = reference.metadata, reference.memory_width
    obs, mask = example_rows(metadata, reference.head)
    try:
        reference.decide(obs, mask, np.zeros((1, width), np.float32), None)
    except Exception as error:  # onnxruntime's exceptions share no public base class
        raise DecodeError(f"the model cannot act on an observation of its own space: {error}") from error
    actor = accelerated(reference) or reference
    return OnnxPolicy(actor, metadata, _file_layout(actor, metadata, has_value=reference.has_value))


def file_model(actor: Actor, metadata: PolicyMetadata, *, has_value: bool) -> PolicyModel:
    """What acts as a file's metadata says, exploration included."""
    layout = _file_layout(actor, metadata, has_value=has_value)
    if metadata.is_warming_up:
        state = Exploration(is_warming_up=True, noise_scale=metadata.noise_scale)
        actor = WarmupActor(actor, lambda: state)
    return PolicyModel(actor, layout, metadata.policy_version)


def _trainers_model(live: LivePolicy, device: str) -> PolicyModel:
    model = _live_model(live.policy, device, live.group)
    actor, exploration = model.actor, live.exploration
    if exploration.is_warming_up:
        actor = WarmupActor(actor, lambda: exploration)
    return PolicyModel(actor, replace(model.layout, needs_mask=live.masks_actions), live.version)


def _file_layout(actor: Actor, metadata: PolicyMetadata, *, has_value: bool) -> ActingLayout:
    group, observation_space = metadata.group, metadata.observation_space
    return _layout(actor, group, observation_space, needs_mask=metadata.masked, has_value=has_value)


def _live_model(policy: object, device: str, group: str) -> PolicyModel:
    from relayrl.accelerator.live_actor import frozen_actor
    from relayrl.models.exports.mlp_policy import has_own_critic
    from relayrl.models.policy import Policy

    if not isinstance(policy, Policy):
        raise ConfigError(
            f"a {type(policy).__name__} is no model; give a path to .onnx or .pt, a Policy, or a CustomPolicy of an Actor"
        )
    actor = frozen_actor(policy, device)
    layout = _layout(actor, group, policy.observation_space, has_value=has_own_critic(policy))
    return PolicyModel(actor, layout, None)


def _layout(
    actor: Actor, group: str, observation_space: Space, *, needs_mask: bool = False, has_value: bool = False
) -> ActingLayout:
    return ActingLayout(
        group=group,
        observation_space=observation_space,
        action_space=actor.head.space,
        mask_width=actor.head.mask_width,
        needs_mask=needs_mask,
        has_logp=actor.head.has_log_prob,
        has_value=has_value,
        memory_space=spaces.Box(-np.inf, np.inf, (actor.memory_width,)) if actor.memory_width else None,
    )
