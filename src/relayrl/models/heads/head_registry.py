"""Which head serves an action space."""

from __future__ import annotations

from gymnasium import spaces

from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import ActionHead, HeadKind, LikelihoodHead
from relayrl.models.heads.box_heads import DeterministicHead, GaussianHead, SquashedGaussianHead
from relayrl.models.heads.discrete_heads import BernoulliHead, CategoricalHead, MultiCategoricalHead


def likelihood_head(space: Space) -> LikelihoodHead:
    """The head that on-policy algorithms use."""
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    if isinstance(space, spaces.Box):
        return GaussianHead(space)
    raise ConfigError(f"action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary or Box")


def head_of_kind(space: Space, kind: HeadKind, noise_scale: float = 0.0) -> ActionHead:
    """The head that a policy file names."""
    if kind is HeadKind.STOCHASTIC:
        return likelihood_head(space)
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"a {kind.value} policy acts in a Box space, not in {space}")
    return SquashedGaussianHead(space) if kind is HeadKind.SQUASHED else DeterministicHead(space, noise_scale)
