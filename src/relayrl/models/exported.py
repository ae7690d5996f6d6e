"""Acting from an exported ONNX file: needs `numpy` and `onnxruntime`, not torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.space_json import space_from_json, space_to_json
from relayrl.data.trees import Array, Space, Tree, leaves
from relayrl.errors import ActionMaskError, ConfigError, DecodeError
from relayrl.models.action_head import HeadKind
from relayrl.models.actor import Actor
from relayrl.models.head_registry import head_of_kind
from relayrl.models.lane_memory import MEMORY_DECIDES

METADATA_PREFIX = "relayrl."
MAX_SPACE_ELEMENTS = 1 << 24
"""Largest space that a model file may declare, in numbers per observation or action."""


class ExportFormat(Enum):
    """File formats of policies, with their usual suffix."""

    ONNX = "onnx"
    TORCHSCRIPT = "torchscript"

    @property
    def suffix(self) -> str:
        return ".onnx" if self is ExportFormat.ONNX else ".pt"


@dataclass(frozen=True, slots=True)
class PolicyMetadata:
    """What a policy file says of itself."""

    env: str
    algo: str
    group: str
    policy_version: int
    masked: bool
    observation_space: Space
    action_space: Space
    head: HeadKind = HeadKind.STOCHASTIC
    noise_scale: float = 0.0  # of a deterministic policy, for actors that explore
    memory_width: int = 0  # numbers that the policy remembers from step to step; an export says so by itself

    def as_strings(self) -> dict[str, str]:
        """Flat strings, for the metadata of either format."""
        values = {
            "env": self.env,
            "algo": self.algo,
            "group": self.group,
            "policy_version": str(self.policy_version),
            "masked": json.dumps(self.masked),
            "head": self.head.value,
            "noise_scale": repr(self.noise_scale),
            "memory_width": str(self.memory_width),
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }
        return {METADATA_PREFIX + key: value for key, value in values.items()}

    @classmethod
    def from_strings(cls, strings: dict[str, str]) -> PolicyMetadata:
        """The reverse of `as_strings`."""
        own = {key.removeprefix(METADATA_PREFIX): v for key, v in strings.items() if key.startswith(METADATA_PREFIX)}
        try:
            return cls(
                env=own["env"],
                algo=own["algo"],
                group=own["group"],
                policy_version=int(own["policy_version"]),
                masked=bool(json.loads(own["masked"])),
                head=HeadKind(own["head"]),
                noise_scale=float(own["noise_scale"]),
                memory_width=_memory_width(own.get("memory_width", "0")),
                observation_space=space_from_json(own["observation_space"], max_elements=MAX_SPACE_ELEMENTS),
                action_space=space_from_json(own["action_space"], max_elements=MAX_SPACE_ELEMENTS),
            )
        except (KeyError, ValueError) as error:
            raise DecodeError(f"the model file has no or damaged RelayRL metadata: {error}") from error


def _memory_width(text: str) -> int:
    """Files from before there were memories say nothing of one."""
    width = int(text)
    if not 0 <= width <= MAX_SPACE_ELEMENTS:
        raise ValueError(f"a memory of {width} numbers")
    return width


class ExportedActor(Actor):
    """A policy from a file. One with a memory acts through `step`, or a `LaneMemory`."""

    def __init__(self, path: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        if not path.exists():
            raise ConfigError(f"no model at {path}")
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise DecodeError(f"{path} is not an ONNX model that can be run: {error}") from error
        self.metadata = PolicyMetadata.from_strings(self._session.get_modelmeta().custom_metadata_map)
        self.head = head_of_kind(self.metadata.action_space, self.metadata.head, self.metadata.noise_scale)
        self._mask_parts = mask_parts(self.metadata.action_space)
        self.path = path
        self.memory_width = self.metadata.memory_width
        self._names = [node.name for node in self._session.get_inputs()]

    def run(self, inputs: list[Array]) -> list[Array]:
        """All outputs for inputs in the graph's order."""
        return list(self._session.run(None, dict(zip(self._names, inputs, strict=True))))

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        self._require_no_memory()
        return np.asarray(self._session.run(["distribution"], self._feed(obs, mask))[0])

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        if not self.memory_width:
            return self.distribution(obs, mask), memory
        feed = self._feed(obs, mask, [np.ascontiguousarray(memory)])
        distribution, after = self._session.run(["distribution", "next_memory"], feed)
        return np.asarray(distribution), np.asarray(after)

    def act_greedily(self, obs: Tree, mask: Array | None = None) -> Array:
        self._require_no_memory()
        return np.asarray(self._session.run(["action"], self._feed(obs, mask))[0])

    def _require_no_memory(self) -> None:
        if self.memory_width:
            raise ConfigError(MEMORY_DECIDES)

    def _feed(self, obs: Tree, mask: Array | None, memory: Sequence[Array] = ()) -> dict[str, Any]:
        inputs = [np.ascontiguousarray(leaf) for _, leaf in leaves(obs)]
        if self.metadata.masked:
            if mask is None:
                raise ConfigError("this policy was trained with action masks and needs one")
            stuck = allows_nothing(mask, self._mask_parts)
            if np.count_nonzero(stuck):
                raise ActionMaskError(f"row {int(np.argmax(stuck))} of the observations")
            inputs.append(mask)
        return dict(zip(self._names, [*inputs, *memory], strict=True))
