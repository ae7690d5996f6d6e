"""Models that came from elsewhere: those our exporter writes pass, and hostile, damaged or foreign ones are refused unread."""

import base64
import json
import resource
import sys
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from relayrl.errors import ModelRefusedError
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.exports.model_validation import Deadlines, ModelLimits, probe_inputs, validate_model
from relayrl.models.exports.onnx_reader import read_onnx
from relayrl.models.heads.head_registry import head_of_kind
from relayrl.models.network_settings import MemoryKind, MemorySettings, NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.models.recurrent_policy import RecurrentActorCritic
from waiting import wait_until

VECTOR = spaces.Box(-1.0, 1.0, (5,))
OBSERVATIONS = {
    "vector": VECTOR,
    "unbounded": spaces.Box(-np.inf, np.inf, (3,)),
    "image": spaces.Box(0, 255, (24, 24, 3), np.uint8),
    "tree": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(4, start=2), "c": spaces.MultiDiscrete([2, 3])}),
}
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-2.0, 2.0, (2,)),
    "multi_binary": spaces.MultiBinary(3),
}


def exported(
    path, observation=VECTOR, action=ACTIONS["discrete"], *, masked=False, memory=None, normalize=False
) -> bytes:
    network = NetworkSettings(hidden_sizes=(8, 8), normalize_observations=normalize)
    make = ActorCritic
    if memory is not None:
        network, make = network.model_copy(update={"memory": MemorySettings(kind=memory)}), RecurrentActorCritic
    policy = make(observation, action, network, torch.Generator().manual_seed(1))
    metadata = PolicyMetadata("Env-v0", "ppo", "agent", 3, masked, observation, action, policy.head.kind)
    return export_policy(policy, metadata, path, ExportFormat.ONNX).read_bytes()


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    return exported(tmp_path_factory.mktemp("models") / "model.onnx")


def changed(content: bytes, change) -> bytes:
    model = onnx.load_from_string(content)
    change(model)
    return model.SerializeToString()


def refused(content: bytes, match: str, **options) -> None:
    with pytest.raises(ModelRefusedError, match=match):
        validate_model(content, **options)


@pytest.mark.parametrize(("observation", "action"), list(product(OBSERVATIONS, ACTIONS)))
def test_what_our_exporter_writes_passes(observation, action, tmp_path):
    obs, act = OBSERVATIONS[observation], ACTIONS[action]
    content = exported(tmp_path / "model.onnx", obs, act, normalize=observation == "vector")
    metadata = validate_model(content, observation_space=obs, action_space=act, needs_probe=True)
    assert (metadata.policy_version, metadata.group) == (3, "agent")


@pytest.mark.parametrize("memory", [None, *MemoryKind])
def test_masks_and_memories_pass(memory, tmp_path):
    content = exported(tmp_path / "model.onnx", masked=True, memory=memory)
    assert validate_model(content, needs_probe=True).masked


def test_the_reader_sees_what_onnx_sees(good):
    ours, theirs = read_onnx(good), onnx.load_from_string(good)
    assert [operator.op_type for operator in ours.operators] == [node.op_type for node in theirs.graph.node]
    assert ours.metadata == {entry.key: entry.value for entry in theirs.metadata_props}
    assert [value.name for value in ours.inputs] == [value.name for value in theirs.graph.input]
    constants = [a.t for node in theirs.graph.node for a in node.attribute if a.HasField("t")]
    tensors = [*theirs.graph.initializer, *constants]
    assert sum(ours.weights.values()) == sum(numpy_helper.to_array(tensor).nbytes for tensor in tensors)


def test_the_probe_is_a_formula(good):
    metadata = validate_model(good)
    rows = probe_inputs(metadata, head_of_kind(metadata.action_space, metadata.head, 0.0))["obs"]
    expected = [2 * ((i * 0.6180339887498949) % 1) - 1 for i in range(1, 21)]
    np.testing.assert_allclose(rows.ravel(), expected, rtol=0, atol=1e-6)


def test_other_spaces_are_refused(good):
    refused(good, "observation space", observation_space=spaces.Box(-1.0, 1.0, (6,)))
    refused(good, "action space", action_space=spaces.Discrete(5))


def test_sizes_are_bounded(good):
    refused(b"", "0 bytes")
    refused(good, "must have 1 to 100", limits=ModelLimits(max_bytes=100))
    refused(good, "nodes", limits=ModelLimits(max_operators=3))


def test_files_without_an_answer_to_the_probe(good):
    def forget(model):
        kept = [entry for entry in model.metadata_props if entry.key != "relayrl.probe"]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)

    old = changed(good, forget)
    assert validate_model(old).policy_version == 3  # files from before there were probes
    refused(old, "export it again", needs_probe=True)


def test_other_weights_than_the_exporter_had_are_noticed(good):
    def flip(model):
        weights = next(each for each in model.graph.initializer if len(each.dims) == 2)
        numbers = numpy_helper.to_array(weights).copy()
        numbers[0, 0] += 0.5
        weights.CopyFrom(numpy_helper.from_array(numbers, weights.name))

    refused(changed(good, flip), "answers the probe otherwise")


def node_of(op_type, domain="", **attributes):
    def change(model):
        model.graph.node.insert(0, helper.make_node(op_type, ["obs"], ["extra"], domain=domain, **attributes))
        if domain:
            model.opset_import.append(helper.make_opsetid(domain, 1))

    return change


@pytest.mark.parametrize(
    "op_type", ["RandomNormalLike", "NonZero", "ConstantOfShape", "Unique", "Resize", "StringNormalizer"]
)
def test_operators_that_are_not_listed_are_refused(good, op_type):
    refused(changed(good, node_of(op_type)), f"operator '{op_type}'")


def test_custom_operators_are_refused(good):
    refused(changed(good, node_of("Relu", domain="com.microsoft")), "com.microsoft")
    refused(changed(good, node_of("PyOp", domain="ai.onnx.contrib")), "ai.onnx.contrib")


def loop(model):
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, [])],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "true"))
    model.graph.node.insert(0, helper.make_node("Loop", ["", "true"], [], body=body))


def test_loops_and_branches_are_refused(good):
    refused(changed(good, loop), "field 6, which policies do not have")  # a sub-graph


def test_functions_are_refused(good):
    def change(model):
        function = helper.make_function("own", "F", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], [])
        model.functions.append(function)

    refused(changed(good, change), "field 25")


@pytest.mark.parametrize("location", ["/etc/passwd", "../../weights.bin", "weights.bin"])
def test_external_data_is_refused_and_no_file_is_opened(good, location):
    def change(model):
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.external_data.add(key="location", value=location)
        tensor.data_location = TensorProto.EXTERNAL

    refused(changed(good, change), "field 1[34]")


def test_tensors_that_claim_more_than_they_hold_are_refused(good):
    def change(model):
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend([1 << 20, 1 << 19])

    refused(changed(good, change), "claims")


def expanding(model, shape):
    """`distribution` grows on its way by a shape that stands in the file."""
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), "huge"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    model.graph.node.insert(0, helper.make_node("Expand", ["zero", "huge"], ["expanded"]))


def test_small_files_that_take_much_memory_are_refused(good):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(changed(good, lambda model: expanding(model, [1 << 34])), "cannot act|does not load")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 1024, f"{grown} MB"


def repeated(model, num_nodes, side, computed=False):
    """So many products of square matrices, all with the same one."""
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((side, side), np.float32), "m0"))
    model.graph.node.insert(0, helper.make_node("Tanh", ["m0"], ["again"]))
    model.graph.node.insert(1, helper.make_node("Expand", ["obs", "shape"], ["d0"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([side, 1, 5], np.int64), "shape"))
    for i in range(num_nodes):
        other = "again" if computed else "m0"
        model.graph.node.insert(2 + i, helper.make_node("MatMul", [f"d{i}", other], [f"d{i + 1}"]))


def test_weights_that_are_used_again_and_again_are_refused(good):
    refused(changed(good, lambda model: repeated(model, 3000, 256)), "as often as it uses them")
    refused(changed(good, lambda model: repeated(model, 1, 256, computed=True)), "computed")


def test_models_that_take_long_are_stopped(good):
    def change(model):  # 3000 softmaxes of 8 million numbers: minutes
        model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 23], np.int64), "shape"))
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
        model.graph.node.insert(0, helper.make_node("Expand", ["zero", "shape"], ["s0"]))
        for i in range(3000):
            model.graph.node.insert(i + 1, helper.make_node("Softmax", [f"s{i}"], [f"s{i + 1}"]))

    refused(changed(good, change), "cannot act.*terminate", limits=ModelLimits(probe_timeout_s=0.5))


def test_rows_that_see_each_other_are_refused(good):
    def change(model):
        (node,) = [each for each in model.graph.node if "distribution" in each.output]
        node.output[0] = "before"
        mean = helper.make_node("ReduceMean", ["before"], ["mean"], axes=[0], keepdims=1)
        model.graph.node.extend([mean, helper.make_node("Add", ["before", "mean"], ["distribution"])])

    content = changed(good, change)
    refused(content, "depends on other rows")


@pytest.mark.parametrize(
    ("name", "axes", "match"),
    [("obs", ["batch", 6], "axes"), ("obs", [1, 5], "axes"), ("other", ["batch", 5], "inputs are other")],
)
def test_inputs_must_be_those_of_the_space(good, name, axes, match):
    def change(model):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, axes)
        model.graph.input[0].CopyFrom(value)

    refused(changed(good, change), match)


def test_outputs_must_be_those_of_the_head(good):
    def change(model):
        del model.graph.output[0]

    refused(changed(good, change), "outputs are")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("observation_space", "[" * 100_000),
        (
            "observation_space",
            json.dumps({"type": "box", "dtype": "float32", "shape": [1 << 30], "low": 0.0, "high": 1.0}),
        ),
        ("mlp", "{" * 100_000),
        ("mlp", json.dumps({"actor": {"activation": "tanh", "sizes": [1 << 15, 1 << 15]}, "numbers": ""})),
        ("probe", json.dumps({"shape": [4, 4], "distribution": base64.b64encode(b"1234").decode()})),
        ("probe", "[[[["),
        ("memory_width", "-1"),
        ("noise_scale", "x"),
    ],
)
def test_hostile_metadata_is_refused(good, key, value):
    def change(model):
        kept = [(e.key, e.value) for e in model.metadata_props if e.key != f"relayrl.{key}"]
        del model.metadata_props[:]
        helper.set_model_props(model, dict(kept) | {f"relayrl.{key}": value})

    refused(changed(good, change), "metadata|probe|inputs")


def test_fields_that_parsers_merge_are_refused(good):
    refused(good + good, "twice")


def test_truncated_files_are_refused(good):
    for end in {*range(0, len(good), 97), len(good) - 1} - {0}:
        with pytest.raises(ModelRefusedError):
            validate_model(good[:end])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_are_refused_or_act_as_their_metadata_says(good, data, tmp_path):
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["set", "delete", "insert"]))
        if kind == "set":
            content[where] = data.draw(st.integers(0, 255))
        elif kind == "delete":
            del content[where : where + data.draw(st.integers(1, 8))]
        else:
            content[where:where] = data.draw(st.binary(min_size=1, max_size=8))
    try:
        metadata = validate_model(bytes(content), needs_probe=True)
    except ModelRefusedError:
        return
    path = Path(tmp_path) / "mutated.onnx"
    path.write_bytes(content)
    actor = ExportedActor(path)
    rows = probe_inputs(metadata, actor.head)["obs"]
    assert np.isfinite(actor.distribution(rows)).all()


@settings(max_examples=300, deadline=None)
@given(content=st.binary(min_size=1, max_size=400))
def test_random_bytes_are_refused(content):
    with pytest.raises(ModelRefusedError):
        validate_model(content)


def test_validation_does_not_load_torch(good, tmp_path):
    import subprocess

    path = tmp_path / "model.onnx"
    path.write_bytes(good)
    code = (
        "import sys; from pathlib import Path; from relayrl.models.exports.model_validation import validate_model; "
        "validate_model(Path(sys.argv[1]).read_bytes()); assert not {'torch', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)


def test_a_run_is_stopped_at_its_own_deadline_and_no_other():
    """One thread watches all of them; it is started again when it has ended."""
    watched = Deadlines(idle_s=0.2)
    for _ in range(2):
        with watched.within(1000.0) as patient:
            with watched.within(0.01) as first, watched.within(0.02) as second:
                wait_until(lambda: first.terminate and second.terminate)
            assert not patient.terminate
        wait_until(lambda: not watched.is_watching)
