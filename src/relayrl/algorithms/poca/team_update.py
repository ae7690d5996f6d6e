"""The reference of a team critic's learning, in torch and on the policy's device: values of teams, and gradient steps.

    L = ½ E[(V − y)²] + ½ · ½ E[(b_i − y)²],   the second mean over all agents that are there

The accelerator takes the same steps by kernels (`relayrl.accelerator.team_kernels`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.losses import Objective, require_finite
from relayrl.algorithms.updates.batch_columns import as_number, as_numbers, some_rows
from relayrl.algorithms.updates.torch_update import Finish, Metrics, PassPlan, StepMetrics
from relayrl.data.trees import Array
from relayrl.models.compute_device import moved_tree

if TYPE_CHECKING:
    from relayrl.algorithms.optimizer import FlatAdam
    from relayrl.models.teams.team_critic import TeamCritic

BASELINE_WEIGHT = 0.5
"""Of the baseline's loss beside the value's, as in ML-Agents."""


@dataclass(slots=True)
class TeamBatch:
    """Steps of teams, W of them, for the critic."""

    features: Array  # [W, N, F]
    actions: Array  # [W, N, A]
    present: Array  # [W, N]
    target: Array  # [W]
    old_value: Array  # [W]
    old_baseline: Array  # [W, N]

    def columns(self) -> tuple[Array, ...]:
        """All columns, in the order of the fields."""
        return self.features, self.actions, self.present, self.target, self.old_value, self.old_baseline

    def rows(self, where: Any) -> TeamBatch:
        """Some of the steps."""
        return TeamBatch(*(some_rows(column, where) for column in self.columns()))

    def __len__(self) -> int:
        return len(self.target)


class TeamUpdate:
    """Trains the critic of a team by autograd, one minibatch after the other."""

    def __init__(self, critic: TeamCritic, optimizer: FlatAdam) -> None:
        self.critic, self._optimizer = critic, optimizer

    @torch.no_grad()
    def value(self, features: Array, present: Array) -> Tensor:
        """[W] normalised values of what the `present` [W, N] agents observe: `features` [W, N, F]."""
        return self.critic.value(self._tensor(features), self._tensor(present))

    @torch.no_grad()
    def values(self, features: Array, actions: Array, present: Array) -> tuple[Tensor, Tensor]:
        """[W] normalised values and [W, N] baselines."""
        return self.critic.value_and_baseline(*(self._tensor(column) for column in (features, actions, present)))

    def begin(self, teams: TeamBatch, plan: PassPlan, objective: Objective) -> Finish:
        """Take the plan's gradient steps of the value; gives means of their metrics. An update may take them beside the
        caller, who is not to change the teams before they are finished."""
        metrics = self._take_passes(teams, plan, objective)
        return lambda: metrics

    def _take_passes(self, teams: TeamBatch, plan: PassPlan, objective: Objective) -> Metrics:
        sums: StepMetrics = {}
        num_steps = 0
        for _ in range(plan.value_passes):
            order = plan.draw_order(1)
            shuffled = teams if order is None else teams.rows(order[0])
            for start in range(0, len(teams), plan.minibatch_rows):
                own = self.gradient(shuffled.rows(slice(start, start + plan.minibatch_rows)), objective)
                loss = sum(own.values())
                if isinstance(loss, float):
                    require_finite(loss, "value", "vf_lr")
                own["value/gradient_norm"] = self._optimizer.step()
                sums = {name: sums.get(name, 0.0) + number for name, number in own.items()}
                num_steps += 1
        metrics = {name: total / num_steps for name, total in as_numbers(sums).items()}
        require_finite(metrics["value/loss"] + metrics["value/baseline_loss"], "value", "vf_lr")
        return metrics | {"value/gradient_steps": float(num_steps)}

    def gradient(self, teams: TeamBatch, objective: Objective) -> StepMetrics:
        """Differentiate the loss over steps of teams; gives both parts of it."""
        columns = (self._tensor(column) for column in teams.columns())
        features, actions, present, target, old_value, old_baseline = columns
        value, baseline = self.critic.value_and_baseline(features, actions, present)
        value_loss = objective.value_loss(value, old_value, target)
        of_agents = target[:, None].expand_as(present)[present]
        baseline_loss = objective.value_loss(baseline[present], old_baseline[present], of_agents)
        self._optimizer.gradient.zero_()
        (value_loss + BASELINE_WEIGHT * baseline_loss).backward()  # type: ignore[no-untyped-call]
        losses = {"value/loss": value_loss, "value/baseline_loss": baseline_loss}
        return {name: as_number(loss.detach()) for name, loss in losses.items()}

    def _tensor(self, column: Any) -> Tensor:
        own = column if isinstance(column, Tensor) else np.ascontiguousarray(column)
        moved: Tensor = moved_tree(own, self._optimizer.vector.device)
        return moved
