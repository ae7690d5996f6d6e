"""How Q-networks see actions, and how a policy's choice stays differentiable on its way into them.

A box's actions are scaled to [−1, 1]. A discrete choice is a one-hot vector (several choices: side by side); gradients pass a
drawn one-hot by the straight-through Gumbel-softmax (Jang et al., 2017): the forward pass sees the choice, the backward pass
the softmax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from relayrl.errors import ConfigError
from relayrl.models.action_head import ActionHead
from relayrl.models.box_heads import BoxHead
from relayrl.models.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.policy import Policy

GUMBEL_TEMPERATURE = 1.0


class ActionCode(ABC):
    """The critic's side of one action space."""

    width: int

    @abstractmethod
    def encode(self, action: Tensor) -> Tensor:
        """[..., width] a stored action."""

    @abstractmethod
    def choose(self, policy: Policy, features: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """[..., width] what the policy does, differentiable by its parameters."""


class BoxCode(ActionCode):
    """Actions in units of half the range around the centre."""

    def __init__(self, policy: Policy, head: BoxHead) -> None:
        self.width = head.num_actions
        self._scale, self._center = policy.action_scale, policy.action_center

    def encode(self, action: Tensor) -> Tensor:
        return (action.to(torch.float32) - self._center) / self._scale

    def choose(self, policy: Policy, features: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        return self.encode(policy.distribution(features, mask))


class ChoiceCode(ActionCode):
    """One-hot choices, side by side where there are several."""

    def __init__(self, head: CategoricalHead | MultiCategoricalHead) -> None:
        self._is_single = isinstance(head, CategoricalHead)
        self._parts = [head] if isinstance(head, CategoricalHead) else head.parts
        self._slices = [slice(0, head.num_outputs)] if isinstance(head, CategoricalHead) else head.slices
        self.width = head.num_outputs

    def encode(self, action: Tensor) -> Tensor:
        columns = action.unsqueeze(-1) if self._is_single else action
        hots = [one_hot(columns[..., i] - part.start, part.num_outputs) for i, part in enumerate(self._parts)]
        return torch.cat(hots, -1).to(torch.float32)

    def choose(self, policy: Policy, features: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        log_probs = policy.distribution(features, mask)
        uniform = torch.rand(log_probs.shape, generator=generator).clamp(min=1e-10)
        noisy = (log_probs - (-uniform.log()).log()) / GUMBEL_TEMPERATURE
        return torch.cat([_straight_through(noisy[..., where]) for where in self._slices], -1)


def _straight_through(noisy: Tensor) -> Tensor:
    soft = noisy.softmax(-1)
    hard = one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
    return hard + soft - soft.detach()


def action_code(policy: Policy) -> ActionCode:
    """The code of a policy's action space."""
    head: ActionHead = policy.head
    if isinstance(head, BoxHead):
        return BoxCode(policy, head)
    if isinstance(head, CategoricalHead | MultiCategoricalHead):
        return ChoiceCode(head)
    raise ConfigError(
        f"learning from replay is not possible in action space {policy.action_space}; use ppo or reinforce"
    )
