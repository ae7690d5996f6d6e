"""Programs that own their simulator learn by the loop of `docs/your_simulator.md`: CartPole, and simple_spread of mpe2."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import gymnasium
import numpy as np
import pytest
from mpe2 import simple_spread_v3

from relayrl import AgentBuilder, NetworkSettings, PPOParams, RelayRLTrainer, TrainerArgs, TrainerSettings

NUM_ENVS = 8
NETWORK = NetworkSettings(hidden_sizes=(64, 64))


def balance(trainer: Any, max_steps: int, target: float) -> tuple[int, float]:
    """Play CartPole until the latest twenty episodes reach `target`; gives the steps, and their mean."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(NUM_ENVS)]
    obs = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)])
    reward, latest, num_steps = np.zeros(NUM_ENVS), 0.0, 0
    with AgentBuilder().actor_count(NUM_ENVS).trainer(trainer).seed(0).build() as agent:
        ids = agent.get_actor_ids()
        while num_steps < max_steps and latest < target:
            record = agent.request_action(ids, obs, reward=reward)
            num_steps += NUM_ENVS
            for i, env in enumerate(envs):
                obs[i], reward[i], terminated, truncated, _ = env.step(int(record.action[i]))
                if terminated or truncated:
                    final = obs[i : i + 1].copy()
                    agent.flag_last_action(
                        [ids[i]], reward[i], terminated=terminated, truncated=truncated, final_obs=final
                    )
                    obs[i], reward[i] = env.reset()[0], 0.0
                    latest = float(np.mean(list(trainer.reward_buffer)[-20:]))
    return num_steps, latest


def cartpole_trainer(folder: Path) -> Any:
    params = PPOParams(
        traj_per_epoch=16, train_pi_iters=10, train_vf_iters=10, num_minibatches=4, pi_lr=1e-3, lam=0.95, target_kl=0.03
    )
    return RelayRLTrainer.ppo(TrainerArgs("CartPole-v1", folder, 4, 2, network=NETWORK), params)


@pytest.mark.slow
def test_cartpole_is_learned_in_a_plain_loop(tmp_path):
    num_steps, latest = balance(cartpole_trainer(tmp_path), 200_000, target=475)
    assert latest >= 475, f"{latest} after {num_steps} steps"


def test_cartpole_is_not_learned_by_a_trainer_that_does_not_train(tmp_path):
    trainer = cartpole_trainer(tmp_path)
    trainer.is_training = False
    assert balance(trainer, 8_000, target=475)[1] < 60


def spread_out(trainer: Any, names: list[str], num_steps: int, num_envs: int = 4) -> list[float]:
    """Play simple_spread; gives the team's returns, a number for each episode of all environments."""
    envs = [simple_spread_v3.parallel_env(N=len(names), max_cycles=25) for _ in range(num_envs)]
    returns: list[float] = []
    with AgentBuilder().actor_count(0).trainer(trainer).seed(0).build() as agent:
        ids = tuple(
            agent.new_actor(agent_id=name, env_id=UUID(int=number)) for number in range(num_envs) for name in names
        )
        while len(returns) * 25 * num_envs < num_steps:
            seen = [env.reset(seed=len(returns) * num_envs + i)[0] for i, env in enumerate(envs)]
            reward, total = None, 0.0
            for _ in range(25):
                obs = np.stack([each[name] for each in seen for name in names])
                action = agent.request_action(ids, obs, reward=reward).action.reshape(num_envs, -1).tolist()
                steps = [env.step(dict(zip(names, own, strict=True))) for env, own in zip(envs, action, strict=True)]
                seen = [step[0] for step in steps]
                reward = np.array([step[1][name] for step in steps for name in names])
                total += float(reward.sum()) / num_envs
            final = np.stack([each[name] for each in seen for name in names])
            agent.flag_last_action(ids, reward, truncated=True, final_obs=final)
            returns.append(total)
    return returns


@pytest.mark.slow
def test_simple_spread_is_learned_in_a_plain_loop(tmp_path):
    """MAPPO, critics that see all agents: random policies have −78 ± 3 in the mean of twenty-five such returns."""
    env = simple_spread_v3.parallel_env(N=3, max_cycles=25)
    names = env.possible_agents
    params = PPOParams(
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
    args = TrainerArgs(
        "simple_spread",
        tmp_path,
        observation_space=env.observation_space(names[0]),
        action_space=env.action_space(names[0]),
        network=NETWORK,
        trainer_settings=TrainerSettings(max_steps=12_000),
    )
    trainer = RelayRLTrainer.mappo(args, params)
    for name in names:
        trainer.register_agent(name, "team")
    returns = spread_out(trainer, names, num_steps=12_000)
    assert trainer.get_step == 12_000
    assert np.mean(returns[-25:]) > np.mean(returns[:10]) + 5
    assert np.mean(returns[-25:]) > -72
    assert trainer.log_epoch()["epoch/num_incomplete"] == 0
