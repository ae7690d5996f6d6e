"""The critic of a team by kernels, for encoders that are MLPs on the CPU; anything else is left to the reference.

A step of the critic is one call: the value and all baselines share encodings, keys and values, in tiles of teams.
The reference is `algorithms.poca.team_update`; tests hold every number to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.accelerator.adam_kernel import accelerate_steps
from relayrl.algorithms.losses import Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.poca.team_update import BASELINE_WEIGHT, TeamBatch, TeamUpdate
from relayrl.compiled.loader import kernels, num_threads
from relayrl.models.network_settings import Activation
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.mlp import MLP, MODULES, is_plain
from relayrl.models.teams.team_critic import TeamCritic

if TYPE_CHECKING:
    from types import ModuleType

    from relayrl.algorithms.updates.torch_update import StepMetrics
    from relayrl.data.trees import Array

    TeamShape = tuple[tuple[int, ...], tuple[int, ...], int, int, bool]

_CRITICS, _OPTIMIZERS, _OBJECTIVES = BuiltIns(TeamCritic), BuiltIns(FlatAdam), BuiltIns(Objective)
_LAYERS = BuiltIns(nn.Linear, nn.LayerNorm, *MODULES.values())


def fastest_team_update(critic: TeamCritic, optimizer: FlatAdam) -> TeamUpdate:
    """The fastest way to train a team's critic."""
    accelerate_steps([optimizer])
    module = kernels()
    if module is None or critic not in _CRITICS or optimizer not in _OPTIMIZERS or not _is_plain(critic, module):
        return TeamUpdate(critic, optimizer)
    return KernelTeamUpdate(critic, optimizer)


def _is_plain(critic: TeamCritic, module: ModuleType) -> bool:
    """Whether all parts of a critic are what the kernels know, on the CPU, and all of them learn."""
    encoders = [critic.observed, critic.acted]
    if not all(is_plain(encoder) for encoder in encoders):
        return False
    others = [part for part in critic.children() if part not in encoders]
    num_layers = max(len(encoder.linears()) for encoder in encoders if isinstance(encoder, MLP))
    return (
        all(part in _LAYERS for part in others)
        and all(part.eps == 1e-5 for part in others if isinstance(part, nn.LayerNorm))
        and all(p.requires_grad and not p._backward_hooks and p.device.type == "cpu" for p in critic.parameters())
        and num_layers <= module.MAX_LAYERS
    )


class KernelTeamUpdate(TeamUpdate):
    """`TeamUpdate`, whose values and gradients are the kernels'; made by `fastest_team_update`, which knows for what."""

    def value(self, features: Array, present: Array) -> Tensor:
        num_actions = self._sizes(self.critic.acted)[0] - self._sizes(self.critic.observed)[0]
        return self.values(features, np.zeros((*present.shape, num_actions), np.float32), present)[0]

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

    def _shape(self, present: Array) -> TeamShape:
        critic = self.critic
        is_tanh = isinstance(critic.activation, MODULES[Activation.TANH])
        sizes = self._sizes(critic.observed), self._sizes(critic.acted)
        return *sizes, present.shape[-1], critic.num_heads, is_tanh

    def _sizes(self, encoder: nn.Module) -> tuple[int, ...]:
        assert isinstance(encoder, MLP)
        linears = encoder.linears()
        return linears[0].in_features, *(layer.out_features for layer in linears)


def _rows(column: Array) -> Array:
    return np.ascontiguousarray(column, np.float32)
