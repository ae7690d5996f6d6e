"""The seam of algorithms that learn from replay: one gradient step on joint transitions of all groups.

A subclass says how its policies act and what one step is:

    policy_class, make_head     how an observation becomes an action; by default a categorical or normal distribution
    has_target_policy           whether `groups[name].target_policy` follows the policy, by `groups[name].soft_update()`
    step(batch, weight)         one gradient step: descend a loss per group, return metrics and TD errors
    explore(progress)           optional: move what exploration depends on, such as a buffer of the policy

The base keeps policies, targets and optimisers by group, encodes transitions, updates normalisation, and saves all of that.
`replay_actor_critic` adds critics to it, for DDPG, TD3 and SAC. Schedules, replay and acting are the trainer's.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.critics.critic_views import CriticView, GroupShape
from relayrl.algorithms.critics.state_features import StateFeatures
from relayrl.algorithms.losses import require_finite
from relayrl.algorithms.optimizer import USUAL_EPSILON, FlatAdam
from relayrl.algorithms.params import OffPolicyParams
from relayrl.algorithms.updates.batch_columns import Number, as_number, as_numbers
from relayrl.algorithms.updates.random_shift import RandomShift
from relayrl.algorithms.updates.replay_batch import Batch, GroupBatch, group_batch
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Space
from relayrl.errors import ConfigError
from relayrl.models.compute_device import device_of, moved, moved_tree
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.policy import Policy

Metrics = dict[str, float]
StepMetrics = dict[str, Number]
N = TypeVar("N")
ViewFactory = Callable[[Mapping[str, GroupShape]], CriticView]
P = TypeVar("P", bound=OffPolicyParams)


class GroupLearner:
    """One group's policy, its target where it has one, and its optimiser."""

    def __init__(self, policy: Policy, num_agents: int, params: OffPolicyParams, *, has_target_policy: bool) -> None:
        self.policy, self.num_agents, self.tau = policy, num_agents, params.tau
        self.shift = RandomShift.of(policy, params.random_shift)
        self.target_policy = copy.deepcopy(policy).requires_grad_(False) if has_target_policy else None
        self.actor_optimizer = FlatAdam(policy.actor_parameters(), params.actor_lr, None, USUAL_EPSILON)

    @property
    def device(self) -> torch.device:
        """Where the policy lives."""
        return device_of(self.policy)

    def descend(self, loss: Tensor) -> StepMetrics:
        """Step the policy's network down a loss; gives the loss and its gradient's norm."""
        norm = descend(loss, self.actor_optimizer, self.policy.actor_parameters(), "policy", "actor_lr")
        return {"policy/loss": as_number(loss.detach()), "policy/gradient_norm": norm}

    def soft_update(self) -> None:
        """θ′ ← (1 − τ) θ′ + τ θ for every target (Polyak)."""
        for target, newest in self.targets():
            for old, new in zip(target, newest, strict=True):
                old.data.lerp_(new.data, self.tau)

    def targets(self) -> list[tuple[list[nn.Parameter], list[nn.Parameter]]]:
        """Parameters of target networks, and those that soft updates move them towards."""
        if self.target_policy is None:
            return []
        return [(self.target_policy.actor_parameters(), self.policy.actor_parameters())]

    def modules(self) -> dict[str, nn.Module]:
        """Networks besides the policy."""
        return {} if self.target_policy is None else {"target_policy": self.target_policy}

    def optimizers(self) -> dict[str, FlatAdam]:
        """What steps the networks."""
        return {"actor_optimizer": self.actor_optimizer}

    def state_dict(self) -> dict[str, Any]:
        """Networks besides the policy, and optimisers."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, nn.Module | FlatAdam]:
        return {**self.modules(), **self.optimizers()}


class OffPolicyAlgorithm(ABC, Generic[P]):
    """Trains the policies of all groups from joint transitions."""

    policy_class: ClassVar[type[Policy]] = Policy
    has_target_policy: ClassVar[bool] = False
    shares_encoder: ClassVar[bool] = False
    """Whether it learns what to make of images once for the policy and its critics (`Policy.image_encoder`)."""
    view: CriticView | None = None
    """What critics see, where there are any."""
    state: StateFeatures | None = None
    """What they see of the environment's global state, where they do."""
    device_noise: torch.Generator | None = None
    """What noise comes from in a run that stays on its device; whoever gives it saves it."""
    groups: Mapping[str, GroupLearner]

    def __init__(
        self, policies: Mapping[str, Policy], num_agents: Mapping[str, int], params: P, generator: torch.Generator
    ) -> None:
        """`generator` draws the seed of `rng`, from which all noise comes."""
        self.params = params
        self.groups = {name: self._learner(policy, num_agents[name], name) for name, policy in policies.items()}
        if params.random_shift and all(learner.shift is None for learner in self.groups.values()):
            raise ConfigError("random_shift moves images, and these observations have none; set it to 0")
        self.rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        self.num_updates = 0
        self.prepare()

    def prepare(self) -> None:
        """Make what else the algorithm needs; called once, when `groups`, `params` and `rng` are there."""

    def _learner(self, policy: Policy, num_agents: int, name: str) -> GroupLearner:
        return GroupLearner(policy, num_agents, self.params, has_target_policy=self.has_target_policy)

    @property
    def noise(self) -> np.random.Generator | torch.Generator:
        """What the noise of actions comes from."""
        return self.rng if self.device_noise is None else self.device_noise

    @classmethod
    def build(
        cls,
        policies: Mapping[str, Policy],
        num_agents: Mapping[str, int],
        params: P,
        generator: torch.Generator,
        view: ViewFactory,
        state: StateFeatures | None,
    ) -> Self:
        """The algorithm from everything that a run offers: what critics see is left out where there are none."""
        return cls(policies, num_agents, params, generator)

    @classmethod
    def make_head(cls, space: Space, params: P) -> ActionHead:
        """What a policy's outputs mean in an action space; raises `ConfigError` where the algorithm cannot act in it."""
        return likelihood_head(space)

    @abstractmethod
    def step(self, batch: Batch, weight: Tensor) -> tuple[StepMetrics, Tensor]:
        """One gradient step for all groups; gives metrics and the TD error [M] of each transition.

        `weight` [M, 1] is the importance of each transition under prioritised replay, else 1. On a GPU metrics may be
        tensors, for which nobody waits.
        """

    def configure(self, params: P) -> None:
        """Go on with other numbers, such as a lower rate, from the next gradient step on."""
        self.params = params
        for learner in self.groups.values():
            learner.tau, learner.actor_optimizer.lr = params.tau, params.actor_lr
            learner.shift = RandomShift.of(learner.policy, params.random_shift)

    def explore(self, progress: float) -> None:
        """Called when `progress` in [0, 1] of the run is over, before acting goes on."""

    def update(self, transitions: Any) -> tuple[Metrics, Array]:
        """One gradient step on `JointTransitions`; gives metrics and TD errors [M], by which replay may set priorities."""
        metrics, errors = self.begin(transitions)
        return as_numbers(metrics), errors.cpu().numpy()

    def begin(self, transitions: Any) -> tuple[StepMetrics, Tensor]:
        """`update`, of which a GPU may not be through when this returns."""
        self.num_updates += 1
        batch = self.batch(transitions)
        device = next(iter(batch.values())).reward.device
        metrics, errors = self.step(batch, moved(transitions.weight, device)[:, None])
        return metrics, errors.detach()

    def batch(self, transitions: Any) -> Batch:
        """Transitions as tensors on the policies' device."""
        batch = {name: self.group_batch(name, rows) for name, rows in transitions.groups.items()}
        if self.state is not None:
            for name, own in batch.items():
                own.state = self.state.features(transitions.state, self.groups[name].device)
                own.next_state = self.state.features(transitions.next_state, self.groups[name].device)
        return batch

    def group_batch(self, name: str, rows: Any) -> GroupBatch[Tensor]:
        """Transitions of one group as tensors."""
        learner = self.groups[name]
        return group_batch(learner.policy, self.shifted(learner, rows), learner.device)

    def shifted(self, learner: GroupLearner, rows: Any) -> Any:
        """Transitions whose images are shifted at random, where the params say so."""
        if learner.shift is None:
            return rows
        obs, next_obs = (learner.shift(tree, self.rng) for tree in (rows.obs, rows.next_obs))
        return replace(rows, obs=obs, next_obs=next_obs)

    def prefixed(self, group: str, metrics: Mapping[str, N]) -> dict[str, N]:
        """A group's metrics beside those of others: their names begin with the group's where there are several."""
        return (
            dict(metrics) if len(self.groups) == 1 else {f"{group}/{name}": number for name, number in metrics.items()}
        )

    def observe(self, rollouts: Mapping[str, Rollout]) -> None:
        """See new observations before they are learned from: normalisation moves here."""
        if self.state is not None:
            self.state.observe(next(iter(rollouts.values())))
        for name, rollout in rollouts.items():
            policy = self.groups[name].policy
            if policy.normalizer is not None:
                device = self.groups[name].device
                raw = policy.encoder(moved_tree(rollout.obs, device))
                policy.normalizer.update(raw[moved(rollout.valid, device)])

    def optimizers(self) -> list[FlatAdam]:
        """All that take steps."""
        return [optimizer for learner in self.groups.values() for optimizer in learner.optimizers().values()]

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next update, besides the policies."""
        groups = {name: learner.state_dict() for name, learner in self.groups.items()}
        state = {} if self.state is None else {"state_features": self.state.state_dict()}
        return {"groups": groups, "num_updates": self.num_updates, "rng": self.rng.bit_generator.state, **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name, learner in self.groups.items():
            learner.load_state_dict(state["groups"][name])
        if self.state is not None:
            self.state.load_state_dict(state["state_features"])
        self.num_updates = state["num_updates"]
        self.rng.bit_generator.state = state["rng"]


def descend(loss: Tensor, optimizer: FlatAdam, parameters: list[nn.Parameter], network: str, rate: str) -> Number:
    """Step `parameters`, and no others, down a loss; gives the gradient's norm. A loss that is not finite raises; that of a GPU
    is looked at by the caller, when it is there."""
    if loss.device.type == "cpu":
        require_finite(float(loss.detach()), network, rate)
    optimizer.gradient.zero_()
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    if learned:
        loss.backward(inputs=learned)  # type: ignore[no-untyped-call]
    return optimizer.step()
