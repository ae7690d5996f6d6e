"""Perceptrons read out of ONNX files, and run in NumPy: what onnxruntime gives, within rounding."""

import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces

from relayrl.data.trees import leaf_dtype
from relayrl.errors import DecodeError
from relayrl.models.actor_critic import ActorCritic
from relayrl.models.discrete_heads import CategoricalHead
from relayrl.models.export import export_policy
from relayrl.models.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.joint_perceptron import MAX_PRODUCTS, JointPerceptron
from relayrl.models.onnx_file import read_graph
from relayrl.models.onnx_perceptron import policy_chains
from relayrl.models.settings import Activation, NetworkSettings

BOX = spaces.Box(-3, 3, (5,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "counted from one": spaces.Discrete(3, start=1),
    "continuous": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32)),
    "masked": spaces.Discrete(3),
    "many choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
}


def exported(
    path: Path, action: spaces.Space, obs: spaces.Space = BOX, masked: bool = False, **network
) -> ExportedActor:
    policy = ActorCritic(obs, action, NetworkSettings(**network), torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for parameter in policy.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    if policy.normalizer is not None:
        policy.normalizer.shift += 0.5
        policy.normalizer.scale *= 2.0
    policy.return_normalizer.scale *= 0.5
    policy.return_normalizer.shift += 0.25
    metadata = PolicyMetadata("worlds", "ppo", "agent", 1, masked, obs, action)
    return ExportedActor(export_policy(policy, metadata, path, ExportFormat.ONNX))


def joint_of(path: Path, width: int = 5) -> JointPerceptron | None:
    chains = policy_chains(read_graph(path.read_bytes()), width)
    return None if chains is None else JointPerceptron.of(chains)


def assert_within_rounding(got: np.ndarray, expected: np.ndarray) -> None:
    """Sums in another order: a few roundings of numbers of this size."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-7 * (8 + np.abs(expected).max()))


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("name", ["discrete", "counted from one", "continuous"])
def test_rows_are_those_of_onnxruntime(tmp_path, name, activation, normalized):
    network = {"hidden_sizes": (16, 16), "activation": activation, "normalize_observations": normalized}
    actor = exported(tmp_path / "model.onnx", ACTIONS[name], **network)
    joint = joint_of(tmp_path / "model.onnx")
    assert joint is not None
    rng = np.random.default_rng(0)
    for num_rows in (1, 2, 7, 64):
        run = joint.bind(num_rows)
        for _ in range(20):
            obs = rng.normal(0, 1, (num_rows, 5)).astype(np.float32)
            distribution, _, value = actor.run([obs])
            parameters, own_value = run([obs])
            if isinstance(actor.head, CategoricalHead):
                parameters = actor.head.parameters_numpy(parameters, None)
            assert_within_rounding(parameters, distribution)
            assert_within_rounding(own_value, value)


@pytest.mark.parametrize("name", ["masked", "many choices", "bits"])
def test_what_is_more_than_a_perceptron_is_not_mistaken_for_one(tmp_path, name):
    exported(tmp_path / "model.onnx", ACTIONS[name], masked=name == "masked", hidden_sizes=(8,))
    joint = joint_of(tmp_path / "model.onnx")
    assert (joint is None) == (name != "bits")  # bits are plain logits


@pytest.mark.parametrize(
    "obs",
    [
        spaces.Dict({"a": BOX, "b": BOX}),
        spaces.Discrete(5),
        spaces.Box(0, 255, (36, 36, 3), np.uint8),
    ],
    ids=["dict", "one of five", "image"],
)
def test_other_observations_are_left_to_onnxruntime(tmp_path, obs):
    exported(tmp_path / "model.onnx", ACTIONS["discrete"], obs=obs, hidden_sizes=(8,))
    assert joint_of(tmp_path / "model.onnx") is None


def test_whole_numbers_and_matrices_are_observations_as_well(tmp_path):
    for obs_space in (spaces.Box(0, 9, (5,), np.int64), spaces.Box(-1, 1, (2, 3), np.float32)):
        actor = exported(tmp_path / "model.onnx", ACTIONS["continuous"], obs=obs_space, hidden_sizes=(8,))
        joint = joint_of(tmp_path / "model.onnx", width=int(np.prod(obs_space.shape)))
        assert joint is not None
        obs = np.stack([obs_space.sample() for _ in range(4)]).astype(leaf_dtype(obs_space))
        assert_within_rounding(joint.bind(4)([obs])[0], actor.run([obs])[0])


def test_large_batches_and_networks_are_not_its_business(tmp_path):
    exported(tmp_path / "model.onnx", ACTIONS["discrete"], hidden_sizes=(64, 64))
    joint = joint_of(tmp_path / "model.onnx")
    assert joint is not None
    assert joint.max_rows == MAX_PRODUCTS // (6 * 129 + 129 * 129 + 129 * 6)
    exported(tmp_path / "large.onnx", ACTIONS["discrete"], hidden_sizes=(512, 512))
    large = joint_of(tmp_path / "large.onnx")
    assert large is not None
    assert large.max_rows == 0


def test_the_graph_is_that_of_the_onnx_package(tmp_path):
    exported(tmp_path / "model.onnx", ACTIONS["continuous"], hidden_sizes=(8, 8), normalize_observations=True)
    graph, expected = read_graph((tmp_path / "model.onnx").read_bytes()), onnx.load(tmp_path / "model.onnx").graph
    assert graph.inputs == [each.name for each in expected.input]
    assert graph.outputs == [each.name for each in expected.output]
    assert len(graph.nodes) == len(expected.node) > 10
    for node, other in zip(graph.nodes, expected.node, strict=True):
        assert (node.op, node.inputs, node.outputs) == (other.op_type, tuple(other.input), tuple(other.output))
        for attribute in other.attribute:
            meaning = onnx.helper.get_attribute_value(attribute)
            if isinstance(meaning, onnx.TensorProto):
                np.testing.assert_array_equal(node.attributes[attribute.name], onnx.numpy_helper.to_array(meaning))
            else:
                assert node.attributes[attribute.name] == pytest.approx(meaning)
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in expected.initializer}
    assert graph.weights.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(graph.weights[name], array)


def test_other_files_are_refused(tmp_path):
    exported(tmp_path / "model.onnx", ACTIONS["discrete"], hidden_sizes=(8,))
    content = (tmp_path / "model.onnx").read_bytes()
    for damaged in (b"", b"not a model", content[: len(content) // 2], b"\xff" * 40):
        with pytest.raises(DecodeError, match="not an ONNX file"):
            read_graph(damaged)


def test_many_threads_run_one_row_at_once(tmp_path):
    actor = exported(tmp_path / "model.onnx", ACTIONS["continuous"], hidden_sizes=(16, 16))
    joint = joint_of(tmp_path / "model.onnx")
    assert joint is not None
    rows = np.random.default_rng(0).normal(0, 1, (8, 50, 1, 5)).astype(np.float32)
    expected = actor.run([rows.reshape(-1, 5)])[0].reshape(8, 50, -1)
    results: dict[tuple[int, int], np.ndarray] = {}

    def work(i: int) -> None:
        for k in range(50):
            results[i, k] = joint.alone(rows[i, k])[0]

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
    for (i, k), parameters in results.items():
        assert_within_rounding(parameters[0], expected[i, k])
    assert len(results) == 400
