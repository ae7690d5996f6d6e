"""Which runs stay on their device, and the parts of those that do: a batched environment, policies, rollouts or replay there.

Statistics are fetched when a row is written: rows hold means over all updates since the last one, and the newest episodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from relayrl.accelerator.device_accelerator import fastest_device_update, start_compiler
from relayrl.algorithms.params import OffPolicyParams
from relayrl.algorithms.ppo import PPO
from relayrl.config.plugin_registry import plugin_environment
from relayrl.engines.device.recurrent_learner import RecurrentLearner
from relayrl.engines.device.replay_actor import ReplayActor
from relayrl.engines.device.replay_learner import ReplayLearner
from relayrl.engines.device.resident_collector import ResidentCollector
from relayrl.engines.device.resident_learner import ResidentLearner
from relayrl.engines.device.resident_pace import OnPolicyPace, ReplayPace, ResidentPace
from relayrl.engines.device.resident_replay import ResidentReplay
from relayrl.engines.local.overlap import Pace
from relayrl.engines.local.run_parts import Assembly, RunParts, assemble_checked
from relayrl.envs.native import native_registry
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.recipes import EnvRecipe
from relayrl.envs.vector.regrouped import SHARED
from relayrl.training.signals.reward_signals import RewardSignals
from relayrl.training.signals.signal_settings import EXTRINSIC
from relayrl.training.trainers.off_policy_trainer import OffPolicyTrainer
from relayrl.training.trainers.on_policy_trainer import OnPolicyTrainer
from relayrl.training.trainers.seeding import Stream, stream_seed

if TYPE_CHECKING:
    from relayrl.engines.local.phase_clock import PhaseClock
    from relayrl.engines.settings.run_settings import RunSettings
    from relayrl.models.heads.action_head import ActionHead
    from relayrl.training.statistics.run_statistics import Statistics

_log = logging.getLogger("relayrl.engines.device.resident_run")

RESIDENT = tuple(form + base for base in ("ppo", "ddpg", "td3", "sac") for form in ("", "i", "ma"))
"""Algorithms that learn where their native environments are."""


def why_not(settings: RunSettings) -> str | None:
    """What keeps a run from staying on its device, by its settings; None where nothing does."""
    asked = settings.environment
    reasons = {
        "the environment is no native one, nor is environment.options.device given": not _is_native(settings)
        and "device" not in asked.options,
        "environment.options.device is another": asked.options.get("device", settings.device) != settings.device,
        f"{settings.algo} learns on the device from rollouts of the host": settings.algo not in RESIDENT,
        "rollouts are recorded": settings.record is not None or settings.learn_from is not None,
        "reward_signals see rollouts": any(name != EXTRINSIC for name in settings.reward_signals)
        or any(signal.strength != 1.0 for signal in settings.reward_signals.values()),
        "self_play has opponents": settings.self_play is not None,
        "behavioral_cloning has demonstrations": settings.behavioral_cloning is not None,
        "episodes have parameters": bool(asked.parameters),
        "agents are regrouped by environment.sharing": asked.sharing != SHARED,
        "environments are wrapped": bool(asked.wrappers or asked.ignore_keys or asked.flatten)
        or asked.max_episode_steps is not None,
        "trainer.threaded learns beside": settings.trainer.threaded,
        "several learners take each step": settings.learners > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def build_resident(settings: RunSettings) -> RunParts | None:
    """The parts of a run that stays on its device; None where it cannot, with the reason in the log."""
    reason = why_not(settings)
    if reason is None:
        start_compiler(settings.device)
    env = None if reason is not None else _environment(settings)
    if reason is None and env is None:
        reason = "what makes the environment makes no BatchedEnvironment there"
    if env is not None and not env.steps_densely:
        reason = "agents die or appear inside episodes"
    elif env is not None and env.rates_episodes:
        reason = "the environment rates its episodes itself"
    if reason is None and env is not None:
        parts = assemble_checked(settings, env)
        reason = _why_not_learned(settings, parts, env)
        if reason is None and isinstance(parts.trainer, OnPolicyTrainer):
            return _on_policy(settings, env, parts, parts.trainer)
        if reason is None and isinstance(parts.trainer, OffPolicyTrainer):
            return _from_replay(settings, env, parts, parts.trainer)
    if env is not None:
        env.close()
    _log.info("device %s: the environment stays on the host, since %s", settings.device, reason)
    return None


def _is_native(settings: RunSettings) -> bool:
    return settings.env.startswith("native:")


def _environment(settings: RunSettings) -> BatchedEnvironment | None:
    """A native environment, or a batched one of a user's; None where a user's is of another kind."""
    options = {**settings.environment.options, "device": settings.device}
    if _is_native(settings):
        env = native_registry.make(settings.env.partition(":")[2], **options)
    else:
        env = EnvRecipe(plugin_environment(settings.env), options, settings.environment.num_envs).build()
        if type(env) is not BatchedEnvironment or env.device != settings.device:
            env.close()
            return None
    env.init_num_envs(settings.environment.num_envs)
    return env


def _draws_on_device(head: ActionHead) -> bool:
    """Whether a head's actions on a device are those of its `sample`: not where a subclass replaced that alone."""
    first = {name: next(c for c in type(head).__mro__ if name in vars(c)) for name in ("sample", "sample_torch")}
    return issubclass(first["sample_torch"], first["sample"])


def _why_not_learned(settings: RunSettings, parts: Assembly, env: BatchedEnvironment) -> str | None:
    trainer, params = parts.trainer, cast(OffPolicyParams, settings.params)
    for name, policy in parts.policies.items():
        if policy.head.noise is None or not _draws_on_device(policy.head):
            return f"actions of {name!r} are drawn on the host"
    if trainer.needs_states:
        return "critics see the environment's state"
    if isinstance(trainer, OnPolicyTrainer):
        if not all(type(own) is PPO for own in trainer.algorithms.values()):
            return "its algorithm is a user's own"
        for name, own in trainer.algorithms.items():
            num_lanes = env.num_envs * env.groups[name].num_agents
            if own.policy.has_memory and num_lanes < own.params.num_minibatches:
                few = f"the {num_lanes} lanes of {name!r} are fewer than params.num_minibatches"
                return f"{few}, and minibatches for a memory are whole lanes there"
        return None
    if not isinstance(trainer, OffPolicyTrainer):
        return "its algorithm is a user's own"
    if params.priority_exponent or params.hindsight_ratio or params.num_step_returns > 1 or params.random_shift:
        return "its replay is prioritised, of hindsight, of several steps or shifted"
    return None


def _on_policy(
    settings: RunSettings, env: BatchedEnvironment, assembly: Assembly, trainer: OnPolicyTrainer
) -> RunParts:
    algorithms: Mapping[str, Any] = trainer.algorithms
    make_update = partial(fastest_device_update, tf32=settings.tf32)
    updates = {name: own.device_update(make_update) for name, own in algorithms.items()}
    collector = ResidentCollector(env, updates, assembly.rollout_steps, *_seeds(settings))
    encoders = {name: policy.encoder for name, policy in assembly.policies.items()}
    learners = {
        name: (RecurrentLearner if own.policy.has_memory else ResidentLearner)(
            own, updates[name], collector.generator, None if trainer.central is None else encoders
        )
        for name, own in algorithms.items()
    }
    return _parts(env, assembly, collector, partial(OnPolicyPace, learners, assembly.rollout_steps), learners)


def _from_replay(
    settings: RunSettings, env: BatchedEnvironment, assembly: Assembly, trainer: OffPolicyTrainer
) -> RunParts:
    params: Any = settings.params
    actors = {name: ReplayActor(policy, lambda: trainer.is_warming_up) for name, policy in assembly.policies.items()}
    collector = ResidentCollector(env, actors, assembly.rollout_steps, *_seeds(settings))
    replay = ResidentReplay(params.buffer_size, env.num_envs, collector.generator)
    learner = ReplayLearner(trainer.algorithm, replay, collector.generator)
    trainer.learn_by(replay, learner.take_steps)
    return _parts(env, assembly, collector, partial(ReplayPace, learner, list(actors.values())))


def _seeds(settings: RunSettings) -> tuple[int, int]:
    return stream_seed(settings.seed, Stream.ENVIRONMENT), stream_seed(settings.seed, Stream.ACTING)


def _parts(
    env: BatchedEnvironment,
    assembly: Assembly,
    collector: ResidentCollector,
    make_pace: Callable[..., ResidentPace],
    learners: Mapping[str, ResidentLearner] | None = None,
) -> ResidentParts:
    return ResidentParts(
        env=env,
        policies=assembly.policies,
        acting=assembly.policies,
        trainer=assembly.trainer,
        collector=collector,
        signals=RewardSignals({}, None),
        block_steps=assembly.rollout_steps * env.num_envs,
        make_pace=make_pace,
        resident_learners=learners or {},
    )


@dataclass(frozen=True, slots=True)
class ResidentParts(RunParts):
    """The parts of a device-resident run."""

    make_pace: Callable[..., ResidentPace] = OnPolicyPace
    resident_learners: Mapping[str, ResidentLearner] = field(default_factory=dict)

    def pace(self, settings: RunSettings, statistics: Statistics, clock: PhaseClock, save: Callable[[], None]) -> Pace:
        del save
        return self.make_pace(self.collector, self.trainer, statistics, clock, settings.trainer.summary_freq)

    @property
    def notes(self) -> list[str]:
        return [f"environments, rollouts and learning stay on {self.env.device}"]
