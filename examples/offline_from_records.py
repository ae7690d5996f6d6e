"""Record a simulator, look at the records, learn from them alone: `python examples/offline_from_records.py SCRATCH_DIR`.

The recording program knows nothing of training: an agent acts for it and writes what happens to a sink. Learning is another
program, here in the same file, which steps no environment; it only asks one for its spaces and for the evaluation.
"""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

import relayrl
from relayrl import AgentBuilder, open_source

NUM_EPISODES = 20


def first_policy(folder: Path) -> Path:
    """A policy that has learned next to nothing: what acts while the first records are made."""
    settings = {"evaluation.episodes": 0}
    run = relayrl.train("Pendulum-v1", algo="sac", steps=200, seed=0, run_dir=folder / "first", settings=settings)
    return run.export(folder / "first.onnx")[0]


def record(model: Path, url: str) -> None:
    """The simulator's own loop; a gymnasium environment stands for it."""
    simulator = gym.make("Pendulum-v1")
    with AgentBuilder().actor_count(1).default_model(model).sink(url).seed(0).build() as agent:
        ids = agent.get_actor_ids()
        for episode in range(NUM_EPISODES):
            obs, _ = simulator.reset(seed=episode)
            reward, is_over = 0.0, False
            while not is_over:
                acted = agent.request_action(ids, obs[None], reward=reward)  # the reward of the action before
                obs, reward, terminated, truncated, _ = simulator.step(acted.action[0])
                is_over = terminated or truncated
            agent.flag_last_action(ids, reward=reward, terminated=terminated, truncated=truncated, final_obs=obs[None])


def main(folder: Path) -> None:
    """Record, inspect, learn."""
    url = f"arrow:{folder / 'experience'}"
    record(first_policy(folder), url)
    with open_source(url) as source:
        records = list(source)
    num_steps = sum(len(each) for each in records)
    mean_return = np.mean([each.episode_return for each in records])
    print(f"{len(records)} episodes, {num_steps} steps, return {mean_return:.0f}")

    settings = {"learn_from": url, "evaluation.episodes": 5}
    run = relayrl.train("Pendulum-v1", algo="td3", steps=2_500, seed=0, run_dir=folder / "offline", settings=settings)
    print(f"learned from records: {run.result.mean_return:.0f}")
    assert num_steps == 200 * NUM_EPISODES
    assert run.result.num_env_steps == 2_500
    assert np.isfinite(run.result.mean_return)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/offline"))
