"""Simulators in one event loop learn together: `python examples/train_asyncio.py`.

Learning never blocks the loop: it goes on in the thread that serves requests, or in one of its own.
"""

import asyncio
import sys
from pathlib import Path
from uuid import UUID

import numpy as np

from relayrl import AgentBuilder, RelayRLAgent, RelayRLTrainer, SACParams, TrainerArgs, TrainerSettings

NUM_BOATS, NUM_EPISODES, NUM_STEPS = 8, 12, 40
RATES = {"actor_lr": 3e-3, "critic_lr": 3e-3, "init_temperature": 0.1, "temperature_lr": 3e-3}


async def sail(agent: RelayRLAgent, actor_id: UUID, seed: int) -> None:
    """A boat that is to stay in the middle of its pond."""
    rng, ids = np.random.default_rng(seed), (actor_id,)
    for _ in range(NUM_EPISODES):
        position, reward = rng.uniform(-1, 1), None
        for _ in range(NUM_STEPS):
            record = await agent.aio.request_action(ids, np.array([[position]], np.float32), reward=reward)
            position = float(np.clip(position + 0.2 * record.action[0, 0] + rng.normal(0, 0.02), -2, 2))
            reward = -abs(position)
            await asyncio.sleep(0)  # the simulator takes its time
        final = np.array([[position]], np.float32)
        await agent.aio.flag_last_action(ids, reward, truncated=True, final_obs=final)


async def learn(trainer: RelayRLTrainer) -> None:
    """All boats at once."""
    agent = AgentBuilder().actor_count(NUM_BOATS).trainer(trainer, queue_size=NUM_BOATS).build()
    async with agent.aio:
        await asyncio.gather(*(sail(agent, actor_id, seed) for seed, actor_id in enumerate(agent.get_actor_ids())))


def main(folder: Path) -> None:
    """SAC learns from replay, a gradient step every four steps of a boat."""
    args = TrainerArgs("pond", folder, 1, 1, trainer_settings=TrainerSettings(threaded=True))
    trainer = RelayRLTrainer.sac(args, SACParams(learning_starts=640, update_interval=4, batch_size=64, **RATES))
    asyncio.run(learn(trainer))
    returns = list(trainer.reward_buffer)
    print(f"{trainer.get_step:,} steps, {trainer.policy_version} updates")
    print(f"returns went from {np.mean(returns[:16]):.0f} to {np.mean(returns[-16:]):.0f}")
    assert len(returns) == NUM_BOATS * NUM_EPISODES
    assert np.mean(returns[-16:]) > np.mean(returns[:16]) + 5


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/train_asyncio").absolute())
