"""skrl's PPO on CartPole-v1. Variants: `sync` (Gymnasium's SyncVectorEnv), `vector` (Gymnasium's vector CartPole)."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import skrl
import torch
from measuring import Clock, greedy_return, report, set_torch_threads
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn
from work import (
    CLIP,
    ENTROPY,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE,
    PpoWork,
    task_from_command_line,
)

MODES = {"sync": "sync", "vector": "vector_entry_point"}


def mlp(num_inputs: int, width: int, num_outputs: int) -> nn.Sequential:
    hidden = [nn.Linear(num_inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(width, num_outputs))


class Policy(CategoricalMixin, Model):
    def __init__(self, spaces: dict[str, Any], width: int) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = mlp(self.num_observations, width, self.num_actions)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, spaces: dict[str, Any], width: int) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations, width, 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class TickingPPO(PPO):
    """Ticks after each update, which comes at the end of a rollout."""

    def __init__(self, clock: Clock, work: PpoWork, **parts: Any) -> None:
        super().__init__(**parts)
        self._clock, self._work = clock, work

    def post_interaction(self, *, timestep: int, timesteps: int) -> None:
        super().post_interaction(timestep=timestep, timesteps=timesteps)
        if (timestep + 1) % self._work.rollout == 0:
            self._clock.tick((timestep + 1) * self._work.num_envs)


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    set_torch_threads(task)
    skrl.logger.setLevel(logging.ERROR)
    torch.manual_seed(task.seed)
    work = task.ppo
    env = wrap_env(gymnasium.make_vec(work.env, work.num_envs, vectorization_mode=MODES[task.variant]))
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    models = {"policy": Policy(spaces, work.width), "value": Value(spaces, work.width)}
    settings = PPO_CFG()
    settings.rollouts, settings.learning_epochs, settings.mini_batches = work.rollout, work.epochs, work.minibatches
    settings.discount_factor, settings.gae_lambda, settings.learning_rate = GAMMA, GAE_LAMBDA, LEARNING_RATE
    settings.grad_norm_clip, settings.ratio_clip, settings.value_clip = MAX_GRAD_NORM, CLIP, CLIP
    settings.entropy_loss_scale, settings.value_loss_scale = ENTROPY, VALUE
    settings.learning_rate_scheduler = torch.optim.lr_scheduler.LinearLR
    num_epochs = task.num_steps // work.batch * work.epochs  # the schedule advances once an epoch
    settings.learning_rate_scheduler_kwargs = {"start_factor": 1.0, "end_factor": 0.01, "total_iters": num_epochs}
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=work.rollout, num_envs=env.num_envs, device=env.device)
    agent = TickingPPO(clock, work, models=models, memory=memory, cfg=settings, **spaces)
    num_timesteps = task.num_steps // work.num_envs
    options = {"timesteps": num_timesteps, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=env, agents=agent, cfg={**options, "close_environment_at_exit": False}).train()
    figures = clock.figures()

    @torch.no_grad()
    def act(observation: Any) -> int:
        return int(models["policy"].net(torch.as_tensor(observation).unsqueeze(0)).argmax(-1).item())

    report(skrl.__version__, figures, mean_return=greedy_return(work.env, act), return_kind="greedy")


if __name__ == "__main__":
    main()
