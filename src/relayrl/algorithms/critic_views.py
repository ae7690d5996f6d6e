"""What a critic of one group sees: its own agent (independent learning), or all agents of the world (central training).

Views turn features and actions of all groups, `{group: [M, N, …]}` with actions scaled to [−1, 1], into the critic's inputs
`[M, N, width]` for the agents of one group. Multi-agent algorithms are the single-agent ones with the central view.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Agents of a group and the widths of their features and actions."""

    num_agents: int
    num_features: int
    num_actions: int


class CriticView(ABC):
    """Builds the inputs of Q-networks."""

    def __init__(self, shapes: Mapping[str, GroupShape]) -> None:
        self._shapes = dict(shapes)

    @abstractmethod
    def width(self, group: str) -> int:
        """Numbers per input of the group's critic."""

    @abstractmethod
    def inputs(self, group: str, features: Mapping[str, Tensor], actions: Mapping[str, Tensor]) -> Tensor:
        """[M, N, width] for the agents of `group`, with everybody's `actions`."""

    @abstractmethod
    def inputs_with_own(
        self, group: str, features: Mapping[str, Tensor], actions: Mapping[str, Tensor], own: Tensor
    ) -> Tensor:
        """The same with each agent's own action replaced by `own` [M, N, A], through which gradients flow."""


class LocalView(CriticView):
    """An agent's own features and action."""

    def width(self, group: str) -> int:
        return self._shapes[group].num_features + self._shapes[group].num_actions

    def inputs(self, group: str, features: Mapping[str, Tensor], actions: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([features[group], actions[group]], -1)

    def inputs_with_own(
        self, group: str, features: Mapping[str, Tensor], actions: Mapping[str, Tensor], own: Tensor
    ) -> Tensor:
        return torch.cat([features[group], own], -1)


class CentralView(CriticView):
    """Features and actions of all agents of the world, and which agent of its group is judged."""

    def width(self, group: str) -> int:
        joint = sum(s.num_agents * (s.num_features + s.num_actions) for s in self._shapes.values())
        return joint + self._shapes[group].num_agents

    def inputs(self, group: str, features: Mapping[str, Tensor], actions: Mapping[str, Tensor]) -> Tensor:
        num_agents = self._shapes[group].num_agents
        return self._joined(group, features, self._joint(actions)[:, None].expand(-1, num_agents, -1))

    def inputs_with_own(
        self, group: str, features: Mapping[str, Tensor], actions: Mapping[str, Tensor], own: Tensor
    ) -> Tensor:
        shape = self._shapes[group]
        before = 0
        for name, other in self._shapes.items():
            if name == group:
                break
            before += other.num_agents * other.num_actions
        joint = self._joint(actions)[:, None].expand(-1, shape.num_agents, -1)
        width = shape.num_agents * shape.num_actions
        # Agent n of the group sees its own new action in slot n, and everybody else's from the batch.
        slots = joint[..., before : before + width].reshape(*joint.shape[:2], shape.num_agents, shape.num_actions)
        is_own = torch.eye(shape.num_agents, dtype=torch.bool, device=own.device)[None, :, :, None]
        replaced = torch.where(is_own, own[:, :, None, :], slots).flatten(2)
        return self._joined(
            group, features, torch.cat([joint[..., :before], replaced, joint[..., before + width :]], -1)
        )

    def _joined(self, group: str, features: Mapping[str, Tensor], joint_actions: Tensor) -> Tensor:
        num_agents = self._shapes[group].num_agents
        joint_features = self._joint(features)[:, None].expand(-1, num_agents, -1)
        identity = torch.eye(num_agents, device=joint_features.device).expand(len(joint_features), -1, -1)
        return torch.cat([joint_features, joint_actions, identity], -1)

    def _joint(self, columns: Mapping[str, Tensor]) -> Tensor:
        """[M, …] all agents of all groups side by side."""
        return torch.cat([columns[name].flatten(1) for name in self._shapes], -1)
