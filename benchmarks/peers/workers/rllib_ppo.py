"""RLlib's PPO (its new API stack) on CartPole-v1 and on mpe2's simple_spread: everything in the driver's process, or with env
runners, between which the environments are divided.

Variants on CartPole: `sync` (Gymnasium's SyncVectorEnv), `vector` (Gymnasium's vector CartPole).
"""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import ray
import torch
from measuring import Clock, greedy_return, report, set_torch_threads
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env
from work import (
    CLIP,
    ENTROPY,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    MPE_CYCLES,
    NUM_AGENTS,
    VALUE,
    Task,
    task_from_command_line,
)

MODES = {"sync": "sync", "vector": "vector_entry_point"}


def make_simple_spread(_config: Any) -> Any:
    from mpe2 import simple_spread_v3
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

    envs = simple_spread_v3.parallel_env(N=NUM_AGENTS, max_cycles=MPE_CYCLES, continuous_actions=False)
    return ParallelPettingZooEnv(envs)


def settings_of(task: Task) -> PPOConfig:
    """RLlib's configuration of the work."""
    work = task.ppo
    is_multi_agent = work.env == "simple_spread"
    layers = [work.width, work.width]
    model = DefaultModelConfig(fcnet_hiddens=layers, fcnet_activation="tanh", vf_share_layers=False)
    rows_per_step = NUM_AGENTS if is_multi_agent else 1
    own_envs = work.num_envs // max(1, task.runners)
    runners: dict[str, Any] = {"num_env_runners": task.runners, "num_envs_per_env_runner": own_envs}
    if not is_multi_agent:
        runners["gym_env_vectorize_mode"] = MODES[task.variant]
    config = (
        PPOConfig()
        .environment(work.env)
        .env_runners(rollout_fragment_length=work.rollout, **runners)
        .learners(num_learners=0)
        .debugging(seed=task.seed, log_level="ERROR")
        .training(
            train_batch_size_per_learner=work.batch,
            minibatch_size=work.minibatch * rows_per_step,
            num_epochs=work.epochs,
            lr=[[0, LEARNING_RATE], [task.num_steps, 1e-8]],
            gamma=GAMMA,
            lambda_=GAE_LAMBDA,
            clip_param=CLIP,
            vf_clip_param=1e4,  # in squared error, not in values as everybody else has it
            vf_loss_coeff=VALUE,
            entropy_coeff=ENTROPY,
            grad_clip=MAX_GRAD_NORM,
            use_kl_loss=False,
        )
    )
    if not is_multi_agent:
        return config.rl_module(model_config=model)
    modules = MultiRLModuleSpec(rl_module_specs={"shared": RLModuleSpec(model_config=model)})
    shared = config.multi_agent(policies={"shared"}, policy_mapping_fn=lambda *_, **__: "shared")
    return shared.rl_module(rl_module_spec=modules)


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    ray.init(address="local", num_cpus=max(2, task.runners), **quiet)
    register_env("simple_spread", make_simple_spread)
    algorithm = settings_of(task).build_algo()
    set_torch_threads(task)
    num_steps = 0
    while num_steps < task.num_steps:
        result = algorithm.train()["env_runners"]
        num_steps = int(result["num_env_steps_sampled_lifetime"])
        clock.tick(num_steps)
    figures = clock.figures()
    if task.ppo.env == "simple_spread":
        mean_return, kind = float(result["episode_return_mean"]) / NUM_AGENTS, "training episodes, per agent"
    else:
        module = algorithm.get_module()

        @torch.no_grad()
        def act(observation: Any) -> int:
            out = module.forward_inference({Columns.OBS: torch.as_tensor(np.asarray(observation)).unsqueeze(0)})
            return int(out[Columns.ACTION_DIST_INPUTS].argmax(-1).item())

        mean_return, kind = greedy_return(task.ppo.env, act), "greedy"
    report(ray.__version__, figures, mean_return=mean_return, return_kind=kind)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
