"""What a critic of one group sees: its own agent (independent learning), or all agents of the world (central training).

Views turn features and actions of all groups, `{group: [M, N, …]}` with actions scaled to [−1, 1], into the critic's inputs
`[M, N, width]` for the agents of one group, and the gradient of these inputs into that of each agent's own action.
Multi-agent algorithms are the single-agent ones with the central view.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relayrl.algorithms.critic_sight import CriticSight
from relayrl.data.trees import Array
from relayrl.models.input_layout import InputLayout, SideBySide, plain_numbers


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
    def layout(self, group: str, encoders: Mapping[str, InputLayout], state: InputLayout | None) -> InputLayout:
        """What each input consists of, given what observations and the global state do."""

    @abstractmethod
    def inputs(
        self, group: str, features: Mapping[str, Array], actions: Mapping[str, Array], state: Array | None = None
    ) -> Array:
        """[M, N, width] for the agents of `group`, with everybody's `actions`, and the global `state` [M, S] if it is seen."""

    @abstractmethod
    def inputs_with_own(
        self,
        group: str,
        features: Mapping[str, Array],
        actions: Mapping[str, Array],
        own: Array,
        state: Array | None = None,
    ) -> Array:
        """The same with each agent's own action replaced by `own` [M, N, A]."""

    @abstractmethod
    def own_gradient(self, group: str, by_input: Array) -> Array:
        """[M, N, A] the gradient of each agent's own action, given that of `inputs_with_own`."""


class LocalView(CriticView):
    """An agent's own features and action."""

    def width(self, group: str) -> int:
        return self._shapes[group].num_features + self._shapes[group].num_actions

    def layout(self, group: str, encoders: Mapping[str, InputLayout], state: InputLayout | None) -> InputLayout:
        return SideBySide([encoders[group], plain_numbers(self._shapes[group].num_actions)])

    def inputs(
        self, group: str, features: Mapping[str, Array], actions: Mapping[str, Array], state: Array | None = None
    ) -> Array:
        return np.concatenate([features[group], actions[group]], -1)

    def inputs_with_own(
        self,
        group: str,
        features: Mapping[str, Array],
        actions: Mapping[str, Array],
        own: Array,
        state: Array | None = None,
    ) -> Array:
        return np.concatenate([features[group], own], -1)

    def own_gradient(self, group: str, by_input: Array) -> Array:
        return np.ascontiguousarray(by_input[..., self._shapes[group].num_features :])


class CentralView(CriticView):
    """Features of all agents of the world, its state, or both; everybody's actions; which agent of its group is judged."""

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
        actions = sum(s.num_agents * s.num_actions for s in self._shapes.values())
        return self._num_seen(group) + actions + self._shapes[group].num_agents

    def _num_seen(self, group: str) -> int:
        """Features before the actions."""
        sight = self._sights[group]
        joint = sum(s.num_agents * s.num_features for s in self._shapes.values())
        return sight.observations * joint + sight.state * self._num_state_features

    def layout(self, group: str, encoders: Mapping[str, InputLayout], state: InputLayout | None) -> InputLayout:
        sight, parts = self._sights[group], []
        if sight.observations:
            parts += [encoders[name] for name, shape in self._shapes.items() for _ in range(shape.num_agents)]
        if sight.state and state is not None:
            parts.append(state)
        actions = [plain_numbers(shape.num_actions) for shape in self._shapes.values() for _ in range(shape.num_agents)]
        return SideBySide([*parts, *actions, plain_numbers(self._shapes[group].num_agents)])

    def inputs(
        self, group: str, features: Mapping[str, Array], actions: Mapping[str, Array], state: Array | None = None
    ) -> Array:
        shape, sight, parts = self._shapes[group], self._sights[group], []
        if sight.observations:
            parts.append(self._joint(features))
        if sight.state and state is not None:
            parts.append(state)
        joint = np.concatenate([*parts, self._joint(actions)], -1)
        inputs = np.empty((len(joint), shape.num_agents, self.width(group)), np.float32)
        inputs[..., : joint.shape[1]] = joint[:, None]
        inputs[..., joint.shape[1] :] = np.eye(shape.num_agents, dtype=np.float32)
        return inputs

    def inputs_with_own(
        self,
        group: str,
        features: Mapping[str, Array],
        actions: Mapping[str, Array],
        own: Array,
        state: Array | None = None,
    ) -> Array:
        inputs = self.inputs(group, features, actions, state)
        for n, where in enumerate(self._own_slots(group)):
            inputs[:, n, where] = own[:, n]
        return inputs

    def own_gradient(self, group: str, by_input: Array) -> Array:
        return np.stack([by_input[:, n, where] for n, where in enumerate(self._own_slots(group))], 1)

    def _own_slots(self, group: str) -> list[slice]:
        """Where, among the inputs of agent n of the group, its own action lies."""
        shape = self._shapes[group]
        start = self._num_seen(group)
        for name, other in self._shapes.items():
            if name == group:
                break
            start += other.num_agents * other.num_actions
        starts = (start + n * shape.num_actions for n in range(shape.num_agents))
        return [slice(begin, begin + shape.num_actions) for begin in starts]

    def _joint(self, columns: Mapping[str, Array]) -> Array:
        """[M, …] all agents of all groups side by side."""
        return np.concatenate([columns[name].reshape(len(columns[name]), -1) for name in self._shapes], -1)
