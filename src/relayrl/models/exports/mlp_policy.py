"""Which live policies are exactly RelayRL's own MLPs, so that a faster twin may act for them, and their arrays."""

from __future__ import annotations

from torch import nn

from relayrl.models.exports.mlp_description import Mlp, MlpDescription
from relayrl.models.heads.box_heads import DeterministicHead, GaussianHead, SquashedGaussianHead
from relayrl.models.heads.discrete_heads import BernoulliHead, CategoricalHead, MultiCategoricalHead
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.networks.mlp import MLP, is_plain
from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer
from relayrl.models.policy import ActorCritic, Policy
from relayrl.models.teams.team_policy import TeamActorCritic

_POLICIES = BuiltIns(Policy, ActorCritic, TeamActorCritic)
_HEADS = BuiltIns(
    CategoricalHead, MultiCategoricalHead, BernoulliHead, GaussianHead, SquashedGaussianHead, DeterministicHead
)
_ENCODERS, NORMALIZERS = BuiltIns(ObservationEncoder), BuiltIns(RunningNormalizer)


def encodes_in_numpy(policy: Policy) -> bool:
    """Whether `features_numpy` gives what `features` does."""
    normalizer = policy.normalizer
    is_known = policy.encoder in _ENCODERS and (normalizer is None or normalizer in NORMALIZERS)
    is_known = is_known and policy.image_encoder is None
    return is_known and _POLICIES.keeps(policy, "features", "features_numpy")


def is_built_in(policy: Policy) -> bool:
    """Whether everything around a policy's networks is unchanged."""
    return policy in _POLICIES and policy.head in _HEADS and encodes_in_numpy(policy)


def has_own_critic(policy: Policy) -> bool:
    """Whether a value follows from the observation alone."""
    return isinstance(policy, ActorCritic) and not policy.is_central


def mlp_of(policy: Policy, *, with_value: bool) -> MlpDescription | None:
    """The policy as views of its live parameters, with the critic where values are wanted; None where it is anything else."""
    actor = _live(policy.actor) if is_built_in(policy) else None
    if actor is None:
        return None
    critic, returns = None, None
    if with_value and isinstance(policy, ActorCritic) and not policy.is_central:
        critic, moments = _live(policy.critic), policy.return_normalizer
        if critic is None or moments not in NORMALIZERS:
            return None
        returns = moments.shift.numpy(), moments.scale.numpy()
    log_std = policy.log_std.detach().numpy() if policy.head.learns_log_std else None
    observations = None if policy.normalizer is None else policy.normalizer.on_host()
    return MlpDescription(actor, critic, returns, log_std, observations)


def mlp_text(policy: Policy, *, with_value: bool = True) -> str:
    """What a file says of the policy for the accelerator; empty where it cannot act for it from one array of numbers."""
    mlp = described_mlp(policy, with_value=with_value)
    return "" if mlp is None else mlp.to_text()


def described_mlp(policy: Policy, *, with_value: bool) -> MlpDescription | None:
    """`mlp_of` where the accelerator can act for the policy from one array of numbers."""
    encodings = policy.encoder.encodings if encodes_in_numpy(policy) else []
    is_numbers = len(encodings) == 1 and encodings[0].categories is None and encodings[0].divisor == 1.0
    return mlp_of(policy, with_value=with_value) if is_numbers else None


def _live(network: nn.Module) -> Mlp | None:
    if not is_plain(network) or not isinstance(network, MLP):
        return None
    layers = tuple((layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in network.linears())
    return Mlp(network.activation, layers)
