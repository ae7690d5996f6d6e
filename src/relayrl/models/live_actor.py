"""Acting with a policy that lives in this process, always with its newest parameters.

`NumpyActor` runs MLPs in NumPy, at a fifth of torch's cost per call; `TorchActor` serves every other policy, and those
of which a part was derived from ours or changed (`built_in`). Both give
the distribution's parameters to the same head, so both draw the same actions from the same generator, as does an actor that
runs the exported file (`exported`). `CompiledActor` is a `NumpyActor` whose forward pass and draw are one call.
"""

from __future__ import annotations

import numpy as np
import torch

from relayrl.data.trees import Array, Tree, map_tree
from relayrl.models.actor import Actor
from relayrl.models.compiled_head import CompiledHead, compiled_head
from relayrl.models.lane_memory import RecurrentActor
from relayrl.models.numpy_policy import NumpyPolicy, acts_in_numpy
from relayrl.models.numpy_recurrent import NumpyRecurrentActor, steps_in_numpy
from relayrl.models.policy import Policy
from relayrl.models.recurrent_policy import RecurrentActorCritic


class TorchActor(Actor):
    """Acts through the policy's own forward pass."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.head = policy, policy.head

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        with torch.inference_mode():
            allowed = None if mask is None else torch.from_numpy(mask)
            features = self.policy.features(map_tree(torch.from_numpy, obs))
            return np.asarray(self.policy.distribution(features, allowed).numpy())


class NumpyActor(Actor):
    """Acts through NumPy views of the policy's parameters."""

    def __init__(self, policy: Policy) -> None:
        self._numpy, self.head = NumpyPolicy(policy), policy.head

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self._numpy.distribution(self._numpy.features(obs), mask)


class CompiledActor(NumpyActor):
    """Draws actions by a compiled kernel."""

    knows_logp = True

    def __init__(self, policy: Policy, head: CompiledHead) -> None:
        super().__init__(policy)
        self._draw, self._features = head.draw, policy.features_numpy

    def act(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> Array:
        return self._draw(self._features(obs), mask, rng, None)

    def act_with_logp(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> tuple[Array, Array]:
        features = self._features(obs)
        logp = np.empty(len(features), np.float32)
        return self._draw(features, mask, rng, logp), logp


class TorchRecurrentActor(RecurrentActor):
    """Acts through a recurrent policy's own step."""

    def __init__(self, policy: RecurrentActorCritic) -> None:
        self.policy, self.head, self.memory_width = policy, policy.head, policy.memory_width

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            allowed = None if mask is None else torch.from_numpy(mask)
            features = self.policy.features(map_tree(torch.from_numpy, obs))
            distribution, _, after = self.policy.step(features, allowed, torch.from_numpy(memory))
            return distribution.numpy(), after.numpy()


def live_actor(policy: Policy) -> Actor:
    """The fastest actor for a policy in this process."""
    if isinstance(policy, RecurrentActorCritic):
        return NumpyRecurrentActor(policy) if steps_in_numpy(policy) else TorchRecurrentActor(policy)
    if not acts_in_numpy(policy):
        return TorchActor(policy)
    head = compiled_head(policy)
    return NumpyActor(policy) if head is None else CompiledActor(policy, head)
