"""`RelayRLTrainer`: every algorithm by name, driven by trajectories; and `MultiAgentTrainer`, for several agents.

    trainer = RelayRLTrainer.ppo(TrainerArgs("envs/cartpole", "runs/cartpole", obs_dim=4, act_dim=2))
    trainer.receive_trajectory(trajectory)        # from memory, Arrow or CSV
    if trainer.train_model():
        trainer.log_epoch()
        trainer.save("epoch-0001")
        model = trainer.acquire_model("onnx")

`params` are the algorithm's hyper-parameters, upstream's defaults where None. `kernel` is a `NetworkFactory` or a pair of
modules.

An agent of a `MultiAgentTrainer` has a policy of its own, or shares that of a group. Critics of `I…` algorithms see one agent,
those of `MA…` ones all of them, from trajectories aligned by environment, episode and step; an episode is learned from when
all agents have delivered it (`update_buffer`). When an agent joins a team that has been learning, the others keep what they
have learned (`joining_agents`).
"""

from __future__ import annotations

from pathlib import Path

from relayrl.algorithms.imitation.bc_params import BCParams
from relayrl.algorithms.on_policy_params import AlgorithmParams, PPOParams, REINFORCEParams
from relayrl.algorithms.params import DDPGParams, MADDPGParams, SACParams, TD3Params
from relayrl.algorithms.poca.poca_params import POCAParams
from relayrl.algorithms.registry import algorithm
from relayrl.algorithms.vtrace.vtrace_params import APPOParams, IMPALAParams
from relayrl.data.columns import Trajectory
from relayrl.data.trees import Space
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import ConfigError
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import Policy
from relayrl.training.facade.received_trajectories import adopted
from relayrl.training.facade.trajectory_trainer import TrainerArgs, TrajectoryTrainer, require_same_spaces
from relayrl.training.trainer_settings import TrainerSettings
from relayrl.training.trainers.given_networks import Kernel
from relayrl.training.trainers.joining_agents import carry_over
from relayrl.training.trainers.policy_groups import PolicyGroup


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
        with self._learning:
            if self._built is not None:
                learner = self._fresh_learner(groups)
                carry_over(self._built.trainer, learner.trainer, self._groups, groups)
                self._built = learner
            self._groups = groups
            self._expect_agents()

    def _expect_agents(self) -> None:
        self.update_buffer.expect(self.agent_ids)

    def create_policy(self, behavior_id: str, behavior_spec: AgentGroup) -> Policy:
        """A policy for the agents of a behaviour, who are registered with it."""
        if behavior_id in self._groups:
            require_same_spaces(self._groups[behavior_id], behavior_spec)
        for agent_id in behavior_spec.agent_ids:
            self.register_agent(
                agent_id,
                behavior_id,
                observation_space=behavior_spec.observation_space,
                action_space=behavior_spec.action_space,
            )
        return self.policies[behavior_id]

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
        return adopted(trajectory, self._groups[self.group_of(trajectory.agent_id)], trajectory.agent_id)

    def group_of(self, agent_id: str) -> str:
        for name, group in self._groups.items():
            if agent_id in group.agent_ids:
                return name
        raise ConfigError(f"agent {agent_id!r} is not registered; call register_agent({agent_id!r}) first")


class BehaviorTrainer(MultiAgentTrainer):
    """A trainer whose policies come from `create_policy`, as ML-Agents makes its trainers.

    trainer = PPOTrainer("CartPole", TrainerSettings(), artifact_path="runs/cartpole")
    trainer.add_policy(group.name, trainer.create_policy(group.name, group))
    """

    algorithm_name: str

    def __init__(
        self,
        behavior_name: str,
        trainer_settings: TrainerSettings,
        *,
        artifact_path: Path | str,
        params: AlgorithmParams | None = None,
        network: NetworkSettings | None = None,
        masks_actions: bool = False,
        seed: int = 0,
        device: str = "cpu",
        training: bool = True,
        load: bool = False,
    ) -> None:
        """`load` continues from the newest checkpoint in `artifact_path`."""
        args = TrainerArgs(
            behavior_name,
            artifact_path,
            network=network or NetworkSettings(),
            masks_actions=masks_actions,
            seed=seed,
            device=device,
            trainer_settings=trainer_settings,
        )
        super().__init__(algorithm(self.algorithm_name), args, params, None)
        self.is_training = training
        if load:
            self.load()


class PPOTrainer(BehaviorTrainer):
    """PPO, with ML-Agents' names; agents of a behaviour share a policy."""

    algorithm_name = "ppo"


class SACTrainer(BehaviorTrainer):
    """SAC, with ML-Agents' names; agents of a behaviour share a policy."""

    algorithm_name = "sac"


class RelayRLTrainer:
    """Makes trainers; not made itself."""

    @staticmethod
    def reinforce(
        args: TrainerArgs, params: REINFORCEParams | None = None, kernel: Kernel | None = None
    ) -> TrajectoryTrainer:
        """REINFORCE for one agent."""
        return TrajectoryTrainer(algorithm("reinforce"), args, params, kernel)

    @staticmethod
    def ireinforce(
        args: TrainerArgs, params: REINFORCEParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """REINFORCE for several agents, with a critic of what each sees."""
        return MultiAgentTrainer(algorithm("ireinforce"), args, params, kernel)

    @staticmethod
    def mareinforce(
        args: TrainerArgs, params: REINFORCEParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """REINFORCE for several agents, with a critic of what all of them see."""
        return MultiAgentTrainer(algorithm("mareinforce"), args, params, kernel)

    @staticmethod
    def ppo(args: TrainerArgs, params: PPOParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """PPO for one agent."""
        return TrajectoryTrainer(algorithm("ppo"), args, params, kernel)

    @staticmethod
    def ippo(args: TrainerArgs, params: PPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """PPO for several agents, with a critic of what each sees."""
        return MultiAgentTrainer(algorithm("ippo"), args, params, kernel)

    @staticmethod
    def mappo(args: TrainerArgs, params: PPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """PPO for several agents, with a critic of what all of them see."""
        return MultiAgentTrainer(algorithm("mappo"), args, params, kernel)

    @staticmethod
    def poca(args: TrainerArgs, params: POCAParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """PPO for teams: agents that share a policy, with credit that outlives an agent's death."""
        return MultiAgentTrainer(algorithm("poca"), args, params, kernel)

    @staticmethod
    def bc(args: TrainerArgs, params: BCParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """Behavioral cloning: every epoch of trajectories is passed over once."""
        return TrajectoryTrainer(algorithm("bc"), args, params, kernel)

    @staticmethod
    def impala(
        args: TrainerArgs, params: IMPALAParams | None = None, kernel: Kernel | None = None
    ) -> TrajectoryTrainer:
        """IMPALA for one agent."""
        return TrajectoryTrainer(algorithm("impala"), args, params, kernel)

    @staticmethod
    def iimpala(
        args: TrainerArgs, params: IMPALAParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """IMPALA for several agents, with a critic of what each sees."""
        return MultiAgentTrainer(algorithm("iimpala"), args, params, kernel)

    @staticmethod
    def maimpala(
        args: TrainerArgs, params: IMPALAParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """IMPALA for several agents, with a critic of what all of them see."""
        return MultiAgentTrainer(algorithm("maimpala"), args, params, kernel)

    @staticmethod
    def appo(args: TrainerArgs, params: APPOParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """Asynchronous PPO for one agent."""
        return TrajectoryTrainer(algorithm("appo"), args, params, kernel)

    @staticmethod
    def iappo(args: TrainerArgs, params: APPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """Asynchronous PPO for several agents, with a critic of what each sees."""
        return MultiAgentTrainer(algorithm("iappo"), args, params, kernel)

    @staticmethod
    def maappo(args: TrainerArgs, params: APPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """Asynchronous PPO for several agents, with a critic of what all of them see."""
        return MultiAgentTrainer(algorithm("maappo"), args, params, kernel)

    @staticmethod
    def ddpg(args: TrainerArgs, params: DDPGParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """DDPG for one agent."""
        return TrajectoryTrainer(algorithm("ddpg"), args, params, kernel)

    @staticmethod
    def iddpg(args: TrainerArgs, params: DDPGParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """DDPG for several agents, with a critic of what each sees and does."""
        return MultiAgentTrainer(algorithm("iddpg"), args, params, kernel)

    @staticmethod
    def maddpg(
        args: TrainerArgs, params: MADDPGParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """DDPG for several agents, with a critic of what all of them see and do."""
        return MultiAgentTrainer(algorithm("maddpg"), args, params, kernel)

    @staticmethod
    def td3(args: TrainerArgs, params: TD3Params | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """TD3 for one agent."""
        return TrajectoryTrainer(algorithm("td3"), args, params, kernel)

    @staticmethod
    def itd3(args: TrainerArgs, params: TD3Params | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """TD3 for several agents, with a critic of what each sees and does."""
        return MultiAgentTrainer(algorithm("itd3"), args, params, kernel)

    @staticmethod
    def matd3(args: TrainerArgs, params: TD3Params | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """TD3 for several agents, with a critic of what all of them see and do."""
        return MultiAgentTrainer(algorithm("matd3"), args, params, kernel)

    @staticmethod
    def sac(args: TrainerArgs, params: SACParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """SAC for one agent."""
        return TrajectoryTrainer(algorithm("sac"), args, params, kernel)

    @staticmethod
    def isac(args: TrainerArgs, params: SACParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """SAC for several agents, with a critic of what each sees and does."""
        return MultiAgentTrainer(algorithm("isac"), args, params, kernel)

    @staticmethod
    def masac(args: TrainerArgs, params: SACParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """SAC for several agents, with a critic of what all of them see and do."""
        return MultiAgentTrainer(algorithm("masac"), args, params, kernel)
