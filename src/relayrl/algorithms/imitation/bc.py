"""Behavioral cloning (Pomerleau, 1991): a policy that gives demonstrated actions a high likelihood.

It trains the actor of an `ActorCritic` and leaves its critic as it began, so that on-policy algorithms can start from what it
learned (`--init-from`). It needs no rewards, and never acts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayrl.algorithms.imitation.bc_params import BCParams
from relayrl.algorithms.imitation.cloning import Cloner, observe
from relayrl.algorithms.losses import Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.torch_update import Metrics, TorchUpdate

if TYPE_CHECKING:
    from relayrl.data.columns import Rollout
    from relayrl.models.policy import ActorCritic


class BC:
    """Clones demonstrations into the policy of one group."""

    def __init__(self, policy: ActorCritic, params: BCParams, seed: int, backend: Backend = REFERENCE) -> None:
        self.policy, self.params = policy, params
        self._optimizer = FlatAdam(policy.actor_parameters(), params.pi_lr, params.max_grad_norm)
        critic = FlatAdam(policy.critic_parameters(), params.pi_lr, None)  # which is never stepped

        def make_update(objective: Objective) -> TorchUpdate:
            return backend.update(policy, objective, self._optimizer, critic)

        self._cloner = Cloner(policy, self._optimizer, make_update, seed=seed, entropy_coef=params.entropy_coef)

    def demonstrate(self, rollout: Rollout) -> None:
        """Keep demonstrations; the normalisation of observations takes them in too."""
        observe(self.policy, rollout)
        self._cloner.add(rollout)

    def learn(self, num_steps: int, progress: float) -> Metrics:
        """Take gradient steps, when `progress` in [0, 1] of the run is over."""
        self._optimizer.lr = self.params.pi_lr * self.params.lr_schedule.factor(progress)
        return self._cloner.learn(num_steps, self.params.batch_size) | {"policy/learning_rate": self._optimizer.lr}

    def learn_once(self, rollouts: list[Rollout], progress: float) -> Metrics:
        """Pass over rollouts that are not kept."""
        self._optimizer.lr = self.params.pi_lr * self.params.lr_schedule.factor(progress)
        for rollout in rollouts:
            observe(self.policy, rollout)
        return self._cloner.pass_over(rollouts, self.params.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next step, besides the policy and the demonstrations."""
        return self._cloner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._cloner.load_state_dict(state)
