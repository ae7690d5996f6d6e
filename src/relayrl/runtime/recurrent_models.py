"""Policies with a memory that act in the runtime from ONNX files, without torch. Others with one are in `torch_models`."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.errors import ConfigError, DecodeError
from relayrl.models.lane_memory import MEMORY_DECIDES
from relayrl.runtime.policy_model import OnnxSession, PolicyModel, example_row, layout_of


class RecurrentOnnxModel(PolicyModel):
    """A policy with a memory from an ONNX file."""

    def __init__(self, graph: OnnxSession) -> None:
        self._graph = graph
        metadata = graph.metadata
        self.head, self.policy_version = self._graph.head, metadata.policy_version
        self.layout = layout_of(metadata, self.head, has_value=self._graph.has_value)
        obs, mask = example_row(metadata, self.head)
        try:
            self.step(obs, mask, np.zeros((1, metadata.memory_width), np.float32))
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise DecodeError(f"the model cannot act on an observation of its own space: {error}") from error

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array | None, Array]:
        distribution, value, after = self._graph.step_rows(obs, mask, memory)
        if mask is not None and not self._graph.metadata.masked:
            distribution = self.head.parameters_numpy(distribution, mask)
        return distribution, value, after

    def forward(self, obs: Tree, mask: Array | None) -> NoReturn:
        raise ConfigError(MEMORY_DECIDES)
