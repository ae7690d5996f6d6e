"""What authors of environments, algorithms, networks, reward signals, sinks and writers subclass, fill in and return.

The base classes of environments and sinks, and `register_…`, by which a program adds its parts, are in `relayrl` itself.
"""

from typing import TYPE_CHECKING

from relayrl.lazy_names import lazy_names

if TYPE_CHECKING:
    from relayrl.algorithms.off_policy import OffPolicyAlgorithm as OffPolicyAlgorithm
    from relayrl.algorithms.params import OffPolicyParams as OffPolicyParams
    from relayrl.algorithms.replay_losses import td_loss as td_loss
    from relayrl.algorithms.replay_losses import td_target as td_target
    from relayrl.data.schema import Layout as Layout
    from relayrl.engines.assembly import Assembly as Assembly
    from relayrl.engines.assembly import assemble as assemble
    from relayrl.engines.assembly import assembly_of as assembly_of
    from relayrl.engines.plugins import AlgorithmPlugin as AlgorithmPlugin
    from relayrl.engines.run_parts import make_run_parts as make_run_parts
    from relayrl.envs.contract import AgentGroup as AgentGroup
    from relayrl.envs.contract import FinalObservations as FinalObservations
    from relayrl.envs.contract import GroupObservation as GroupObservation
    from relayrl.envs.contract import GroupStep as GroupStep
    from relayrl.envs.contract import MultiAgentReset as MultiAgentReset
    from relayrl.envs.contract import MultiAgentStep as MultiAgentStep
    from relayrl.envs.contract import ScalarReset as ScalarReset
    from relayrl.envs.contract import ScalarStep as ScalarStep
    from relayrl.envs.contract import StatefulEnvironment as StatefulEnvironment
    from relayrl.envs.contract import VectorReset as VectorReset
    from relayrl.envs.contract import VectorStep as VectorStep
    from relayrl.envs.native.array_namespace import namespace_of as namespace_of
    from relayrl.envs.native.batched_environment import BatchedEnvironment as BatchedEnvironment
    from relayrl.envs.native.worlds import Blueprint as Blueprint
    from relayrl.envs.native.worlds import Worlds as Worlds
    from relayrl.models.policy import Policy as Policy
    from relayrl.sinks.contract import ReadReport as ReadReport
    from relayrl.sinks.contract import SinkPlugin as SinkPlugin
    from relayrl.sinks.contract import SourceCount as SourceCount
    from relayrl.training.behavior_trainer import PolicySnapshot as PolicySnapshot
    from relayrl.training.policy_trainer import PolicyTrainer as PolicyTrainer
    from relayrl.training.queues import PolicyQueue as PolicyQueue
    from relayrl.training.queues import TrajectoryQueue as TrajectoryQueue
    from relayrl.training.reward_signals import RewardSignal as RewardSignal
    from relayrl.training.rl_trainer import RolloutTrainer as RolloutTrainer
    from relayrl.training.statistics import Statistics as Statistics
    from relayrl.training.statistics_writers import StatisticsWriter as StatisticsWriter


_HOMES = {
    # environments
    "ScalarReset": "relayrl.envs.contract",
    "ScalarStep": "relayrl.envs.contract",
    "MultiAgentReset": "relayrl.envs.contract",
    "MultiAgentStep": "relayrl.envs.contract",
    "AgentGroup": "relayrl.envs.contract",
    "VectorReset": "relayrl.envs.contract",
    "VectorStep": "relayrl.envs.contract",
    "GroupObservation": "relayrl.envs.contract",
    "GroupStep": "relayrl.envs.contract",
    "FinalObservations": "relayrl.envs.contract",
    "StatefulEnvironment": "relayrl.envs.contract",
    "BatchedEnvironment": "relayrl.envs.native.batched_environment",
    "Blueprint": "relayrl.envs.native.worlds",
    "Worlds": "relayrl.envs.native.worlds",
    "namespace_of": "relayrl.envs.native.array_namespace",
    # algorithms and trainers
    "AlgorithmPlugin": "relayrl.engines.plugins",
    "Assembly": "relayrl.engines.assembly",
    "assemble": "relayrl.engines.assembly",
    "assembly_of": "relayrl.engines.assembly",
    "OffPolicyAlgorithm": "relayrl.algorithms.off_policy",
    "OffPolicyParams": "relayrl.algorithms.params",
    "Policy": "relayrl.models.policy",
    "td_loss": "relayrl.algorithms.replay_losses",
    "td_target": "relayrl.algorithms.replay_losses",
    "PolicyTrainer": "relayrl.training.policy_trainer",
    "make_run_parts": "relayrl.engines.run_parts",
    "RolloutTrainer": "relayrl.training.rl_trainer",
    "PolicySnapshot": "relayrl.training.behavior_trainer",
    "TrajectoryQueue": "relayrl.training.queues",
    "PolicyQueue": "relayrl.training.queues",
    # reward signals and statistics
    "RewardSignal": "relayrl.training.reward_signals",
    "Statistics": "relayrl.training.statistics",
    "StatisticsWriter": "relayrl.training.statistics_writers",
    # sinks
    "SinkPlugin": "relayrl.sinks.contract",
    "SourceCount": "relayrl.sinks.contract",
    "ReadReport": "relayrl.sinks.contract",
    "Layout": "relayrl.data.schema",
}
__all__ = [*_HOMES]

if not TYPE_CHECKING:  # so that a name that does not exist is an error to type checkers
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
