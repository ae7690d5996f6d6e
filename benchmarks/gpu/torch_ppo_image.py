"""PPO with Nature's convolutions on 84×84×4 images in plain torch; `--graph` captures an iteration as a CUDA graph.

The environment is `relayrl.bench.gpu.synthetic_environments:moving_square`, written for one file of torch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_program import Program, run

SIDE, STACK, SQUARE, SPEED, MAX_STEPS, NUM_MOVES = 84, 4, 6, 4.0, 100, 4
MOVES = ((-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))


class MovingSquares:
    """A bright square that is to reach the middle, in the last four frames; channels last, bytes."""

    action_shape, action_dtype = (), torch.int64

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._moves = SPEED * torch.tensor(MOVES, device=device)
        self._pixels = torch.arange(SIDE, device=device, dtype=torch.float32)[:, None]
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.square = self._begun(num_envs, device)
        """[B, frames, 2], oldest first."""
        self.observation = torch.zeros(num_envs, SIDE, SIDE, STACK, dtype=torch.uint8, device=device)
        self._draw()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        newest = (self.square[:, -1] + self._moves[action]).clamp(SQUARE, SIDE - SQUARE)
        square = torch.cat([self.square[:, 1:], newest[:, None]], 1)
        distance = (newest - SIDE / 2).abs().sum(1)
        reached = distance < 2 * SPEED
        self._length += 1
        ended = reached | (self._length >= MAX_STEPS)
        self._length *= ~ended
        fresh = self._begun(len(action), action.device)
        self.square.copy_(torch.where(ended[:, None, None], fresh, square))
        self._draw()
        return reached.float() - distance / SIDE, ended

    def _begun(self, num_envs: int, device: torch.device) -> Tensor:
        where = SQUARE + (SIDE - 2 * SQUARE) * torch.rand(num_envs, 1, 2, device=device)
        return where.repeat(1, STACK, 1)

    def _draw(self) -> None:
        covered = (self.square.permute(2, 0, 1)[:, :, None] - self._pixels).abs() < SQUARE  # [2, B, pixels, frames]
        self.observation.copy_(covered[0][:, :, None] & covered[1][:, None])
        self.observation *= 255


class ImagePolicy(nn.Module):
    """Convolutions of Mnih et al. (2015) with 512 features for actor and critic."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(STACK, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
        )
        self.actor, self.critic = nn.Linear(512, NUM_MOVES), nn.Linear(512, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, {self.actor: 0.01, self.critic: 1.0}.get(layer, 2**0.5))
                nn.init.zeros_(layer.bias)
        self.to(memory_format=torch.channels_last)

    def _heads(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(observation.permute(0, 3, 1, 2).float() / 255)
        return self.actor(features).log_softmax(-1), self.critic(features)[:, 0]

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_probabilities, value = self._heads(observation)
        gumbel = -torch.empty_like(log_probabilities).exponential_().log()
        action = (log_probabilities + gumbel).argmax(-1)
        return action, log_probabilities.gather(1, action[:, None])[:, 0], value

    def evaluate(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_probabilities, value = self._heads(observation)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
        return log_probabilities.gather(1, action[:, None])[:, 0], entropy, value


PROGRAM = Program("torch_ppo_image", 1_024, 32, 20, 2.5e-4, False, MovingSquares, ImagePolicy)

if __name__ == "__main__":
    run(PROGRAM, __doc__)
