"""Tianshou's PPO on CartPole-v1, with environments in this process (DummyVectorEnv)."""

from __future__ import annotations

from typing import Any

import gymnasium
import tianshou
import torch
from measuring import Clock, greedy_return, report, set_torch_threads
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from work import (
    ADAM_EPSILON,
    CLIP,
    ENTROPY,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE,
    task_from_command_line,
)


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    set_torch_threads(task)
    torch.manual_seed(task.seed)
    work = task.ppo
    envs = DummyVectorEnv([lambda: gymnasium.make(work.env)] * work.num_envs)
    envs.seed(task.seed)
    one = gymnasium.make(work.env)
    layers = [work.width, work.width]
    nets = [
        Net(state_shape=one.observation_space.shape, hidden_sizes=layers, activation=torch.nn.Tanh) for _ in range(2)
    ]
    actor = DiscreteActor(preprocess_net=nets[0], action_shape=int(one.action_space.n), softmax_output=False)
    spaces = {"action_space": one.action_space, "observation_space": one.observation_space}
    schedule = LRSchedulerFactoryLinear(
        max_epochs=1, epoch_num_steps=task.num_steps, collection_step_num_env_steps=work.batch
    )
    algorithm = PPO(
        policy=DiscreteActorPolicy(actor=actor, deterministic_eval=True, **spaces),
        critic=DiscreteCritic(preprocess_net=nets[1]),
        optim=AdamOptimizerFactory(lr=LEARNING_RATE, eps=ADAM_EPSILON).with_lr_scheduler_factory(schedule),
        eps_clip=CLIP,
        value_clip=True,
        advantage_normalization=True,
        vf_coef=VALUE,
        ent_coef=ENTROPY,
        max_grad_norm=MAX_GRAD_NORM,
        gae_lambda=GAE_LAMBDA,
        gamma=GAMMA,
        max_batchsize=work.batch,
    )
    collector = Collector(algorithm, envs, VectorReplayBuffer(work.batch, work.num_envs))
    collector.reset()

    def tick_between_rollouts(_epoch: int, num_env_steps: int) -> None:
        if num_env_steps:
            clock.tick(num_env_steps)

    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=1,
            epoch_num_steps=task.num_steps,
            collection_step_num_env_steps=work.batch,
            update_step_num_repetitions=work.epochs,
            batch_size=work.minibatch,
            training_fn=tick_between_rollouts,
            verbose=False,
            show_progress=False,
        )
    )
    clock.tick(collector.collect_step)
    figures = clock.figures()

    @torch.no_grad()
    def act(observation: Any) -> int:
        return int(actor(torch.as_tensor(observation).unsqueeze(0))[0].argmax(-1).item())

    report(tianshou.__version__, figures, mean_return=greedy_return(work.env, act), return_kind="greedy")


if __name__ == "__main__":
    main()
