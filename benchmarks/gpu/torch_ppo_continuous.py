"""PPO with 3×128 relu networks, 17 observations and 6 continuous actions in plain torch with CUDA graphs.

The environment is `relayrl.bench.gpu.synthetic_environments:regulator`, written for one file of torch.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_program import Program, run

NUM_STATES, NUM_FORCES, MAX_STEPS, WIDTH = 17, 6, 200, 128


class Regulators:
    """xᵢ ← 0.9 xᵢ + 0.1 xᵢ₋₁ + 0.1 aᵢ, forces repeating; the reward is −mean x². Episodes have 200 steps."""

    action_shape, action_dtype = (NUM_FORCES,), torch.float32

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.observation = 2 * torch.rand(num_envs, NUM_STATES, device=device) - 1
        self._before = (torch.arange(NUM_STATES, device=device) - 1) % NUM_STATES
        self._force_of = torch.arange(NUM_STATES, device=device) % NUM_FORCES
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        x, force = self.observation, action.clamp(-1, 1)
        x = 0.9 * x + 0.1 * (x[:, self._before] + force[:, self._force_of])
        reward = -(x**2).mean(1)
        self._length += 1
        ended = self._length >= MAX_STEPS
        self._length *= ~ended
        self.observation.copy_(torch.where(ended[:, None], 2 * torch.rand_like(x) - 1, x))
        return reward, ended


class GaussianPolicy(nn.Module):
    """Actor and critic of three layers each; the deviation is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = _mlp(NUM_FORCES, 0.01), _mlp(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(NUM_FORCES))

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = self.actor(observation)
        noise = torch.randn_like(mean)
        logp = -(0.5 * noise**2 + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
        return mean + self.log_std.exp() * noise, logp, self.critic(observation)[:, 0]

    def evaluate(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        noise = (action - self.actor(observation)) * (-self.log_std).exp()
        constant = 0.5 * math.log(2 * math.pi)
        logp = -(0.5 * noise**2 + self.log_std + constant).sum(-1)
        entropy = (self.log_std + constant + 0.5).sum().expand(len(logp))
        return logp, entropy, self.critic(observation)[:, 0]


def _mlp(num_outputs: int, last_gain: float) -> nn.Sequential:
    sizes = [NUM_STATES, WIDTH, WIDTH, WIDTH, num_outputs]
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layer = nn.Linear(fan_in, fan_out)
        nn.init.orthogonal_(layer.weight, last_gain if i == 3 else 2**0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


PROGRAM = Program("torch_ppo_continuous", 8_192, 32, 60, 1e-3, True, Regulators, GaussianPolicy)

if __name__ == "__main__":
    run(PROGRAM, __doc__)
