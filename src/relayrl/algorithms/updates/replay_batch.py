"""Transitions from replay as algorithms learn from them: features instead of observations, actions as critics see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from relayrl.data.trees import Array, map_tree
from relayrl.models.compute_device import moved
from relayrl.models.policy import Policy

Rows = TypeVar("Rows", Tensor, Array)


@dataclass(slots=True)
class GroupBatch(Generic[Rows]):
    """Transitions of one group, axes `[M, N, …]`: M transitions of N agents. What absent agents saw and did is zero."""

    features: Rows
    """[M, N, F] what the policy's network sees of the observation."""
    action: Rows
    """[M, N, A] as critics see it (`ActionHead.encode_action`): scaled to [−1, 1], or one-hot."""
    reward: Rows
    """[M, N] the discounted sum of `num_step_returns` rewards."""
    next_features: Rows
    """[M, N, F] what followed these steps."""
    discount: Rows
    """[M, N] what the value of `next_features` is multiplied by; 0 where the episode terminated."""
    valid: Rows
    """[M, N] whether the agent acted."""
    next_valid: Rows
    """[M, N] whether the others' critics see the agent next."""
    mask: Rows | None
    """[M, N, A] actions that were allowed; None where nothing is ever forbidden."""
    next_mask: Rows | None
    share: Rows
    """[M, N] each row's part of a mean over the rows on which agents acted."""
    next_seen: Rows | None = None
    """[M, N, F] `next_features` as the policy that acts next sees them, where it has another encoder than the targets."""
    state: Rows | None = None
    """[M, S] features of the environment's global state, where critics see it."""
    next_state: Rows | None = None

    @property
    def next_policy_features(self) -> Rows:
        """[M, N, F] what the policy that acts next sees."""
        return self.next_features if self.next_seen is None else self.next_seen


Batch = Mapping[str, GroupBatch[Tensor]]
Encode = Callable[[Any], Tensor]


@torch.no_grad()
def group_batch(policy: Policy, rows: Any, device: torch.device) -> GroupBatch[Tensor]:
    """The tensors of one group's `GroupTransitions`, on a device; for encoding without a gradient."""
    return encoded_batch(policy, rows, device, policy.features, policy.features)


def encoded_batch(
    policy: Policy, rows: Any, device: torch.device, encode: Encode, encode_next: Encode
) -> GroupBatch[Tensor]:
    """The same with `encode` for observations and `encode_next` for those that followed."""

    def tensor(leaf: Array | Tensor) -> Tensor:
        return moved(leaf, device)

    def optional(leaf: Array | None) -> Tensor | None:
        return None if leaf is None else tensor(leaf)

    valid, next_valid = tensor(rows.valid), tensor(rows.next_valid)
    features, action = encode(map_tree(tensor, rows.obs)), _encoded_action(policy, rows.action, device)
    next_features, reward = encode_next(map_tree(tensor, rows.next_obs)), tensor(rows.reward)
    if rows.is_everybody:
        share = torch.full_like(reward, 1.0 / valid.numel())
    else:
        features, action = present(features, valid), present(action, valid)
        # Whoever acted sees what followed, even where the others do not see it any more.
        next_features = present(next_features, valid | next_valid)
        share = valid / valid.sum().clamp(min=1)
    return GroupBatch(
        features=features,
        action=action,
        reward=reward,
        next_features=next_features,
        discount=tensor(rows.discount),
        valid=valid,
        next_valid=next_valid,
        mask=optional(rows.mask),
        next_mask=optional(rows.next_mask),
        share=share,
    )


def _encoded_action(policy: Policy, action: Any, device: torch.device) -> Tensor:
    if isinstance(action, Tensor):
        return policy.head.encode_action_torch(action, policy.constants)
    return moved(policy.head.encode_action(action), device)


def present(rows: Tensor, valid: Tensor) -> Tensor:
    """Rows `[M, N, …]` with zeros for agents that are absent, whatever their columns hold."""
    return torch.where(valid[..., None], rows, 0.0)
