"""Actions drawn by compiled kernels: what onnxruntime and the head give together, within rounding."""

import sys
import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runtime_fakes import export

from relayrl.compiled.loader import OFF, VARIABLE, kernels
from relayrl.errors import InferenceError
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.exported import ExportedActor
from relayrl.models.settings import Activation, NetworkSettings
from relayrl.runtime.action_choice import ActionChoice
from relayrl.runtime.agent_builder import AgentBuilder
from relayrl.runtime.compiled_drawing import DRAWS_AHEAD, MAX_PRODUCTS, CompiledDrawing, NumbersAhead
from relayrl.runtime.policy_model import load_model

OBS = spaces.Box(-3, 3, (5,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(4, start=1),
    "continuous": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
}


def exported(path, action_space, *, obs=OBS, **network) -> ExportedActor:
    settings = NetworkSettings(**{"hidden_sizes": (16, 16)} | network)
    policy = ActorCritic(obs, action_space, settings, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for parameter in policy.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    if policy.normalizer is not None:
        policy.normalizer.shift += 0.5
        policy.normalizer.scale *= 2.0
    return ExportedActor(export(policy, path))


def drawing_of(path, seed: int) -> CompiledDrawing | None:
    model = load_model(path)
    return CompiledDrawing.of(model.chains, model.head, np.random.default_rng(seed))


def test_the_kernels_are_there():
    """They are built where there is a compiler, as in the development environment; without them NumPy acts."""
    assert kernels() is not None


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("name", ACTIONS)
def test_draws_are_the_heads(tmp_path, name, activation, normalized):
    network = {"activation": activation, "normalize_observations": normalized}
    actor = exported(tmp_path / "model.onnx", ACTIONS[name], **network)
    draw, rng, source = drawing_of(tmp_path / "model.onnx", 7), np.random.default_rng(7), np.random.default_rng(0)
    assert draw is not None
    for num_rows in (2, 3, 64, 200, 300):
        obs = source.normal(0, 1, (num_rows, 5)).astype(np.float32)
        distribution, _, expected_value = actor.run([obs])
        expected = actor.head.sample(distribution, rng)
        action, logp, value = draw(obs, None)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(logp, actor.head.log_prob_numpy(distribution, expected), rtol=0, atol=1e-5)
        np.testing.assert_allclose(value, expected_value, rtol=0, atol=1e-5)
        assert action.dtype == expected.dtype


@pytest.mark.parametrize("name", ACTIONS)
def test_single_rows_take_the_same_numbers_in_turn(tmp_path, name):
    actor = exported(tmp_path / "model.onnx", ACTIONS[name])
    draw, rng, source = drawing_of(tmp_path / "model.onnx", 7), np.random.default_rng(7), np.random.default_rng(0)
    assert draw is not None
    obs = source.normal(0, 1, (2 * DRAWS_AHEAD, 5)).astype(np.float32)
    expected = [actor.head.sample(actor.run([row[None]])[0], rng)[0] for row in obs]
    np.testing.assert_allclose([draw(row[None], None)[0][0] for row in obs], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ACTIONS)
def test_threads_do_not_meet(tmp_path, name):
    exported(tmp_path / "model.onnx", ACTIONS[name])
    draw, source = drawing_of(tmp_path / "model.onnx", 7), np.random.default_rng(0)
    assert draw is not None
    rows = source.normal(0, 1, (8, 200, 1, 5)).astype(np.float32)
    expected = draw(rows.reshape(-1, 5), None)[2].reshape(8, 200)
    values, draws = np.zeros((8, 200), np.float32), []

    def work(i: int) -> None:
        for k in range(200):
            values[i, k] = draw(rows[i, k], None)[2][0]
            draws.append(numbers.take(1).tobytes())

    numbers = NumbersAhead(lambda n: source.random((n, 4)))
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval_s)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5)
    assert len(set(draws)) == 1600


def test_masks_are_obeyed(tmp_path):
    actor = exported(tmp_path / "model.onnx", ACTIONS["discrete"])
    draw, rng, source = drawing_of(tmp_path / "model.onnx", 3), np.random.default_rng(3), np.random.default_rng(0)
    assert draw is not None
    obs, mask = source.normal(0, 1, (500, 5)).astype(np.float32), source.random((4, 500)).T < 0.4
    mask[:, 2] = True
    action, logp, _ = draw(obs, mask)
    parameters = actor.head.parameters_numpy(actor.run([obs])[0], mask)
    np.testing.assert_array_equal(action, actor.head.sample(parameters, rng))
    np.testing.assert_allclose(logp, actor.head.log_prob_numpy(parameters, action), rtol=0, atol=1e-5)
    assert mask[np.arange(500), action - 1].all()


@pytest.mark.parametrize("name", ACTIONS)
def test_nan_is_never_an_action(tmp_path, name):
    exported(tmp_path / "model.onnx", ACTIONS[name])
    with AgentBuilder().actor_count(3).default_model(tmp_path / "model.onnx").build() as agent:
        obs = np.zeros((3, 5), np.float32)
        agent.request_action(agent.get_actor_ids(), obs)
        obs[1, 2] = np.nan
        with pytest.raises(InferenceError, match="NaN"):
            agent.request_action(agent.get_actor_ids(), obs, reward=0.0)
        with pytest.raises(InferenceError, match="NaN"):
            agent.request_action(agent.get_actor_ids()[1:2], obs[1:2], reward=0.0)


def test_large_networks_and_batches_are_left_to_onnxruntime(tmp_path):
    exported(tmp_path / "small.onnx", ACTIONS["discrete"], hidden_sizes=(64, 64))
    small = drawing_of(tmp_path / "small.onnx", 0)
    assert small is not None
    assert small.max_rows == MAX_PRODUCTS // (2 * (5 * 64 + 64 * 64) + 64 * 5)
    exported(tmp_path / "large.onnx", ACTIONS["discrete"], hidden_sizes=(1024, 1024))
    assert drawing_of(tmp_path / "large.onnx", 0) is None
    with AgentBuilder().default_model(tmp_path / "large.onnx").build() as agent:
        agent.request_action(agent.get_actor_ids(), np.zeros((1, 5), np.float32))


@pytest.mark.parametrize("name", ACTIONS)
def test_with_and_without_kernels_the_same_actions_are_drawn(tmp_path, name, monkeypatch):
    exported(tmp_path / "model.onnx", ACTIONS[name])
    rows = np.random.default_rng(0).normal(0, 1, (50, 20, 5)).astype(np.float32)

    def play() -> list[np.ndarray]:
        with AgentBuilder().actor_count(20).default_model(tmp_path / "model.onnx").seed(5).build() as agent:
            ids = agent.get_actor_ids()
            return [agent.request_action(ids, obs).action for obs in rows]

    compiled = play()
    monkeypatch.setenv(VARIABLE, OFF)
    assert drawing_of(tmp_path / "model.onnx", 0) is None
    np.testing.assert_allclose(compiled, play(), rtol=0, atol=1e-5)


def test_greedy_agents_take_the_most_likely_action(tmp_path):
    actor = exported(tmp_path / "model.onnx", ACTIONS["discrete"])
    rows = np.random.default_rng(0).normal(0, 1, (20, 5)).astype(np.float32)
    builder = AgentBuilder().actor_count(20).default_model(tmp_path / "model.onnx").action_choice(ActionChoice.GREEDY)
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        together = agent.request_action(ids, rows)
        alone = [agent.request_action((each,), row[None]) for each, row in zip(ids, rows, strict=True)]
    assert together.action.tolist() == actor.act_greedily(rows).tolist()
    assert [int(each.action[0]) for each in alone] == together.action.tolist()
    np.testing.assert_allclose([each.logp[0] for each in alone], together.logp, rtol=0, atol=1e-6)
