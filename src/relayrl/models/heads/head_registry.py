"""Which head serves an action space."""

from __future__ import annotations

from gymnasium import spaces

from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import ActionHead, HeadKind, LikelihoodHead
from relayrl.models.heads.box_heads import DeterministicHead, GaussianHead, SquashedGaussianHead
from relayrl.models.heads.composite_head import CompositeHead, TreeHead, is_plain, only_boxes
from relayrl.models.heads.discrete_heads import BernoulliHead, CategoricalHead, MultiCategoricalHead


def likelihood_head(space: Space) -> LikelihoodHead:
    """The head that on-policy algorithms use."""
    return _plain_likelihood_head(space) if is_plain(space) else CompositeHead(space, _plain_likelihood_head)


def _plain_likelihood_head(space: Space) -> LikelihoodHead:
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    if isinstance(space, spaces.Box):
        return GaussianHead(space)
    raise ConfigError(
        f"action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary, Box, or Dict or Tuple of them"
    )


def squashed_head(space: Space) -> ActionHead:
    """SAC's head of Boxes of real numbers."""
    return SquashedGaussianHead(space) if _is_plain_box(space) else TreeHead(space, SquashedGaussianHead)  # type: ignore[arg-type]


def deterministic_head(space: Space, noise_scale: float) -> ActionHead:
    """DDPG's and TD3's head of Boxes of real numbers."""

    def plain(leaf: Space) -> ActionHead:
        return DeterministicHead(leaf, noise_scale)  # type: ignore[arg-type]

    return plain(space) if _is_plain_box(space) else TreeHead(space, plain)


def _is_plain_box(space: Space) -> bool:
    return is_plain(space) and isinstance(space, spaces.Box)


def head_of_kind(space: Space, kind: HeadKind, noise_scale: float = 0.0) -> ActionHead:
    """The head that a policy file names."""
    if kind is HeadKind.STOCHASTIC:
        return likelihood_head(space)
    if not only_boxes(space):
        raise ConfigError(f"a {kind.value} policy acts in Boxes of real numbers, not in {space}")
    return squashed_head(space) if kind is HeadKind.SQUASHED else deterministic_head(space, noise_scale)
