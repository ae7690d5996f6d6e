"""A program that owns its loop trains CartPole from trajectories: `python examples/facade_cartpole.py`.

The program steps the environment and records what it did; the trainer only gets trajectories and gives back a policy.
"""

import sys
from pathlib import Path
from uuid import uuid4

import gymnasium
import numpy as np
import threadpoolctl

from relayrl import PPOParams, RelayRLTrainer, TrainerArgs, Trajectory
from relayrl.extend import Actor, LaneHeader, TrajectoryBuilder


def play(env: gymnasium.Env, builder: TrajectoryBuilder, actor: Actor, rng: np.random.Generator) -> Trajectory:
    """One episode."""
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    ended = False
    while not ended:
        action = actor.act(obs[None], None, rng)[0]
        builder.record_action(obs, action)
        obs, reward, terminated, truncated, _ = env.step(int(action))
        builder.record_reward(float(reward))
        ended = terminated or truncated
    trajectory = builder.end(terminated, truncated, obs)
    assert trajectory is not None
    return trajectory


def main(folder: Path) -> None:
    """Train for a dozen epochs, save, then play with the exported model."""
    env, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(0)
    args = TrainerArgs("CartPole-v1", folder, obs_dim=4, act_dim=2)
    params = PPOParams(train_pi_iters=10, train_vf_iters=10, pi_lr=3e-3, target_kl=0.03)
    trainer = RelayRLTrainer.ppo(args, params)

    header = LaneHeader("agent", (uuid4(),), ("agent",), env.observation_space, env.action_space)
    builder = TrajectoryBuilder(header, max_length=1000)
    actor = trainer.actor()  # always acts with the newest parameters
    for _ in range(12):
        while not trainer.receive_trajectory(play(env, builder, actor, rng)):
            pass
        trainer.train_model()
    row = trainer.log_epoch()
    print(f"{row['epoch/number']:.0f} epochs, recent episodes {row['episode/return_mean']:.0f}")
    trainer.save("final")

    model = trainer.acquire_model("onnx")
    length = len(play(env, builder, model.actor(), rng))
    print(f"{model.path.name}: an episode of {length} steps")
    assert row["episode/return_mean"] > 60, "a random policy balances the pole for 22 steps"


if __name__ == "__main__":
    # Small networks are fastest with one thread; the pools of torch and NumPy would wait for each other.
    with threadpoolctl.threadpool_limits(1):
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/facade").absolute())
