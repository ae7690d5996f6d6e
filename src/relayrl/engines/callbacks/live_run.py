"""The run that callbacks are given: where it stands, what it has learned, and the few things that they may change."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from relayrl.accelerator.live_actor import live_actor
from relayrl.data.columns import Rollout
from relayrl.engines.callbacks.live_params import LiveParams
from relayrl.engines.runs.run_record import RunResult
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor
from relayrl.models.policy import Policy
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.policy_trainer import PolicyTrainer

_METRIC = re.compile(r"[^/\s][^\n,]*/[^\n,]*[^/\s]")


class LiveRun:
    """A run while it goes on."""

    def __init__(
        self,
        settings: RunSettings,
        path: Path,
        policies: Mapping[str, Policy],
        trainer: PolicyTrainer,
        statistics: Statistics,
    ) -> None:
        self.settings = settings
        """Everything that decided the run."""
        self.path = path
        """The run directory."""
        self.params = LiveParams(trainer, list(policies))
        """Hyper-parameters that may be read and set while the run goes on, such as `run.params["pi_lr"]`."""
        self.rollouts: Mapping[str, Rollout] = {}
        """What was collected last, by group, as it is learned from; its memory is used again two rollouts later."""
        self.checkpoint: Path | None = None
        """The newest checkpoint."""
        self.result: RunResult | None = None
        """How the run ended; None before."""
        self.has_written_all = False
        """Whether the last row of statistics is written."""
        self.is_stopped = False
        """Whether somebody called `stop`."""
        self._modules, self._trainer, self._statistics = dict(policies), trainer, statistics

    def __repr__(self) -> str:
        return f"LiveRun({str(self.path)!r}, num_env_steps={self.num_env_steps})"

    @property
    def num_env_steps(self) -> int:
        """Environment steps that were given to the trainer."""
        return self._trainer.num_env_steps

    @property
    def max_steps(self) -> int:
        """Environment steps of the whole run."""
        return self._trainer.max_steps

    @property
    def policy_version(self) -> int:
        """How often the policies have changed."""
        return self._trainer.policy_version

    @property
    def metrics(self) -> dict[str, float]:
        """The newest number of every metric, a copy."""
        return self._statistics.latest()

    @cached_property
    def policies(self) -> dict[str, Actor]:
        """What acts, by group: `run.policies[name].act(observation)`, with the newest parameters."""
        return {name: live_actor(policy) for name, policy in self._modules.items()}

    @property
    def policy(self) -> Actor:
        """What acts in a run that has one policy."""
        if len(self._modules) > 1:
            raise ConfigError(f"the run has policies {sorted(self._modules)}; use run.policies[name]")
        return next(iter(self.policies.values()))

    @property
    def rollout(self) -> Rollout:
        """What a run that has one policy collected last."""
        if len(self.rollouts) != 1:
            raise ConfigError(f"there are rollouts of {sorted(self.rollouts)}; use run.rollouts[name], in on_rollout")
        return next(iter(self.rollouts.values()))

    @property
    def modules(self) -> dict[str, Policy]:
        """The policies as torch modules, by group."""
        return dict(self._modules)

    def log(self, name: str, value: float) -> None:
        """Add a number to the next row of `progress.csv`, TensorBoard and other writers: the mean of all until then."""
        if self.has_written_all:
            raise ConfigError(f"log({name!r}): the last row is written; log in on_update or before")
        if not isinstance(name, str) or _METRIC.fullmatch(name) is None:
            raise ConfigError(f"a metric is called area/name, as in 'mine/distance_m', not {name!r:.100}")
        number = float(value)
        if not math.isfinite(number):
            raise ConfigError(f"log({name!r}): {number} is no number that can be averaged; leave it out")
        self._statistics.add({name: number})

    def stop(self) -> None:
        """End the run after this update, as if it had all its steps: it is saved, evaluated and exported."""
        self.is_stopped = True
