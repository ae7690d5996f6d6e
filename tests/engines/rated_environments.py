"""Environments whose `performance_return` is not the sum of rewards, of every kind."""

from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.testing import CountingEnv, Herd, MatrixGame, RandomWalk

EPISODE = 5


class LastReward(CountingEnv):
    """Rewards 1, 2, … up to the episode's length; what counts is the last one."""

    def __init__(self) -> None:
        super().__init__(terminate_at=EPISODE)

    def performance_return(self, rewards: Sequence[float]) -> float:
        return 100.0 + rewards[-1]


class BestReward(RandomWalk):
    """Episodes of many steps, whose best step counts."""

    def performance_return(self, rewards: Sequence[float]) -> float:
        return max(rewards) + 10.0 * len(rewards)


class GymnasiumLength(gymnasium.Env):
    """One of Gymnasium's, with the method."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    _step = 0

    def reset(self, *, seed=None, options=None):
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._step += 1
        return np.zeros(1, np.float32), -1.0, self._step == EPISODE, False, {}

    def performance_return(self, rewards: Sequence[float]) -> float:
        return 100.0 + len(rewards)


class FirstPlayerSquared(MatrixGame):
    """Of several agents; zero-sum, and yet what counts is not 0."""

    def __init__(self) -> None:
        win = [[1.0, 1.0], [1.0, 1.0]]
        super().__init__(payoffs=[win, [[-1.0, -1.0], [-1.0, -1.0]]], num_rounds=3)

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        return 100.0 + sum(rewards["player_0"]) ** 2


class RatedHerd(Herd):
    """A vector environment, in which the dog's rewards count."""

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        return 100.0 + len(rewards["dog"]) + 0.0 * sum(rewards["sheep_1"])


class Failing(LastReward):
    def performance_return(self, rewards: Sequence[float]) -> float:
        raise ZeroDivisionError("nothing to divide by")
