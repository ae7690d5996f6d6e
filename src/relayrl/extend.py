"""What authors of environments, engines, algorithms, networks, reward signals, sinks and writers subclass, fill in and return.

Also what few programs need: building trajectories step by step, their bytes, actors of one's own, exporters of metrics. The
base classes of environments and sinks, and most of `register_…`, are in `relayrl` itself.
"""

from typing import TYPE_CHECKING

from relayrl.lazy_names import lazy_names

if TYPE_CHECKING:
    from relayrl.algorithms.losses import PolicyLoss as PolicyLoss
    from relayrl.algorithms.off_policy import OffPolicyAlgorithm as OffPolicyAlgorithm
    from relayrl.algorithms.params import OffPolicyParams as OffPolicyParams
    from relayrl.algorithms.updates.replay_losses import td_loss as td_loss
    from relayrl.algorithms.updates.replay_losses import td_target as td_target
    from relayrl.data.arrow.codec import decode_trajectory as decode_trajectory
    from relayrl.data.arrow.codec import encode as encode
    from relayrl.data.arrow.schema import Layout as Layout
    from relayrl.data.columns import LaneHeader as LaneHeader
    from relayrl.data.steps.trajectory_builder import TrajectoryBuilder as TrajectoryBuilder
    from relayrl.engines.callbacks.live_run import LiveRun as LiveRun
    from relayrl.engines.cluster.cluster_collector import Fleet as Fleet
    from relayrl.engines.cluster.cluster_collector import PartResult as PartResult
    from relayrl.engines.cluster.cluster_parts import build_cluster_parts as build_cluster_parts
    from relayrl.engines.cluster.part_collector import CollectCall as CollectCall
    from relayrl.engines.cluster.part_collector import PartCollector as PartCollector
    from relayrl.engines.cluster.part_collector import PartPlan as PartPlan
    from relayrl.engines.local.run_parts import Assembly as Assembly
    from relayrl.engines.local.run_parts import assemble as assemble
    from relayrl.engines.local.run_parts import assembly_of as assembly_of
    from relayrl.engines.local.run_parts import make_run_parts as make_run_parts
    from relayrl.engines.plugins import AlgorithmPlugin as AlgorithmPlugin
    from relayrl.engines.plugins import register_engine as register_engine
    from relayrl.engines.plugins import register_reward_signal as register_reward_signal
    from relayrl.envs.environment_contract import AgentGroup as AgentGroup
    from relayrl.envs.environment_contract import Combination as Combination
    from relayrl.envs.environment_contract import FinalObservations as FinalObservations
    from relayrl.envs.environment_contract import GroupObservation as GroupObservation
    from relayrl.envs.environment_contract import GroupStep as GroupStep
    from relayrl.envs.environment_contract import MultiAgentReset as MultiAgentReset
    from relayrl.envs.environment_contract import MultiAgentStep as MultiAgentStep
    from relayrl.envs.environment_contract import Recorded as Recorded
    from relayrl.envs.environment_contract import ScalarReset as ScalarReset
    from relayrl.envs.environment_contract import ScalarStep as ScalarStep
    from relayrl.envs.environment_contract import StatefulEnvironment as StatefulEnvironment
    from relayrl.envs.environment_contract import VectorReset as VectorReset
    from relayrl.envs.environment_contract import VectorStep as VectorStep
    from relayrl.envs.native.array_namespace import namespace_of as namespace_of
    from relayrl.envs.native.batched_environment import BatchedEnvironment as BatchedEnvironment
    from relayrl.envs.native.native_worlds import Blueprint as Blueprint
    from relayrl.envs.native.native_worlds import Worlds as Worlds
    from relayrl.envs.rendering import Drawing as Drawing
    from relayrl.envs.rendering import RenderMode as RenderMode
    from relayrl.models.acting.actor import Actor as Actor
    from relayrl.models.heads.action_head import LikelihoodHead as LikelihoodHead
    from relayrl.models.heads.box_heads import GaussianHead as GaussianHead
    from relayrl.models.heads.discrete_heads import CategoricalHead as CategoricalHead
    from relayrl.models.policy import Policy as Policy
    from relayrl.observability.otel_exporter import OtelExporter as OtelExporter
    from relayrl.observability.profiling import profile as profile
    from relayrl.observability.prometheus_exporter import PrometheusExporter as PrometheusExporter
    from relayrl.runtime.agents.termination import shutdown_on_signal as shutdown_on_signal
    from relayrl.runtime.requests.policy_model import CustomPolicy as CustomPolicy
    from relayrl.servers.inference.inference_server import InferenceSettings as InferenceSettings
    from relayrl.servers.inference.request_batches import BatchSettings as BatchSettings
    from relayrl.sinks.contract import ReadReport as ReadReport
    from relayrl.sinks.contract import SinkPlugin as SinkPlugin
    from relayrl.sinks.contract import SourceCount as SourceCount
    from relayrl.sinks.contract import TrajectorySource as TrajectorySource
    from relayrl.sinks.fan_out import FanOutSink as FanOutSink
    from relayrl.sinks.sink_settings import SinkSettings as SinkSettings
    from relayrl.sweeps.results.sweep_table import SweepReport as SweepReport
    from relayrl.sweeps.results.sweep_table import TrialReport as TrialReport
    from relayrl.sweeps.runners.trial_runner import StartedTrial as StartedTrial
    from relayrl.sweeps.runners.trial_runner import TrialRunner as TrialRunner
    from relayrl.sweeps.runners.trial_runner import register_trial_runner as register_trial_runner
    from relayrl.sweeps.trial_jobs import TrialOrder as TrialOrder
    from relayrl.sweeps.trial_jobs import TrialOutcome as TrialOutcome
    from relayrl.training.facade.relayrl_trainer import PPOTrainer as PPOTrainer
    from relayrl.training.facade.relayrl_trainer import SACTrainer as SACTrainer
    from relayrl.training.queued.behavior_trainer import PolicySnapshot as PolicySnapshot
    from relayrl.training.queued.queues import PolicyQueue as PolicyQueue
    from relayrl.training.queued.queues import TrajectoryQueue as TrajectoryQueue
    from relayrl.training.queued.rl_trainer import RolloutTrainer as RolloutTrainer
    from relayrl.training.signals.reward_signals import RewardSignal as RewardSignal
    from relayrl.training.statistics.run_statistics import Statistics as Statistics
    from relayrl.training.statistics.statistics_writers import StatisticsWriter as StatisticsWriter
    from relayrl.training.trainers.policy_trainer import PolicyTrainer as PolicyTrainer


_HOMES = {
    # environments
    "ScalarReset": "relayrl.envs.environment_contract",
    "ScalarStep": "relayrl.envs.environment_contract",
    "MultiAgentReset": "relayrl.envs.environment_contract",
    "MultiAgentStep": "relayrl.envs.environment_contract",
    "AgentGroup": "relayrl.envs.environment_contract",
    "VectorReset": "relayrl.envs.environment_contract",
    "VectorStep": "relayrl.envs.environment_contract",
    "Recorded": "relayrl.envs.environment_contract",
    "Combination": "relayrl.envs.environment_contract",
    "Drawing": "relayrl.envs.rendering",
    "RenderMode": "relayrl.envs.rendering",
    "GroupObservation": "relayrl.envs.environment_contract",
    "GroupStep": "relayrl.envs.environment_contract",
    "FinalObservations": "relayrl.envs.environment_contract",
    "StatefulEnvironment": "relayrl.envs.environment_contract",
    "BatchedEnvironment": "relayrl.envs.native.batched_environment",
    "Blueprint": "relayrl.envs.native.native_worlds",
    "Worlds": "relayrl.envs.native.native_worlds",
    "namespace_of": "relayrl.envs.native.array_namespace",
    # engines
    "register_engine": "relayrl.engines.plugins",
    "Fleet": "relayrl.engines.cluster.cluster_collector",
    "PartCollector": "relayrl.engines.cluster.part_collector",
    "PartPlan": "relayrl.engines.cluster.part_collector",
    "CollectCall": "relayrl.engines.cluster.part_collector",
    "PartResult": "relayrl.engines.cluster.cluster_collector",
    "build_cluster_parts": "relayrl.engines.cluster.cluster_parts",
    # algorithms and trainers
    "AlgorithmPlugin": "relayrl.engines.plugins",
    "Assembly": "relayrl.engines.local.run_parts",
    "assemble": "relayrl.engines.local.run_parts",
    "assembly_of": "relayrl.engines.local.run_parts",
    "OffPolicyAlgorithm": "relayrl.algorithms.off_policy",
    "OffPolicyParams": "relayrl.algorithms.params",
    "PolicyLoss": "relayrl.algorithms.losses",
    "Policy": "relayrl.models.policy",
    "LikelihoodHead": "relayrl.models.heads.action_head",
    "CategoricalHead": "relayrl.models.heads.discrete_heads",
    "GaussianHead": "relayrl.models.heads.box_heads",
    "td_loss": "relayrl.algorithms.updates.replay_losses",
    "td_target": "relayrl.algorithms.updates.replay_losses",
    "PolicyTrainer": "relayrl.training.trainers.policy_trainer",
    "make_run_parts": "relayrl.engines.local.run_parts",
    "RolloutTrainer": "relayrl.training.queued.rl_trainer",
    "PPOTrainer": "relayrl.training.facade.relayrl_trainer",
    "SACTrainer": "relayrl.training.facade.relayrl_trainer",
    "PolicySnapshot": "relayrl.training.queued.behavior_trainer",
    "TrajectoryQueue": "relayrl.training.queued.queues",
    "PolicyQueue": "relayrl.training.queued.queues",
    # callbacks, reward signals and statistics
    "register_reward_signal": "relayrl.engines.plugins",
    "LiveRun": "relayrl.engines.callbacks.live_run",
    "RewardSignal": "relayrl.training.signals.reward_signals",
    "Statistics": "relayrl.training.statistics.run_statistics",
    "StatisticsWriter": "relayrl.training.statistics.statistics_writers",
    # sinks
    "TrajectorySource": "relayrl.sinks.contract",
    "FanOutSink": "relayrl.sinks.fan_out",
    "SinkSettings": "relayrl.sinks.sink_settings",
    "SinkPlugin": "relayrl.sinks.contract",
    "SourceCount": "relayrl.sinks.contract",
    "ReadReport": "relayrl.sinks.contract",
    "Layout": "relayrl.data.arrow.schema",
    # trajectories, step by step and as bytes
    "LaneHeader": "relayrl.data.columns",
    "TrajectoryBuilder": "relayrl.data.steps.trajectory_builder",
    "encode": "relayrl.data.arrow.codec",
    "decode_trajectory": "relayrl.data.arrow.codec",
    # agents
    "Actor": "relayrl.models.acting.actor",
    "CustomPolicy": "relayrl.runtime.requests.policy_model",
    "shutdown_on_signal": "relayrl.runtime.agents.termination",
    # observability
    "profile": "relayrl.observability.profiling",
    "PrometheusExporter": "relayrl.observability.prometheus_exporter",
    "OtelExporter": "relayrl.observability.otel_exporter",
    # sweeps
    "SweepReport": "relayrl.sweeps.results.sweep_table",
    "TrialReport": "relayrl.sweeps.results.sweep_table",
    "TrialRunner": "relayrl.sweeps.runners.trial_runner",
    "StartedTrial": "relayrl.sweeps.runners.trial_runner",
    "TrialOrder": "relayrl.sweeps.trial_jobs",
    "TrialOutcome": "relayrl.sweeps.trial_jobs",
    "register_trial_runner": "relayrl.sweeps.runners.trial_runner",
    # servers
    "InferenceSettings": "relayrl.servers.inference.inference_server",
    "BatchSettings": "relayrl.servers.inference.request_batches",
}
__all__ = [*_HOMES]

if not TYPE_CHECKING:  # so that a name that does not exist is an error to type checkers
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
