"""What a record holds beyond the checkpoint from which its run goes on.

A run that was killed has recorded steps after its last checkpoint, and takes them again when it is resumed. While the new steps
are the recorded ones, bit for bit, they are not written a second time. Where they differ (the environment could not be saved,
settings or machine changed, threads took turns otherwise), the recorded ones are abandoned from there on: the run that goes on
never took them.

Not its job: writing (`run_recorder`), or how a sink marks what is abandoned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.trees import leaves
from relayrl.envs.environment_contract import AgentGroup
from relayrl.sinks.contract import open_source

Lane = tuple[UUID, str]
"""Environment and agent."""
Position = tuple[int, int]
"""Episode and step."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One trajectory of the record: where it begins, and what is in it."""

    trajectory_id: UUID
    position: Position
    digest: bytes

    def is_same_as(self, trajectory: Trajectory) -> bool:
        return self.position == _position(trajectory) and self.digest == _digest(trajectory)


class RecordedAhead:
    """The trajectories that are recorded from a checkpoint on, lane by lane, until the run has come to them again."""

    def __init__(self, found: Iterable[Trajectory], abandoned: frozenset[UUID]) -> None:
        self._lanes: dict[Lane, list[_Recorded]] = {}
        self.has_abandoned = False
        """Whether some of them are abandoned already: their ids must not be given again."""
        for trajectory in found:
            if trajectory.trajectory_id in abandoned:
                self.has_abandoned = True
                continue
            own = _Recorded(trajectory.trajectory_id, _position(trajectory), _digest(trajectory))
            self._lanes.setdefault(_lane(trajectory), []).append(own)
        for lane in self._lanes.values():
            lane.sort(key=lambda recorded: recorded.position)

    def __bool__(self) -> bool:
        return any(self._lanes.values())

    def without_recorded(self, blocks: Sequence[Iterable[Trajectory]]) -> list[list[Trajectory]] | None:
        """What of the next blocks is not recorded yet; None if the record goes on otherwise than they do."""
        num_same: dict[Lane, int] = {}
        new: list[list[Trajectory]] = []
        for block in blocks:
            new.append([])
            for trajectory in block:
                lane = _lane(trajectory)
                recorded, i = self._lanes.get(lane, []), num_same.get(lane, 0)
                if i == len(recorded):
                    new[-1].append(trajectory)
                elif recorded[i].is_same_as(trajectory):
                    num_same[lane] = i + 1
                else:
                    return None
        for lane, count in num_same.items():
            del self._lanes[lane][:count]
        return new

    def take_rest(self) -> list[UUID]:
        """The ids of what the run has not come to again; nothing is ahead after that."""
        rest = [recorded.trajectory_id for lane in self._lanes.values() for recorded in lane]
        self._lanes.clear()
        return rest


def find_ahead(url: str, positions: Mapping[Lane, Position]) -> RecordedAhead:
    """What the record at `url` holds of these lanes from these positions on."""
    env_ids = {env_id for env_id, _ in positions}
    with open_source(url, with_abandoned=True) as source:
        found = source.of_envs(env_ids, min(episode for episode, _ in positions.values()))
        ahead = (each for each in found if _lane(each) in positions and _position(each) >= positions[_lane(each)])
        return RecordedAhead(ahead, source.abandoned())


def lane_positions(
    collector: Mapping[str, Any], groups: Mapping[str, AgentGroup], open_rows: Iterable[Iterable[Trajectory]]
) -> dict[Lane, Position]:
    """From where on each lane is written anew, by the saved state of a collector and what the recorder held back; empty where
    the state has no ids of environments (older versions)."""
    env_ids = [UUID(text) for text in collector.get("env_ids", ())]
    found: dict[Lane, Position] = {}
    for name, group in groups.items():
        numbers = collector["builders"][name]
        lanes = [(env_id, agent_id) for env_id in env_ids for agent_id in group.agent_ids]
        positions = zip(numbers["first_episode"].tolist(), numbers["first_step"].tolist(), strict=True)
        found |= zip(lanes, positions, strict=bool(lanes))
    return found | {_lane(held): _position(held) for block in open_rows for held in block}


def _lane(trajectory: Trajectory) -> Lane:
    return trajectory.env_id, trajectory.agent_id


def _position(trajectory: Trajectory) -> Position:
    return trajectory.episode, trajectory.first_step


def _digest(trajectory: Trajectory) -> bytes:
    """Of what was seen, done and earned, by which policy, and how and when it ended; bit for bit."""
    digest = hashlib.blake2b(bytes((trajectory.terminated, trajectory.truncated, trajectory.failed)), digest_size=16)
    columns = (trajectory.obs, trajectory.action, trajectory.reward, trajectory.policy_version, trajectory.final_obs)
    digest.update(trajectory.num_env_steps.to_bytes(8, "little"))
    for _, leaf in leaves(columns):
        digest.update(np.asarray(leaf).tobytes())
    return digest.digest()
