"""Acting with a recurrent policy without torch, on its live parameters, where its hidden layers are MLPs on the CPU.

A step of a small cell is a dozen array operations, each of which costs torch several times what it costs NumPy. Tests hold
every number to the torch module's; learning stays in torch.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from relayrl.data.trees import Array, Tree
from relayrl.models.built_in import BuiltIns
from relayrl.models.lane_memory import RecurrentActor
from relayrl.models.memory_cell import MemoryCell
from relayrl.models.numpy_policy import NumpyPolicy, fast_network, is_built_in, runs_in_numpy
from relayrl.models.perceptron import MODULES
from relayrl.models.recurrent_network import RecurrentNetwork
from relayrl.models.recurrent_policy import RecurrentActorCritic
from relayrl.models.settings import MemoryKind

_NETWORKS, _CELLS = BuiltIns(RecurrentNetwork), BuiltIns(MemoryCell)
_LAYERS = BuiltIns(nn.LSTM, nn.GRU, nn.Linear, *MODULES.values())


def steps_in_numpy(policy: RecurrentActorCritic) -> bool:
    """Whether the policy and its memories that act are unchanged, with MLPs on the CPU in front of them."""
    acting = [policy.actor] if policy.is_central else [policy.actor, policy.critic]
    return is_built_in(policy) and all(_is_plain(network) for network in acting)


def _is_plain(network: RecurrentNetwork) -> bool:
    if network not in _NETWORKS or network.cell not in _CELLS or not runs_in_numpy(network.trunk):
        return False
    return all(layer in _LAYERS for layer in (network.cell.layer, network.output, network.activation))


class NumpyRecurrentNetwork:
    """Steps of a `RecurrentNetwork` for which `runs_in_numpy(network.trunk)`."""

    def __init__(self, network: nn.Module) -> None:
        assert isinstance(network, RecurrentNetwork)
        cell = network.cell
        self.memory_width, self._size = cell.width, cell.num_outputs
        self._trunk = fast_network(network.trunk)
        self._is_tanh = isinstance(network.activation, nn.Tanh)
        self._step = self._lstm if cell.kind is MemoryKind.LSTM else self._gru
        weights = (weight.detach().numpy() for weight in cell.layer.all_weights[0])
        self._input_weight, self._recurrent_weight, self._input_bias, self._recurrent_bias = weights
        self._output_weight, self._output_bias = (p.detach().numpy() for p in network.output.parameters())

    def forward(self, x: Array) -> Array:
        """[M, O] outputs of an episode's first step."""
        return self.step(x, np.zeros((len(x), self.memory_width), np.float32))[0]

    def step(self, features: Array, memory: Array) -> tuple[Array, Array]:
        """[L, O] outputs of `features` [L, F] with `memory` [L, M], and the memory after; fresh arrays."""
        hidden = self._trunk.forward(features)
        hidden = np.tanh(hidden) if self._is_tanh else np.maximum(hidden, 0.0)
        own = hidden @ self._input_weight.T
        own += self._input_bias
        recalled = memory[:, : self._size] @ self._recurrent_weight.T
        recalled += self._recurrent_bias
        seen, after = self._step(own, recalled, memory)
        outputs = seen @ self._output_weight.T
        outputs += self._output_bias
        return outputs, after

    def _lstm(self, own: Array, recalled: Array, memory: Array) -> tuple[Array, Array]:
        """The equations of `MemoryCell.step`."""
        size = self._size
        own += recalled
        entry_and_forget, exit_ = _sigmoid(own[:, : 2 * size]), _sigmoid(own[:, 3 * size :])
        after = np.empty_like(memory)
        hidden, cell = after[:, :size], after[:, size:]
        np.multiply(entry_and_forget[:, size:], memory[:, size:], out=cell)
        cell += entry_and_forget[:, :size] * np.tanh(own[:, 2 * size : 3 * size])
        np.multiply(exit_, np.tanh(cell), out=hidden)
        return hidden, after

    def _gru(self, own: Array, recalled: Array, memory: Array) -> tuple[Array, Array]:
        """The equations of `MemoryCell.step`."""
        size = self._size
        gates = _sigmoid(own[:, : 2 * size] + recalled[:, : 2 * size])
        new = np.tanh(own[:, 2 * size :] + gates[:, :size] * recalled[:, 2 * size :])
        hidden = new + gates[:, size:] * (memory - new)
        return hidden, hidden


class NumpyRecurrentActor(RecurrentActor):
    """Acts through NumPy views of a recurrent policy's parameters; for one for which `steps_in_numpy`."""

    def __init__(self, policy: RecurrentActorCritic) -> None:
        self.head, self.memory_width = policy.head, policy.memory_width
        self._actor = actor = NumpyRecurrentNetwork(policy.actor)
        self._numpy = NumpyPolicy(policy, lambda _: actor)
        self._critic = None if policy.is_central else NumpyRecurrentNetwork(policy.critic)

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        features, own = self._numpy.features(obs), self._actor.memory_width
        outputs, after = self._actor.step(features, memory[:, :own])
        if self._critic is not None:
            after = np.concatenate([after, self._critic.step(features, memory[:, own:])[1]], 1)
        return self._numpy.distribution_of(outputs, mask), after


def _sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x), without overflow."""
    half = np.tanh(x * np.float32(0.5))
    half += np.float32(1.0)
    half *= np.float32(0.5)
    return half
