"""`TrainerArgs` and `TrajectoryTrainer`: RelayRL's trainer verbs over a `PolicyTrainer`, for programs that own their loop.

    receive_trajectory ─▶ an epoch of trajectories ─▶ train_model ─▶ log_epoch, save, acquire_model

An epoch is `traj_per_epoch` trajectories of every agent (one, where the params have no such number). On-policy algorithms learn
from it once; off-policy ones put it into replay and take the gradient steps that its environment steps allow.

The same object is an ML-Agents trainer (`training.queued`): queues take trajectories and rollouts, and `advance()` does what
`train_model`, `log_epoch` and `save` do, when it is due. `receive_trajectory` may be called from any thread, also while another
one learns; everything else excludes each other.

Not here: learning (`PolicyTrainer`), building what learns (`construction`), what waits (`update_buffer`), several agents and
the constructors by name (`relayrl_trainer`).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.critics.critic_sight import StateOffer
from relayrl.algorithms.on_policy_params import AlgorithmParams
from relayrl.algorithms.registry import AlgorithmEntry, algorithms
from relayrl.compiled.loader import warn_if_missing
from relayrl.data.columns import Trajectory
from relayrl.data.stacking import unaligned
from relayrl.data.trees import Space
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import CheckpointError, ConfigError, UnknownNameError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.live_policy import LivePolicy
from relayrl.models.compute_device import compute_device
from relayrl.models.exports.export import export_policy, metadata_of
from relayrl.models.exports.exported import ExportFormat
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import Policy
from relayrl.training.facade.received_trajectories import (
    TrajectorySource,
    adopted,
    checked,
    read_trajectories,
    with_known_state,
)
from relayrl.training.files.file_names import file_name_part
from relayrl.training.files.model_module import ModelModule
from relayrl.training.files.trainer_saves import SUFFIX, read_save, write_save
from relayrl.training.queued.behavior_trainer import PolicySnapshot
from relayrl.training.queued.rl_trainer import (
    ENVIRONMENT_REWARD,
    ModelSaver,
    RLTrainer,
    Rollouts,
    lane_name,
    snapshot_of,
)
from relayrl.training.queued.update_buffer import DEFAULT_MAX_HELD_STEPS, Incomplete, UpdateBuffer
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.statistics.statistics_writers import ProgressCsv
from relayrl.training.trainer_settings import TrainerSettings
from relayrl.training.trainers.construction import GroupPlan, Learner, LearnerPlan, build_learner
from relayrl.training.trainers.given_networks import Kernel, PairKernels, kernels_for_one_policy
from relayrl.training.trainers.policy_groups import Groups, PolicyGroup
from relayrl.training.trainers.policy_trainer import PolicyTrainer

logger = logging.getLogger(__name__)
SINGLE_AGENT = "agent"
"""Group and agent of the algorithms for one agent, whatever their trajectories call it."""
Experience: TypeAlias = "Trajectory | Rollouts"
DEFAULT_MAX_STEPS = 500_000


@dataclass(frozen=True, slots=True)
class TrainerArgs:
    """Where things lie and what shapes they have; the same for every algorithm.

    `obs_dim` and `act_dim` are enough for flat float32 observations; `observation_space` and `action_space` say anything else.
    By default an algorithm that learns from its own rollouts (REINFORCE, PPO) chooses among `act_dim` actions, and one that
    learns from replay (DDPG, TD3, SAC) acts in `Box(-1, 1, (act_dim,))`.
    """

    env_dir: Path | str
    """The environment's directory; exported policies give its name as their environment."""
    save_model_path: Path | str
    """The directory of `save`, `load`, exported policies and `progress.csv`; created when first written to."""
    obs_dim: int | None = None
    act_dim: int | None = None
    buffer_size: int | None = None
    """Transitions kept: the replay's size in place of the params' one, or what an epoch of an on-policy algorithm may hold."""
    observation_space: Space | None = None
    action_space: Space | None = None
    state_space: Space | None = None
    """The global state that trajectories bring; central critics see it as `network.critic_input` says."""
    masks_actions: bool = False
    """Whether trajectories bring action masks; an exported model then asks for one."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    seed: int = 0
    max_steps: int = DEFAULT_MAX_STEPS
    """Environment steps after which a linear learning rate reaches zero, and `should_still_train` is False."""
    trainer_settings: TrainerSettings | None = None
    """The schedule of `advance()`: when it writes statistics and checkpoints; its `max_steps` stands for the one above."""
    max_held_steps: int = DEFAULT_MAX_HELD_STEPS
    """Steps that an environment of several agents may hold while it waits for one of them; then it goes on without it."""
    max_held_s: float | None = None
    """Seconds without a trajectory after which an environment no longer waits for agents; None: forever."""
    device: str = "cpu"
    """Where networks learn: `cpu`, `cuda` or `cuda:N`. Files that it writes are of no device."""

    def __post_init__(self) -> None:
        for name in ("obs_dim", "act_dim", "buffer_size", "max_steps", "max_held_steps"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"{name} is {number}; it must be at least 1")
        if self.trainer_settings is not None:
            if self.max_steps not in (DEFAULT_MAX_STEPS, self.trainer_settings.max_steps):
                raise ConfigError("max_steps is given twice; leave it to trainer_settings")
            object.__setattr__(self, "max_steps", self.trainer_settings.max_steps)

    @property
    def schedule(self) -> TrainerSettings:
        """`trainer_settings`, the defaults where there are none."""
        return self.trainer_settings or TrainerSettings(max_steps=self.max_steps)

    @property
    def given_horizon(self) -> int:
        """The `time_horizon` that `trainer_settings` were given; 0 where they were given none."""
        settings = self.trainer_settings
        return settings.time_horizon if settings is not None and "time_horizon" in settings.model_fields_set else 0

    def observations(self) -> Space:
        """What agents see."""
        if self.observation_space is not None:
            return self.observation_space
        if self.obs_dim is None:
            raise ConfigError("TrainerArgs needs obs_dim or observation_space")
        return spaces.Box(-np.inf, np.inf, (self.obs_dim,), np.float32)

    def actions(self, params: AlgorithmParams) -> Space:
        """What agents do, under an algorithm with `params`."""
        if self.action_space is not None:
            return self.action_space
        if self.act_dim is None:
            raise ConfigError("TrainerArgs needs act_dim or action_space")
        if params.replay_size is None:
            return spaces.Discrete(self.act_dim)
        return spaces.Box(-1.0, 1.0, (self.act_dim,), np.float32)

    @property
    def env_name(self) -> str:
        """What exported models call the environment."""
        return Path(self.env_dir).name or str(self.env_dir)

    @property
    def directory(self) -> Path:
        """`save_model_path` as a path."""
        return Path(self.save_model_path)


def _fits(params: AlgorithmParams, entry: AlgorithmEntry) -> bool:
    """Whether params are an algorithm's own, or a user's subclass; those of MADDPG are also those of DDPG, and more."""
    others = {other.params for other in algorithms().values()} - {entry.params}
    return isinstance(params, entry.params) and type(params) not in others


class TrajectoryTrainer(RLTrainer[Experience, PolicyTrainer]):
    """Learns one policy from trajectories that a program hands in."""

    update_buffer: UpdateBuffer

    def __init__(
        self, entry: AlgorithmEntry, args: TrainerArgs, params: AlgorithmParams | None, kernel: Kernel | None
    ) -> None:
        if params is not None and not _fits(params, entry):
            raise ConfigError(f"{entry.name} takes {entry.params.__name__}, not {type(params).__name__}")
        chosen: Any = entry.params() if params is None else params
        super().__init__(args.env_name, args.schedule, Statistics([]))
        warn_if_missing()
        self.args = args
        self.params: AlgorithmParams = chosen if args.buffer_size is None else chosen.with_replay_size(args.buffer_size)
        self._entry, self._kernel = entry, kernel
        self._groups = self._first_groups()
        self._built: Learner | None = None
        self.update_buffer = UpdateBuffer(args.max_held_steps, args.max_held_s)
        self._rollouts: list[Rollouts] = []
        self._rollout_steps = args.given_horizon
        self._learning, self._receiving = threading.RLock(), threading.Lock()
        self._met: set[str] = set()  # groups that were learned from
        self._num_epochs = self._num_unaligned = 0
        self._running: dict[str, tuple[float, int]] = {}  # return and length so far, by environment and agent

    def _first_groups(self) -> dict[str, PolicyGroup]:
        seen, done = self.args.observations(), self.args.actions(self.params)
        return {SINGLE_AGENT: PolicyGroup(SINGLE_AGENT, seen, done, self.args.masks_actions, (SINGLE_AGENT,))}

    def bound_policy_lag(self, max_policy_lag: int) -> None:
        """Leave out steps whose policy is more than so many versions old, unless the params say otherwise or correct for it.

        Agents set it: their trajectories know versions.
        """
        with self._learning:
            self.params = self.params.with_policy_lag_bound(max_policy_lag)
            if self._built is not None:
                self._built.trainer.bound_policy_lag(max_policy_lag)

    @property
    def algo(self) -> str:
        """The algorithm's name in the registry."""
        return self._entry.name

    @property
    def groups(self) -> Groups:
        """Who shares a policy."""
        return self._groups

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policy of every group, as it is now."""
        return self._learned().policies

    @property
    def policy_version(self) -> int:
        """How often policies were changed."""
        return self.learner.policy_version

    @property
    def num_env_steps(self) -> int:
        """Environment steps learned from."""
        return self.learner.num_env_steps

    @property
    def get_step(self) -> int:
        """Environment steps learned from."""
        return 0 if self._built is None else self._built.trainer.num_env_steps

    @property
    def num_pending(self) -> int:
        """Trajectories that wait for `train_model`, those that are held for other agents included."""
        return len(self.update_buffer)

    @property
    def incomplete(self) -> list[Incomplete]:
        """Episodes of environments that are held, and the agents that they wait for."""
        return self.update_buffer.incomplete()

    @property
    def is_ready(self) -> bool:
        """Whether an epoch is complete; learning from replay also waits for the first trajectory of every policy."""
        return self._is_ready_update()

    def _is_ready_update(self) -> bool:
        if self._rollouts:
            return True
        if not self._groups or self.update_buffer.num_ready < max(1, self.params.trajectories_per_epoch):
            return False
        return self.params.replay_size is None or self._met | self.update_buffer.groups_ready == set(self._groups)

    @property
    def collected_rewards(self) -> Mapping[str, Mapping[str, float]]:
        with self._receiving:
            return {ENVIRONMENT_REWARD: {name: so_far for name, (so_far, _) in self._running.items()}}

    @property
    def model_saver(self) -> ModelSaver:
        return CheckpointSaver(self)

    def receive_trajectory(self, trajectory: TrajectorySource) -> bool:
        """Take a trajectory, or all that a file, directory or URL holds; returns whether `train_model` has enough.

        One that is already waiting is not taken again. All of a source are taken, or, when it raises, none of them: one
        whose columns do not fit its spaces, whose numbers are not finite, or whose action its mask forbids.
        """
        self._require_whole_updates()
        received = [with_known_state(t, self.args.state_space) for t in read_trajectories(trajectory)]
        for each in received:
            self._adopted(each)  # other spaces are a better reason than columns that do not fit
        taken = [self._adopted(t) for t in checked(received)]
        with self._receiving:
            if self.is_training:
                self._require_room(taken)
                taken = self.update_buffer.add(taken)
            self._collect_rewards(taken)
        return self.is_ready

    def _adopted(self, trajectory: Trajectory) -> Trajectory:
        return adopted(trajectory, self._groups[SINGLE_AGENT], SINGLE_AGENT)

    def _require_room(self, new: Sequence[Trajectory]) -> None:
        limit = self.args.buffer_size if self.params.replay_size is None else self.params.replay_size
        if limit is not None and (num_steps := self.update_buffer.num_steps_with(new)) > limit:
            raise ConfigError(f"{num_steps} steps would wait, more than buffer_size {limit}; call train_model() first")

    def _collect_rewards(self, trajectories: Sequence[Trajectory]) -> None:
        """Add up the returns of episodes over their fragments; of those that ended, they go into the statistics."""
        returns, lengths = [], []
        for t in trajectories:
            name = lane_name(t.env_id, t.agent_id)
            before = (0.0, 0) if t.first_step == 0 else self._running.pop(name, None)
            if before is None:  # its beginning was never seen
                continue
            so_far, length = before[0] + t.episode_return, before[1] + len(t)
            if not (t.terminated or t.truncated):
                self._running[name] = (so_far, length)
                continue
            self._running.pop(name, None)
            if not t.failed:
                returns.append(so_far)
                lengths.append(length)
        self.reward_buffer.extend(returns)
        self.stats_reporter.add_episodes(returns, lengths)

    def _process_trajectory(self, trajectory: Experience) -> None:
        """Take what a queue brought: a trajectory, or a rollout for every group."""
        if not isinstance(trajectory, Mapping):
            self.receive_trajectory(trajectory)
            return
        self._require_own_lanes(trajectory)
        with self._receiving:
            self._collect_rewards([t for rollout in trajectory.values() for t in rollout.trajectories()])
        if self.is_training:
            self._rollouts.append(trajectory)

    def _require_own_lanes(self, rollouts: Rollouts) -> None:
        given = {name: tuple(rollout.header.agent_ids) for name, rollout in rollouts.items()}
        own = {name: group.agent_ids for name, group in self._groups.items()}
        if given != own:
            raise ConfigError(
                f"the rollouts are of {given}, the trainer has {own}; register the same agents in this order"
            )

    def declare_absent(self, env_id: UUID, episode: int | None, agent_id: str) -> None:
        """Do not wait for an agent in an episode of an environment or, with None, in any episode of it."""
        self.update_buffer.declare_absent(env_id, episode, agent_id)

    def expect_only(self, env_id: UUID, episode: int | None, agent_ids: Collection[str]) -> None:
        """Wait for nobody but these agents in an episode of an environment or, with None, in any episode of it."""
        self.update_buffer.expect_only(env_id, episode, agent_ids)

    def end_episode(self) -> None:
        """All environments were reset from outside: nobody waits for the rest of running episodes.

        What is held for agents that have not delivered becomes ready as it is, and is counted as incomplete.
        """
        self.update_buffer.release()
        with self._receiving:
            self._running.clear()

    def train_model(self) -> bool:
        """Learn from a complete epoch; False where there is none, or where replay is still being filled."""
        with self._learning:
            self._require_whole_updates()
            return self.is_training and self.is_ready and self._update_wholly()

    def advance(self) -> None:
        with self._learning:
            self._require_whole_updates()
            super().advance()

    def _update_policy(self) -> bool:
        trainer = self.learner
        epoch, rollouts, self._rollouts = self.update_buffer.take(), self._rollouts, []
        version, started = trainer.policy_version, time.perf_counter()
        for block in rollouts:
            first = next(iter(block.values()))
            self._rollout_steps = max(self._rollout_steps, first.num_steps)
            trainer.hold_envs(len(first.header.env_ids))
            trainer.expect_rollouts(self._rollout_steps)
            trainer.receive(block)
        if epoch:
            self._warn_of_unaligned(epoch)
            trainer.receive_trajectories(epoch, self._groups, self.update_buffer.num_covered(epoch))
        self._met |= {trajectory.group for trajectory in epoch} | {name for block in rollouts for name in block}
        self.stats_reporter.add(trainer.advance())
        self.stats_reporter.add({"time/update_seconds": time.perf_counter() - started})
        self._num_epochs += 1
        return trainer.policy_version != version

    def _warn_of_unaligned(self, epoch: Sequence[Trajectory]) -> None:
        """Agents that act at different times can only be put side by side where trajectories know the environment's steps."""
        sees_all = self.learner.needs_aligned_agents or self.params.replay_size is not None
        if (
            sees_all
            and sum(len(group.agent_ids) for group in self._groups.values()) > 1
            and (found := unaligned(epoch))
        ):
            self._num_unaligned += len(found)
            logger.warning(
                "in %d of the epoch's episodes agents acted unequally often, and trajectories do not know the environment's "
                "steps: they are put side by side by their own steps; record them with an agent, or give step and end_step",
                len(found),
            )

    def log_epoch(self) -> dict[str, float]:
        """Means since the last call, also written to the log and to `progress.csv`."""
        buffer = self.update_buffer
        counts = {
            "number": self._num_epochs,
            "num_pending": len(buffer),
            "num_held": buffer.num_held,
            "num_incomplete": buffer.num_incomplete,
            "num_stale_steps": self.learner.num_dropped_stale_steps,
            "num_unaligned": self._num_unaligned,
            "num_duplicates": buffer.num_duplicates,
        }
        with self._learning:
            steps = self.num_env_steps
            row = self.stats_reporter.summarize(
                steps, {f"epoch/{name}": float(count) for name, count in counts.items()}
            )
            row |= _losses(row)
            ProgressCsv(self.args.directory / "progress.csv").write(steps, row)
        logger.info("%s epoch %d: %s", self.algo, self._num_epochs, {name: f"{n:.4g}" for name, n in row.items()})
        return row

    def _write_summary(self) -> None:
        self.log_epoch()

    def reset_epoch(self) -> None:
        """Drop the trajectories that wait and the numbers of `log_epoch`; what was learned stays."""
        self.update_buffer.clear()
        self._rollouts = []
        self._num_unaligned = 0
        self.stats_reporter = Statistics([])

    def acquire_model(self, file_format: str = "onnx", group: str | None = None) -> ModelModule:
        """The policy as a model module in `"onnx"` or `"torchscript"`; with several policies, that of `group`."""
        name = self._policy_name(group)
        formats = {kind.value: kind for kind in ExportFormat}
        if file_format not in formats:
            raise UnknownNameError("model format", file_format, formats)
        with self._learning:
            self._require_whole_updates()
            return self._exported(name, formats[file_format])

    def acquire_models(self, file_format: str = "onnx") -> dict[str, ModelModule]:
        """The policies of all groups."""
        return {name: self.acquire_model(file_format, name) for name in self._groups}

    def actor(self, group: str | None = None) -> Actor:
        """Acts in this process, always with the newest parameters; with several policies, with that of `group`."""
        return live_actor(self.policies[self._policy_name(group)])

    def _policy_name(self, group: str | None) -> str:
        names = list(self.policies)
        if group is None and len(names) > 1:
            raise ConfigError(f"there are {len(names)} policies; name one of {names}, or use acquire_models()")
        name = names[0] if group is None else group
        if name not in names:
            raise UnknownNameError("policy group", name, names)
        return name

    def _exported(self, name: str, file_format: ExportFormat) -> ModelModule:
        group, policy = self._groups[name], self.policies[name]
        trainer = self.learner
        metadata = metadata_of(
            policy,
            env=self.args.env_name,
            algo=self.algo,
            group=name,
            version=trainer.policy_version,
            masked=group.masks_actions,
            is_warming_up=trainer.is_warming_up,
        )
        file_name = f"{file_name_part(name)}-v{self.policy_version}{file_format.suffix}"
        path = export_policy(policy, metadata, self.args.directory / "models" / file_name, file_format)
        return ModelModule(path, file_format, metadata, path.read_bytes())

    def live_policies(self) -> dict[str, LivePolicy]:
        """The policies as agents of this process take them, with how they explore now."""
        with self._learning:
            self._require_whole_updates()
            exploration = self.learner.exploration(self.policies)
            return {
                name: LivePolicy(policy, name, self.policy_version, exploration[name], self._groups[name].masks_actions)
                for name, policy in self.policies.items()
            }

    def group_of(self, agent_id: str) -> str:
        """The group whose policy an agent has."""
        del agent_id  # all are one
        return SINGLE_AGENT

    def create_policy(self, behavior_id: str, behavior_spec: AgentGroup) -> Policy:
        """The policy of the trainer; `ConfigError` where the behaviour has other spaces."""
        del behavior_id
        (group,) = self._groups.values()
        require_same_spaces(group, behavior_spec)
        return self.policies[group.name]

    def add_policy(self, behavior_id: str, policy: Policy) -> None:
        """Train `policy`, which `create_policy` gave."""
        if not any(policy is own for own in self.policies.values()):
            raise ConfigError(f"the policy for {behavior_id!r} is not this trainer's; use what create_policy() gives")

    def get_policy(self, behavior_id: str) -> Policy:
        return self.policies[self._policy_name(behavior_id if behavior_id in self._groups else None)]

    def create_optimizer(self) -> PolicyTrainer:
        return self._learned().trainer

    @property
    def learner(self) -> PolicyTrainer:
        """What learns, made when it is first needed."""
        return self._learned().trainer

    def _snapshot(self) -> PolicySnapshot:
        return snapshot_of(self.learner, self.policies)

    def save(self, name: str) -> Path:
        """Write policies, algorithm, replay and waiting trajectories to `name.ckpt` in `save_model_path`."""
        with self._learning:
            self._require_whole_updates()
            pending, waiting = self.update_buffer.state()
            state = {
                "algo": self.algo,
                "num_epochs": self._num_epochs,
                "in_replay": sorted(self._met),
                "waiting": waiting,
                "rollout_steps": self._rollout_steps,
                "trainer": self.learner.state_dict(),
            }
            return write_save(self.args.directory, name, state, self._groups, pending)

    def load(self, name: str | None = None) -> None:
        """Continue from what `save(name)` wrote, with its agents; this trainer's params, network and kernel are kept.

        Without a name, from the newest checkpoint that `advance` or `save_model` wrote. A trainer whose update was left by an
        exception learns again after it.
        """
        with self._learning:
            saved = read_save(self.args.directory, name or self._newest_checkpoint(), self.algo, self._groups)
            learner = self._fresh_learner(saved.groups)
            saved.restore(learner.trainer)
            self._built, self._groups = learner, saved.groups
            self._num_epochs, self._met = saved.num_epochs, saved.in_replay
            self._scheduled_step = learner.trainer.num_env_steps
            self.reset_epoch()
            self._expect_agents()
            self._rollout_steps = max(self._rollout_steps, saved.rollout_steps)
            if saved.waiting is None:
                self.update_buffer.add(saved.pending)
            else:
                self.update_buffer.restore(saved.pending, saved.waiting)
            self._update_left_by = None

    def _newest_checkpoint(self) -> str:
        found = CheckpointSaver(self).paths()
        if not found:
            raise CheckpointError(f"there is no checkpoint in {self.args.directory}; name what save() wrote")
        return found[-1].stem

    def _expect_agents(self) -> None:
        """Nobody else plays where a single agent learns."""

    def _learned(self) -> Learner:
        """What learns and its policies, made when they are first needed."""
        if not self._groups:
            raise ConfigError(f"{self.algo} has no agents yet; call register_agent() for each")
        if self._built is None:
            with self._learning:
                self._built = self._built or self._fresh_learner(self._groups)
        return self._built

    def _fresh_learner(self, groups: Groups) -> Learner:
        """The same args, params, groups and kernel give the same parameters."""
        args = self.args
        offer = None if args.state_space is None else StateOffer(args.state_space)
        # Trajectories come one environment at a time, so replay holds the steps of one environment after another.
        device = compute_device(args.device)
        plan = LearnerPlan(self._entry, self.params, args.seed, 1, args.max_steps, offer, device=device)
        networks = {name: kernels_for_one_policy(self._kernel, args.network) for name in groups}
        learner = build_learner(
            plan,
            [
                GroupPlan(
                    name,
                    group.observation_space,
                    group.action_space,
                    len(group.agent_ids),
                    args.network,
                    self.params,
                    networks[name],
                )
                for name, group in groups.items()
            ],
        )
        for own in networks.values():
            if isinstance(own, PairKernels):
                own.require_used(self.algo)
        return learner


class CheckpointSaver:
    """Checkpoints of a trainer in its `save_model_path`, the newest `keep_checkpoints`; and its policies as models."""

    def __init__(self, trainer: TrajectoryTrainer) -> None:
        self._trainer = trainer

    def paths(self) -> list[Path]:
        """Checkpoints from oldest to newest; what `save` wrote under other names is not among them."""
        files = self._trainer.args.directory.glob(f"step_*{SUFFIX}")
        return sorted(path for path in files if re.fullmatch(r"step_\d{12}", path.stem))

    def save_checkpoint(self, behavior_name: str, step: int) -> Path:
        """Write a checkpoint, and drop the oldest beyond the limit."""
        path = self._trainer.save(f"step_{step:012d}")
        for old in self.paths()[: -self._trainer.trainer_settings.keep_checkpoints]:
            old.unlink(missing_ok=True)
        return path

    def export(self, output_filepath: Path | str, behavior_name: str) -> Path:
        """Write a behaviour's policy to a `.onnx` or `.pt` file."""
        path = Path(output_filepath)
        formats = {kind.suffix: kind.value for kind in ExportFormat}
        if path.suffix not in formats:
            raise ConfigError(f"{path.name} must end in {' or '.join(formats)}")
        group = behavior_name if behavior_name in self._trainer.groups else None
        return self._trainer.acquire_model(formats[path.suffix], group).save(path)


def require_same_spaces(group: PolicyGroup, spec: AgentGroup) -> None:
    """`ConfigError` where a behaviour is not what the group is."""
    if (group.observation_space, group.action_space) != (spec.observation_space, spec.action_space):
        raise ConfigError(
            f"{spec.name!r} maps {spec.observation_space} to {spec.action_space}, the trainer "
            f"{group.observation_space} to {group.action_space}"
        )


def _losses(row: Mapping[str, float]) -> dict[str, float]:
    """`actor_loss` and `critic_loss`: the means over policies."""
    found = {}
    for name, metric in (("actor_loss", "policy/loss"), ("critic_loss", "value/loss")):
        losses = [number for key, number in row.items() if key == metric or key.endswith(f"/{metric}")]
        if losses:
            found[name] = sum(losses) / len(losses)
    return found
