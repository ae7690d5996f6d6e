"""`RelayRLTrainer`: every algorithm by name, driven by trajectories.

    trainer = RelayRLTrainer.ppo(TrainerArgs("envs/cartpole", "runs/cartpole", obs_dim=4, act_dim=2))
    trainer.receive_trajectory(trajectory)        # from memory, Arrow or CSV
    if trainer.train_model():
        trainer.log_epoch()
        trainer.save("epoch-0001")
        model = trainer.acquire_model("onnx")

`params` are the algorithm's hyper-parameters, upstream's defaults where None. `kernel` is a `NetworkFactory` or a pair of
modules. The trainers themselves are `TrajectoryTrainer` and, for several agents, `MultiAgentTrainer`.
"""

from __future__ import annotations

from relayrl.algorithms.params import (
    APPOParams,
    DDPGParams,
    IMPALAParams,
    MADDPGParams,
    PPOParams,
    REINFORCEParams,
    SACParams,
    TD3Params,
)
from relayrl.algorithms.registry import algorithm
from relayrl.training.facade.trainer_args import TrainerArgs
from relayrl.training.facade.trajectory_trainer import MultiAgentTrainer, TrajectoryTrainer
from relayrl.training.trainers.given_networks import Kernel


class RelayRLTrainer:
    """Makes trainers; not made itself."""

    @staticmethod
    def reinforce(
        args: TrainerArgs, params: REINFORCEParams | None = None, kernel: Kernel | None = None
    ) -> TrajectoryTrainer:
        """REINFORCE for one agent."""
        return TrajectoryTrainer(algorithm("reinforce"), args, params or REINFORCEParams(), kernel)

    @staticmethod
    def ireinforce(
        args: TrainerArgs, params: REINFORCEParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """REINFORCE for several agents, each judged by what it sees."""
        return MultiAgentTrainer(algorithm("ireinforce"), args, params or REINFORCEParams(), kernel)

    @staticmethod
    def mareinforce(
        args: TrainerArgs, params: REINFORCEParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """REINFORCE for several agents, judged by what all of them see."""
        return MultiAgentTrainer(algorithm("mareinforce"), args, params or REINFORCEParams(), kernel)

    @staticmethod
    def ppo(args: TrainerArgs, params: PPOParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """PPO for one agent."""
        return TrajectoryTrainer(algorithm("ppo"), args, params or PPOParams(), kernel)

    @staticmethod
    def ippo(args: TrainerArgs, params: PPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """PPO for several agents, each judged by what it sees."""
        return MultiAgentTrainer(algorithm("ippo"), args, params or PPOParams(), kernel)

    @staticmethod
    def mappo(args: TrainerArgs, params: PPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """PPO for several agents, judged by what all of them see."""
        return MultiAgentTrainer(algorithm("mappo"), args, params or PPOParams(), kernel)

    @staticmethod
    def impala(
        args: TrainerArgs, params: IMPALAParams | None = None, kernel: Kernel | None = None
    ) -> TrajectoryTrainer:
        """IMPALA for one agent."""
        return TrajectoryTrainer(algorithm("impala"), args, params or IMPALAParams(), kernel)

    @staticmethod
    def iimpala(
        args: TrainerArgs, params: IMPALAParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """IMPALA for several agents, each judged by what it sees."""
        return MultiAgentTrainer(algorithm("iimpala"), args, params or IMPALAParams(), kernel)

    @staticmethod
    def maimpala(
        args: TrainerArgs, params: IMPALAParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """IMPALA for several agents, judged by what all of them see."""
        return MultiAgentTrainer(algorithm("maimpala"), args, params or IMPALAParams(), kernel)

    @staticmethod
    def appo(args: TrainerArgs, params: APPOParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """Asynchronous PPO for one agent."""
        return TrajectoryTrainer(algorithm("appo"), args, params or APPOParams(), kernel)

    @staticmethod
    def iappo(args: TrainerArgs, params: APPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """Asynchronous PPO for several agents, each judged by what it sees."""
        return MultiAgentTrainer(algorithm("iappo"), args, params or APPOParams(), kernel)

    @staticmethod
    def maappo(args: TrainerArgs, params: APPOParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """Asynchronous PPO for several agents, judged by what all of them see."""
        return MultiAgentTrainer(algorithm("maappo"), args, params or APPOParams(), kernel)

    @staticmethod
    def ddpg(args: TrainerArgs, params: DDPGParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """DDPG for one agent."""
        return TrajectoryTrainer(algorithm("ddpg"), args, params or DDPGParams(), kernel)

    @staticmethod
    def iddpg(args: TrainerArgs, params: DDPGParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """DDPG for several agents, each judged by what it sees and does."""
        return MultiAgentTrainer(algorithm("iddpg"), args, params or DDPGParams(), kernel)

    @staticmethod
    def maddpg(
        args: TrainerArgs, params: MADDPGParams | None = None, kernel: Kernel | None = None
    ) -> MultiAgentTrainer:
        """DDPG for several agents, judged by what all of them see and do."""
        return MultiAgentTrainer(algorithm("maddpg"), args, params or MADDPGParams(), kernel)

    @staticmethod
    def td3(args: TrainerArgs, params: TD3Params | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """TD3 for one agent."""
        return TrajectoryTrainer(algorithm("td3"), args, params or TD3Params(), kernel)

    @staticmethod
    def itd3(args: TrainerArgs, params: TD3Params | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """TD3 for several agents, each judged by what it sees and does."""
        return MultiAgentTrainer(algorithm("itd3"), args, params or TD3Params(), kernel)

    @staticmethod
    def matd3(args: TrainerArgs, params: TD3Params | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """TD3 for several agents, judged by what all of them see and do."""
        return MultiAgentTrainer(algorithm("matd3"), args, params or TD3Params(), kernel)

    @staticmethod
    def sac(args: TrainerArgs, params: SACParams | None = None, kernel: Kernel | None = None) -> TrajectoryTrainer:
        """SAC for one agent."""
        return TrajectoryTrainer(algorithm("sac"), args, params or SACParams(), kernel)

    @staticmethod
    def isac(args: TrainerArgs, params: SACParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """SAC for several agents, each judged by what it sees and does."""
        return MultiAgentTrainer(algorithm("isac"), args, params or SACParams(), kernel)

    @staticmethod
    def masac(args: TrainerArgs, params: SACParams | None = None, kernel: Kernel | None = None) -> MultiAgentTrainer:
        """SAC for several agents, judged by what all of them see and do."""
        return MultiAgentTrainer(algorithm("masac"), args, params or SACParams(), kernel)
