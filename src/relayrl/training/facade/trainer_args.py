"""What a trainer of the facade is made for: `TrainerArgs`.

`obs_dim` and `act_dim` are enough for flat float32 observations; `observation_space` and `action_space` say anything else. By
default an algorithm that learns from rollouts once (REINFORCE, PPO, IMPALA, APPO) chooses among `act_dim` actions, and one that
learns from replay (DDPG, TD3, SAC) acts in `Box(-1, 1, (act_dim,))`.

Not here: the algorithms' hyper-parameters, which are `relayrl.algorithms.params`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gymnasium import spaces

from relayrl.algorithms.params import AlgorithmParams
from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.network_settings import NetworkSettings

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

    def actions(self, params: AlgorithmParams) -> Space:
        """What agents do, under an algorithm with `params`."""
        if self.action_space is not None:
            return self.action_space
        if self.act_dim is None:
            raise ConfigError("TrainerArgs needs act_dim or action_space")
        if params.replay_size is None:
            return spaces.Discrete(self.act_dim)
        return spaces.Box(-1.0, 1.0, (self.act_dim,), np.float32)

    @property
    def env_name(self) -> str:
        """What exported models call the environment."""
        return Path(self.env_dir).name or str(self.env_dir)

    @property
    def directory(self) -> Path:
        """`save_model_path` as a path."""
        return Path(self.save_model_path)
