"""The compiled actor of an ONNX file: what onnxruntime and the head give together, and only where that is sure."""

import json
import logging
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.mlp_actor import DRAWS_AHEAD, MAX_PRODUCTS, MlpActor, RowGenerator, accelerated
from relayrl.compiled.loader import OFF, VARIABLE, kernels
from relayrl.data.trees import leaf_dtype
from relayrl.errors import InferenceError
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import METADATA_PREFIX, ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.exports.mlp_description import MAX_NUMBERS, MlpDescription
from relayrl.models.network_settings import Activation, MemorySettings, NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.requests.policy_model import load_model
from relayrl.runtime.requests.published_policy import ActionChoice

OBS = spaces.Box(-3, 3, (5,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(4, start=1),
    "continuous": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
    "many choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
}


def exported(path: Path, action: spaces.Space, *, obs: spaces.Space = OBS, masked: bool = False, **network) -> Path:
    settings = NetworkSettings(**{"hidden_sizes": (16, 16)} | network)
    policy = ActorCritic(obs, action, settings, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for parameter in policy.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    if policy.normalizer is not None:
        policy.normalizer.shift += 0.5
        policy.normalizer.scale *= 2.0
    policy.return_normalizer.scale *= 0.5
    policy.return_normalizer.shift += 0.25
    metadata = PolicyMetadata("env", "ppo", "agent", 1, masked, obs, action)
    return export_policy(policy, metadata, path, ExportFormat.ONNX)


def actors_of(path: Path) -> tuple[MlpActor, ExportedActor]:
    reference = ExportedActor(path, with_value=True)
    actor = accelerated(reference)
    assert isinstance(actor, MlpActor)
    return actor, reference


def assert_alike(own, expected) -> None:
    for a, b in zip(own, expected, strict=True):
        if b is None:
            assert a is None
        else:
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
            assert a.dtype == b.dtype


def with_metadata(path: Path, change) -> Path:
    """The file with its description changed, or without one."""
    model = onnx.load(path)
    properties = {each.key: each.value for each in model.metadata_props}
    text = change(properties.pop(METADATA_PREFIX + "mlp"))
    onnx.helper.set_model_props(model, properties | ({} if text is None else {METADATA_PREFIX + "mlp": text}))
    onnx.save(model, path)
    return path


def test_the_kernels_are_there():
    """They are built where there is a compiler, as in the development environment; without them the references act."""
    assert kernels() is not None


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("name", ACTIONS)
def test_decisions_are_the_references(tmp_path, name, activation, normalized):
    network = {"activation": activation, "normalize_observations": normalized}
    actor, reference = actors_of(exported(tmp_path / "model.onnx", ACTIONS[name], **network))
    rng, other, source = np.random.default_rng(7), np.random.default_rng(7), np.random.default_rng(0)
    for num_rows in (1, 2, 64, 2000):
        obs = source.normal(0, 1, (num_rows, 5)).astype(np.float32)
        assert_alike(actor.decide(obs, None, None, rng), reference.decide(obs, None, None, other))
        assert_alike(actor.decide(obs, None, None, None), reference.decide(obs, None, None, None))
        assert_alike(actor.forward(obs, None, None), reference.forward(obs, None, None))


@pytest.mark.parametrize("masked", [False, True], ids=["trained without masks", "trained with masks"])
@pytest.mark.parametrize("name", ["discrete", "many choices"])
def test_masks_are_obeyed(tmp_path, name, masked):
    actor, reference = actors_of(exported(tmp_path / "model.onnx", ACTIONS[name], masked=masked))
    source, width = np.random.default_rng(0), reference.head.mask_width
    obs, mask = source.normal(0, 1, (500, 5)).astype(np.float32), source.random((width, 500)).T < 0.4
    mask[:, [0, -1]] = True
    decisions = [each.decide(obs, mask, None, np.random.default_rng(3)) for each in (actor, reference)]
    assert_alike(*decisions)
    if name == "discrete":
        assert mask[np.arange(500), decisions[0].action - 1].all()


def test_whole_numbers_and_matrices_are_observations_as_well(tmp_path):
    for space in (spaces.Box(0, 9, (5,), np.int64), spaces.Box(-1, 1, (2, 3), np.float32)):
        actor, reference = actors_of(exported(tmp_path / "model.onnx", ACTIONS["continuous"], obs=space))
        obs = np.stack([space.sample() for _ in range(4)]).astype(leaf_dtype(space))
        assert_alike(actor.forward(obs, None, None), reference.forward(obs, None, None))


@pytest.mark.parametrize(
    "obs",
    [spaces.Dict({"a": OBS, "b": OBS}), spaces.Discrete(5), spaces.Box(0, 255, (36, 36, 3), np.uint8)],
    ids=["dict", "one of five", "image"],
)
def test_other_observations_are_left_to_onnxruntime(tmp_path, obs):
    path = exported(tmp_path / "model.onnx", ACTIONS["discrete"], obs=obs, hidden_sizes=(8,))
    assert isinstance(load_model(path).actor, ExportedActor)


def test_large_networks_and_batches_are_left_to_onnxruntime(tmp_path):
    small, _ = actors_of(exported(tmp_path / "small.onnx", ACTIONS["discrete"], hidden_sizes=(64, 64)))
    assert small._max_rows == MAX_PRODUCTS // (2 * (5 * 64 + 64 * 64) + 64 * 5)
    path = exported(tmp_path / "large.onnx", ACTIONS["discrete"], hidden_sizes=(1024, 1024))
    assert ExportedActor(path).metadata.mlp == ""
    with AgentBuilder().default_model(path).build() as agent:
        agent.request_action(agent.get_actor_ids(), np.zeros((1, 5), np.float32))


def test_files_without_a_description_act_through_onnxruntime(tmp_path, caplog):
    path = with_metadata(exported(tmp_path / "model.onnx", ACTIONS["discrete"]), lambda _: None)
    with caplog.at_level(logging.WARNING, "relayrl.accelerator"):
        assert isinstance(load_model(path).actor, ExportedActor)
    assert caplog.messages == []


def _other_weights(text: str) -> str:
    mlp = MlpDescription.from_text(text)
    (weight, bias), *others = mlp.actor.layers
    return replace(mlp, actor=replace(mlp.actor, layers=((2 * weight, bias), *others))).to_text()


def _without_critic(text: str) -> str:
    return replace(MlpDescription.from_text(text), critic=None, returns=None).to_text()


def _other(key: str, value):
    return lambda text: json.dumps(json.loads(text) | {key: value})


@pytest.mark.parametrize(
    "change",
    [
        _other_weights,
        _without_critic,
        lambda text: text[: len(text) // 2],
        lambda _: "[]",
        _other("numbers", ""),
        _other("numbers", "?"),
        _other("actor", {"activation": "relu", "sizes": [5, 16, 16, 4]}),
        _other("actor", {"activation": "tanh", "sizes": [5, 0, 4]}),
        _other("actor", {"activation": "tanh", "sizes": [3, 16, 4]}),
        _other("actor", {"activation": "tanh", "sizes": [5, 16, 2]}),
        _other("actor", {"activation": "sine", "sizes": [5, 16, 4]}),
        _other("clip", 10.0),
    ],
)
def test_a_description_that_is_damaged_or_of_another_policy_is_left_out_with_a_log_line(tmp_path, change, caplog):
    path = with_metadata(exported(tmp_path / "model.onnx", ACTIONS["discrete"]), change)
    with caplog.at_level(logging.WARNING, "relayrl.accelerator"):
        assert isinstance(load_model(path).actor, ExportedActor)
    (message,) = caplog.messages
    assert "onnxruntime acts" in message


def test_a_description_is_read_as_it_was_written(tmp_path):
    path = exported(tmp_path / "model.onnx", ACTIONS["continuous"], normalize_observations=True)
    text = ExportedActor(path).metadata.mlp
    mlp = MlpDescription.from_text(text)
    assert mlp.to_text() == text
    assert mlp.actor.sizes == [5, 16, 16, 2]
    assert mlp.log_std.shape == (2,)
    huge = replace(mlp, log_std=np.zeros(MAX_NUMBERS, np.float32))
    assert huge.to_text() == ""


def test_a_policy_with_a_memory_is_not_described(tmp_path):
    from relayrl.models.recurrent_policy import actor_critic

    network = NetworkSettings(hidden_sizes=(8,), memory=MemorySettings(size=4))
    policy = actor_critic(OBS, ACTIONS["discrete"], network, torch.Generator().manual_seed(0))
    metadata = PolicyMetadata("env", "ppo", "agent", 1, False, OBS, ACTIONS["discrete"])
    path = export_policy(policy, metadata, tmp_path / "model.onnx", ExportFormat.ONNX)
    assert isinstance(load_model(path).actor, ExportedActor)


@pytest.mark.parametrize("name", ["discrete", "continuous"])
def test_single_rows_take_the_same_numbers_in_turn(tmp_path, name):
    actor, reference = actors_of(exported(tmp_path / "model.onnx", ACTIONS[name]))
    seed = np.random.SeedSequence(7)
    ahead, rng, source = RowGenerator(seed), np.random.default_rng(seed), np.random.default_rng(0)
    obs = source.normal(0, 1, (2 * DRAWS_AHEAD, 1, 5)).astype(np.float32)
    expected = [reference.decide(row, None, None, rng).action[0] for row in obs]
    got = [actor.decide(row, None, None, ahead).action[0] for row in obs]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["discrete", "continuous"])
def test_threads_do_not_meet(tmp_path, name):
    actor, _ = actors_of(exported(tmp_path / "model.onnx", ACTIONS[name]))
    rows = np.random.default_rng(0).normal(0, 1, (8, 200, 1, 5)).astype(np.float32)
    expected = actor.decide(rows.reshape(-1, 5), None, None, None).value.reshape(8, 200)
    values, draws, rng = np.zeros((8, 200), np.float32), [], RowGenerator(np.random.SeedSequence(0))

    def work(i: int) -> None:
        for k in range(200):
            values[i, k] = actor.decide(rows[i, k], None, None, rng).value[0]
            draws.append(rng.standard_normal((1, 4), np.float32).tobytes() if name == "discrete" else k + 1000 * i)

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


@pytest.mark.parametrize("name", ["discrete", "continuous"])
def test_nan_is_never_an_action(tmp_path, name):
    path = exported(tmp_path / "model.onnx", ACTIONS[name])
    with AgentBuilder().actor_count(3).default_model(path).build() as agent:
        obs = np.zeros((3, 5), np.float32)
        agent.request_action(agent.get_actor_ids(), obs)
        obs[1, 2] = np.nan
        with pytest.raises(InferenceError, match="NaN"):
            agent.request_action(agent.get_actor_ids(), obs, reward=0.0)
        with pytest.raises(InferenceError, match="NaN"):
            agent.request_action(agent.get_actor_ids()[1:2], obs[1:2], reward=0.0)


@pytest.mark.parametrize("name", ACTIONS)
def test_with_and_without_kernels_the_same_actions_are_drawn(tmp_path, name, monkeypatch):
    path = exported(tmp_path / "model.onnx", ACTIONS[name])
    rows = np.random.default_rng(0).normal(0, 1, (50, 20, 5)).astype(np.float32)

    def play() -> list[np.ndarray]:
        with AgentBuilder().actor_count(20).default_model(path).seed(5).build() as agent:
            ids = agent.get_actor_ids()
            return [agent.request_action(ids, obs).action for obs in rows]

    compiled = play()
    monkeypatch.setenv(VARIABLE, OFF)
    assert isinstance(load_model(path).actor, ExportedActor)
    np.testing.assert_allclose(compiled, play(), rtol=0, atol=1e-5)


def test_greedy_agents_take_the_most_likely_action(tmp_path):
    path = exported(tmp_path / "model.onnx", ACTIONS["discrete"])
    rows = np.random.default_rng(0).normal(0, 1, (20, 5)).astype(np.float32)
    builder = AgentBuilder().actor_count(20).default_model(path).action_choice(ActionChoice.GREEDY)
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        together = agent.request_action(ids, rows)
        alone = [agent.request_action((each,), row[None]) for each, row in zip(ids, rows, strict=True)]
    assert together.action.tolist() == ExportedActor(path).act_greedily(rows).tolist()
    assert [int(each.action[0]) for each in alone] == together.action.tolist()
    np.testing.assert_allclose([each.logp[0] for each in alone], together.logp, rtol=0, atol=1e-6)
