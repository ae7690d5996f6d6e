"""The off-policy trainer: rollouts go into replay; gradient steps follow in proportion to environment steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relayrl.accelerator.adam_kernel import accelerate_steps
from relayrl.accelerator.live_actor import live_actor
from relayrl.accelerator.replay_updates import Update, accelerated
from relayrl.algorithms.critics.critic_views import CentralView
from relayrl.algorithms.losses import require_finite
from relayrl.algorithms.off_policy import OffPolicyAlgorithm
from relayrl.algorithms.params import OffPolicyParams
from relayrl.algorithms.updates.batch_columns import Number, as_numbers
from relayrl.data.columns import Rollout, Trajectory
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.warmup_actor import WarmupActor
from relayrl.models.policy import Policy
from relayrl.training.replay.hindsight_replay import HindsightReplay, Relabel, require_goals
from relayrl.training.replay.joint_replay import JointReplay
from relayrl.training.trainers.policy_groups import CriticColumns, Groups, by_environment
from relayrl.training.trainers.policy_trainer import PolicyTrainer, require_same_groups

if TYPE_CHECKING:
    from torch import Tensor

    from relayrl.training.imitation.behavioral_cloning import ClonedPolicy

BegunUpdate = Callable[[Any], "tuple[dict[str, Number], Tensor]"]
TakeSteps = Callable[[int], Iterable[Mapping[str, Number]]]
"""Takes so many gradient steps; gives the metrics of each, or none where they are asked for later."""

_log = logging.getLogger("relayrl.training.trainers.off_policy_trainer")


class OffPolicyTrainer(PolicyTrainer):
    """Trains all policies from one joint replay."""

    uses_logp = False
    takes_params_per_group = False
    settable = (
        "actor_lr",
        "critic_lr",
        "temperature_lr",
        "init_temperature",
        "noise_scale",
        "exploration_noise",
        "tau",
        "gamma",
    )

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm[Any],
        params: OffPolicyParams,
        num_envs: int,
        max_steps: int,
        rng: np.random.Generator,
        relabel: Relabel | None = None,
    ) -> None:
        """`relabel` is the environment's, for hindsight replay."""
        super().__init__(max_steps)
        accelerate_steps(algorithm.optimizers())
        self._algorithm, self._params, self._rng = algorithm, params, rng
        is_relabelling = params.hindsight_ratio > 0
        self._relabel = require_goals(algorithm.groups, params.num_step_returns, relabel) if is_relabelling else None
        self.replay = self._empty_replay(num_envs)
        self._take_steps: TakeSteps = self._gradient_steps
        self._owed_steps = 0
        self.needs_states = algorithm.state is not None

    @cached_property
    def _update(self) -> Update | BegunUpdate:
        """One gradient step, by the accelerator where it knows the algorithm; settled when it is first needed."""
        own, twin = self._algorithm, accelerated(self._algorithm)
        if twin is not None:
            return twin.update
        is_plain = type(own).update is OffPolicyAlgorithm.update and "update" not in vars(own)
        return own.begin if is_plain else own.update  # nobody waits for a GPU between steps

    def learn_by(self, replay: Any, take_steps: TakeSteps) -> None:
        """Keep transitions in another replay, such as one on a device, from which `take_steps` learns."""
        self.replay, self._take_steps = replay, take_steps

    @property
    def algorithm(self) -> OffPolicyAlgorithm[Any]:
        """What learns."""
        return self._algorithm

    def params_of(self, group: str) -> OffPolicyParams:
        return self._params

    def configure(self, group: str, params: Any) -> None:
        self._params = params
        self._algorithm.configure(params)

    def cloned_policies(self) -> dict[str, ClonedPolicy]:
        from relayrl.training.imitation.behavioral_cloning import ClonedPolicy

        return {
            name: ClonedPolicy(each.policy, each.actor_optimizer, self._params.actor_lr)
            for name, each in self._algorithm.groups.items()
        }

    def _empty_replay(self, num_envs: int) -> JointReplay:
        params, state = self._params, self._algorithm.state
        options: dict[str, Any] = {
            "priority_exponent": params.priority_exponent,
            "state_space": None if state is None else state.space,
        }
        if self._relabel is None:
            return JointReplay(params.buffer_size, num_envs, **options)
        return HindsightReplay(
            params.buffer_size, num_envs, ratio=params.hindsight_ratio, relabel=self._relabel, **options
        )

    def rollout_steps(self, time_horizon: int, num_envs: int) -> int:
        return max(1, self._params.update_interval // num_envs)

    def actor_for(self, policy: Policy) -> Actor:
        return WarmupActor(live_actor(policy), lambda: Exploration(self.is_warming_up, policy.head.noise_scale))

    @property
    def is_warming_up(self) -> bool:
        """Whether actions should still be random."""
        return self.num_env_steps < self._params.learning_starts

    def receive_trajectories(
        self, trajectories: Sequence[Trajectory], groups: Groups, num_counted_steps: int = 0
    ) -> None:
        self.hold_envs(1)
        owed_before, self.num_env_steps = self._owed_steps, self.num_env_steps - num_counted_steps
        for rollouts, num_env_steps in by_environment(trajectories, groups):
            num_void = next(iter(rollouts.values())).num_steps - num_env_steps  # rows that end what goes on elsewhere
            owed, self.num_env_steps = self._owed_steps, self.num_env_steps - num_void
            self.receive(rollouts)
            self._owed_steps = max(owed, self._owed_steps - num_void)
        self._owed_steps = max(owed_before, self._owed_steps - num_counted_steps)

    def hold_envs(self, num_envs: int) -> None:
        if num_envs == self.replay.num_envs:
            return
        if len(self.replay):
            raise ConfigError(
                f"replay holds steps of {self.replay.num_envs} environments side by side, and these are of {num_envs}; give a "
                "trainer either trajectories, or rollouts of one number of environments"
            )
        self.replay = self._empty_replay(num_envs)

    def _keep(self, rollouts: Mapping[str, Rollout]) -> None:
        self.replay.add(rollouts)
        self._algorithm.observe(rollouts)
        self._algorithm.explore(self._progress())
        first = next(iter(rollouts.values()))
        if not self.is_warming_up:
            self._owed_steps += first.num_steps * len(first.header.env_ids)

    def num_batches_after(self, num_steps: int) -> int:
        """Batches that the next `advance` learns from where so many environment steps are received before it."""
        params = self._params
        is_warming_up = self.num_env_steps + num_steps < params.learning_starts
        owed = self._owed_steps + (0 if is_warming_up else num_steps)
        return owed // params.update_interval * params.train_iters

    def advance(self) -> dict[str, float]:
        """One update for every `update_interval` environment steps since the last call."""
        params = self._params
        sums: dict[str, list[Number]] = {}
        while self._owed_steps >= params.update_interval:
            self._owed_steps -= params.update_interval
            for step in self._take_steps(params.train_iters):
                for name, number in step.items():
                    sums.setdefault(name, []).append(number)
            self.policy_version += 1
        means = {name: sum(numbers) / len(numbers) for name, numbers in sums.items()}
        metrics = as_numbers(means)
        for name in (name for name, mean in means.items() if not isinstance(mean, float) and name.endswith("/loss")):
            # Losses of a GPU are here only now; others were looked at before their step.
            network, rate = ("policy", "actor_lr") if name.endswith("policy/loss") else ("Q", "critic_lr")
            require_finite(metrics[name], network, rate)
        if self.cloning is not None and sums:
            metrics |= self.cloning.update(self.num_env_steps)
        rates = {"policy/learning_rate": params.actor_lr, "value/learning_rate": params.critic_lr}
        if params.priority_exponent > 0:
            rates["replay/priority_correction"] = self._correction()
        return metrics | rates | {"replay/size": float(len(self.replay))}

    def _correction(self) -> float:
        return self._params.correction_at(self._progress())

    def _progress(self) -> float:
        return min(1.0, self.num_env_steps / self.max_steps)

    def _gradient_steps(self, num_steps: int) -> Iterable[Mapping[str, Number]]:
        return (self._gradient_step() for _ in range(num_steps))

    def _gradient_step(self) -> Mapping[str, Number]:
        params = self._params
        transitions = self.replay.sample(
            params.batch_size,
            self._rng,
            gamma=params.gamma,
            num_step_returns=params.num_step_returns,
            correction=self._correction(),
        )
        metrics, errors = self._update(transitions)
        if params.priority_exponent > 0:
            self.replay.set_priorities(
                transitions.rows, errors if isinstance(errors, np.ndarray) else errors.cpu().numpy()
            )
        return metrics

    def critic_columns(self, group: str) -> CriticColumns | None:
        view, state, groups = self._algorithm.view, self._algorithm.state, self._algorithm.groups
        if not isinstance(view, CentralView):
            return None
        sight = view.sight(group)
        widths = {name: own.policy.encoder.num_features for name, own in groups.items() if sight.observations}
        num_state_features = state.encoder.num_features if state is not None and sight.state else 0
        return CriticColumns(
            widths, num_state_features, {name: own.policy.head.critic_width for name, own in groups.items()}
        )

    def state_dict(self) -> dict[str, Any]:
        policies = {name: learner.policy.state_dict() for name, learner in self._algorithm.groups.items()}
        return {
            "num_env_steps": self.num_env_steps,
            "policy_version": self.policy_version,
            "owed_steps": self._owed_steps,
            "policies": policies,
            "algorithm": self._algorithm.state_dict(),
            "rng": self._rng.bit_generator.state,
            "replay": _as_tensors(self.replay.get_state()),
            **self.cloning_state(),
        }

    def take_one_environment_at_a_time(self) -> None:
        self.replay = self._empty_replay(num_envs=1)

    def learn_from_records(self) -> None:
        """Have a replay of single environments, one episode after the other."""
        self.take_one_environment_at_a_time()

    def fill(self, rollouts: Mapping[str, Rollout]) -> None:
        self.replay.add(rollouts)
        self.replay.cut()
        self._algorithm.observe(rollouts)

    def count_without_collecting(self, num_steps: int) -> None:
        self.num_env_steps += num_steps
        self._owed_steps += num_steps

    def environments_restarted(self) -> None:
        self.replay.cut()

    def _load_replay(self, state: Mapping[str, Any], spaces: Mapping[str, Any]) -> None:
        if state.get("is_resident", False) != self.replay.is_resident:
            kept, now = ("on a device", "on the host") if state.get("is_resident") else ("on the host", "on a device")
            _log.warning("the replay was kept %s, and is kept %s now: it begins empty", kept, now)
            return
        self.hold_envs(state["num_envs"])
        self.replay.set_state(state, spaces)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        require_same_groups(state["policies"], self._algorithm.groups)
        self.num_env_steps, self.policy_version = state["num_env_steps"], state["policy_version"]
        self._owed_steps = state["owed_steps"]
        for name, learner in self._algorithm.groups.items():
            learner.policy.load_state_dict(state["policies"][name])
        self._algorithm.load_state_dict(state["algorithm"])
        self._rng.bit_generator.state = state["rng"]
        spaces = {
            name: (g.policy.observation_space, g.policy.action_space) for name, g in self._algorithm.groups.items()
        }
        self._load_replay(state["replay"], spaces)
        self.load_cloning_state(state)


def _as_tensors(state: dict[str, Any]) -> dict[str, Any]:
    """Arrays as tensors of the same memory: what checkpoints hold."""
    return {**state, "arrays": {name: torch.from_numpy(array) for name, array in state["arrays"].items()}}
