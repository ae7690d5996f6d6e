"""What a critic of one group sees: its own agent (independent learning), or all agents of the world (central training).

Views turn features and actions of all groups, `{group: [M, N, …]}` with actions scaled to [−1, 1], into the critic's inputs
`[M·N, width]` for the agents of one group, and say which columns of them are each agent's own action.
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
from relayrl.models.shared_rows import OwnColumns, SharedPart, SharedRows


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
    ) -> Array | SharedRows:
        """[M·N, width] for the agents of `group`, with everybody's `actions`, and the global `state` [M, S] if it is seen."""

    def next_inputs(
        self,
        group: str,
        features: Mapping[str, Array],
        actions: Mapping[str, Array],
        seen: Mapping[str, Array],
        alone: Array,
        state: Array | None = None,
    ) -> Array | SharedRows:
        """`inputs` for what followed a step: agents that are not `seen` [M, N] are absent to all but their own critic.

        `alone` [M, N] are agents of `group` that are not, and whose values are asked for.
        """
        return self.inputs(group, features, actions, state)

    @abstractmethod
    def own(self, group: str, action: Array) -> OwnColumns:
        """`action` [M, N, A] as what the inputs of each agent have of its own, in place of what it did."""


class LocalView(CriticView):
    """An agent's own features and action."""

    def width(self, group: str) -> int:
        return self._shapes[group].num_features + self._shapes[group].num_actions

    def layout(self, group: str, encoders: Mapping[str, InputLayout], state: InputLayout | None) -> InputLayout:
        return SideBySide([encoders[group], plain_numbers(self._shapes[group].num_actions)])

    def inputs(
        self, group: str, features: Mapping[str, Array], actions: Mapping[str, Array], state: Array | None = None
    ) -> Array:
        return np.concatenate([features[group], actions[group]], -1).reshape(-1, self.width(group))

    def own(self, group: str, action: Array) -> OwnColumns:
        numbers = action.reshape(-1, action.shape[-1])
        return OwnColumns(np.full(len(numbers), self._shapes[group].num_features), numbers)


class CentralView(CriticView):
    """Features of all agents of the world, its state, or both; everybody's actions; which agent of its group is judged.

    What a world's agents see is the same but for the last, so that it is kept once for all of them.
    """

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
    ) -> SharedRows:
        sight, num_agents, tables = self._sights[group], self._shapes[group].num_agents, []
        if sight.observations:
            tables.append(self._joint(features))
        if sight.state and state is not None:
            tables.append(state)
        tables.append(self._joint(actions))
        world, agent = np.divmod(np.arange(len(tables[0]) * num_agents), num_agents)
        judged = SharedPart(np.eye(num_agents, dtype=np.float32), agent)
        return SharedRows((*(SharedPart(table, world) for table in tables), judged))

    def next_inputs(
        self,
        group: str,
        features: Mapping[str, Array],
        actions: Mapping[str, Array],
        seen: Mapping[str, Array],
        alone: Array,
        state: Array | None = None,
    ) -> SharedRows:
        shared_features = {name: present(rows, seen[name]) for name, rows in features.items()}
        shared_actions = {name: present(rows, seen[name]) for name, rows in actions.items()}
        inputs = self.inputs(group, shared_features, shared_actions, state)
        rows = np.flatnonzero(alone)
        if not len(rows):
            return inputs
        if self._sights[group].observations:
            begin = self._begin(group, {name: s.num_agents * s.num_features for name, s in self._shapes.items()})
            inputs = inputs.with_own_of(rows, _own_columns(features[group], begin).some(rows))
        return inputs.with_own_of(rows, self.own(group, actions[group]).some(rows))

    def own(self, group: str, action: Array) -> OwnColumns:
        widths = {name: shape.num_agents * shape.num_actions for name, shape in self._shapes.items()}
        return _own_columns(action, self._num_seen(group) + self._begin(group, widths))

    def _begin(self, group: str, widths: Mapping[str, int]) -> int:
        """Where a group's columns begin, of groups side by side."""
        names = list(self._shapes)
        return sum(widths[name] for name in names[: names.index(group)])

    def _joint(self, columns: Mapping[str, Array]) -> Array:
        """[M, …] all agents of all groups side by side."""
        rows = [columns[name].reshape(len(columns[name]), -1) for name in self._shapes]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, -1)


def _own_columns(numbers: Array, begin: int) -> OwnColumns:
    """`numbers` [M, N, A] of agents that lie side by side from column `begin` on."""
    num_worlds, num_agents, width = numbers.shape
    firsts = begin + width * np.arange(num_agents)
    return OwnColumns(np.tile(firsts, num_worlds), numbers.reshape(-1, width))


def present(rows: Array, valid: Array) -> Array:
    """Rows `[M, N, …]` with zeros for agents that are absent: to everybody's critic, whatever their columns hold."""
    is_whole = np.count_nonzero(valid) == valid.size  # half the cost of valid.all()
    return rows if is_whole else np.where(valid[..., None], rows, np.float32(0.0))
