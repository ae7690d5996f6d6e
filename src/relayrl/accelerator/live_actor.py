"""Which actor acts for a policy of this process: the compiled one where it is recognised exactly, else torch."""

from __future__ import annotations

import copy

from relayrl.accelerator.mlp_actor import MAX_PRODUCTS, MlpActor, fits
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.torch_actor import TorchActor
from relayrl.models.compute_device import CPU, device_of
from relayrl.models.exports.mlp_policy import has_own_critic, mlp_of
from relayrl.models.policy import Policy


def live_actor(policy: Policy) -> Actor:
    """The fastest actor that always acts with the policy's newest parameters; it computes values only where they are nearly
    free: beside an encoder of images that the critic shares."""
    mlp = mlp_of(policy, with_value=False)
    if mlp is None or not fits(mlp):
        shares = policy.image_encoder is not None
        reference = TorchActor(policy, with_value=shares)
        is_on_gpu = device_of(policy) != CPU  # where everything of a decision comes back in one transfer
        reference.knows_logp, reference.gives_value = shares or is_on_gpu, shares and has_own_critic(policy)
        return reference
    actor = MlpActor(mlp, policy.head, policy.encoder.encode_numpy)
    actor.observation_space = policy.observation_space
    return actor


def frozen_actor(policy: Policy, device: str) -> Actor:
    """The fastest actor of a copy of the policy as it is now, with values where it has a critic of its own."""
    own = copy.deepcopy(policy).to(device).eval().requires_grad_(False)
    reference, mlp = TorchActor(own, with_value=True), mlp_of(own, with_value=True)
    if mlp is None or not fits(mlp) or mlp.num_weights > MAX_PRODUCTS:
        return reference
    return MlpActor(mlp, own.head, own.encoder.encode_numpy, reference)
