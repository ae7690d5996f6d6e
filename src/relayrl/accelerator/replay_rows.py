"""What critics see, as rows that kernels take: `critic_views` in NumPy, with what agents share kept once for all of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relayrl.algorithms.critics.critic_views import CentralView, CriticView, LocalView
from relayrl.data.row_rules import present
from relayrl.data.trees import Array
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.shared_rows import OwnColumns, SharedPart, SharedRows

Columns = Mapping[str, Array]
_LOCAL, _CENTRAL = BuiltIns(LocalView), BuiltIns(CentralView)


class LocalRows:
    """`LocalView`."""

    def __init__(self, view: CriticView) -> None:
        self._shapes = view.shapes

    def inputs(self, group: str, features: Columns, actions: Columns, state: Array | None) -> Array | SharedRows:
        """[M·N, width] for the agents of `group`."""
        rows = np.concatenate([features[group], actions[group]], -1)
        return rows.reshape(-1, rows.shape[-1])

    def next_inputs(
        self, group: str, features: Columns, actions: Columns, seen: Columns, alone: Array, state: Array | None
    ) -> Array | SharedRows:
        """`inputs` for what followed a step; `alone` [M, N] are agents that are not `seen`, and whose values are asked for."""
        return self.inputs(group, features, actions, state)

    def own(self, group: str, action: Array) -> OwnColumns:
        """`action` [M, N, A] as what the inputs of each agent have of its own, in place of what it did."""
        numbers = action.reshape(-1, action.shape[-1])
        return OwnColumns(np.full(len(numbers), self._shapes[group].num_features), numbers)


class CentralRows(LocalRows):
    """`CentralView`."""

    def __init__(self, view: CentralView) -> None:
        super().__init__(view)
        self._view = view

    def inputs(self, group: str, features: Columns, actions: Columns, state: Array | None) -> SharedRows:
        sight, num_agents, tables = self._view.sight(group), self._shapes[group].num_agents, []
        if sight.observations:
            tables.append(self._joint(features))
        if sight.state and state is not None:
            tables.append(state)
        tables.append(self._joint(actions))
        environment, agent = np.divmod(np.arange(len(tables[0]) * num_agents), num_agents)
        agent_numbers = SharedPart(np.eye(num_agents, dtype=np.float32), agent)
        return SharedRows((*(SharedPart(table, environment) for table in tables), agent_numbers))

    def next_inputs(
        self, group: str, features: Columns, actions: Columns, seen: Columns, alone: Array, state: Array | None
    ) -> SharedRows:
        shared_features = {name: present(rows, seen[name]) for name, rows in features.items()}
        shared_actions = {name: present(rows, seen[name]) for name, rows in actions.items()}
        inputs = self.inputs(group, shared_features, shared_actions, state)
        rows = np.flatnonzero(alone)
        if not len(rows):
            return inputs
        if self._view.sight(group).observations:
            begin = self._begin(group, {name: s.num_agents * s.num_features for name, s in self._shapes.items()})
            inputs = inputs.with_own_of(rows, _own_columns(features[group], begin).some(rows))
        return inputs.with_own_of(rows, self.own(group, actions[group]).some(rows))

    def own(self, group: str, action: Array) -> OwnColumns:
        widths = {name: shape.num_agents * shape.num_actions for name, shape in self._shapes.items()}
        return _own_columns(action, self._view.num_seen(group) + self._begin(group, widths))

    def _begin(self, group: str, widths: Mapping[str, int]) -> int:
        """Where a group's columns begin, of groups side by side."""
        names = list(self._shapes)
        return sum(widths[name] for name in names[: names.index(group)])

    def _joint(self, columns: Columns) -> Array:
        """[M, …] all agents of all groups side by side."""
        rows = [columns[name].reshape(len(columns[name]), -1) for name in self._shapes]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, -1)


def rows_of(view: CriticView) -> LocalRows | None:
    """The rows of a view; None where the view is not a built-in one."""
    if isinstance(view, CentralView) and view in _CENTRAL:
        return CentralRows(view)
    return LocalRows(view) if view in _LOCAL else None


def _own_columns(numbers: Array, begin: int) -> OwnColumns:
    """`numbers` [M, N, A] of agents that lie side by side from column `begin` on."""
    num_environments, num_agents, width = numbers.shape
    firsts = begin + width * np.arange(num_agents)
    return OwnColumns(np.tile(firsts, num_environments), numbers.reshape(-1, width))
