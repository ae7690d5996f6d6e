"""Critics see images through convolutions, whatever else they see beside them."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from relayrl import RelayRLTrainer, TrainerArgs
from relayrl.algorithms.on_policy_params import PPOParams
from relayrl.algorithms.params import SACParams, TD3Params
from relayrl.data.columns import Trajectory
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.network_factory import ImageNetwork
from relayrl.training.trainers.off_policy_trainer import OffPolicyTrainer

CAMERA = spaces.Dict({"camera": spaces.Box(0, 255, (16, 20, 3), np.uint8), "speed": spaces.Box(-1.0, 1.0, (2,))})
QUICK = {"batch_size": 4, "learning_starts": 1, "update_interval": 4, "train_iters": 1}
PARAMS = {
    "td3": TD3Params(**QUICK),
    "sac": SACParams(**QUICK),
    "matd3": TD3Params(**QUICK),
    "ppo": PPOParams(train_pi_iters=1, train_vf_iters=1, traj_per_epoch=1),
    "mappo": PPOParams(train_pi_iters=1, train_vf_iters=1, traj_per_epoch=1),
}


def filmed(agent: str, num_steps: int = 8) -> Trajectory:
    rng, actions = np.random.default_rng(0), spaces.Box(-1.0, 1.0, (2,))
    return Trajectory(
        trajectory_id=uuid.uuid5(uuid.UUID(int=1), agent),
        env_id=uuid.UUID(int=1),
        agent_id=agent,
        group=agent,
        observation_space=CAMERA,
        action_space=actions,
        episode=0,
        first_step=0,
        obs={
            "camera": rng.integers(0, 255, (num_steps, 16, 20, 3), np.uint8),
            "speed": rng.random((num_steps, 2), np.float32),
        },
        action=rng.random((num_steps, 2), np.float32),
        reward=rng.random(num_steps, np.float32),
        policy_version=np.zeros(num_steps, np.int64),
        terminated=True,
        truncated=False,
        failed=False,
        final_obs={"camera": np.zeros((16, 20, 3), np.uint8), "speed": np.zeros(2, np.float32)},
    )


@pytest.mark.parametrize("algo", PARAMS)
def test_critics_convolve_the_images_that_they_see(algo: str, tmp_path: Path) -> None:
    spaces_of_agents = {"observation_space": CAMERA, "action_space": spaces.Box(-1.0, 1.0, (2,))}
    args = TrainerArgs("envs/film", tmp_path, network=NetworkSettings(hidden_sizes=(8,)), **spaces_of_agents)
    trainer = getattr(RelayRLTrainer, algo)(args, PARAMS[algo])
    agents = ("left", "right") if algo.startswith("ma") else ("agent",)
    for agent in agents if algo.startswith("ma") else ():
        trainer.register_agent(agent, "team")
    for agent in agents:
        trainer.receive_trajectory(filmed(agent))
    assert trainer.train_model()
    learner, name = trainer._learned(), next(iter(trainer.policies))
    if not algo.startswith("ma"):
        assert learner.policies[name].image_encoder.num_images == 1
        return
    if isinstance(learner.trainer, OffPolicyTrainer):
        critics = list(learner.trainer._algorithm.groups[name].q.critics)
    else:
        critics = [learner.policies[name].critic]
    assert all(isinstance(critic, ImageNetwork) for critic in critics)
    # A camera of each agent that is seen, and beside them: speeds, actions, which agent is valued.
    assert [critic.images.num_images for critic in critics] == [len(agents)] * len(critics)
