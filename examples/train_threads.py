"""Simulators in threads, and a trainer in a thread of its own: `python examples/train_threads.py`.

Simulators go on while the trainer learns. When it falls behind, whoever asks for an action waits.
"""

import sys
import threading
from pathlib import Path
from uuid import UUID

import gymnasium

from relayrl import AgentBuilder, PPOParams, RelayRLAgent, RelayRLTrainer, TrainerArgs, TrainerSettings, open_source

NUM_THREADS, NUM_STEPS = 4, 12_000
PARAMS = PPOParams(traj_per_epoch=16, train_pi_iters=10, train_vf_iters=10, pi_lr=3e-3, target_kl=0.03)


def balance(agent: RelayRLAgent, actor_id: UUID, seed: int, is_over: threading.Event) -> None:
    """One simulator."""
    env, ids = gymnasium.make("CartPole-v1"), (actor_id,)
    while not is_over.is_set():
        obs, _ = env.reset(seed=seed)
        seed, reward, ended = seed + NUM_THREADS, None, False
        while not ended:
            record = agent.request_action(ids, obs[None], reward=reward)
            obs, reward, terminated, truncated, _ = env.step(int(record.action[0]))
            ended = terminated or truncated
        agent.flag_last_action(ids, reward, terminated=terminated, truncated=truncated, final_obs=obs[None])


def main(folder: Path) -> None:
    """Learn, and record at the same time."""
    schedule = TrainerSettings(max_steps=NUM_STEPS, threaded=True)
    trainer = RelayRLTrainer.ppo(TrainerArgs("CartPole-v1", folder, 4, 2, trainer_settings=schedule), PARAMS)
    url = f"arrow:{folder / 'experience'}"
    agent = AgentBuilder().actor_count(NUM_THREADS).trainer(trainer).sink(url).build()
    agent.start()
    is_over = threading.Event()
    threads = [
        threading.Thread(target=balance, args=(agent, actor_id, i, is_over))
        for i, actor_id in enumerate(agent.get_actor_ids())
    ]
    for thread in threads:
        thread.start()
    while trainer.should_still_train:
        is_over.wait(0.05)
    is_over.set()
    for thread in threads:
        thread.join(60)
    report = agent.shutdown()
    row = trainer.log_epoch()
    with open_source(url) as source:
        num_recorded = source.count().num_trajectories
    print(
        f"{trainer.policy_version} updates, recent episodes {row['episode/return_mean']:.0f}, {num_recorded} recorded"
    )
    assert report.is_clean
    assert num_recorded == row["episode/count"]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/train_threads").absolute())
