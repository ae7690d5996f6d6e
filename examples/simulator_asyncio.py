"""Many simulators in one event loop: `python examples/simulator_asyncio.py`.

Each task waits for its environment (here: sleeps) and for its actions. Requests of tasks that are ready at the same time
share one forward pass, and the loop is never blocked by one.
"""

import asyncio
import sys
from pathlib import Path
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl import AgentBuilder, RelayRLAgent, RelayRLTrainer, TrainerArgs, open_source

OBSERVATION = spaces.Box(-5, 5, (2,), np.float32)
ACTION = spaces.Box(-1, 1, (1,), np.float32)
NUM_ENVS, NUM_STEPS = 32, 50


def fresh_policy(folder: Path) -> Path:
    """An untrained policy stands in for the `model.onnx` of a run."""
    args = TrainerArgs("pond", folder, observation_space=OBSERVATION, action_space=ACTION)
    return RelayRLTrainer.ppo(args).acquire_model("onnx").path


async def drift(agent: RelayRLAgent, actor_id: UUID, seed: int) -> None:
    """A boat on a pond; it is to stay in the middle."""
    rng, ids = np.random.default_rng(seed), (actor_id,)
    position, speed, reward = rng.uniform(-1, 1), 0.0, 0.0
    for _ in range(NUM_STEPS):
        obs = np.array([[position, speed]], np.float32).clip(-5, 5)
        record = await agent.aio.request_action(ids, obs, reward=reward)
        speed = 0.9 * speed + 0.1 * float(record.action[0, 0])
        position += speed + rng.normal(0, 0.01)
        reward = -abs(position)
        await asyncio.sleep(0)  # the environment takes its time
    final = np.array([[position, speed]], np.float32).clip(-5, 5)
    await agent.aio.flag_last_action(ids, reward=reward, truncated=True, final_obs=final)


async def play(folder: Path, url: str) -> int:
    """All boats at once; gives how many requests were made."""
    builder = AgentBuilder().actor_count(NUM_ENVS).default_model(fresh_policy(folder)).sink(url)
    agent = builder.build()
    async with agent.aio as aio:
        ids = await aio.get_actor_ids()
        await asyncio.gather(*(drift(agent, actor_id, seed) for seed, actor_id in enumerate(ids)))
    return int(agent.metrics["runtime/requests_total"].read())


def main(folder: Path) -> None:
    """Play, then count."""
    url = f"arrow:{folder / 'experience'}"
    num_requests = asyncio.run(play(folder, url))
    with open_source(url) as source:
        count = source.count()
    print(f"{num_requests} requests, {count.num_steps} steps in {count.num_trajectories} trajectories")
    assert (count.num_trajectories, count.num_steps) == (NUM_ENVS, NUM_ENVS * NUM_STEPS)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/simulator_asyncio").absolute())
