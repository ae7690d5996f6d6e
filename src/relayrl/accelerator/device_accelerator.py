"""What learns in a run that stays on its device: the GPU's kernels where they know a policy exactly, else the reference."""

from __future__ import annotations

import importlib.util
import logging
import time
from typing import TYPE_CHECKING, Any

from relayrl.algorithms.updates.device_adam import DeviceAdam
from relayrl.algorithms.updates.device_sequences import reference_device_update
from relayrl.algorithms.updates.device_update import DeviceUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor

    from relayrl.algorithms.losses import Objective
    from relayrl.algorithms.off_policy import OffPolicyAlgorithm
    from relayrl.algorithms.optimizer import FlatAdam
    from relayrl.envs.native.batched_environment import BatchedEnvironment
    from relayrl.envs.native.dense_step import DenseStep
    from relayrl.models.policy import ActorCritic

_log = logging.getLogger("relayrl.accelerator.device_accelerator")


def fastest_device_update(
    policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam, *, tf32: bool
) -> DeviceUpdate:
    """The fastest update of a policy on its device. With `tf32`, kernels round what they multiply to 10 bits."""
    parts = policy, objective, pi_optimizer, vf_optimizer
    if pi_optimizer.vector.device.type != "cuda":
        return reference_device_update(*parts)
    if importlib.util.find_spec("triton") is None:
        _log.warning("Triton is not installed, so that networks are trained by torch; install it: pip install triton")
        return reference_device_update(*parts)
    from relayrl.accelerator.gpu.convolutions.fused_images import fused_image_update
    from relayrl.accelerator.gpu.fused_update import fused_update
    from relayrl.accelerator.gpu.mlp_tiles import Precision
    from relayrl.accelerator.gpu.recurrent.fused_recurrent import fused_recurrent_update

    precision = Precision.TF32 if tf32 else None
    fused: DeviceUpdate | None
    if policy.image_encoder is not None:
        fused = fused_image_update(*parts)
    else:
        fused = fused_recurrent_update(*parts, precision) if policy.has_memory else fused_update(*parts, precision)
    if fused is None:
        _log.info("the policy is none that the GPU's kernels know; torch trains it")
        return reference_device_update(*parts)
    return fused


def fastest_device_adam(optimizer: FlatAdam) -> DeviceAdam:
    """What steps an optimiser's parameters without asking the host."""
    if optimizer.vector.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return DeviceAdam(optimizer)
    from relayrl.accelerator.gpu.clipped_adam import FusedAdam

    return FusedAdam(optimizer)


def fuse_replay_networks(algorithm: OffPolicyAlgorithm[Any]) -> None:
    """Have kernels evaluate the networks of an algorithm that learns from replay, where they know it exactly."""
    devices = {learner.actor_optimizer.vector.device.type for learner in algorithm.groups.values()}
    if devices != {"cuda"} or importlib.util.find_spec("triton") is None:
        return
    from relayrl.accelerator.gpu.replay.fused_evaluation import fuse_known

    if not fuse_known(algorithm):
        _log.info("the algorithm or a network of it is none that the GPU's kernels know; torch evaluates those")


def fused_gather(device: torch.device) -> Callable[..., Any] | None:
    """What draws transitions from a replay on a CUDA device in one launch."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from relayrl.accelerator.gpu.replay.gather_kernel import gather

    return gather


def fastest_step(env: BatchedEnvironment) -> Callable[[Mapping[str, Tensor]], DenseStep]:
    """What steps an environment on its device without asking the host: a kernel where there is one of it."""
    if not env.device.startswith("cuda") or importlib.util.find_spec("triton") is None:
        return env.step_dense
    from relayrl.accelerator.gpu.environments.fused_steps import fused_step
    from relayrl.accelerator.gpu.environments.stream_kernels import fused_uniforms

    env._beginnings.draw_dense = fused_uniforms
    return fused_step(env) or env.step_dense


def fused_episodes(num_agents: Sequence[int], device: torch.device) -> Callable[..., None] | None:
    """What adds up a rollout's episodes by kernels, where groups of so many agents are one, of few agents, on a CUDA device."""
    if device.type != "cuda" or len(num_agents) > 1 or importlib.util.find_spec("triton") is None:
        return None
    from relayrl.accelerator.gpu.environments.episode_kernels import MAX_AGENTS, add_episodes

    return add_episodes if num_agents[0] <= MAX_AGENTS else None


def fused_rollout_of(env: BatchedEnvironment, actors: Mapping[str, Any]) -> Callable[[Any, Tensor], None] | None:
    """What fills a whole rollout of an environment's only group in one launch, where kernels know environment and policy."""
    if len(actors) > 1 or not env.device.startswith("cuda") or importlib.util.find_spec("triton") is None:
        return None
    from relayrl.accelerator.gpu.environments.fused_rollouts import fused_rollout
    from relayrl.accelerator.gpu.recurrent.recurrent_rollouts import recurrent_rollout

    (actor,) = actors.values()
    return fused_rollout(env, actor) or recurrent_rollout(env, actor)


def start_compiler(device: str) -> None:
    """Have the GPU's compiler get ready in a thread, while a run on a CUDA device is built."""
    if device.startswith("cuda") and importlib.util.find_spec("triton") is not None:
        from relayrl.accelerator.gpu.compilation.compiler_start import started_compiler

        started_compiler()


def is_exactly_known(update: DeviceUpdate) -> bool:
    """Whether nothing but RelayRL's own code runs in an update, so that it may be rehearsed."""
    if update.pi_adam.lr.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    from relayrl.accelerator.gpu.fused_update import FusedUpdate, sees_plainly

    return type(update) is FusedUpdate and sees_plainly(update.policy)


def compile_kernels_of(work: Callable[[], None], generators: Sequence[torch.Generator]) -> None:
    """Compile the kernels that `work` on a CUDA device launches, several at a time, before it is done. It is rehearsed without
    an effect on tensors and `generators`; it must have no other state."""
    from relayrl.accelerator.gpu.compilation.compiling import compile_together

    started = time.perf_counter()
    if num_kernels := compile_together(work, generators):
        _log.info("compiled %d kernels in %.1f s", num_kernels, time.perf_counter() - started)
