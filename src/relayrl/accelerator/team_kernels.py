"""The critic of a team by kernels, for networks that are MLPs on the CPU; anything else is left to the reference.

A step of the critic is one call: the value and all baselines share entities, keys and values, in tiles of teams.
The reference is `algorithms.poca.team_update`; tests hold every number to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.accelerator.adam_kernel import accelerate_steps
from relayrl.algorithms.losses import Objective, require_finite
from relayrl.algorithms.optimizer import BETA1, BETA2, FlatAdam
from relayrl.algorithms.poca.team_update import BASELINE_WEIGHT, TeamBatch, TeamUpdate
from relayrl.compiled.loader import kernels, num_threads
from relayrl.models.network_settings import Activation
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.mlp import MLP, MODULES, is_plain
from relayrl.models.teams.team_critic import TeamCritic

if TYPE_CHECKING:
    from types import ModuleType

    from relayrl.algorithms.updates.torch_update import Finish, Metrics, PassPlan, StepMetrics
    from relayrl.data.trees import Array

    TeamShape = tuple[int, int, int, int, tuple[int, ...], int, bool]

_CRITICS, _OPTIMIZERS, _OBJECTIVES = BuiltIns(TeamCritic), BuiltIns(FlatAdam), BuiltIns(Objective)
_LAYERS = BuiltIns(nn.Linear, nn.LayerNorm, *MODULES.values())
ROWS_PER_CALL = 100_000
"""Agents' rows passed over by one call: about a tenth of a second of work, after which an interrupt is seen."""


def fastest_team_update(critic: TeamCritic, optimizer: FlatAdam) -> TeamUpdate:
    """The fastest way to train a team's critic."""
    accelerate_steps([optimizer])
    module = kernels()
    if module is None or critic not in _CRITICS or optimizer not in _OPTIMIZERS or not _is_plain(critic, module):
        return TeamUpdate(critic, optimizer)
    return KernelTeamUpdate(critic, optimizer)


def _is_plain(critic: TeamCritic, module: ModuleType) -> bool:
    """Whether all parts of a critic are what the kernels know, on the CPU, and all of them learn."""
    networks = [critic.observed, critic.estimate]
    if not all(is_plain(network) for network in networks):
        return False
    embedding, estimate = (network for network in networks if isinstance(network, MLP))
    others = [part for part in critic.children() if part not in networks]
    return (
        all(part in _LAYERS for part in others)
        and all(part.eps == 1e-5 for part in others if isinstance(part, nn.LayerNorm))
        and all(p.requires_grad and not p._backward_hooks and p.device.type == "cpu" for p in critic.parameters())
        and len(embedding.linears()) == 1
        and len(estimate.linears()) <= module.MAX_LAYERS
        and isinstance(critic.activation, MODULES[estimate.activation])
        and critic.acted.out_features <= module.MAX_ATTENTION
    )


class KernelTeamUpdate(TeamUpdate):
    """`TeamUpdate`, whose values and gradients are the kernels'; made by `fastest_team_update`, which knows for what."""

    def value(self, features: Array, present: Array) -> Tensor:
        did_nothing = np.zeros((*present.shape, self.critic.acted.in_features), np.float32)
        return self.values(features, did_nothing, present)[0]

    def values(self, features: Array, actions: Array, present: Array) -> tuple[Tensor, Tensor]:
        module = kernels()
        if module is None or present.shape[-1] > module.MAX_AGENTS:
            return super().values(features, actions, present)
        value, baseline = np.empty(len(present), np.float32), np.empty(present.shape, np.float32)
        columns = _rows(features), _rows(actions), np.ascontiguousarray(present)
        vector = self._optimizer.vector.numpy()
        module.team_values(self._shape(present), vector, *columns, value, baseline, num_threads())
        return torch.from_numpy(value), torch.from_numpy(baseline)

    def gradient(self, teams: TeamBatch, objective: Objective) -> StepMetrics:
        module = kernels()
        if module is None or objective not in _OBJECTIVES or teams.present.shape[-1] > module.MAX_AGENTS:
            return super().gradient(teams, objective)
        losses = module.team_gradient(
            self._shape(teams.present),
            self._optimizer.vector.numpy(),
            _rows(teams.features),
            _rows(teams.actions),
            np.ascontiguousarray(teams.present),
            np.arange(len(teams)),
            *(_rows(column) for column in (teams.target, teams.old_value, teams.old_baseline)),
            -1.0 if objective.value_clip is None else objective.value_clip,
            BASELINE_WEIGHT,
            self._optimizer.gradient.numpy(),
            num_threads(),
        )
        return dict(zip(("value/loss", "value/baseline_loss"), losses, strict=True))

    def begin(self, teams: TeamBatch, plan: PassPlan, objective: Objective) -> Finish:
        module = kernels()
        if module is None or objective not in _OBJECTIVES or teams.present.shape[-1] > module.MAX_AGENTS:
            return super().begin(teams, plan, objective)
        sums = np.zeros(4)
        passes_per_call, num_left = max(ROWS_PER_CALL // teams.present.size, 1), plan.value_passes
        while num_left > passes_per_call:
            sums += self._finish(self._begin_passes(module, teams, plan, objective, passes_per_call))
            num_left -= passes_per_call
        steps = self._begin_passes(module, teams, plan, objective, num_left)
        return lambda: _metrics(sums + self._finish(steps))

    def _begin_passes(
        self, module: ModuleType, teams: TeamBatch, plan: PassPlan, objective: Objective, num_passes: int
    ) -> Any:
        """Begin so many passes; what they read is held until they are finished."""
        adam = self._optimizer
        return module.TeamPasses(
            self._shape(teams.present),
            *(state.numpy() for state in (adam.vector, adam.first_moment, adam.second_moment)),
            *(_rows(column) for column in (teams.features, teams.actions)),
            np.ascontiguousarray(teams.present),
            plan.draw_order(num_passes),
            *(_rows(column) for column in (teams.target, teams.old_value, teams.old_baseline)),
            num_passes,
            plan.minibatch_rows,
            -1.0 if objective.value_clip is None else objective.value_clip,
            BASELINE_WEIGHT,
            adam.num_steps,
            adam.lr,
            BETA1,
            BETA2,
            adam.epsilon,
            adam.max_norm,
            num_threads(),
        )

    def _finish(self, passes: Any) -> Array:
        """The steps that were taken, and sums over them of both losses and the gradient's norm."""
        own = passes.finish()
        self._optimizer.num_steps += own["num_steps"]
        require_finite(own["bad_loss"], "value", "vf_lr")
        return np.array([own["num_steps"], own["loss"], own["baseline_loss"], own["gradient_norm"]])

    def _shape(self, present: Array) -> TeamShape:
        critic, estimate = self.critic, self.critic.estimate
        assert isinstance(critic.observed, MLP)
        assert isinstance(estimate, MLP)
        num_features = critic.observed.linears()[0].in_features
        linears = estimate.linears()
        sizes = linears[0].in_features, *(layer.out_features for layer in linears)
        own = num_features, critic.acted.in_features, critic.acted.out_features, critic.num_heads
        return *own, sizes, present.shape[-1], estimate.activation is Activation.TANH


def _metrics(sums: Array) -> Metrics:
    num_steps, *totals = sums.tolist()
    names = "value/loss", "value/baseline_loss", "value/gradient_norm"
    means = {name: total / num_steps for name, total in zip(names, totals, strict=True)}
    return means | {"value/gradient_steps": num_steps}


def _rows(column: Array) -> Array:
    return np.ascontiguousarray(column, np.float32)
