"""What a trainer of the facade is made for: `TrainerArgs`, and the policy groups that follow from them.

`obs_dim` and `act_dim` are enough for flat float32 observations; `observation_space` and `action_space` say anything else. By
default an algorithm that learns from its own rollouts (REINFORCE, PPO) chooses among `act_dim` actions, and one that learns
from replay (DDPG, TD3, SAC) acts in `Box(-1, 1, (act_dim,))`.

Not here: the algorithms' hyper-parameters, which are `relayrl.algorithms.params`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from gymnasium import spaces

from relayrl.algorithms.params import OnPolicyParams
from relayrl.config.settings import Settings
from relayrl.data.action_masks import require_allowed
from relayrl.data.arrow_arrays import space_of_tree
from relayrl.data.columns import LaneHeader, Rollout, Trajectory
from relayrl.data.layout_book import trajectory_name
from relayrl.data.stacking import empty_rollout
from relayrl.data.trees import Space, leaf_dtype, space_leaves
from relayrl.errors import ConfigError
from relayrl.models.head_registry import likelihood_head
from relayrl.models.settings import NetworkSettings

DEFAULT_MAX_STEPS = 500_000


@dataclass(frozen=True, slots=True)
class TrainerArgs:
    """Where things lie and what shapes they have; the same for every algorithm."""

    env_dir: Path | str
    """The environment's directory; exported policies give its name as their environment."""
    save_model_path: Path | str
    """The directory of `save`, `load`, exported policies and `progress.csv`; created when first written to."""
    obs_dim: int | None = None
    act_dim: int | None = None
    buffer_size: int | None = None
    """Transitions kept: the replay's size in place of the params' one, or what an epoch of an on-policy algorithm may hold."""
    observation_space: Space | None = None
    action_space: Space | None = None
    state_space: Space | None = None
    """The global state that trajectories bring; central critics see it as `network.critic_input` says."""
    masks_actions: bool = False
    """Whether trajectories bring action masks; an exported model then asks for one."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    seed: int = 0
    max_steps: int = DEFAULT_MAX_STEPS
    """Environment steps after which a linear learning rate reaches zero."""

    def __post_init__(self) -> None:
        for name in ("obs_dim", "act_dim", "buffer_size", "max_steps"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"{name} is {number}; it must be at least 1")

    def observations(self) -> Space:
        """What agents see."""
        if self.observation_space is not None:
            return self.observation_space
        if self.obs_dim is None:
            raise ConfigError("TrainerArgs needs obs_dim or observation_space")
        return spaces.Box(-np.inf, np.inf, (self.obs_dim,), np.float32)

    def actions(self, params: Settings) -> Space:
        """What agents do, under an algorithm with `params`."""
        if self.action_space is not None:
            return self.action_space
        if self.act_dim is None:
            raise ConfigError("TrainerArgs needs act_dim or action_space")
        if isinstance(params, OnPolicyParams):
            return spaces.Discrete(self.act_dim)
        return spaces.Box(-1.0, 1.0, (self.act_dim,), np.float32)

    def with_known_state(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory` with its states where there is a `state_space`, without them where there is none."""
        if self.state_space is None:
            return replace(trajectory, state=None, final_state=None)
        if trajectory.state is None:
            raise ConfigError(f"{trajectory_name(trajectory)} has no state, and the trainer has a state_space")
        if not _same_columns(space_of_tree(trajectory.state, 1), self.state_space, by_dtype=True):
            raise ConfigError(f"{trajectory_name(trajectory)} has states that are not in {self.state_space}")
        return trajectory

    @property
    def env_name(self) -> str:
        """What exported models call the environment."""
        return Path(self.env_dir).name or str(self.env_dir)

    @property
    def directory(self) -> Path:
        """`save_model_path` as a path."""
        return Path(self.save_model_path)


@dataclass(frozen=True, slots=True)
class PolicyGroup:
    """Agents that share a policy, and the spaces that they have in common."""

    name: str
    observation_space: Space
    action_space: Space
    masks_actions: bool
    agent_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.masks_actions and self.mask_width is None:
            raise ConfigError(f"actions in {self.action_space} cannot be masked; leave masks_actions out")

    @property
    def mask_width(self) -> int | None:
        """Entries of an action mask; None where there is none."""
        return likelihood_head(self.action_space).mask_width if self.masks_actions else None

    @property
    def header(self) -> LaneHeader:
        """The group's lanes in an environment yet to be named."""
        return LaneHeader(self.name, (), self.agent_ids, self.observation_space, self.action_space)

    def nothing_played(self) -> Rollout:
        """A rollout in which none of its agents acts."""
        return empty_rollout(self.header, self.mask_width)

    def with_agent(self, agent_id: str) -> PolicyGroup:
        """The group with one more member."""
        return replace(self, agent_ids=(*self.agent_ids, agent_id))

    def adopt(self, trajectory: Trajectory, agent_id: str) -> Trajectory:
        """`trajectory` as one of this group's; `ConfigError` where its spaces, or its masks, are others."""
        if not _same_columns(trajectory.observation_space, self.observation_space):
            raise ConfigError(
                f"{trajectory_name(trajectory)} observes {trajectory.observation_space}, the trainer expects "
                f"{self.observation_space}; give the trainer that observation_space"
            )
        if trajectory.action_space != self.action_space:
            raise ConfigError(
                f"{trajectory_name(trajectory)} acts in {trajectory.action_space}, the trainer expects "
                f"{self.action_space}; give the trainer that action_space"
            )
        mask = trajectory.action_mask
        if not (mask is None and trajectory.final_mask is None) and not self.masks_actions:
            raise ConfigError(
                f"{trajectory_name(trajectory)} has action masks; make the trainer with masks_actions=True"
            )
        if mask is None and self.mask_width is not None:
            mask = np.ones((len(trajectory), self.mask_width), bool)
        given = replace(trajectory, action_mask=mask)
        require_allowed(given)
        return replace(
            given,
            group=self.name,
            agent_id=agent_id,
            observation_space=self.observation_space,
            action_space=self.action_space,
        )


def _same_columns(one: Space, other: Space, *, by_dtype: bool = False) -> bool:
    """Whether values of one space can be read as those of the other, whatever their bounds; `by_dtype`, whatever they mean."""
    here, there = dict(space_leaves(one)), dict(space_leaves(other))
    same = _same_array if by_dtype else _same_leaf
    return list(here) == list(there) and all(same(leaf, there[path]) for path, leaf in here.items())


def _same_array(one: Space, other: Space) -> bool:
    return one.shape == other.shape and leaf_dtype(one) == leaf_dtype(other)


def _same_leaf(one: Space, other: Space) -> bool:
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return _same_array(one, other)
    return bool(one == other)
