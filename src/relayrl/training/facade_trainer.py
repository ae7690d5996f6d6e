"""`TrajectoryTrainer`: RelayRL's trainer verbs over the trainers of this package.

    receive_trajectory ─▶ an epoch of trajectories ─▶ train_model ─▶ log_epoch, save, acquire_model

An epoch is `traj_per_epoch` trajectories of every agent (one, where the params have no such number). On-policy algorithms learn
from it once; off-policy ones put it into replay and take the gradient steps that its environment steps allow.

Its job is to gather, check, stack and hand on. Making the parts is `facade_learner`, several agents are `facade_agents`, the
constructors by name are `facade`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.params import MADDPGParams, OffPolicyParams, OnPolicyParams
from relayrl.algorithms.registry import AlgorithmEntry
from relayrl.compiled.loader import warn_if_missing
from relayrl.config.settings import Settings
from relayrl.data.columns import LaneHeader, Rollout, Trajectory
from relayrl.data.stacking import joint_worlds, num_world_steps, stack_jointly, stack_trajectories
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.actor import Actor
from relayrl.models.export import export_policy
from relayrl.models.exported import ExportFormat, PolicyMetadata
from relayrl.models.policy import Policy
from relayrl.training.construction import Learner, OnPolicyLearner
from relayrl.training.facade_args import PolicyGroup, TrainerArgs
from relayrl.training.facade_checks import checked
from relayrl.training.facade_kernels import Kernel
from relayrl.training.facade_learner import make_learner
from relayrl.training.facade_model import ModelModule
from relayrl.training.facade_saves import read_save, write_save
from relayrl.training.facade_sources import TrajectorySource, read_trajectories
from relayrl.training.file_names import file_name_part
from relayrl.training.statistics import Statistics
from relayrl.training.statistics_writers import ProgressCsv

logger = logging.getLogger(__name__)
SINGLE_AGENT = "agent"
"""Group and agent of the algorithms for one agent, whatever their trajectories call it."""
RECOMPUTED = ("logp", "value", "memory")
"""Columns that learning can do without; they are left out where not all trajectories of an epoch have them."""


class TrajectoryTrainer:
    """Learns one policy from trajectories that a program hands in."""

    def __init__(self, entry: AlgorithmEntry, args: TrainerArgs, params: Settings, kernel: Kernel | None) -> None:
        warn_if_missing()
        self.args, self.params = args, _with_buffer_size(params, args)
        self._entry, self._kernel = entry, kernel
        self._groups = self._first_groups()
        self._learner: Learner | None = None
        self._pending: dict[UUID, Trajectory] = {}
        self._in_replay: set[str] = set()  # groups that replay has transitions of
        self._num_duplicates = 0
        self._num_epochs = 0
        self._statistics = Statistics([])

    def _first_groups(self) -> dict[str, PolicyGroup]:
        return {SINGLE_AGENT: self._new_group(SINGLE_AGENT).with_agent(SINGLE_AGENT)}

    def _new_group(self, name: str) -> PolicyGroup:
        return PolicyGroup(name, self.args.observations(), self.args.actions(self.params), self.args.masks_actions)

    @property
    def algo(self) -> str:
        """The algorithm's name in the registry."""
        return self._entry.name

    @property
    def groups(self) -> Mapping[str, PolicyGroup]:
        """Who shares a policy."""
        return self._groups

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policy of every group, as it is now."""
        return self._learned().policies

    @property
    def policy_version(self) -> int:
        """How often policies were changed."""
        return self._learned().trainer.policy_version

    @property
    def num_env_steps(self) -> int:
        """Environment steps learned from."""
        return self._learned().trainer.num_env_steps

    @property
    def num_pending(self) -> int:
        """Trajectories that wait for `train_model`."""
        return len(self._pending)

    @property
    def is_ready(self) -> bool:
        """Whether an epoch is complete; learning from replay also waits for the first trajectory of every policy."""
        num_agents = sum(len(group.agent_ids) for group in self._groups.values())
        if not self._pending or len(self._pending) < _traj_per_epoch(self.params) * num_agents:
            return False
        known = self._in_replay | {trajectory.group for trajectory in self._pending.values()}
        return isinstance(self.params, OnPolicyParams) or known == set(self._groups)

    def receive_trajectory(self, trajectory: TrajectorySource) -> bool:
        """Take a trajectory, or all that a file, directory or URL holds; returns whether `train_model` has enough.

        One that is already waiting is not taken again. All of a source are taken, or, when it raises, none of them: one
        whose columns do not fit its spaces, whose numbers are not finite, or whose action its mask forbids.
        """
        received = [self.args.with_known_state(t) for t in read_trajectories(trajectory)]
        for each in received:
            self._adopted(each)  # other spaces are a better reason than columns that do not fit
        taken = {t.trajectory_id: t for t in map(self._adopted, checked(received))}
        new = {key: t for key, t in taken.items() if key not in self._pending}
        self._require_room(sum(len(t) for t in new.values()))
        self._num_duplicates += len(taken) - len(new)
        self._pending |= new
        whole = [t for t in new.values() if t.is_whole]
        self._statistics.add_episodes([t.episode_return for t in whole], [len(t) for t in whole])
        return self.is_ready

    def _adopted(self, trajectory: Trajectory) -> Trajectory:
        return self._groups[SINGLE_AGENT].adopt(trajectory, SINGLE_AGENT)

    def _require_room(self, num_new: int) -> None:
        limit = self.params.buffer_size if isinstance(self.params, OffPolicyParams) else self.args.buffer_size
        num_steps = num_new + sum(len(t) for t in self._pending.values())
        if limit is not None and num_steps > limit:
            raise ConfigError(f"{num_steps} steps would wait, more than buffer_size {limit}; call train_model() first")

    def train_model(self) -> bool:
        """Learn from a complete epoch; False where there is none, or where replay is still being filled."""
        if not self.is_ready:
            return False
        learner = self._learned()
        epoch, self._pending = list(self._pending.values()), {}
        version = learner.trainer.policy_version
        if isinstance(learner, OnPolicyLearner):
            num_env_steps = learner.trainer.num_env_steps + num_world_steps(epoch)
            learner.trainer.receive(self._stacked(epoch))
            learner.trainer.num_env_steps = num_env_steps  # without the rows that fill up shorter lanes
        else:
            for rollouts in self._worlds(epoch):
                learner.trainer.receive(rollouts)
            self._in_replay |= {trajectory.group for trajectory in epoch}
        self._statistics.add(learner.trainer.advance())
        self._num_epochs += 1
        return learner.trainer.policy_version != version

    def _stacked(self, epoch: list[Trajectory]) -> dict[str, Rollout]:
        """The epoch as one rollout per group; time-aligned only where critics see all agents."""
        alike = _with_same_columns(epoch)
        if self._entry.is_central:
            return stack_jointly(alike, self._headers(), self._mask_widths())
        lanes: dict[str, list[Trajectory]] = {name: [] for name in self._groups}
        for trajectory in alike:
            # A lane per trajectory: who acted does not matter to a critic that sees one agent.
            lanes[trajectory.group].append(replace(trajectory, agent_id=trajectory.group))
        return {
            name: stack_trajectories(own) if own else self._groups[name].nothing_played() for name, own in lanes.items()
        }

    def _worlds(self, epoch: list[Trajectory]) -> Iterator[dict[str, Rollout]]:
        """The epoch environment by environment, as replay keeps it."""
        for part in joint_worlds(_with_same_columns(epoch)):
            yield stack_jointly(part, self._headers(), self._mask_widths())

    def _headers(self) -> dict[str, LaneHeader]:
        return {name: group.header for name, group in self._groups.items()}

    def _mask_widths(self) -> dict[str, int]:
        return {name: group.mask_width for name, group in self._groups.items() if group.mask_width is not None}

    def log_epoch(self) -> dict[str, float]:
        """Means since the last call, also written to the log and to `progress.csv`."""
        extra = {"epoch/number": float(self._num_epochs), "epoch/num_pending": float(len(self._pending))}
        extra["epoch/num_duplicates"] = float(self._num_duplicates)
        row = self._statistics.summarize(self.num_env_steps, extra)
        row |= _losses(row)
        ProgressCsv(self.args.directory / "progress.csv").write(self.num_env_steps, row)
        logger.info("%s epoch %d: %s", self.algo, self._num_epochs, {name: f"{n:.4g}" for name, n in row.items()})
        return row

    def reset_epoch(self) -> None:
        """Drop the trajectories that wait and the numbers of `log_epoch`; what was learned stays."""
        self._pending = {}
        self._num_duplicates = 0
        self._statistics = Statistics([])

    def acquire_model(self, file_format: str = "onnx", group: str | None = None) -> ModelModule:
        """The policy as a model module in `"onnx"` or `"torchscript"`; with several policies, that of `group`."""
        name = self._policy_name(group)
        formats = {kind.value: kind for kind in ExportFormat}
        if file_format not in formats:
            raise UnknownNameError("model format", file_format, formats)
        return self._exported(name, formats[file_format])

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

    def acquire_models(self, file_format: str = "onnx") -> dict[str, ModelModule]:
        """The policies of all groups."""
        return {name: self.acquire_model(file_format, name) for name in self._groups}

    def _exported(self, name: str, file_format: ExportFormat) -> ModelModule:
        group, policy = self._groups[name], self.policies[name]
        metadata = PolicyMetadata(
            env=self.args.env_name,
            algo=self.algo,
            group=name,
            policy_version=self.policy_version,
            masked=group.masks_actions,
            observation_space=group.observation_space,
            action_space=group.action_space,
            head=policy.head.kind,
            noise_scale=policy.head.noise_scale,
            is_warming_up=self._learned().trainer.is_warming_up,
        )
        file_name = f"{file_name_part(name)}-v{self.policy_version}{file_format.suffix}"
        path = export_policy(policy, metadata, self.args.directory / "models" / file_name, file_format)
        return ModelModule(path, file_format, metadata, path.read_bytes())

    def save(self, name: str) -> Path:
        """Write policies, algorithm, replay and waiting trajectories to `name.ckpt` in `save_model_path`."""
        state = {
            "algo": self.algo,
            "num_epochs": self._num_epochs,
            "in_replay": sorted(self._in_replay),
            "trainer": self._learned().trainer.state_dict(),
        }
        return write_save(self.args.directory, name, state, self._groups, list(self._pending.values()))

    def load(self, name: str) -> None:
        """Continue from what `save(name)` wrote, with its agents; this trainer's params, network and kernel are kept."""
        saved = read_save(self.args.directory, name, self.algo, self._groups)
        learner = make_learner(self._entry, self.args, self.params, saved.groups, self._kernel)
        saved.restore(learner)
        self._learner, self._groups = learner, saved.groups
        self._num_epochs, self._in_replay = saved.num_epochs, saved.in_replay
        self.reset_epoch()
        self._pending = {trajectory.trajectory_id: trajectory for trajectory in saved.pending}

    def _learned(self) -> Learner:
        """What learns, made when it is first needed."""
        if not self._groups:
            raise ConfigError(f"{self.algo} has no agents yet; call register_agent() for each")
        if self._learner is None:
            self._learner = make_learner(self._entry, self.args, self.params, self._groups, self._kernel)
        return self._learner


def _traj_per_epoch(params: Settings) -> int:
    return params.traj_per_epoch if isinstance(params, OnPolicyParams | MADDPGParams) else 1


def _with_buffer_size(params: Settings, args: TrainerArgs) -> Settings:
    if args.buffer_size is None or not isinstance(params, OffPolicyParams):
        return params
    return params.model_copy(update={"buffer_size": args.buffer_size})


def _with_same_columns(epoch: list[Trajectory]) -> list[Trajectory]:
    missing: dict[str, Any] = {name: None for name in RECOMPUTED if any(getattr(t, name) is None for t in epoch)}
    return [replace(trajectory, **missing) for trajectory in epoch] if missing else epoch


def _losses(row: Mapping[str, float]) -> dict[str, float]:
    """`actor_loss` and `critic_loss`: the means over policies."""
    found = {}
    for name, metric in (("actor_loss", "policy/loss"), ("critic_loss", "value/loss")):
        losses = [number for key, number in row.items() if key == metric or key.endswith(f"/{metric}")]
        if losses:
            found[name] = sum(losses) / len(losses)
    return found
