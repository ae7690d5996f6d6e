"""TorchRL's PPO on CartPole-v1, put together from its own parts as its example does: Collector, GAE, ClipPPOLoss, buffer."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torchrl
from measuring import Clock, greedy_return, report, set_torch_threads
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
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


def mlp(num_inputs: int, width: int, num_outputs: int) -> nn.Sequential:
    hidden = [nn.Linear(num_inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(width, num_outputs))


def main() -> None:
    warnings.filterwarnings("ignore")
    task = task_from_command_line()
    clock = Clock(task)
    set_torch_threads(task)
    torch.manual_seed(task.seed)
    work = task.ppo
    one = GymEnv(work.env)
    num_observations, num_actions = one.observation_spec["observation"].shape[-1], one.action_spec.space.n
    policy = mlp(num_observations, work.width, num_actions)
    actor = ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        out_keys=["action"],
        spec=one.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(mlp(num_observations, work.width, 1), in_keys=["observation"])
    envs = SerialEnv(work.num_envs, lambda: GymEnv(work.env, device="cpu"))
    sizes = {"frames_per_batch": work.batch, "total_frames": task.num_steps}
    collector = Collector(envs, actor, device="cpu", **sizes)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(work.batch), sampler=SamplerWithoutReplacement(), batch_size=work.minibatch
    )
    advantage = GAE(gamma=GAMMA, lmbda=GAE_LAMBDA, value_network=critic, average_gae=False)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP,
        loss_critic_type="l2",
        entropy_coeff=ENTROPY,
        critic_coeff=VALUE,
        normalize_advantage=True,
        clip_value=True,
    )
    parameters = list(loss.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=ADAM_EPSILON)
    num_steps = 0
    for rollout in collector:
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - num_steps / task.num_steps)
        with torch.no_grad():
            rows = advantage(rollout).reshape(-1)
        for _ in range(work.epochs):
            buffer.extend(rows)
            for minibatch in buffer:
                optimizer.zero_grad(set_to_none=True)
                losses = loss(minibatch)
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
                optimizer.step()
        collector.update_policy_weights_()
        num_steps += rollout.numel()
        clock.tick(num_steps)
    figures = clock.figures()
    collector.shutdown()

    @torch.no_grad()
    def act(observation: Any) -> int:
        return int(policy(torch.as_tensor(observation).unsqueeze(0)).argmax(-1).item())

    report(torchrl.__version__, figures, mean_return=greedy_return(work.env, act), return_kind="greedy")


if __name__ == "__main__":
    main()
