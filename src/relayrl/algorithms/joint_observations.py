"""What a central critic of an on-policy algorithm sees: the features of all agents of its world, side by side.

Rows on which an agent did not act, or was absent, are zeros. Agents of one group share a critic; which of them is judged is
told by a one-hot number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, map_tree
from relayrl.models.networks import ObservationEncoder


@dataclass(frozen=True, slots=True)
class CentralInputs:
    """The critic's inputs: `rows` [T, L, C], and `successors` [K, C] for the rollout's successors."""

    rows: Array
    successors: Array


def central_width(num_features: Mapping[str, int], num_agents: Mapping[str, int], group: str) -> int:
    """C of a group's central critic."""
    return sum(num_features[name] * num_agents[name] for name in num_features) + num_agents[group]


def central_inputs(
    rollouts: Mapping[str, Rollout], encoders: Mapping[str, ObservationEncoder]
) -> dict[str, CentralInputs]:
    """Inputs of every group's critic, from rollouts of the same worlds and steps."""
    now, following = [], []
    for name, rollout in rollouts.items():
        seen, seen_next = _features(rollout, encoders[name])
        now.append(_by_world(rollout, seen))
        following.append(_by_world(rollout, seen_next))
    joint, joint_next = np.concatenate(now, -1), np.concatenate(following, -1)
    return {name: _of_group(rollout, joint, joint_next) for name, rollout in rollouts.items()}


def _features(rollout: Rollout, encoder: ObservationEncoder) -> tuple[Array, Array]:
    """[T, L, F] features of each row, and of what followed it."""
    T, L = rollout.reward.shape
    flat = encoder.encode_numpy(map_tree(lambda leaf: leaf.reshape(T * L, *leaf.shape[2:]), rollout.obs))
    seen = np.where(rollout.valid[..., None], flat.reshape(T, L, -1), np.float32(0.0))
    seen_next = np.zeros_like(seen)
    seen_next[:-1] = seen[1:]
    step, lane = rollout.successors.step, rollout.successors.lane
    # Whoever ended saw something last; after the block, whoever acted on its last row is there still.
    was_there = (rollout.ended | rollout.valid)[step, lane][:, None]
    seen_next[step, lane] = np.where(was_there, encoder.encode_numpy(rollout.successors.obs), np.float32(0.0))
    return seen, seen_next


def _by_world(rollout: Rollout, lanes: Array) -> Array:
    """[T, B, N·F]."""
    return lanes.reshape(len(lanes), len(rollout.header.env_ids), -1)


def _of_group(rollout: Rollout, joint: Array, joint_next: Array) -> CentralInputs:
    T, worlds, width = joint.shape
    agents = len(rollout.header.agent_ids)
    identity = np.eye(agents, dtype=np.float32)
    rows = np.empty((T, worlds, agents, width + agents), np.float32)
    rows[..., :width] = joint[:, :, None]
    rows[..., width:] = identity
    world, agent = np.divmod(rollout.successors.lane, agents)
    successors = np.concatenate([joint_next[rollout.successors.step, world], identity[agent]], -1)
    return CentralInputs(rows.reshape(T, worlds * agents, -1), successors)
