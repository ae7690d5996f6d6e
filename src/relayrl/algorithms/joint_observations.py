"""What the central critics of on-policy algorithms see: all agents of the world side by side, its global state, or both.

Rows on which an agent did not act, or was absent, are zeros. Agents of one group share a critic; which of them is judged is
told by a one-hot number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relayrl.algorithms.critic_sight import CriticSight, StateOffer
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, Space, map_tree
from relayrl.errors import ConfigError
from relayrl.models.input_layout import InputLayout, SideBySide, plain_numbers
from relayrl.models.networks import ObservationEncoder


@dataclass(frozen=True, slots=True)
class CentralInputs:
    """The critic's inputs: `rows` [T, L, C], and `successors` [K, C] for the rollout's successors."""

    rows: Array
    successors: Array


@dataclass(frozen=True, slots=True)
class CentralGroup:
    """One group of agents, as central critics need to know it, and what its own critic sees."""

    observation_space: Space
    num_agents: int
    sight: CriticSight


class CentralCritics:
    """Builds the inputs of every group's central critic."""

    def __init__(self, groups: Mapping[str, CentralGroup], offer: StateOffer | None) -> None:
        self._groups = dict(groups)
        self._encoders = {name: ObservationEncoder(group.observation_space) for name, group in groups.items()}
        self.sees_state = any(group.sight.state for group in groups.values())
        self._state_encoder = ObservationEncoder(offer.space) if offer is not None and self.sees_state else None

    def layout(self, group: str) -> InputLayout:
        """The input of a group's critic; its `num_features` are C."""
        own = self._groups[group]
        parts: list[InputLayout] = []
        if own.sight.observations:
            parts += [self._encoders[name] for name, other in self._groups.items() for _ in range(other.num_agents)]
        if own.sight.state and self._state_encoder is not None:
            parts.append(self._state_encoder)
        return SideBySide([*parts, plain_numbers(own.num_agents)])

    def sight(self, group: str) -> CriticSight:
        """What a group's critic sees."""
        return self._groups[group].sight

    @property
    def num_state_features(self) -> int:
        """Numbers that a critic sees of the global state."""
        return 0 if self._state_encoder is None else self._state_encoder.num_features

    def inputs(self, rollouts: Mapping[str, Rollout]) -> dict[str, CentralInputs]:
        """Inputs of every group's critic, from rollouts of the same worlds and steps."""
        joint = self._joint_observations(rollouts)
        return {name: self._of_group(self._groups[name], rollout, joint) for name, rollout in rollouts.items()}

    def _joint_observations(self, rollouts: Mapping[str, Rollout]) -> tuple[Array, Array] | None:
        """[T, B, …] what all agents see, and what they see next."""
        if not any(group.sight.observations for group in self._groups.values()):
            return None
        now, following = [], []
        for name, rollout in rollouts.items():
            seen, seen_next = _features(rollout, self._encoders[name])
            now.append(_by_world(rollout, seen))
            following.append(_by_world(rollout, seen_next))
        return np.concatenate(now, -1), np.concatenate(following, -1)

    def _of_group(self, group: CentralGroup, rollout: Rollout, joint: tuple[Array, Array] | None) -> CentralInputs:
        agents, successors = group.num_agents, rollout.successors
        world, agent = np.divmod(successors.lane, agents)
        shared: list[Array] = []
        followed: list[Array] = []
        if group.sight.observations and joint is not None:
            shared.append(joint[0])
            followed.append(joint[1][successors.step, world])
        if group.sight.state:
            state, state_next = self._states(rollout)
            shared.append(state)
            followed.append(state_next)
        identity = np.eye(agents, dtype=np.float32)
        T, worlds = shared[0].shape[:2]
        width = sum(part.shape[-1] for part in shared)
        rows = np.empty((T, worlds, agents, width + agents), np.float32)
        column = 0
        for part in shared:
            rows[..., column : column + part.shape[-1]] = part[:, :, None]
            column += part.shape[-1]
        rows[..., width:] = identity
        return CentralInputs(
            rows.reshape(T, worlds * agents, -1), np.concatenate([*followed, identity[agent]], -1, dtype=np.float32)
        )

    def _states(self, rollout: Rollout) -> tuple[Array, Array]:
        """[T, B, S] states, and [K, S] those of the rollout's successors."""
        encoder = self._state_encoder
        if encoder is None or rollout.state is None or rollout.successors.state is None:
            raise ConfigError("central critics see the global state, and these trajectories were recorded without it")
        T, worlds = rollout.num_steps, len(rollout.header.env_ids)
        flat = encoder.encode_numpy(map_tree(lambda leaf: leaf.reshape(T * worlds, *leaf.shape[2:]), rollout.state))
        return flat.reshape(T, worlds, -1), encoder.encode_numpy(rollout.successors.state)


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
