"""Behavioral cloning beside reinforcement learning: after every update, gradient steps towards the demonstrations.

    L = −E_demo[log π(a|s)],   rate = strength · (1 − n / steps) · rate of the policy,   n: environment steps so far

They step the same parameters as the algorithm, by an Adam of their own, so that neither sees the other's moments. An update
passes `num_epoch` times over `samples_per_update` rows. With `pretrain_epochs`, the policy is cloned before the first step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from relayrl.accelerator.adam_kernel import accelerate_steps
from relayrl.algorithms.imitation.cloning import Cloner, observe
from relayrl.algorithms.losses import Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.image_update import reference_update
from relayrl.algorithms.updates.torch_update import Metrics, TorchUpdate
from relayrl.data.columns import LaneHeader
from relayrl.training.imitation.demonstrations import read_demonstrations
from relayrl.training.imitation.imitation_settings import BehavioralCloningSettings


@dataclass(frozen=True, slots=True)
class ClonedPolicy:
    """A policy that learns by reinforcement, and what steps its actor."""

    policy: Any
    optimizer: FlatAdam
    rate: float


class BehavioralCloning:
    """Clones demonstrations into the policies that a trainer trains."""

    def __init__(
        self,
        settings: BehavioralCloningSettings,
        policies: Mapping[str, ClonedPolicy],
        headers: Mapping[str, LaneHeader],
        seeds: Mapping[str, int],
    ) -> None:
        """Groups without demonstrations are left alone. `ConfigError` where a policy gives actions no likelihood."""
        self._settings = settings
        self._rates = {name: own.rate for name, own in policies.items()}
        self._cloners: dict[str, Cloner] = {}
        self._is_pretrained = settings.pretrain_epochs == 0
        for name, rollouts in read_demonstrations(settings.demo_path, headers).items():
            if not rollouts:
                continue
            self._cloners[name] = cloner = _cloner(policies[name], seeds[name])
            for rollout in rollouts:
                cloner.add(rollout)
                if not self._is_pretrained:  # a policy that is cloned before it has seen anything normalises by this
                    observe(policies[name].policy, rollout)
            cloner.require_likelihoods()

    def pretrain(self) -> None:
        """The passes before the run's first step; none in a run that is resumed."""
        if self._is_pretrained:
            return
        self._is_pretrained = True
        settings = self._settings
        for name, cloner in self._cloners.items():
            cloner.optimizer.lr = settings.strength * self._rates[name]
            cloner.learn(settings.pretrain_epochs * -(-cloner.num_rows // settings.batch_size), settings.batch_size)

    def update(self, num_env_steps: int) -> Metrics:
        """The steps after an update of the algorithm, when so many environment steps were learned from."""
        settings, factor = self._settings, self._settings.factor(num_env_steps)
        metrics: Metrics = {}
        for name, cloner in self._cloners.items():
            rate = cloner.optimizer.lr = settings.strength * factor * self._rates[name]
            prefix = "" if len(self._rates) == 1 else f"{name}/"
            own = {"learning_rate": rate}
            if rate > 0.0:
                num_rows = min(settings.samples_per_update or cloner.num_rows, cloner.num_rows)
                num_steps = settings.num_epoch * -(-num_rows // settings.batch_size)
                own["loss"] = cloner.learn(num_steps, settings.batch_size)["policy/loss"]
            metrics |= {f"{prefix}cloning/{key}": number for key, number in own.items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Where it is in its demonstrations, and the optimisers."""
        groups = {name: cloner.state_dict() for name, cloner in self._cloners.items()}
        return {"is_pretrained": self._is_pretrained, "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._is_pretrained = state["is_pretrained"]
        for name, cloner in self._cloners.items():
            cloner.load_state_dict(state["groups"][name])


def _cloner(own: ClonedPolicy, seed: int) -> Cloner:
    """A cloner whose Adam steps the algorithm's vector of parameters with moments of its own."""
    optimizer = copy.copy(own.optimizer)
    optimizer.first_moment = torch.zeros_like(own.optimizer.first_moment)
    optimizer.second_moment = torch.zeros_like(own.optimizer.second_moment)
    optimizer.num_steps = 0
    if optimizer.kernel is not None:  # that of the algorithm's Adam steps the algorithm's moments
        optimizer.kernel = None
        accelerate_steps([optimizer])

    def make_update(objective: Objective) -> TorchUpdate:
        # Not the kernels: they may still step the critic when cloning begins.
        return reference_update(own.policy, objective, optimizer, optimizer)

    return Cloner(own.policy, optimizer, make_update, seed=seed)
