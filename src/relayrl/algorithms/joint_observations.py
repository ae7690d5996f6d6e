"""What the central critics of on-policy algorithms see: all agents of the world side by side, its global state, or both.

Rows on which an agent did not act, or was absent, are zeros. Agents of one group share a critic; which of them is judged is
told by a one-hot number. What a world shows is kept once for all of its agents (`SharedRows`).
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
from relayrl.models.shared_rows import SharedPart, SharedRows


@dataclass(frozen=True, slots=True)
class CentralInputs:
    """The critic's inputs: `rows` [M, C] for M = T · L, and `successors` [K, C] for the rollout's successors."""

    rows: SharedRows
    successors: SharedRows


@dataclass(frozen=True, slots=True)
class JointObservations:
    """What all agents of a world see, on each of its W = T · B steps, and what they see after some of them."""

    now: Array  # [W, J]
    moments: Array  # [U] the steps, of those W, after which somebody has a successor; sorted
    following: Array  # [U, J]


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

    def _joint_observations(self, rollouts: Mapping[str, Rollout]) -> JointObservations | None:
        if not any(group.sight.observations for group in self._groups.values()):
            return None
        moments = np.unique(np.concatenate([_moments(rollout) for rollout in rollouts.values()]))
        now, following = [], []
        for name, rollout in rollouts.items():
            seen = _seen(rollout, self._encoders[name])
            now.append(seen.reshape(len(seen), -1))
            seen_next = _seen_next(rollout, self._encoders[name], seen, moments)
            following.append(seen_next.reshape(len(moments), -1))
        return JointObservations(_side_by_side(now), moments, _side_by_side(following))

    def _of_group(self, group: CentralGroup, rollout: Rollout, joint: JointObservations | None) -> CentralInputs:
        agents, successors = group.num_agents, rollout.successors
        world_step, agent = np.divmod(np.arange(rollout.reward.size), agents)
        rows: list[SharedPart] = []
        followed: list[SharedPart] = []
        if group.sight.observations and joint is not None:
            rows.append(SharedPart(joint.now, world_step))
            followed.append(SharedPart(joint.following, np.searchsorted(joint.moments, _moments(rollout))))
        if group.sight.state:
            state, state_next = self._states(rollout)
            rows.append(SharedPart(state, world_step))
            followed.append(SharedPart(state_next, np.arange(len(successors))))
        identity = np.eye(agents, dtype=np.float32)
        rows.append(SharedPart(identity, agent))
        followed.append(SharedPart(identity, successors.lane % agents))
        return CentralInputs(SharedRows(tuple(rows)), SharedRows(tuple(followed)))

    def _states(self, rollout: Rollout) -> tuple[Array, Array]:
        """[W, S] states, and [K, S] those of the rollout's successors."""
        encoder = self._state_encoder
        if encoder is None or rollout.state is None or rollout.successors.state is None:
            raise ConfigError("central critics see the global state, and these trajectories were recorded without it")
        flat = map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.state)
        return encoder.encode_numpy(flat), encoder.encode_numpy(rollout.successors.state)


def _num_agents(rollout: Rollout) -> int:
    """Of each world."""
    return rollout.num_lanes // len(rollout.header.env_ids)


def _moments(rollout: Rollout) -> Array:
    """[K] the step of its world, among all W, that each successor followed."""
    successors = rollout.successors
    return np.asarray(successors.step * len(rollout.header.env_ids) + successors.lane // _num_agents(rollout))


def _seen(rollout: Rollout, encoder: ObservationEncoder) -> Array:
    """[W, N, F] features of each row; 0 where an agent did not act."""
    flat = encoder.encode_numpy(map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.obs))
    if not rollout.valid.all():
        flat = np.where(rollout.valid.reshape(-1, 1), flat, np.float32(0.0))
    return flat.reshape(-1, _num_agents(rollout), flat.shape[-1])


def _seen_next(rollout: Rollout, encoder: ObservationEncoder, seen: Array, moments: Array) -> Array:
    """[U, N, F] features of what followed `moments`."""
    worlds, successors = len(rollout.header.env_ids), rollout.successors
    seen_next = np.zeros((len(moments), *seen.shape[1:]), np.float32)
    goes_on = moments + worlds < len(seen)
    seen_next[goes_on] = seen[moments[goes_on] + worlds]
    # Whoever ended saw something last; after the block, whoever acted on its last row is there still.
    was_there = (rollout.ended | rollout.valid)[successors.step, successors.lane][:, None]
    where = np.searchsorted(moments, _moments(rollout)), successors.lane % _num_agents(rollout)
    seen_next[where] = np.where(was_there, encoder.encode_numpy(successors.obs), np.float32(0.0))
    return seen_next


def _side_by_side(columns: list[Array]) -> Array:
    return columns[0] if len(columns) == 1 else np.concatenate(columns, -1)
