"""One run of Stable-Baselines3 with its defaults: `generic_presets_sb3.py ENV ALGO STEPS SEED` prints the greedy return."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

EPISODES = 100
PLAY_SEED = 50_000
MAX_EPISODE_STEPS = 1_000
"""Longer ones are cut: a greedy policy may walk in circles for ever."""


class Agents(VecEnv):
    """The agents of one PettingZoo parallel environment, side by side as if they were environments."""

    def __init__(self, env: Any) -> None:
        self._env, self._names = env, list(env.possible_agents)
        first = self._names[0]
        super().__init__(len(self._names), env.observation_space(first), env.action_space(first))

    def reset(self) -> np.ndarray:
        seed = self._seeds[0]
        obs, _ = self._env.reset(seed=seed) if seed is not None else self._env.reset()
        self._seeds = [None] * self.num_envs
        return self._stacked(obs)

    def _stacked(self, by_name: dict[str, Any]) -> np.ndarray:
        return np.stack([np.asarray(by_name[name]) for name in self._names])

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = dict(zip(self._names, actions, strict=True))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, reward, terminated, truncated, _ = self._env.step(self._actions)
        stacked, ended, cut = self._stacked(obs), self._stacked(terminated), self._stacked(truncated)
        infos: list[dict[str, Any]] = [{} for _ in self._names]
        if (ended | cut).any():
            for i, info in enumerate(infos):
                info |= {"terminal_observation": stacked[i], "TimeLimit.truncated": bool(cut[i] and not ended[i])}
            stacked = self._stacked(self._env.reset()[0])
        return stacked, self._stacked(reward).astype(np.float32), ended | cut, infos

    def close(self) -> None:
        self._env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def make(name: str) -> Any:
    """The environment as Stable-Baselines3's users would make it."""
    library, _, rest = name.partition(":")
    if library == "mpe2":
        return Agents(importlib.import_module(f"mpe2.{rest}").parallel_env())
    if name == "relayrl.testing.memory_environments:RecallCue":
        return _RecallCue()
    return getattr(importlib.import_module(library), rest)() if rest else gymnasium.make(name)


class _RecallCue(gymnasium.Env[Any, Any]):
    """RelayRL's toy environment behind Gymnasium's interface."""

    def __init__(self) -> None:
        from relayrl.testing.toy_environments import RecallCue

        self._env = RecallCue()
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._env.reset(seed=seed).observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self._env.step(action)
        return step.observation, step.reward, step.terminated, step.truncated, {}


def model(name: str, algo: str, env: Any, seed: int) -> Any:
    """An algorithm with its defaults."""
    if "RecallCue" in name:
        from sb3_contrib import RecurrentPPO

        return RecurrentPPO("MlpLstmPolicy", env, seed=seed)
    classes = {"ppo": "PPO", "ippo": "PPO", "sac": "SAC", "td3": "TD3", "ddpg": "DDPG"}
    is_image = isinstance(env.observation_space, spaces.Box) and env.observation_space.dtype == np.uint8
    return getattr(stable_baselines3, classes[algo])("CnnPolicy" if is_image else "MlpPolicy", env, seed=seed)


def play(name: str, trained: Any) -> float:
    """Mean return of greedy episodes, over agents."""
    env = make(name)
    vector = env if isinstance(env, VecEnv) else stable_baselines3.common.vec_env.DummyVecEnv([lambda: env])
    vector.seed(PLAY_SEED)
    obs, memory, starts = vector.reset(), None, np.ones(vector.num_envs, bool)
    returns: list[float] = []
    running, num_steps = 0.0, 0
    while len(returns) < EPISODES:
        action, memory = trained.predict(obs, state=memory, episode_start=starts, deterministic=True)
        obs, reward, starts, _ = vector.step(action)
        running, num_steps = running + float(reward.mean()), num_steps + 1
        if num_steps == MAX_EPISODE_STEPS:
            obs, starts = vector.reset(), np.ones(vector.num_envs, bool)
        if starts.all():
            returns.append(running)
            running, num_steps = 0.0, 0
    return float(np.mean(returns))


def main(name: str, algo: str, steps: int, seed: int) -> None:
    torch.set_num_threads(1)
    env = make(name)
    trained = model(name, algo, env, seed)
    num_lanes = env.num_envs if isinstance(env, VecEnv) else 1
    trained.learn(steps * num_lanes)
    print(play(name, trained))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
