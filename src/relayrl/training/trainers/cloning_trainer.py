"""The trainer of behavioral cloning: records are its demonstrations, and gradient steps follow without collecting.

Counted are demonstrated steps: a gradient step of each group for every `batch_size` of them. So a run of as many steps as
were recorded passes over a single agent's record once. Rollouts that are received instead are passed over once each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayrl.algorithms.imitation.bc import BC
from relayrl.algorithms.updates.torch_update import Metrics
from relayrl.config.settings import Settings
from relayrl.data.columns import Rollout
from relayrl.training.trainers.policy_trainer import PolicyTrainer, group_states, load_group_states, require_same_groups


class CloningTrainer(PolicyTrainer):
    """Trains one `BC` per policy group."""

    needs_records = True
    uses_logp = False
    settable = ("pi_lr",)

    def __init__(self, algorithms: Mapping[str, BC], max_steps: int) -> None:
        super().__init__(max_steps)
        self._algorithms = dict(algorithms)
        self._owed_steps = dict.fromkeys(algorithms, 0)
        self._received: dict[str, list[Rollout]] = {group: [] for group in algorithms}
        self._num_steps_learned = 0

    def params_of(self, group: str) -> Settings:
        return self._algorithms[group].params

    def configure(self, group: str, params: Any) -> None:
        self._algorithms[group].params = params

    def learn_from_records(self) -> None:
        """Nothing has to be prepared."""

    def fill(self, rollouts: Mapping[str, Rollout]) -> None:
        for group, rollout in rollouts.items():
            self._algorithms[group].demonstrate(rollout)

    def _keep(self, rollouts: Mapping[str, Rollout]) -> None:
        """What arrives beside the record is passed over once."""
        for group, rollout in rollouts.items():
            self._received[group].append(rollout)

    def count_without_collecting(self, num_steps: int) -> None:
        super().count_without_collecting(num_steps)
        for group in self._owed_steps:
            self._owed_steps[group] += num_steps

    def advance(self) -> Metrics:
        progress = min(1.0, self._num_steps_learned / self.max_steps)
        self._num_steps_learned = self.num_env_steps
        metrics: Metrics = {}
        received, self._received = self._received, {group: [] for group in self._algorithms}
        for group, algorithm in self._algorithms.items():
            num_steps, self._owed_steps[group] = divmod(self._owed_steps[group], algorithm.params.batch_size)
            own = algorithm.learn_once(received[group], progress) | algorithm.learn(num_steps, progress)
            prefix = "" if len(self._algorithms) == 1 else f"{group}/"
            metrics |= {prefix + name: number for name, number in own.items()}
        self.policy_version += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_env_steps": self.num_env_steps,
            "policy_version": self.policy_version,
            "owed_steps": dict(self._owed_steps),
            "num_steps_learned": self._num_steps_learned,
            "groups": group_states(self._algorithms),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        require_same_groups(state["groups"], self._algorithms)
        self.num_env_steps, self.policy_version = state["num_env_steps"], state["policy_version"]
        self._owed_steps, self._num_steps_learned = dict(state["owed_steps"]), state["num_steps_learned"]
        load_group_states(self._algorithms, state["groups"])
