"""The fastest way to carry an on-policy algorithm out: kernels where they know the plan, the reference elsewhere."""

from __future__ import annotations

from relayrl.accelerator.array_kernels import accelerate_steps, gae
from relayrl.accelerator.minibatch_kernels import kernel_update
from relayrl.algorithms.losses import Objective
from relayrl.algorithms.on_policy import Backend
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.recurrent_update import reference_update
from relayrl.algorithms.updates.torch_update import TorchUpdate
from relayrl.models.actor_critic import ActorCritic


def fastest_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
) -> TorchUpdate:
    """The fastest update of a policy; a kernel steps the optimisers of one that no kernel trains."""
    found = kernel_update(policy, objective, pi_optimizer, vf_optimizer)
    if found is not None:
        return found
    accelerate_steps([pi_optimizer, vf_optimizer])
    return reference_update(policy, objective, pi_optimizer, vf_optimizer)


FASTEST = Backend(gae, fastest_update)
"""What runs are made with."""
