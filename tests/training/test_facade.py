"""The facade: every algorithm of the registry learns from trajectories, wherever these come from."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import relayrl
from relayrl import PPOParams, RelayRLTrainer, TrainerArgs
from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.on_policy_params import OnPolicyParams
from relayrl.algorithms.registry import algorithms
from relayrl.data.arrow.codec import encode
from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.trees import Space, allocate, map_tree
from relayrl.errors import ConfigError
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import parameter_hash
from relayrl.models.teams.team_critic import TeamCritic
from relayrl.sinks.contract import open_sink
from relayrl.training.facade.relayrl_trainer import MultiAgentTrainer

ALGORITHMS = algorithms()
OBS_DIM, ACT_DIM = 3, 2
SMALL = NetworkSettings(hidden_sizes=(8,))
IN_EPOCH = 2
LENGTH = 10


def small_params(algo: str, **more: Any) -> Any:
    """Hyper-parameters under which two trajectories of ten steps make an epoch of a few gradient steps."""
    kind = ALGORITHMS[algo].params
    names = {"traj_per_epoch": IN_EPOCH, "train_pi_iters": 2, "train_vf_iters": 2, "with_vf_baseline": True}
    if not issubclass(kind, OnPolicyParams):
        names |= {"batch_size": 8, "learning_starts": 5, "update_interval": 5, "train_iters": 2, "buffer_size": 500}
        names |= {"policy_frequency": 1}
    return kind(**{name: value for name, value in (names | more).items() if name in kind.model_fields})


def make_trainer(algo: str, folder: Path, *, kernel: Any = None, params: Any = None, **args: Any) -> Any:
    """A trainer; with agents "a" and "b" where there are several, each with a policy of its own."""
    given = TrainerArgs("envs/line", folder, OBS_DIM, ACT_DIM, **({"network": SMALL} | args))
    trainer = getattr(RelayRLTrainer, algo)(given, params or small_params(algo), kernel)
    if isinstance(trainer, MultiAgentTrainer):
        trainer.register_agent("a")
        trainer.register_agent("b")
    return trainer


def random_tree(space: Space, rng: np.random.Generator, leading: tuple[int, ...]) -> Any:
    def fill(leaf: np.ndarray) -> np.ndarray:
        return rng.uniform(-1, 1, leaf.shape).astype(leaf.dtype)

    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, leading)
    return map_tree(fill, allocate(space, leading))


def play(trainer: Any, episode: int, *, agents: list[str] | None = None, **change: Any) -> list[Trajectory]:
    """One episode of an environment, one trajectory per agent, with everything at random."""
    found = []
    for group in trainer.groups.values():
        for agent_id in group.agent_ids if agents is None else agents:
            if agent_id not in group.agent_ids:
                continue
            rng = np.random.default_rng([episode, *agent_id.encode()])
            env = uuid.UUID(int=episode + 1)
            found.append(
                Trajectory(
                    trajectory_id=trajectory_id(env, agent_id, episode, 0),
                    env_id=env,
                    agent_id=agent_id,
                    group="anything",
                    observation_space=group.observation_space,
                    action_space=group.action_space,
                    episode=episode,
                    first_step=0,
                    obs=random_tree(group.observation_space, rng, (LENGTH,)),
                    action=random_tree(group.action_space, rng, (LENGTH,)),
                    reward=rng.normal(size=LENGTH).astype(np.float32),
                    policy_version=np.zeros(LENGTH, np.int64),
                    **({"terminated": episode % 2 == 0, "truncated": episode % 2 == 1, "failed": False} | change),
                    final_obs=random_tree(group.observation_space, rng, ()),
                )
            )
    return found


def epoch(trainer: Any, number: int = 0) -> list[Trajectory]:
    return [t for episode in range(IN_EPOCH) for t in play(trainer, number * IN_EPOCH + episode)]


def train(trainer: Any, number: int = 0) -> None:
    for trajectory in epoch(trainer, number):
        trainer.receive_trajectory(trajectory)
    assert trainer.train_model()


def hashes(trainer: Any) -> dict[str, str]:
    return {name: parameter_hash(policy) for name, policy in trainer.policies.items()}


def test_every_algorithm_of_the_registry_has_a_constructor() -> None:
    assert {name for name in vars(RelayRLTrainer) if not name.startswith("_")} == set(ALGORITHMS)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_defaults_are_those_of_the_registry(algo, tmp_path):
    trainer = getattr(RelayRLTrainer, algo)(TrainerArgs("env", tmp_path, 3, 2))
    assert trainer.params == ALGORITHMS[algo].params()
    assert trainer.algo == algo


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_epoch_changes_every_policy(algo, tmp_path):
    trainer = make_trainer(algo, tmp_path)
    before = hashes(trainer)
    assert not trainer.train_model()
    train(trainer)
    assert all(hashes(trainer)[name] != old for name, old in before.items())
    assert trainer.policy_version >= 1
    assert trainer.num_env_steps == IN_EPOCH * LENGTH
    assert trainer.num_pending == 0


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_memory_arrow_and_csv_give_the_same_parameters(algo, tmp_path):
    trainers = {kind: make_trainer(algo, tmp_path / kind) for kind in ("memory", "bytes", "arrow", "csv")}
    trajectories = epoch(trainers["memory"])
    for kind in ("arrow", "csv"):
        with open_sink(f"{kind}:{tmp_path / 'data' / kind}") as sink:
            sink.write(trajectories)
    for trajectory in trajectories:
        trainers["memory"].receive_trajectory(trajectory)
        trainers["bytes"].receive_trajectory(memoryview(encode(trajectory)))
    assert trainers["arrow"].receive_trajectory(tmp_path / "data" / "arrow")
    assert trainers["csv"].receive_trajectory(f"csv:{tmp_path / 'data' / 'csv'}")
    for trainer in trainers.values():
        assert trainer.train_model()
    assert len({tuple(hashes(trainer).values()) for trainer in trainers.values()}) == 1


class Wavy(nn.Module):
    """A kernel of one's own, with a non-linearity that no built-in network has."""

    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__()
        self.inner = nn.Linear(encoder.num_features, 6)
        self.outer = nn.Linear(6, num_outputs)
        for layer in (self.inner, self.outer):
            nn.init.normal_(layer.weight, std=0.3, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, features):
        return self.outer(torch.sin(self.inner(features)))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_kernel_of_the_callers_trains_saves_loads_and_leaves(algo, tmp_path):
    trainer = make_trainer(algo, tmp_path, kernel=Wavy)
    before = hashes(trainer)
    train(trainer)
    assert all(isinstance(policy.actor, Wavy) for policy in trainer.policies.values())
    assert all(isinstance(critic, Wavy) for critic in critics(trainer))
    assert all(hashes(trainer)[name] != old for name, old in before.items())
    trainer.save("kept")
    other = make_trainer(algo, tmp_path, kernel=Wavy)
    other.load("kept")
    assert hashes(other) == hashes(trainer)
    for name, model in other.acquire_models("onnx").items():
        assert_same_as_live(model, trainer.policies[name])


def critics(trainer: Any) -> list[nn.Module]:
    """Every value and Q-network, targets included; of critics of teams, what is before the attention and behind it."""
    learner = trainer._learned()
    if trainer.params.replay_size is None:
        found = [policy.critic for policy in learner.policies.values()]
        teams = [
            part for critic in found if isinstance(critic, TeamCritic) for part in (critic.observed, critic.estimate)
        ]
        return teams or found
    groups = learner.trainer._algorithm.groups.values()
    return [critic for group in groups for networks in (group.q, group.target_q) for critic in networks.critics]


def assert_same_as_live(model: Any, policy: Any) -> None:
    obs = np.random.default_rng(0).normal(size=(50, OBS_DIM)).astype(np.float32)
    live = live_actor(policy).distribution(obs)
    np.testing.assert_allclose(model.actor().distribution(obs), live, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_loaded_trainer_goes_on_as_the_saved_one(algo, tmp_path):
    one = make_trainer(algo, tmp_path)
    train(one, 0)
    for trajectory in play(one, 2):
        one.receive_trajectory(trajectory)
    one.save("middle")
    other = make_trainer(algo, tmp_path, seed=9)
    other.load("middle")
    assert other.num_pending == one.num_pending
    for trainer in (one, other):
        for trajectory in play(trainer, 3):
            trainer.receive_trajectory(trajectory)
        assert trainer.train_model()
    assert hashes(one) == hashes(other)
    assert (one.policy_version, one.num_env_steps) == (other.policy_version, other.num_env_steps)


def test_params_of_another_algorithm_are_an_error(tmp_path):
    args = TrainerArgs("env", str(tmp_path), obs_dim=3, act_dim=2)
    with pytest.raises(ConfigError, match="td3 takes TD3Params, not PPOParams"):
        RelayRLTrainer.td3(args, PPOParams())
    with pytest.raises(ConfigError, match="ddpg takes DDPGParams, not MADDPGParams"):
        RelayRLTrainer.ddpg(args, relayrl.MADDPGParams())
    with pytest.raises(ConfigError, match="maddpg takes MADDPGParams, not DDPGParams"):
        RelayRLTrainer.maddpg(args, relayrl.IDDPGParams())
    assert RelayRLTrainer.matd3(args, relayrl.MATD3Params(gamma=0.5)).params.gamma == 0.5


def test_params_may_be_a_subclass_of_the_users(tmp_path):
    class OwnParams(PPOParams):
        """What a program adds for itself."""

    args = TrainerArgs("env", str(tmp_path), obs_dim=3, act_dim=2)
    assert RelayRLTrainer.ppo(args, OwnParams(gamma=0.5)).params.gamma == 0.5
