"""`TrajectoryTrainer` and, for several agents, `MultiAgentTrainer`: RelayRL's trainer verbs over a `PolicyTrainer`.

    receive_trajectory ─▶ an epoch of trajectories ─▶ train_model ─▶ log_epoch, save, acquire_model

An epoch is `traj_per_epoch` trajectories of every agent (one, where the params have no such number). On-policy algorithms learn
from it once; off-policy ones put it into replay and take the gradient steps that its environment steps allow.

An agent of a `MultiAgentTrainer` has a policy of its own, or shares that of a group. Critics of `I…` algorithms see one agent,
those of `MA…` ones all of them, from trajectories aligned by environment, episode and step. When an agent joins a team that
has been learning, the others keep what they have learned (`joining_agents`).

Not here: learning (`PolicyTrainer`), building what learns (`construction`), and the constructors by name (`relayrl_trainer`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.critics.critic_sight import StateOffer
from relayrl.algorithms.params import AlgorithmParams
from relayrl.algorithms.registry import AlgorithmEntry
from relayrl.compiled.loader import warn_if_missing
from relayrl.data.columns import Trajectory
from relayrl.data.trees import Space
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.acting.actor import Actor
from relayrl.models.exports.export import export_policy, metadata_of
from relayrl.models.exports.exported import ExportFormat
from relayrl.models.policy import Policy
from relayrl.training.facade.received_trajectories import (
    TrajectorySource,
    adopted,
    checked,
    read_trajectories,
    with_known_state,
)
from relayrl.training.facade.trainer_args import TrainerArgs
from relayrl.training.files.file_names import file_name_part
from relayrl.training.files.model_module import ModelModule
from relayrl.training.files.trainer_saves import read_save, write_save
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.statistics.statistics_writers import ProgressCsv
from relayrl.training.trainers.construction import GroupPlan, Learner, LearnerPlan, build_learner
from relayrl.training.trainers.given_networks import Kernel, PairKernels, kernels_for_one_policy
from relayrl.training.trainers.joining_agents import carry_over
from relayrl.training.trainers.policy_groups import Groups, PolicyGroup

logger = logging.getLogger(__name__)
SINGLE_AGENT = "agent"
"""Group and agent of the algorithms for one agent, whatever their trajectories call it."""


class TrajectoryTrainer:
    """Learns one policy from trajectories that a program hands in."""

    def __init__(
        self, entry: AlgorithmEntry, args: TrainerArgs, params: AlgorithmParams, kernel: Kernel | None
    ) -> None:
        if not isinstance(params, entry.params):
            raise ConfigError(f"{entry.name} takes {entry.params.__name__}, not {type(params).__name__}")
        warn_if_missing()
        self.args = args
        self.params = params if args.buffer_size is None else params.with_replay_size(args.buffer_size)
        self._entry, self._kernel = entry, kernel
        self._groups = self._first_groups()
        self._learner: Learner | None = None
        self._pending: dict[UUID, Trajectory] = {}
        self._met: set[str] = set()  # groups that were learned from
        self._num_duplicates = 0
        self._num_epochs = 0
        self._statistics = Statistics([])

    def _first_groups(self) -> dict[str, PolicyGroup]:
        seen, done = self.args.observations(), self.args.actions(self.params)
        return {SINGLE_AGENT: PolicyGroup(SINGLE_AGENT, seen, done, self.args.masks_actions, (SINGLE_AGENT,))}

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
        if not self._pending or len(self._pending) < self.params.trajectories_per_epoch * num_agents:
            return False
        known = self._met | {trajectory.group for trajectory in self._pending.values()}
        return self.params.replay_size is None or known == set(self._groups)

    def receive_trajectory(self, trajectory: TrajectorySource) -> bool:
        """Take a trajectory, or all that a file, directory or URL holds; returns whether `train_model` has enough.

        One that is already waiting is not taken again. All of a source are taken, or, when it raises, none of them: one
        whose columns do not fit its spaces, whose numbers are not finite, or whose action its mask forbids.
        """
        received = [with_known_state(t, self.args.state_space) for t in read_trajectories(trajectory)]
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
        return adopted(trajectory, self._groups[SINGLE_AGENT], SINGLE_AGENT)

    def _require_room(self, num_new: int) -> None:
        limit = self.args.buffer_size if self.params.replay_size is None else self.params.replay_size
        num_steps = num_new + sum(len(t) for t in self._pending.values())
        if limit is not None and num_steps > limit:
            raise ConfigError(f"{num_steps} steps would wait, more than buffer_size {limit}; call train_model() first")

    def train_model(self) -> bool:
        """Learn from a complete epoch; False where there is none, or where replay is still being filled."""
        if not self.is_ready:
            return False
        trainer = self._learned().trainer
        epoch, self._pending = list(self._pending.values()), {}
        version = trainer.policy_version
        trainer.receive_trajectories(epoch, self._groups)
        self._met |= {trajectory.group for trajectory in epoch}
        self._statistics.add(trainer.advance())
        self._num_epochs += 1
        return trainer.policy_version != version

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
        trainer = self._learned().trainer
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

    def save(self, name: str) -> Path:
        """Write policies, algorithm, replay and waiting trajectories to `name.ckpt` in `save_model_path`."""
        state = {
            "algo": self.algo,
            "num_epochs": self._num_epochs,
            "in_replay": sorted(self._met),
            "trainer": self._learned().trainer.state_dict(),
        }
        return write_save(self.args.directory, name, state, self._groups, list(self._pending.values()))

    def load(self, name: str) -> None:
        """Continue from what `save(name)` wrote, with its agents; this trainer's params, network and kernel are kept."""
        saved = read_save(self.args.directory, name, self.algo, self._groups)
        learner = self._fresh_learner(saved.groups)
        saved.restore(learner.trainer)
        self._learner, self._groups = learner, saved.groups
        self._num_epochs, self._met = saved.num_epochs, saved.in_replay
        self.reset_epoch()
        self._pending = {trajectory.trajectory_id: trajectory for trajectory in saved.pending}

    def _learned(self) -> Learner:
        """What learns, made when it is first needed."""
        if not self._groups:
            raise ConfigError(f"{self.algo} has no agents yet; call register_agent() for each")
        if self._learner is None:
            self._learner = self._fresh_learner(self._groups)
        return self._learner

    def _fresh_learner(self, groups: Groups) -> Learner:
        """The same args, params, groups and kernel give the same parameters."""
        args = self.args
        offer = None if args.state_space is None else StateOffer(args.state_space)
        # Trajectories come one environment at a time, so replay holds the steps of one environment after another.
        plan = LearnerPlan(self._entry, self.params, args.seed, num_envs=1, max_steps=args.max_steps, state=offer)
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


class MultiAgentTrainer(TrajectoryTrainer):
    """Learns the policies of all registered agents together; agents may join at any time."""

    def _first_groups(self) -> dict[str, PolicyGroup]:
        return {}

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Registered agents, group by group."""
        return tuple(agent_id for group in self._groups.values() for agent_id in group.agent_ids)

    def register_agent(
        self,
        agent_id: str,
        group: str | None = None,
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
    ) -> None:
        """Add an agent, with a policy of its own or with that of `group`; spaces are the trainer's unless given.

        May be called at any time. Registering an agent again where it is does nothing.
        """
        name = agent_id if group is None else group
        known = self._groups.get(name)
        if known is not None and agent_id in known.agent_ids:
            return
        if agent_id in self.agent_ids:
            raise ConfigError(f"agent {agent_id!r} has a policy already; it cannot join {name!r}")
        joined = self._joined(name, known, observation_space, action_space).with_agent(agent_id)
        groups = {**self._groups, name: joined}
        if self._learner is not None:
            learner = self._fresh_learner(groups)
            carry_over(self._learner.trainer, learner.trainer, self._groups, groups)
            self._learner = learner
        self._groups = groups

    def _joined(
        self, name: str, known: PolicyGroup | None, observation_space: Space | None, action_space: Space | None
    ) -> PolicyGroup:
        if known is None:
            seen = self.args.observations() if observation_space is None else observation_space
            done = self.args.actions(self.params) if action_space is None else action_space
            return PolicyGroup(name, seen, done, self.args.masks_actions)
        given = ((observation_space, known.observation_space), (action_space, known.action_space))
        if any(space is not None and space != own for space, own in given):
            raise ConfigError(f"group {name!r} has other spaces; register the agent with a policy of its own")
        return known

    def _adopted(self, trajectory: Trajectory) -> Trajectory:
        for group in self._groups.values():
            if trajectory.agent_id in group.agent_ids:
                return adopted(trajectory, group, trajectory.agent_id)
        raise ConfigError(
            f"agent {trajectory.agent_id!r} is not registered; call register_agent({trajectory.agent_id!r}) first"
        )


def _losses(row: Mapping[str, float]) -> dict[str, float]:
    """`actor_loss` and `critic_loss`: the means over policies."""
    found = {}
    for name, metric in (("actor_loss", "policy/loss"), ("critic_loss", "value/loss")):
        losses = [number for key, number in row.items() if key == metric or key.endswith(f"/{metric}")]
        if losses:
            found[name] = sum(losses) / len(losses)
    return found
