"""What the central critics of on-policy algorithms see: all agents of the environment side by side, its global state, or both.

Rows on which an agent did not act, or was absent, are zeros; whom critics see after a row is `presence`. Agents of one group
share a critic; a one-hot number marks the agent whose value is asked. What is seen of an environment is kept once
for all of its agents (`SharedRows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relayrl.algorithms.critics.critic_sight import CriticSight, StateOffer
from relayrl.algorithms.critics.presence import Presence
from relayrl.data.columns import Rollout
from relayrl.data.row_rules import present
from relayrl.data.trees import Array, Space, map_tree
from relayrl.errors import ConfigError
from relayrl.models.networks.input_layout import InputLayout, SideBySide, plain_numbers
from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer
from relayrl.models.networks.shared_rows import SharedPart, SharedRows
from relayrl.models.normalization import Normalization


@dataclass(frozen=True, slots=True)
class CentralInputs:
    """The critic's inputs: `rows` [M, C] for M = T · L, and `successors` [K, C] for the rollout's successors."""

    rows: SharedRows
    successors: SharedRows

    def normalized(self, moments: RunningNormalizer | None) -> CentralInputs:
        """The same as `moments` scale it, where there are any."""
        if moments is None:
            return self
        whole = moments.on_host()

        def scaled(table: Array, columns: slice) -> Array:
            return Normalization(whole.shift[columns], whole.scale[columns], whole.clip)(table)

        return CentralInputs(self.rows.with_tables(scaled), self.successors.with_tables(scaled))


@dataclass(frozen=True, slots=True)
class JointObservations:
    """What all agents of an environment see, on each of its W = T · B steps, and what they see after some of them."""

    now: Array  # [W, J]
    moments: Array  # [U] the steps, of those W, after which somebody has a successor; sorted
    following: Mapping[str, Array]  # of each group, [U, N, F], whether anybody else sees it or not
    shared: Array  # [U, J] the same of those that everybody sees
    presence: Presence | None

    def after(self, group: str, rollout: Rollout) -> SharedPart:
        """What a group's critic sees of all agents after the rows of its rollout's successors."""
        part = SharedPart(self.shared, np.searchsorted(self.moments, _moments(rollout)))
        if self.presence is None:
            return part
        agents, successors, names = _num_agents(rollout), rollout.successors, list(self.following)
        num_before = sum(self.following[name].shape[1] for name in names[: names.index(group)])
        env, agent = np.divmod(successors.lane, agents)
        rows, seen = self.presence.own_views(successors.step, env, num_before + agent)
        if not len(rows):
            return part
        followed = [following[part.line[rows]] for following in self.following.values()]
        return part.with_lines(rows, _side_by_side(followed, seen))


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
        """Inputs of every group's critic, from rollouts of the same environments and steps."""
        joint = self._joint_observations(rollouts)
        return {name: self._of_group(name, rollout, joint) for name, rollout in rollouts.items()}

    def _joint_observations(self, rollouts: Mapping[str, Rollout]) -> JointObservations | None:
        if not any(group.sight.observations for group in self._groups.values()):
            return None
        moments = np.unique(np.concatenate([_moments(rollout) for rollout in rollouts.values()]))
        now, following = [], {}
        for name, rollout in rollouts.items():
            features = _features(rollout, self._encoders[name])
            now.append(present(features, rollout.valid.reshape(features.shape[:2])))
            following[name] = _following(rollout, self._encoders[name], features, moments)
        presence = Presence.of(rollouts)
        step, env = np.divmod(moments, len(rollout.header.env_ids))
        shared = _side_by_side(list(following.values()), None if presence is None else presence.seen[step, env])
        return JointObservations(_side_by_side(now), moments, following, shared, presence)

    def _of_group(self, name: str, rollout: Rollout, joint: JointObservations | None) -> CentralInputs:
        group, successors = self._groups[name], rollout.successors
        agents = group.num_agents
        env_step, agent = np.divmod(np.arange(rollout.reward.size), agents)
        rows: list[SharedPart] = []
        followed: list[SharedPart] = []
        if group.sight.observations and joint is not None:
            rows.append(SharedPart(joint.now, env_step))
            followed.append(joint.after(name, rollout))
        if group.sight.state:
            state, state_next = self._states(rollout)
            rows.append(SharedPart(state, env_step))
            followed.append(SharedPart(state_next, np.arange(len(successors))))
        identity = np.eye(agents, dtype=np.float32)
        rows.append(SharedPart(identity, agent))
        followed.append(SharedPart(identity, successors.lane % agents))
        return CentralInputs(SharedRows(tuple(rows)), SharedRows(tuple(followed)))

    def _states(self, rollout: Rollout) -> tuple[Array, Array]:
        """[W, S] states, and [K, S] those of the rollout's successors."""
        encoder = self._state_encoder
        if encoder is None or rollout.state is None or rollout.successors.state is None:
            raise ConfigError("records lack the state for critics; set network.critic_input=joint_observations")
        flat = map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.state)
        return encoder.encode_numpy(flat), encoder.encode_numpy(rollout.successors.state)


def _num_agents(rollout: Rollout) -> int:
    """Of each environment."""
    return rollout.num_lanes // len(rollout.header.env_ids)


def _moments(rollout: Rollout) -> Array:
    """[K] the step of its environment, among all W, that each successor followed."""
    successors = rollout.successors
    return np.asarray(successors.step * len(rollout.header.env_ids) + successors.lane // _num_agents(rollout))


def _features(rollout: Rollout, encoder: ObservationEncoder) -> Array:
    """[W, N, F] what each row holds, acted on or not."""
    flat = encoder.encode_numpy(map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.obs))
    return flat.reshape(-1, _num_agents(rollout), flat.shape[-1])


def _following(rollout: Rollout, encoder: ObservationEncoder, features: Array, moments: Array) -> Array:
    """[U, N, F] features of what followed `moments`; what stands where an agent waits means nothing, and is zeros."""
    envs, successors = len(rollout.header.env_ids), rollout.successors
    following = np.zeros((len(moments), *features.shape[1:]), np.float32)
    goes_on = moments + envs < len(features)
    next_rows = moments[goes_on] + envs
    means_something = (rollout.valid | rollout.failed).reshape(features.shape[:2])
    following[goes_on] = present(features[next_rows], means_something[next_rows])
    where = np.searchsorted(moments, _moments(rollout)), successors.lane % _num_agents(rollout)
    following[where] = encoder.encode_numpy(successors.obs)
    return following


def _side_by_side(groups: list[Array], seen: Array | None = None) -> Array:
    """[R, J] rows [R, N, F] of all groups, zeros for agents that are not `seen` [R, G]."""
    if seen is not None:
        begins = np.cumsum([group.shape[1] for group in groups])[:-1]
        groups = [present(*pair) for pair in zip(groups, np.split(seen, begins, -1), strict=True)]
    columns = [group.reshape(len(group), -1) for group in groups]
    return columns[0] if len(columns) == 1 else np.concatenate(columns, -1)
