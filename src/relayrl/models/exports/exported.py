"""What policy files say of themselves, and acting from an ONNX file: needs `numpy` and `onnxruntime`, not torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.arrow.space_json import space_from_json, space_to_json
from relayrl.data.trees import Array, Space, Tree, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.errors import ActionMaskError, ConfigError, DecodeError
from relayrl.models.acting.actor import ForwardActor, Outputs
from relayrl.models.heads.action_head import ActionHead, HeadKind
from relayrl.models.heads.head_registry import head_of_kind

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
    is_warming_up: bool = False  # whether actors that explore draw uniformly
    memory_width: int = 0  # numbers that the policy remembers from step to step; an export says so by itself
    environment: str = ""  # JSON of what was put around the environment (`EnvSettings.around`), if anything
    mlp: str = field(
        default="", repr=False, compare=False
    )  # what the accelerator needs (`mlp_description`), if anything
    probe: str = field(
        default="", repr=False, compare=False
    )  # what the graph gives for `model_validation.probe_inputs`

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
            "is_warming_up": json.dumps(self.is_warming_up),
            "memory_width": str(self.memory_width),
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }
        values |= {"environment": self.environment} if self.environment else {}
        values |= {"mlp": self.mlp} if self.mlp else {}
        values |= {"probe": self.probe} if self.probe else {}
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
                is_warming_up=bool(json.loads(own.get("is_warming_up", "false"))),
                memory_width=_memory_width(own.get("memory_width", "0")),
                environment=own.get("environment", ""),
                mlp=own.get("mlp", ""),
                probe=own.get("probe", ""),
                observation_space=space_from_json(own["observation_space"], max_elements=MAX_SPACE_ELEMENTS),
                action_space=space_from_json(own["action_space"], max_elements=MAX_SPACE_ELEMENTS),
            )
        except (KeyError, ValueError) as error:
            raise DecodeError(f"the model file has no or damaged RelayRL metadata: {error}") from error


def action_name(path: str) -> str:
    """The name of a graph's output for the leaf of the action space at `path`."""
    return f"action.{path}" if path else "action"


def _memory_width(text: str) -> int:
    """Files from before there were memories say nothing of one."""
    width = int(text)
    if not 0 <= width <= MAX_SPACE_ELEMENTS:
        raise ValueError(f"a memory of {width} numbers")
    return width


class ExportedActor(ForwardActor):
    """A policy from a file or its bytes, with values where they are asked for and it has them. One with a memory acts through
    `decide`."""

    def __init__(self, file: Path | bytes, *, with_value: bool = False) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        if isinstance(file, Path) and not file.exists():
            raise ConfigError(f"no model at {file}")
        model = str(file) if isinstance(file, Path) else file
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no public base class
            name = file if isinstance(file, Path) else "what was received"
            raise DecodeError(f"{name} is not an ONNX model that can be run: {error}") from error
        self.metadata = PolicyMetadata.from_strings(self._session.get_modelmeta().custom_metadata_map)
        self.head = head_of_kind(self.metadata.action_space, self.metadata.head, self.metadata.noise_scale)
        self._mask_parts = mask_parts(self.metadata.action_space)
        self.memory_width = self.metadata.memory_width
        self.observation_space = self.metadata.observation_space
        self._names = [node.name for node in self._session.get_inputs()]
        self.has_value = with_value and any(node.name == "value" for node in self._session.get_outputs())
        self._wanted = ["distribution", *(["value"] if self.has_value else [])]
        self._wanted += ["next_memory"] if self.memory_width else []

    def run(self, inputs: list[Array]) -> list[Array]:
        """All outputs for inputs in the graph's order."""
        return list(self._session.run(None, dict(zip(self._names, inputs, strict=True))))

    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        inputs = [np.ascontiguousarray(leaf) for _, leaf in leaves(obs)]
        if self.metadata.masked:
            inputs.append(self._checked(mask))
        if memory is not None:
            inputs.append(np.ascontiguousarray(memory))
        outputs = list(self._session.run(self._wanted, dict(zip(self._names, inputs, strict=True))))
        if mask is not None and not self.metadata.masked and self.head.mask_width is not None:
            outputs[0] = self.head.parameters_numpy(outputs[0], mask)
        after = outputs.pop() if self.memory_width else None
        return Outputs(outputs[0], outputs[1] if self.has_value else None, after)

    def _checked(self, mask: Array | None) -> Array:
        if mask is None:
            raise ConfigError("this policy was trained with action masks and needs one")
        stuck = allows_nothing(mask, self._mask_parts)
        if np.count_nonzero(stuck):
            raise ActionMaskError(f"row {int(np.argmax(stuck))} of the observations")
        return mask


def example_rows(metadata: PolicyMetadata, head: ActionHead, num_rows: int = 1) -> tuple[Tree, Array | None]:
    """Observations of the space, and a mask that allows everything where the policy needs one."""
    spaces = [leaf for _, leaf in space_leaves(metadata.observation_space)]
    rows = [np.stack([np.asarray(leaf.sample(), leaf_dtype(leaf)) for _ in range(num_rows)]) for leaf in spaces]
    obs: Tree = unflatten(metadata.observation_space, iter(rows))
    return obs, np.ones((num_rows, head.mask_width or 0), bool) if metadata.masked else None
