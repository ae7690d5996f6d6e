"""A program that owns its simulator learns while it plays: `python examples/train_loop.py`.

The loop asks for actions and says when episodes end. The trainer gets the trajectories, and the actors its new policies.
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np

from relayrl import AgentBuilder, PPOParams, RelayRLTrainer, TrainerArgs, TrainerSettings

NUM_ENVS, NUM_STEPS = 8, 40_000
PARAMS = PPOParams(
    traj_per_epoch=16, train_pi_iters=10, train_vf_iters=10, num_minibatches=4, pi_lr=1e-3, lam=0.95, target_kl=0.03
)


def main(folder: Path) -> None:
    """Eight copies of CartPole in one thread, which learns too: the same seed gives the same policy."""
    schedule = TrainerSettings(max_steps=NUM_STEPS, summary_freq=5_000, checkpoint_interval=20_000)
    trainer = RelayRLTrainer.ppo(TrainerArgs("CartPole-v1", folder, 4, 2, trainer_settings=schedule), PARAMS)
    envs = [gymnasium.make("CartPole-v1") for _ in range(NUM_ENVS)]
    with AgentBuilder().actor_count(NUM_ENVS).trainer(trainer).seed(0).build() as agent:
        ids = agent.get_actor_ids()
        obs = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)])
        reward = np.zeros(NUM_ENVS)
        while trainer.should_still_train:
            record = agent.request_action(ids, obs, reward=reward)  # rewards of the actions before
            for i, env in enumerate(envs):
                obs[i], reward[i], terminated, truncated, _ = env.step(int(record.action[i]))
                if terminated or truncated:
                    agent.flag_last_action(
                        [ids[i]], reward[i], terminated=terminated, truncated=truncated, final_obs=obs[i : i + 1]
                    )
                    obs[i], reward[i] = env.reset()[0], 0.0
    trainer.save_model()
    model = trainer.acquire_model("onnx")
    mean = sum(trainer.reward_buffer) / len(trainer.reward_buffer)
    print(
        f"{trainer.get_step:,} steps, {trainer.policy_version} updates, recent episodes {mean:.0f}; {model.path.name}"
    )
    assert mean > 150, "a random policy balances the pole for 22 steps"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/train_loop").absolute())
