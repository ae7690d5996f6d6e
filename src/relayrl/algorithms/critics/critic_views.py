"""What a critic of one group sees: its own agent (independent learning), or all agents of the environment (central training).

Views turn features and actions of all groups, `{group: [M, N, …]}`, into the critic's inputs `[M·N, width]` for the agents of
one group. Multi-agent algorithms are the single-agent ones with the central view.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from relayrl.algorithms.critics.critic_sight import CriticSight
from relayrl.algorithms.updates.replay_batch import present
from relayrl.models.networks.input_layout import InputLayout, SideBySide, plain_numbers

Columns = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Agents of a group and the widths of their features and actions."""

    num_agents: int
    num_features: int
    num_actions: int


class CriticView(ABC):
    """Builds the inputs of Q-networks."""

    def __init__(self, shapes: Mapping[str, GroupShape]) -> None:
        self.shapes = dict(shapes)

    @abstractmethod
    def width(self, group: str) -> int:
        """Numbers per input of the group's critic."""

    @abstractmethod
    def layout(self, group: str, encoders: Mapping[str, InputLayout], state: InputLayout | None) -> InputLayout:
        """What each input consists of, given what observations and the global state do."""

    @abstractmethod
    def inputs(
        self, group: str, features: Columns, actions: Columns, state: Tensor | None = None, own: Tensor | None = None
    ) -> Tensor:
        """[M·N, width] for the agents of `group`, with everybody's `actions`, and the global `state` [M, S] if it is seen.

        With `own` [M, N, A], each agent's critic sees that in place of what the agent did.
        """

    def next_inputs(
        self, group: str, features: Columns, actions: Columns, seen: Columns, state: Tensor | None = None
    ) -> Tensor:
        """`inputs` for what followed a step: agents that are not `seen` [M, N] are absent to all but their own critic."""
        return self.inputs(group, features, actions, state)


class LocalView(CriticView):
    """An agent's own features and action."""

    def width(self, group: str) -> int:
        return self.shapes[group].num_features + self.shapes[group].num_actions

    def layout(self, group: str, encoders: Mapping[str, InputLayout], state: InputLayout | None) -> InputLayout:
        return SideBySide([encoders[group], plain_numbers(self.shapes[group].num_actions)])

    def inputs(
        self, group: str, features: Columns, actions: Columns, state: Tensor | None = None, own: Tensor | None = None
    ) -> Tensor:
        return torch.cat([features[group], actions[group] if own is None else own], -1).flatten(0, 1)


class CentralView(CriticView):
    """Features of all agents, the environment's state, or both; everybody's actions; the number of the agent in its group."""

    def __init__(
        self,
        shapes: Mapping[str, GroupShape],
        sights: Mapping[str, CriticSight] | None = None,
        num_state_features: int = 0,
    ) -> None:
        """`sights`: what the critic of each group sees; joint observations without them."""
        super().__init__(shapes)
        everybody = CriticSight(observations=True, state=False)
        self._sights = dict.fromkeys(shapes, everybody) if sights is None else dict(sights)
        self._num_state_features = num_state_features

    def sight(self, group: str) -> CriticSight:
        """What a group's critic sees."""
        return self._sights[group]

    def width(self, group: str) -> int:
        actions = sum(s.num_agents * s.num_actions for s in self.shapes.values())
        return self.num_seen(group) + actions + self.shapes[group].num_agents

    def num_seen(self, group: str) -> int:
        """Features before the actions."""
        sight = self._sights[group]
        joint = sum(s.num_agents * s.num_features for s in self.shapes.values())
        return sight.observations * joint + sight.state * self._num_state_features

    def layout(self, group: str, encoders: Mapping[str, InputLayout], state: InputLayout | None) -> InputLayout:
        sight, parts = self._sights[group], []
        if sight.observations:
            parts += [encoders[name] for name, shape in self.shapes.items() for _ in range(shape.num_agents)]
        if sight.state and state is not None:
            parts.append(state)
        actions = [plain_numbers(shape.num_actions) for shape in self.shapes.values() for _ in range(shape.num_agents)]
        return SideBySide([*parts, *actions, plain_numbers(self.shapes[group].num_agents)])

    def inputs(
        self, group: str, features: Columns, actions: Columns, state: Tensor | None = None, own: Tensor | None = None
    ) -> Tensor:
        return self._inputs(group, self._joint(group, features), self._joint(group, actions, own), state)

    def next_inputs(
        self, group: str, features: Columns, actions: Columns, seen: Columns, state: Tensor | None = None
    ) -> Tensor:
        def joint(columns: Columns) -> Tensor:
            shared = {name: present(rows, seen[name]) for name, rows in columns.items()}
            return self._joint(group, shared, columns[group])

        return self._inputs(group, joint(features), joint(actions), state)

    def _inputs(self, group: str, features: Tensor, actions: Tensor, state: Tensor | None) -> Tensor:
        sight, shape = self._sights[group], actions.shape[:2]
        parts = [features] if sight.observations else []
        if sight.state and state is not None:
            parts.append(state[:, None].expand(*shape, -1))
        agent_numbers = torch.eye(shape[1], device=actions.device).expand(*shape, -1)
        return torch.cat([*parts, actions, agent_numbers], -1).flatten(0, 1)

    def _joint(self, group: str, columns: Columns, own: Tensor | None = None) -> Tensor:
        """[M, N, …] all agents of all groups side by side, for each agent of `group`; with `own` [M, N, A] in its own place."""
        joint = torch.cat([columns[name].flatten(1) for name in self.shapes], -1)
        rows = joint[:, None].expand(-1, self.shapes[group].num_agents, -1)
        if own is None:
            return rows
        names, (_, num_agents, width) = list(self.shapes), own.shape
        begin = sum(columns[name][0].numel() for name in names[: names.index(group)])
        place = begin + torch.arange(num_agents * width, device=own.device).view(num_agents, width)
        return rows.scatter(-1, place.expand_as(own), own)
