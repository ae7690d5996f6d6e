"""A simulator of your own that asks for actions in its loop, and records what happened: `python examples/simulator_loop.py`.

The warehouse has shelves; a cart is to reach the lit one. The program owns the clock and the environment: RelayRL only answers.
"""

import sys
from pathlib import Path

import numpy as np
from gymnasium import spaces

from relayrl import AgentBuilder, RelayRLTrainer, TrainerArgs, open_source

OBSERVATION = spaces.Box(-10, 10, (2,), np.float32)
ACTION = spaces.Discrete(3)
MOVES = (-1, 0, 1)
NUM_EPISODES, MAX_STEPS = 20, 30


class Warehouse:
    """Ten shelves in a row."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def begin(self) -> np.ndarray:
        self.cart, self.lit = (int(n) for n in self._rng.integers(0, 10, 2))
        return self.observe()

    def observe(self) -> np.ndarray:
        return np.array([[self.cart, self.lit - self.cart]], np.float32)

    def move(self, action: int) -> tuple[np.ndarray, float, bool]:
        self.cart = min(9, max(0, self.cart + MOVES[action]))
        return self.observe(), -0.1, self.cart == self.lit


def fresh_policy(folder: Path) -> Path:
    """An untrained policy stands in for the `model.onnx` of a run."""
    args = TrainerArgs("warehouse", folder, observation_space=OBSERVATION, action_space=ACTION)
    return RelayRLTrainer.ppo(args).acquire_model("onnx").path


def main(folder: Path) -> None:
    """Play, then read back what was recorded."""
    url = f"arrow:{folder / 'experience'}"
    builder = AgentBuilder().default_model(fresh_policy(folder)).sink(url).seed(0)
    num_steps = 0
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        env = Warehouse(seed=1)
        for _ in range(NUM_EPISODES):
            obs, reward, found = env.begin(), 0.0, False
            for _ in range(MAX_STEPS):
                record = agent.request_action(ids, obs, reward=reward)  # the reward of the action before
                obs, reward, found = env.move(int(record.action[0]))
                num_steps += 1
                if found:
                    break
            agent.flag_last_action(ids, reward=reward, terminated=found, truncated=not found, final_obs=obs)
    with open_source(url) as source:
        trajectories = list(source)
    print(f"{len(trajectories)} episodes, mean return {np.mean([each.episode_return for each in trajectories]):.2f}")
    assert len(trajectories) == NUM_EPISODES
    assert sum(len(each) for each in trajectories) == num_steps
    assert all(each.is_whole for each in trajectories)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/simulator_loop").absolute())
