"""Acting with a policy: observations in, actions out, nothing else on the way.

`NumpyActor` runs a small perceptron as a few NumPy calls on *views* of the live torch weights: no copy, no export, a fifth
of torch's per-call cost, and the newest parameters at every call. `TorchActor` serves every other policy. Both give the
distribution's parameters to the same NumPy head, so both draw the same actions from the same generator, as does an actor
that runs the exported file (`exported`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from relayrl.data.trees import Array, Tree, map_tree
from relayrl.models.action_heads import GaussianHead
from relayrl.models.actor import Actor
from relayrl.models.actor_critic import ActorCritic


class TorchActor(Actor):
    """Acts through the policy's own forward pass."""

    def __init__(self, policy: ActorCritic) -> None:
        self.policy, self.head = policy, policy.head

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        with torch.inference_mode():
            tensors = map_tree(torch.from_numpy, obs)
            allowed = None if mask is None else torch.from_numpy(mask)
            features = self.policy.features(tensors)
            return np.asarray(self.policy.distribution(features, allowed).numpy())


class NumpyActor(Actor):
    """Acts through NumPy views of the policy's perceptron."""

    def __init__(self, policy: ActorCritic) -> None:
        self.policy, self.head = policy, policy.head
        self._layers = [
            (layer.weight.detach().numpy().T, layer.bias.detach().numpy())
            for layer in policy.actor
            if isinstance(layer, nn.Linear)
        ]
        self._activate: Any = np.tanh if any(isinstance(layer, nn.Tanh) for layer in policy.actor) else _relu
        self._buffers: list[Array] = []
        self._normalizer = policy.normalizer
        if isinstance(self.head, GaussianHead):
            self._log_std = policy.log_std.detach().numpy()
            self._log_scale = np.log(self.head.half_range)

    @staticmethod
    def supports(policy: ActorCritic) -> bool:
        """Whether the actor is a plain perceptron on the CPU."""
        known = all(isinstance(layer, nn.Linear | nn.Tanh | nn.ReLU) for layer in policy.actor)
        return known and all(p.device.type == "cpu" for p in policy.actor.parameters())

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        x = self.policy.encoder.encode_numpy(obs)
        if self._normalizer is not None:
            n = self._normalizer
            x = np.clip((x - n.shift.numpy()) * n.scale.numpy(), -n.clip, n.clip)
        if not self._buffers or len(self._buffers[0]) != len(x):
            self._buffers = [np.empty((len(x), len(bias)), np.float32) for _, bias in self._layers]
        last = len(self._layers) - 1
        for i, ((weight, bias), out) in enumerate(zip(self._layers, self._buffers, strict=True)):
            np.matmul(x, weight, out=out)
            np.add(out, bias, out=out)
            x = self._activate(out, out=out) if i != last else out
        return self._finish(x, mask)

    def _finish(self, outputs: Array, mask: Array | None) -> Array:
        if isinstance(self.head, GaussianHead):
            mean = outputs * self.head.half_range + self.head.center
            log_std = np.broadcast_to(self._log_std + self._log_scale, mean.shape)
            return np.concatenate([mean, log_std], -1)
        return self.head.parameters_numpy(outputs, mask)


def _relu(x: Array, out: Array) -> Array:
    return np.maximum(x, 0.0, out=out)


def live_actor(policy: ActorCritic) -> Actor:
    """The fastest actor for a policy that lives in this process."""
    return NumpyActor(policy) if NumpyActor.supports(policy) else TorchActor(policy)
