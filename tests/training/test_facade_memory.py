"""The facade with a memory: trajectories with and without what was remembered, kernels, models, saves, agents that join."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_facade import ACT_DIM, OBS_DIM, epoch, hashes, make_trainer, play, small_params, train
from torch import nn

from relayrl.accelerator.live_actor import live_actor
from relayrl.errors import ConfigError
from relayrl.models.acting.lane_memory import LaneMemory
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.runtime.requests.policy_model import load_model

NETWORK = NetworkSettings(hidden_sizes=(8,), memory=MemorySettings(size=4, sequence_length=3))
RECURRENT = ["reinforce", "ireinforce", "mareinforce", "ppo", "ippo", "mappo"]
RECURRENT += ["impala", "iimpala", "maimpala", "appo", "iappo", "maappo"]


def remembered(policy: Any, trajectory: Any) -> Any:
    """The trajectory with what an actor of the policy would have remembered."""
    memory, rows = LaneMemory(live_actor(policy), 1), []
    for seen in trajectory.obs:
        rows.append(memory.values[0])
        memory.decide(seen[None], None, None)
    return replace(trajectory, memory=np.stack(rows))


@pytest.mark.parametrize("algo", RECURRENT)
def test_recorded_memory_teaches_the_same_as_memory_that_is_found_again(algo, tmp_path):
    found = []
    for records in (False, True):
        trainer = make_trainer(algo, tmp_path / str(records), network=NETWORK)
        before = hashes(trainer)
        for trajectory in epoch(trainer):
            policy = trainer.policies[trainer._adopted(trajectory).group]
            trainer.receive_trajectory(remembered(policy, trajectory) if records else trajectory)
        assert trainer.train_model()
        assert all(hashes(trainer)[name] != before[name] for name in before)
        found.append(torch.cat([p.reshape(-1) for each in trainer.policies.values() for p in each.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("file_format", ["onnx", "torchscript"])
def test_a_model_remembers(file_format, tmp_path):
    trainer = make_trainer("ppo", tmp_path, network=NETWORK)
    train(trainer)
    model = trainer.acquire_model(file_format)
    policy, source = trainer.policies["agent"], load_model(model.path)
    assert source.layout.memory_width == policy.memory_width == 16
    (trajectory,) = play(trainer, 7)
    got = want = np.zeros((1, 16), np.float32)
    for seen in trajectory.obs:
        distribution, got = source.actor.step(seen[None], None, got)
        expected, want = live_actor(policy).step(seen[None], None, want)
        np.testing.assert_allclose(distribution, expected, atol=1e-5)


def test_a_kernel_is_what_lies_in_front_of_the_memory(tmp_path):
    pair = nn.Linear(OBS_DIM, 8), nn.Linear(OBS_DIM, 8)
    trainer = make_trainer("ppo", tmp_path, network=NETWORK, kernel=pair)
    train(trainer)
    policy = trainer.policies["agent"]
    assert isinstance(policy.actor.trunk, nn.Linear)
    assert policy.actor.output.out_features == ACT_DIM
    with pytest.raises(ConfigError, match=r"expected \[2, 8\]"):
        train(make_trainer("ppo", tmp_path, network=NETWORK, kernel=(nn.Linear(OBS_DIM, 3), None)))


@pytest.mark.parametrize("algo", ["ppo", "mappo"])
def test_a_save_continues(algo, tmp_path):
    first = make_trainer(algo, tmp_path, network=NETWORK)
    train(first)
    first.save("state")
    second = make_trainer(algo, tmp_path, network=NETWORK)
    second.load("state")
    assert hashes(second) == hashes(first)
    for trainer in (first, second):
        train(trainer, 1)
    assert hashes(second) == hashes(first)


@pytest.mark.parametrize("algo", ["ippo", "mappo"])
def test_an_agent_may_join(algo, tmp_path):
    trainer = make_trainer(algo, tmp_path, network=NETWORK)
    train(trainer)
    actors = {name: policy.actor.state_dict() for name, policy in trainer.policies.items()}
    trainer.register_agent("c")
    for name, state in actors.items():
        for key, tensor in trainer.policies[name].actor.state_dict().items():
            assert torch.equal(tensor, state[key])
    train(trainer, 1)


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac", "maddpg"])
def test_learning_from_replay_refuses_a_memory(algo, tmp_path):
    with pytest.raises(ConfigError, match="ppo, ippo, mappo"):
        train(make_trainer(algo, tmp_path, network=NETWORK, params=small_params(algo)))
