"""Learning from what was recorded: a source's trajectories fill the replay, and gradient steps follow without collecting.

The environment serves the spaces and the evaluation; it is never stepped to learn from.

Agents are put beside each other by the environment's steps, which trajectories know since version 2 of the schema. Of older
records, nobody can say whether an agent that acted less often than others died early, which needs no step, or came late or
waited, which does: they are learned from with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from relayrl.data.action_masks import require_allowed
from relayrl.data.columns import LaneHeader, Trajectory
from relayrl.data.stacking import count_env_steps, joint_envs, stack_jointly, unaligned
from relayrl.data.trees import same_columns
from relayrl.engines.local.overlap import Pace
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import ConfigError
from relayrl.runtime.collector import RolloutCollector
from relayrl.sinks.contract import open_source
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.policy_trainer import PolicyTrainer

logger = logging.getLogger(__name__)


def fill_from(url: str, trainer: PolicyTrainer, groups: Mapping[str, AgentGroup]) -> int:
    """Put everything at `url` into the trainer's replay; gives the number of environment steps."""
    trainer.learn_from_records()
    with open_source(url) as source:
        url = source.url  # as it may be shown
        fit = _demonstrated if url.startswith("demo:") else _by_the_only_agent
        trajectories = [fit(trajectory, groups) for trajectory in source]
        if source.report.num_abandoned:
            logger.warning("%s: %d abandoned trajectories were left out", source.url, source.report.num_abandoned)
    if not trajectories:
        raise ConfigError(f"{url} holds no trajectories")
    headers = {
        name: LaneHeader(name, (), group.agent_ids, group.observation_space, group.action_space)
        for name, group in groups.items()
    }
    for trajectory in trajectories:
        header = headers.get(trajectory.group)
        if header is None:
            raise ConfigError(f"{url} has group {trajectory.group!r}, the environment {sorted(headers)}")
        if (trajectory.observation_space, trajectory.action_space) != (header.observation_space, header.action_space):
            raise ConfigError(f"{url}: the spaces of group {trajectory.group!r} are not the environment's")
        require_allowed(trajectory)
    warn_of_unaligned(url, trajectories)
    widths = {t.group: t.action_mask.shape[1] for t in trajectories if t.action_mask is not None}
    num_steps = 0
    for members in joint_envs(trajectories):
        rollouts = stack_jointly(members, headers, widths)
        trainer.fill(rollouts)
        num_steps += count_env_steps(members)
    return num_steps


def warn_of_unaligned(source: str, trajectories: Sequence[Trajectory]) -> None:
    """Log, once for a source, that agents of one environment may stand beside each other wrongly."""
    found = unaligned(trajectories)
    if found:
        env_id, episode = found[0][0].env_id, found[0][0].episode
        logger.warning(
            "%s: %d episodes with several agents were recorded without the environment's steps (first: episode %d of %s), and "
            "their agents did not act equally often; where one came late or waited, its steps stand beside others' that were "
            "not at the same time. Record them again with this version",
            source,
            len(found),
            episode,
            env_id,
        )


def _by_the_only_agent(trajectory: Trajectory, groups: Mapping[str, AgentGroup]) -> Trajectory:
    """An agent in a simulator names its actors by UUIDs; each acts in an environment of its own, for the only agent there
    is."""
    agents = [agent for group in groups.values() for agent in group.agent_ids]
    if len(agents) > 1 or trajectory.agent_id == agents[0]:
        return trajectory
    return replace(trajectory, agent_id=agents[0])


def _demonstrated(trajectory: Trajectory, groups: Mapping[str, AgentGroup]) -> Trajectory:
    """ML-Agents' files know a behaviour and no agents, and no bounds of observations: those are the environment's."""
    group = groups.get(trajectory.group) or (next(iter(groups.values())) if len(groups) == 1 else None)
    if group is None:
        return trajectory
    is_same = same_columns(trajectory.observation_space, group.observation_space)
    seen = group.observation_space if is_same else trajectory.observation_space
    return replace(trajectory, group=group.name, agent_id=group.agent_ids[0], observation_space=seen)


class Offline(Pace):
    """Each advance is as many gradient steps as a rollout would have brought."""

    def __init__(
        self,
        trainer: PolicyTrainer,
        statistics: Statistics,
        collector: RolloutCollector,
        clock: PhaseClock,
        num_envs: int,
    ) -> None:
        super().__init__(collector, clock, lambda _: {})
        self._trainer, self._statistics, self._num_envs = trainer, statistics, num_envs

    @property
    def num_env_steps(self) -> int:
        return self._trainer.num_env_steps

    def advance(self, num_steps: int) -> None:
        self._trainer.count_without_collecting(num_steps * self._num_envs)
        self._statistics.add(self._trainer.advance())
        self._clock.lap("learn")
