"""Several agents that share an environment learn together: `python examples/train_agents.py`.

MAPPO on mpe2's simple_spread. Actors say for which agent of which environment they act, so that critics see what all of them
saw at the same step.
"""

import sys
from pathlib import Path
from uuid import uuid4

import numpy as np
from mpe2 import simple_spread_v3

from relayrl import AgentBuilder, MAPPOParams, NetworkSettings, RelayRLTrainer, TrainerArgs, TrainerSettings

NUM_ENVS, NUM_STEPS, EPISODE_STEPS = 4, 12_000, 25
PARAMS = MAPPOParams(
    traj_per_epoch=16,
    train_pi_iters=10,
    train_vf_iters=10,
    num_minibatches=4,
    pi_lr=2e-3,
    vf_lr=2e-3,
    gamma=0.95,
    lam=0.95,
    target_kl=None,
    entropy_coef=0.01,
)


def main(folder: Path) -> None:
    """Three agents with one policy; each covers a landmark."""
    envs = [simple_spread_v3.parallel_env(N=3, max_cycles=EPISODE_STEPS) for _ in range(NUM_ENVS)]
    names = envs[0].possible_agents
    args = TrainerArgs(
        "simple_spread",
        folder,
        observation_space=envs[0].observation_space(names[0]),
        action_space=envs[0].action_space(names[0]),
        network=NetworkSettings(hidden_sizes=(64, 64)),
        trainer_settings=TrainerSettings(max_steps=NUM_STEPS),
    )
    trainer = RelayRLTrainer.mappo(args, PARAMS)
    for name in names:
        trainer.register_agent(name, "team")
    returns = []
    with AgentBuilder().actor_count(0).trainer(trainer).seed(0).build() as agent:
        env_ids = [uuid4() for _ in envs]
        ids = tuple(agent.new_actor(agent_id=name, env_id=env_id) for env_id in env_ids for name in names)
        while trainer.should_still_train:
            seen = [env.reset(seed=len(returns) + i)[0] for i, env in enumerate(envs)]
            reward, total = None, 0.0
            for _ in range(EPISODE_STEPS):
                obs = np.stack([each[name] for each in seen for name in names])
                actions = agent.request_action(ids, obs, reward=reward).action.reshape(NUM_ENVS, len(names))
                steps = [
                    env.step(dict(zip(names, own.tolist(), strict=True)))
                    for env, own in zip(envs, actions, strict=True)
                ]
                seen = [step[0] for step in steps]
                reward = np.array([step[1][name] for step in steps for name in names])
                total += float(reward.sum()) / NUM_ENVS
            final = np.stack([each[name] for each in seen for name in names])
            agent.flag_last_action(ids, reward, truncated=True, final_obs=final)
            returns += [total] * NUM_ENVS
    first, last = np.mean(returns[:100]), np.mean(returns[-100:])
    print(f"{trainer.get_step:,} steps: the team's return went from {first:.0f} to {last:.0f}")
    assert last > first + 3


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/train_agents").absolute())
