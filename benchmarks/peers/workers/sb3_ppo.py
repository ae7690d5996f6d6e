"""Stable-Baselines3's PPO on Gymnasium environments (DummyVecEnv, its default), through SuperSuit on mpe2's simple_spread."""

from __future__ import annotations

from typing import Any

import stable_baselines3
import torch
from measuring import Clock, greedy_return, report, set_torch_threads
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
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
    task_from_command_line,
)


class TickAfterUpdates(BaseCallback):
    """A rollout begins when the update before it has ended."""

    def __init__(self, clock: Clock, rows_per_step: int) -> None:
        super().__init__()
        self._clock, self._rows_per_step = clock, rows_per_step

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._clock.tick(self.num_timesteps // self._rows_per_step)

    def _on_training_end(self) -> None:
        self._clock.tick(self.num_timesteps // self._rows_per_step)


def simple_spread(num_envs: int, num_processes: int) -> Any:
    """mpe2's environments with every agent as a row of its own, which makes one policy that all share."""
    import supersuit
    from mpe2 import simple_spread_v3
    from stable_baselines3.common.vec_env import VecMonitor

    env = simple_spread_v3.parallel_env(N=NUM_AGENTS, max_cycles=MPE_CYCLES, continuous_actions=False)
    rows = supersuit.pettingzoo_env_to_vec_env_v1(env)
    return VecMonitor(
        supersuit.concat_vec_envs_v1(rows, num_envs, num_cpus=num_processes, base_class="stable_baselines3")
    )


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    set_torch_threads(task)
    work = task.ppo
    is_multi_agent = work.env == "simple_spread"
    rows_per_step = NUM_AGENTS if is_multi_agent else 1
    env = (
        simple_spread(work.num_envs, task.threads)
        if is_multi_agent
        else make_vec_env(work.env, work.num_envs, seed=task.seed)
    )
    layers = list(work.layers)
    model = stable_baselines3.PPO(
        "MlpPolicy",
        env,
        n_steps=work.rollout,
        batch_size=work.minibatch * rows_per_step,
        n_epochs=work.epochs,
        learning_rate=lambda left: LEARNING_RATE * left,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        clip_range_vf=CLIP,
        ent_coef=ENTROPY,
        vf_coef=VALUE,
        max_grad_norm=MAX_GRAD_NORM,
        seed=None if is_multi_agent else task.seed,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, "activation_fn": torch.nn.Tanh},
    )
    model.learn(task.num_steps * rows_per_step, callback=TickAfterUpdates(clock, rows_per_step))
    figures = clock.figures()
    if is_multi_agent:
        returns = [episode["r"] for episode in model.ep_info_buffer]
        mean_return, kind = float(sum(returns)) / len(returns), "training episodes, per agent"
    else:
        mean_return, kind = greedy_return(work.env, lambda o: int(model.predict(o, deterministic=True)[0])), "greedy"
    report(stable_baselines3.__version__, figures, mean_return=mean_return, return_kind=kind)


if __name__ == "__main__":
    main()
