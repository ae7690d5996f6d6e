"""How a policy that learns from replay acts in a device-resident run: at random while it warms up, then with its noise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from relayrl.models.heads.action_head import NoiseKind
from relayrl.models.policy import Policy


class ReplayActor:
    """Acts with the newest parameters of a policy on its device."""

    def __init__(self, policy: Policy, is_warming_up: Callable[[], bool]) -> None:
        self.policy, self._is_warming_up = policy, is_warming_up

    @property
    def mode(self) -> tuple[bool, float]:
        """What acting depends on besides tensors: actions that are captured in a CUDA graph are of one mode."""
        return self._is_warming_up(), self.policy.head.noise_scale

    @torch.no_grad()
    def act_into(self, obs: Tensor, noise: Tensor, out: tuple[Tensor, Tensor]) -> None:
        """Write the actions of observations `[L, …]`, made of `noise` [L, K]; nobody asks for their log-probabilities."""
        policy = self.policy
        if self._is_warming_up():
            out[0].copy_(self._uniform(noise))
            return
        distribution = policy.distribution(policy.features(obs))
        out[0].copy_(policy.head.sample_torch(distribution, noise, policy.constants))

    def _uniform(self, noise: Tensor) -> Tensor:
        """What prefers no action: each choice alike, or all of a bounded box alike, by Φ of normal noise."""
        head, constants = self.policy.head, self.policy.constants
        assert head.noise is not None
        if head.noise[0] is NoiseKind.UNIFORM:
            indifferent = noise.new_zeros((len(noise), head.num_outputs))
            return head.sample_torch(head.parameters(indifferent, None), noise, constants)
        return torch.erf(noise / 2.0**0.5) * constants["action_scale"] + constants["action_center"]
