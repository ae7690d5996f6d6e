"""RelayRL: multi-actor, multi-agent deep reinforcement learning.

    run = relayrl.train("CartPole-v1", algo="ppo", steps=50_000)

What is public are the names in this module and those of `relayrl.extend` (for authors of parts, and what few programs need),
`relayrl.errors` and `relayrl.testing`. Every other module is private and may change. A name is imported
when it is first used: importing this package costs nothing.
"""

from typing import TYPE_CHECKING

from relayrl.lazy_names import lazy_names
from relayrl.reproducible_sums import ask_for_reproducible_sums

if TYPE_CHECKING:
    from relayrl import errors as errors
    from relayrl import extend as extend
    from relayrl import testing as testing
    from relayrl.algorithms.imitation.bc_params import BCParams as BCParams
    from relayrl.algorithms.on_policy_params import IPPOParams as IPPOParams
    from relayrl.algorithms.on_policy_params import IREINFORCEParams as IREINFORCEParams
    from relayrl.algorithms.on_policy_params import MAPPOParams as MAPPOParams
    from relayrl.algorithms.on_policy_params import MAREINFORCEParams as MAREINFORCEParams
    from relayrl.algorithms.on_policy_params import PPOParams as PPOParams
    from relayrl.algorithms.on_policy_params import REINFORCEParams as REINFORCEParams
    from relayrl.algorithms.params import DDPGParams as DDPGParams
    from relayrl.algorithms.params import IDDPGParams as IDDPGParams
    from relayrl.algorithms.params import ISACParams as ISACParams
    from relayrl.algorithms.params import ITD3Params as ITD3Params
    from relayrl.algorithms.params import MADDPGParams as MADDPGParams
    from relayrl.algorithms.params import MASACParams as MASACParams
    from relayrl.algorithms.params import MATD3Params as MATD3Params
    from relayrl.algorithms.params import SACParams as SACParams
    from relayrl.algorithms.params import TD3Params as TD3Params
    from relayrl.algorithms.poca.poca_params import POCAParams as POCAParams
    from relayrl.algorithms.vtrace.vtrace_params import APPOParams as APPOParams
    from relayrl.algorithms.vtrace.vtrace_params import IMPALAParams as IMPALAParams
    from relayrl.api import Run as Run
    from relayrl.api import load_run as load_run
    from relayrl.api import train as train
    from relayrl.data.columns import Rollout as Rollout
    from relayrl.data.columns import Trajectory as Trajectory
    from relayrl.engines.callbacks.callback import Callback as Callback
    from relayrl.engines.demos.demo_recording import record_demonstrations as record_demonstrations
    from relayrl.engines.plugins import register_algorithm as register_algorithm
    from relayrl.engines.plugins import register_environment as register_environment
    from relayrl.engines.plugins import register_network as register_network
    from relayrl.engines.plugins import register_sink as register_sink
    from relayrl.engines.plugins import register_writer as register_writer
    from relayrl.envs.environment_contract import MultiAgentEnvironment as MultiAgentEnvironment
    from relayrl.envs.environment_contract import ScalarEnvironment as ScalarEnvironment
    from relayrl.envs.environment_contract import VectorEnvironment as VectorEnvironment
    from relayrl.envs.environment_registry import make_env as make_env
    from relayrl.models.network_settings import NetworkSettings as NetworkSettings
    from relayrl.observability.logs import configure_logging as configure_logging
    from relayrl.runtime.agents.agent import RelayRLAgent as RelayRLAgent
    from relayrl.runtime.agents.agent_builder import AgentBuilder as AgentBuilder
    from relayrl.runtime.remote.remote_actor import run_remote_actor as run_remote_actor
    from relayrl.servers.inference.inference_server import InferenceServer as InferenceServer
    from relayrl.servers.training.training_server import TrainingServer as TrainingServer
    from relayrl.sinks.contract import TrajectorySink as TrajectorySink
    from relayrl.sinks.contract import open_sink as open_sink
    from relayrl.sinks.contract import open_source as open_source
    from relayrl.sweeps.sweep_api import sweep as sweep
    from relayrl.training.facade.relayrl_trainer import RelayRLTrainer as RelayRLTrainer
    from relayrl.training.facade.trajectory_trainer import TrainerArgs as TrainerArgs
    from relayrl.training.queued.behavior_trainer import Trainer as Trainer
    from relayrl.training.queued.rl_trainer import RLTrainer as RLTrainer
    from relayrl.training.trainer_settings import TrainerSettings as TrainerSettings

__version__ = "0.1.0"
ask_for_reproducible_sums()

_HOMES = {
    # runs
    "train": "relayrl.api",
    "load_run": "relayrl.api",
    "Run": "relayrl.api",
    "record_demonstrations": "relayrl.engines.demos.demo_recording",
    "Callback": "relayrl.engines.callbacks.callback",
    "sweep": "relayrl.sweeps.sweep_api",
    # training from trajectories
    "RelayRLTrainer": "relayrl.training.facade.relayrl_trainer",
    "TrainerArgs": "relayrl.training.facade.trajectory_trainer",
    "NetworkSettings": "relayrl.models.network_settings",
    "REINFORCEParams": "relayrl.algorithms.on_policy_params",
    "PPOParams": "relayrl.algorithms.on_policy_params",
    "BCParams": "relayrl.algorithms.imitation.bc_params",
    "POCAParams": "relayrl.algorithms.poca.poca_params",
    "IMPALAParams": "relayrl.algorithms.vtrace.vtrace_params",
    "APPOParams": "relayrl.algorithms.vtrace.vtrace_params",
    "DDPGParams": "relayrl.algorithms.params",
    "MADDPGParams": "relayrl.algorithms.params",
    "TD3Params": "relayrl.algorithms.params",
    "SACParams": "relayrl.algorithms.params",
    "IREINFORCEParams": "relayrl.algorithms.on_policy_params",
    "MAREINFORCEParams": "relayrl.algorithms.on_policy_params",
    "IPPOParams": "relayrl.algorithms.on_policy_params",
    "MAPPOParams": "relayrl.algorithms.on_policy_params",
    "IDDPGParams": "relayrl.algorithms.params",
    "ITD3Params": "relayrl.algorithms.params",
    "MATD3Params": "relayrl.algorithms.params",
    "ISACParams": "relayrl.algorithms.params",
    "MASACParams": "relayrl.algorithms.params",
    # training through queues
    "Trainer": "relayrl.training.queued.behavior_trainer",
    "RLTrainer": "relayrl.training.queued.rl_trainer",
    "TrainerSettings": "relayrl.training.trainer_settings",
    # training from remote actors
    "TrainingServer": "relayrl.servers.training.training_server",
    "run_remote_actor": "relayrl.runtime.remote.remote_actor",
    # acting in a simulator of one's own
    "AgentBuilder": "relayrl.runtime.agents.agent_builder",
    "InferenceServer": "relayrl.servers.inference.inference_server",
    "RelayRLAgent": "relayrl.runtime.agents.agent",
    # environments
    "make_env": "relayrl.envs.environment_registry",
    "ScalarEnvironment": "relayrl.envs.environment_contract",
    "MultiAgentEnvironment": "relayrl.envs.environment_contract",
    "VectorEnvironment": "relayrl.envs.environment_contract",
    # data
    "Trajectory": "relayrl.data.columns",
    "Rollout": "relayrl.data.columns",
    # sinks
    "open_sink": "relayrl.sinks.contract",
    "open_source": "relayrl.sinks.contract",
    "TrajectorySink": "relayrl.sinks.contract",
    # registration
    "register_environment": "relayrl.engines.plugins",
    "register_algorithm": "relayrl.engines.plugins",
    "register_network": "relayrl.engines.plugins",
    "register_sink": "relayrl.engines.plugins",
    "register_writer": "relayrl.engines.plugins",
    # observability
    "configure_logging": "relayrl.observability.logs",
}
_MOVED = {
    name: f"relayrl.extend.{name}"
    for name in (
        "Actor",
        "CustomPolicy",
        "shutdown_on_signal",
        "LaneHeader",
        "TrajectoryBuilder",
        "encode",
        "decode_trajectory",
        "TrajectorySource",
        "FanOutSink",
        "SinkSettings",
        "register_engine",
        "register_reward_signal",
        "profile",
        "PrometheusExporter",
        "OtelExporter",
    )
}
_MODULES = ("errors", "extend", "testing")
__all__ = [*_HOMES, *_MODULES, "__version__"]

if not TYPE_CHECKING:  # so that a name that does not exist is an error to type checkers
    __getattr__, _ = lazy_names(__name__, _HOMES, _MOVED, _MODULES)

    def __dir__() -> list[str]:
        return sorted(__all__)
