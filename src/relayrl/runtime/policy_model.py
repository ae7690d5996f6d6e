"""Policies that act in the runtime, wherever they come from: one forward pass gives distribution and value.

    ONNX file          onnxruntime; torch is not loaded
    TorchScript file   torch, on any device              (`torch_models`)
    live policy        a frozen copy of it, in NumPy where it is a perceptron, else torch
    Actor              any object of yours with `head` and `distribution`; it has no value

A model never changes once it was loaded: hot reload replaces it (`published_policy`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from relayrl.data.trees import Array, Space, Tree, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.errors import ConfigError
from relayrl.models.action_head import ActionHead, LikelihoodHead
from relayrl.models.actor import Actor
from relayrl.models.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.runtime.acting_layout import ActingLayout

if TYPE_CHECKING:
    from relayrl.models.policy import Policy

ModelSource: TypeAlias = "str | Path | Policy | CustomPolicy"
CPU = "cpu"


class PolicyModel(ABC):
    """Acts for rows of observations. Called by one thread at a time."""

    head: ActionHead
    layout: ActingLayout
    policy_version: int | None
    """What the source says of itself; None where it says nothing."""

    @abstractmethod
    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        """Distribution parameters [L, P] and values [L] or None; valid until the next call."""


class CustomPolicy:
    """An `Actor` of yours with what a file would say of itself."""

    def __init__(
        self, actor: Actor, observation_space: Space, *, group: str = "agent", policy_version: int = 0
    ) -> None:
        self.actor, self.observation_space = actor, observation_space
        self.group, self.policy_version = group, policy_version


class OnnxModel(PolicyModel):
    """A policy from an ONNX file."""

    def __init__(self, path: Path) -> None:
        self._actor = ExportedActor(path)
        metadata = self._actor.metadata
        self._masked, self.head = metadata.masked, self._actor.head
        self.policy_version = metadata.policy_version
        outputs = self._outputs(*example_row(metadata, self.head))
        self.layout = layout_of(metadata, self.head, has_value=len(outputs) > 2)

    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        outputs = self._outputs(obs, mask)
        distribution = outputs[0]
        if mask is not None and not self._masked:
            distribution = self.head.parameters_numpy(distribution, mask)
        return distribution, outputs[2] if len(outputs) > 2 else None

    def _outputs(self, obs: Tree, mask: Array | None) -> list[Array]:
        inputs = [obs] if isinstance(obs, np.ndarray) else [leaf for _, leaf in leaves(obs)]
        if self._masked and mask is not None:
            inputs.append(mask)
        return self._actor.run(inputs)


class CustomModel(PolicyModel):
    """A policy of the user's own making."""

    def __init__(self, source: CustomPolicy) -> None:
        self._actor, self.head = source.actor, source.actor.head
        self.policy_version = source.policy_version
        self.layout = ActingLayout(
            group=source.group,
            observation_space=source.observation_space,
            action_space=self.head.space,
            mask_width=self.head.mask_width,
            needs_mask=False,
            has_logp=isinstance(self.head, LikelihoodHead),
            has_value=False,
        )

    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        return self._actor.distribution(obs, mask), None


def layout_of(metadata: PolicyMetadata, head: ActionHead, *, has_value: bool) -> ActingLayout:
    """The layout of a policy that describes itself by `metadata`."""
    return ActingLayout(
        group=metadata.group,
        observation_space=metadata.observation_space,
        action_space=metadata.action_space,
        mask_width=head.mask_width,
        needs_mask=metadata.masked,
        has_logp=isinstance(head, LikelihoodHead),
        has_value=has_value,
    )


def load_model(source: ModelSource, device: str = CPU) -> PolicyModel:
    """The model of a file (by its suffix), a live policy or a `CustomPolicy`, ready to act on `device`."""
    if isinstance(source, CustomPolicy):
        return CustomModel(source)
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix == ExportFormat.ONNX.suffix:
            if device != CPU:
                raise ConfigError(f"ONNX files act on {CPU!r}, not on {device!r}; use a TorchScript file there")
            return OnnxModel(path)
        if path.suffix == ExportFormat.TORCHSCRIPT.suffix:
            from relayrl.runtime.torch_models import TorchScriptModel

            return TorchScriptModel(path, device)
        raise ConfigError(f"{path} is neither .onnx nor .pt; export one with: relayrl export RUN_DIR --format onnx")
    from relayrl.runtime.torch_models import live_model

    return live_model(source, device)


def example_row(metadata: PolicyMetadata, head: ActionHead) -> tuple[Tree, Array | None]:
    """One observation of the space, and a mask that allows everything where the policy needs one."""
    rows = [np.asarray(leaf.sample(), leaf_dtype(leaf))[None] for _, leaf in space_leaves(metadata.observation_space)]
    obs: Tree = unflatten(metadata.observation_space, iter(rows))
    return obs, np.ones((1, head.mask_width or 0), bool) if metadata.masked else None
