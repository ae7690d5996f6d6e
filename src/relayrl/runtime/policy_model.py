"""Policies that act in the runtime, wherever they come from: one forward pass gives distribution and value.

    ONNX file          onnxruntime, or NumPy for few rows of a small MLP; torch is not loaded
    TorchScript file   torch, on any device              (`torch_models`)
    live policy        a frozen copy of it, in NumPy where it is an MLP, else torch
    Actor              any object of yours with `head` and `distribution`; it has no value

A model never changes once it was loaded: hot reload replaces it (`published_policy`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from relayrl.data.trees import Array, Space, Tree, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.errors import ConfigError, DecodeError
from relayrl.models.action_head import ActionHead, LikelihoodHead
from relayrl.models.actor import Actor
from relayrl.models.discrete_heads import CategoricalHead
from relayrl.models.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.joint_perceptron import JointPerceptron
from relayrl.models.onnx_file import read_graph
from relayrl.models.onnx_perceptron import PolicyChains, policy_chains
from relayrl.runtime.acting_layout import ActingLayout

if TYPE_CHECKING:
    from relayrl.models.policy import Policy

ModelSource: TypeAlias = "str | Path | Policy | CustomPolicy"
BoundGraph: TypeAlias = Callable[[list[Array]], list[Array]]
CPU = "cpu"
MAX_BOUND_ROWS, MAX_BOUND_SIZES = 256, 32
"""Batches up to this size, and so many different sizes, have buffers of their own."""
MAX_CHAIN_WEIGHTS = 1 << 20
"""Larger networks are onnxruntime's business altogether."""


class PolicyModel(ABC):
    """Acts for rows of observations. Called by one thread at a time."""

    head: ActionHead
    layout: ActingLayout
    policy_version: int | None
    """What the source says of itself; None where it says nothing."""
    chains: PolicyChains | None = None
    """The layers that the policy consists of, where they are known and it consists of nothing else."""
    alone: Callable[[Array], list[Array]] | None = None
    """`[parameters, value]` of one row, in less time than a thread is woken in, for any number of threads at once."""

    @abstractmethod
    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        """Distribution parameters [L, P], valid until the next call, and values [L] of the caller's own, or None.

        The log-probabilities of a single row may lack their normalisation.
        """

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array | None, Array]:
        """The same, and the memory [L, M] after, for rows that remember `memory` [L, M]."""
        return *self.forward(obs, mask), memory


class CustomPolicy:
    """An `Actor` of yours with what a file would say of itself."""

    def __init__(
        self, actor: Actor, observation_space: Space, *, group: str = "agent", policy_version: int = 0
    ) -> None:
        self.actor, self.observation_space = actor, observation_space
        self.group, self.policy_version = group, policy_version


class OnnxModel(PolicyModel):
    """A policy from an ONNX file."""

    def __init__(self, graph: OnnxSession) -> None:
        self._graph = graph
        metadata = self._graph.metadata
        self._masked, self.head = metadata.masked, self._graph.head
        self.policy_version = metadata.policy_version
        self._bound: dict[int, BoundGraph] = {}
        self._joint: JointPerceptron | None = None
        self._check_that_it_runs(metadata)
        self.chains = self._read_chains(metadata)
        if self.chains is not None and (joint := JointPerceptron.of(self.chains)) is not None and joint.max_rows:
            self._joint, self.alone = joint, joint.alone
        self._bound.clear()
        self.layout = layout_of(metadata, self.head, has_value=self._graph.has_value)

    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        inputs = [obs] if isinstance(obs, np.ndarray) else [leaf for _, leaf in leaves(obs)]
        if self._masked and mask is not None:
            inputs.append(mask)
        L = len(inputs[0])
        run = self._bound.get(L) or self._bind(L, inputs)
        outputs = run(inputs)
        distribution = outputs[0]
        if mask is not None and not self._masked:
            distribution = self.head.parameters_numpy(distribution, mask)
        return distribution, outputs[1] if len(outputs) > 1 else None

    def _bind(self, num_rows: int, inputs: list[Array]) -> BoundGraph:
        """How batches of this size are run; sizes that come first are kept ready."""
        if num_rows > MAX_BOUND_ROWS or len(self._bound) == MAX_BOUND_SIZES:
            return self._graph.rows
        if self._joint is not None and num_rows <= self._joint.max_rows:
            return self._bound.setdefault(num_rows, self._joint.bind(num_rows))
        return self._bound.setdefault(num_rows, self._graph.bind(inputs))

    def _read_chains(self, metadata: PolicyMetadata) -> PolicyChains | None:
        """The policy as layers, if it is an MLP and they give what onnxruntime gives."""
        obs, mask = example_row(metadata, self.head)
        if not isinstance(obs, np.ndarray) or mask is not None:
            return None
        chains = policy_chains(read_graph(self._graph.path.read_bytes()), obs.size)
        joint = None if chains is None or chains.num_weights > MAX_CHAIN_WEIGHTS else JointPerceptron.of(chains)
        if joint is None:
            return None
        own, expected = joint.bind(1)([obs]), self._graph.rows([obs])
        if isinstance(self.head, CategoricalHead):
            own[0] = self.head.parameters_numpy(own[0], None)
        agrees = all(np.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(own, expected, strict=True))
        return chains if agrees else None

    def _check_that_it_runs(self, metadata: PolicyMetadata) -> None:
        obs, mask = example_row(metadata, self.head)
        try:
            self.forward(obs, mask)
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise DecodeError(f"the model cannot act on an observation of its own space: {error}") from error


class OnnxSession(ExportedActor):
    """The outputs that acting needs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_value = any(node.name == "value" for node in self._session.get_outputs())
        self._wanted = ["distribution", "value"] if self.has_value else ["distribution"]

    def rows(self, inputs: list[Array]) -> list[Array]:
        """`[distribution, value]` of rows of observations; fresh arrays."""
        return list(self._session.run(self._wanted, dict(zip(self._names, inputs, strict=True))))

    def step_rows(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array | None, Array]:
        """Distribution parameters, values and the memory after, of rows that remember; fresh arrays."""
        feed = self._feed(obs, mask, [np.ascontiguousarray(memory)])
        distribution, *value, after = self._session.run([*self._wanted, "next_memory"], feed)
        return distribution, value[0] if value else None, after

    def bind(self, example: list[Array]) -> BoundGraph:
        """The same for batches of the example's size, a sixth faster; the first result is overwritten by the next call."""
        held = [np.array(leaf, order="C") for leaf in example]
        results = [np.ascontiguousarray(result) for result in self.rows(held)]
        binding = self._session.io_binding()
        for name, array in zip(self._names, held, strict=True):
            binding.bind_input(name, CPU, 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in zip(self._wanted, results, strict=True):
            binding.bind_output(name, CPU, 0, array.dtype.type, array.shape, array.ctypes.data)
        run = self._session.run_with_iobinding

        def bound(inputs: list[Array]) -> list[Array]:
            for array, given in zip(held, inputs, strict=True):
                array[...] = given
            run(binding)
            return [results[0], *[result.copy() for result in results[1:]]]

        return bound


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
            memory_width=source.actor.memory_width,
        )

    def forward(self, obs: Tree, mask: Array | None) -> tuple[Array, Array | None]:
        return self._actor.distribution(obs, mask), None

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array | None, Array]:
        distribution, after = self._actor.step(obs, mask, memory)
        return distribution, None, after


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
        memory_width=metadata.memory_width,
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
            return _onnx_model(OnnxSession(path))
        if path.suffix == ExportFormat.TORCHSCRIPT.suffix:
            from relayrl.runtime.torch_models import TorchScriptModel

            return TorchScriptModel(path, device)
        raise ConfigError(f"{path} is neither .onnx nor .pt; export one with: relayrl export RUN_DIR --format onnx")
    from relayrl.runtime.torch_models import live_model

    return live_model(source, device)


def _onnx_model(graph: OnnxSession) -> PolicyModel:
    from relayrl.runtime.recurrent_models import RecurrentOnnxModel

    return RecurrentOnnxModel(graph) if graph.memory_width else OnnxModel(graph)


def example_row(metadata: PolicyMetadata, head: ActionHead) -> tuple[Tree, Array | None]:
    """One observation of the space, and a mask that allows everything where the policy needs one."""
    rows = [np.asarray(leaf.sample(), leaf_dtype(leaf))[None] for _, leaf in space_leaves(metadata.observation_space)]
    obs: Tree = unflatten(metadata.observation_space, iter(rows))
    return obs, np.ones((1, head.mask_width or 0), bool) if metadata.masked else None
