"""Two batched environments that cost next to nothing, so that networks are what is measured; both can be learned.

They are written as users write theirs (docs/write-a-batched-environment.md), and run on the CPU and on a GPU:

    relayrl.train("relayrl.bench.gpu.synthetic_environments:regulator", device="cuda", num_envs=8_192,
                  settings={"environment.options.device": "cuda"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from gymnasium import spaces

from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.native.native_worlds import Blueprint, Worlds

NUM_STATES, NUM_FORCES = 17, 6
SIDE, STACK, SQUARE, SPEED = 84, 4, 6, 4.0
MOVES = np.array([[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0]], np.float32)
"""Up, down, left, right; [2, moves]."""
GROUP = "agent"


class RegulatorWorlds(Worlds):
    """State `deviation` [17, B], which forces are to bring to zero: xᵢ ← 0.9 xᵢ + 0.1 xᵢ₋₁ + 0.1 aᵢ, forces repeating.

    No matrix products: what they round depends on how many worlds there are.
    """

    def __init__(self, xp: ArrayNamespace, num_worlds: int) -> None:
        self._xp = xp
        self._before = xp.from_host(np.arange(NUM_STATES) - 1)
        self._force_of = xp.from_host(np.arange(NUM_STATES) % NUM_FORCES)
        self.deviation = xp.zeros((NUM_STATES, num_worlds), "float32")
        self.state = {"deviation": self.deviation}
        self.observations = {GROUP: xp.zeros((num_worlds, 1, NUM_STATES), "float32")}
        self.rewards = {GROUP: xp.zeros((num_worlds, 1), "float32")}
        self.terminated = xp.zeros((num_worlds,), "bool")

    def begin(self, draws: XArray) -> None:
        self.deviation[...] = 2 * draws - 1
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        force = actions[GROUP][:, 0].clip(-1, 1).T
        self.deviation[...] = 0.9 * self.deviation + 0.1 * (self.deviation[self._before] + force[self._force_of])
        self._xp.sum(self.deviation**2 / -NUM_STATES, 0, self.rewards[GROUP][:, 0])
        self.observe()

    def observe(self) -> None:
        self.observations[GROUP][:, 0] = self.deviation.T


class MovingSquareWorlds(Worlds):
    """State `square` [2, 4, B]: where a bright square was in the last four frames, oldest first; it is to reach the middle."""

    def __init__(self, xp: ArrayNamespace, num_worlds: int) -> None:
        self._xp = xp
        self._moves = xp.from_host(SPEED * MOVES)
        self._pixels = xp.from_host(np.arange(SIDE, dtype=np.float32)[:, None])
        self.square = xp.zeros((2, STACK, num_worlds), "float32")
        self.state = {"square": self.square}
        self.observations = {GROUP: xp.zeros((num_worlds, 1, SIDE, SIDE, STACK), "uint8")}
        self.rewards = {GROUP: xp.zeros((num_worlds, 1), "float32")}
        self.terminated = xp.zeros((num_worlds,), "bool")

    def begin(self, draws: XArray) -> None:
        self.square[...] = SQUARE + (SIDE - 2 * SQUARE) * draws[:, None]
        self.observe()

    def advance(self, actions: Mapping[str, XArray]) -> None:
        for frame in range(STACK - 1):
            self.square[:, frame] = self.square[:, frame + 1]
        self.square[:, -1] = (self.square[:, -1] + self._moves[:, actions[GROUP][:, 0]]).clip(SQUARE, SIDE - SQUARE)
        distance = abs(self.square[:, -1] - SIDE / 2).sum(0)
        self.terminated[...] = distance < 2 * SPEED
        self.rewards[GROUP][:, 0] = 1.0 * self.terminated - distance / SIDE
        self.observe()

    def observe(self) -> None:
        where = self._xp.permute(self.square, (0, 2, 1))[:, :, None]  # [2, B, 1, frames]
        covered = abs(where - self._pixels) < SQUARE  # [2, B, pixels, frames]
        picture = self.observations[GROUP][:, 0]
        picture[...] = covered[0][:, :, None] & covered[1][:, None]
        picture *= 255


def _make(
    name: str,
    worlds: Callable[[ArrayNamespace, int], Worlds],
    group_spaces: tuple[spaces.Box, spaces.Box | spaces.Discrete],
    num_draws: int,
    max_episode_steps: int,
    device: str,
) -> BatchedEnvironment:
    xp = namespace_of(device)
    return BatchedEnvironment(
        Blueprint(
            name=name,
            groups={GROUP: AgentGroup(GROUP, ("agent_0",), *group_spaces)},
            max_episode_steps=max_episode_steps,
            num_draws=num_draws,
            build=partial(worlds, xp),
            xp=xp,
        )
    )


def regulator(max_episode_steps: int = 200, device: str = "cpu") -> BatchedEnvironment:
    """17 observations, 6 continuous actions: the size of a walking robot."""
    observed = spaces.Box(-np.inf, np.inf, (NUM_STATES,), np.float32)
    acted = spaces.Box(-1.0, 1.0, (NUM_FORCES,), np.float32)
    return _make("regulator", RegulatorWorlds, (observed, acted), NUM_STATES, max_episode_steps, device)


def moving_square(max_episode_steps: int = 100, device: str = "cpu") -> BatchedEnvironment:
    """Images of 84×84 pixels, four frames each, as Atari's are; 4 discrete actions."""
    observed = spaces.Box(0, 255, (SIDE, SIDE, STACK), np.uint8)
    return _make("moving_square", MovingSquareWorlds, (observed, spaces.Discrete(4)), 2, max_episode_steps, device)
