"""What authors of environments, algorithms, networks, reward signals, sinks and writers subclass, fill in and return.

The base classes of environments and sinks, and `register_…`, by which a program adds its parts, are in `relayrl` itself.
"""

from typing import TYPE_CHECKING

from relayrl.lazy_names import lazy_names

if TYPE_CHECKING:
    from relayrl.data.schema import Layout as Layout
    from relayrl.engines.local.run_parts import Assembly as Assembly
    from relayrl.engines.local.run_parts import assemble as assemble
    from relayrl.engines.local.run_parts import make_run_parts as make_run_parts
    from relayrl.engines.plugins import AlgorithmPlugin as AlgorithmPlugin
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
    from relayrl.sinks.contract import ReadReport as ReadReport
    from relayrl.sinks.contract import SinkPlugin as SinkPlugin
    from relayrl.sinks.contract import SourceCount as SourceCount
    from relayrl.training.queued.behavior_trainer import PolicySnapshot as PolicySnapshot
    from relayrl.training.queued.queues import PolicyQueue as PolicyQueue
    from relayrl.training.queued.queues import TrajectoryQueue as TrajectoryQueue
    from relayrl.training.queued.rl_trainer import RolloutTrainer as RolloutTrainer
    from relayrl.training.reward_signals import RewardSignal as RewardSignal
    from relayrl.training.statistics.run_statistics import Statistics as Statistics
    from relayrl.training.statistics.statistics_writers import StatisticsWriter as StatisticsWriter
    from relayrl.training.trainers.policy_trainer import PolicyTrainer as PolicyTrainer


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
    "Assembly": "relayrl.engines.local.run_parts",
    "assemble": "relayrl.engines.local.run_parts",
    "PolicyTrainer": "relayrl.training.trainers.policy_trainer",
    "make_run_parts": "relayrl.engines.local.run_parts",
    "RolloutTrainer": "relayrl.training.queued.rl_trainer",
    "PolicySnapshot": "relayrl.training.queued.behavior_trainer",
    "TrajectoryQueue": "relayrl.training.queued.queues",
    "PolicyQueue": "relayrl.training.queued.queues",
    # reward signals and statistics
    "RewardSignal": "relayrl.training.reward_signals",
    "Statistics": "relayrl.training.statistics.run_statistics",
    "StatisticsWriter": "relayrl.training.statistics.statistics_writers",
    # sinks
    "SinkPlugin": "relayrl.sinks.contract",
    "SourceCount": "relayrl.sinks.contract",
    "ReadReport": "relayrl.sinks.contract",
    "Layout": "relayrl.data.schema",
}
__all__ = [*_HOMES]

if not TYPE_CHECKING:  # so that a name that does not exist is an error to type checkers
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
