"""Newer versions of a policy that an actor plays with: the kernels take their numbers, and everything is still checked."""

import numpy as np
import onnx
import pytest
from exported_policies import ACT, OBS, exported_policy
from gymnasium import spaces

from relayrl.compiled import loader
from relayrl.errors import ModelRefusedError
from relayrl.runtime.remote.model_follower import PolicyUpdates

pytestmark = pytest.mark.skipif(loader.kernels() is None, reason="without the kernels every version is loaded")
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)


@pytest.fixture
def exported(tmp_path):
    return lambda seed, **options: exported_policy(
        tmp_path / f"{seed}.onnx", version=seed, seed=seed, **options
    ).read_bytes()


def with_metadata(content, **changes):
    """The same file, of which some metadata was replaced."""
    model = onnx.load_from_string(content)
    for entry in model.metadata_props:
        name = entry.key.removeprefix("relayrl.")
        entry.value = changes.get(name, entry.value)
    return model.SerializeToString()


def metadata_of(content, name):
    entries = onnx.load_from_string(content).metadata_props
    (found,) = [entry.value for entry in entries if entry.key == f"relayrl.{name}"]
    return found


def graph_of(model):
    """What stands behind the kernels for large batches."""
    return model.actor._reference


@pytest.mark.parametrize(
    "options", [{}, {"masked": True}, {"action": BOX}, {"action": spaces.MultiDiscrete([3, 2])}], ids=str
)
def test_a_newer_version_acts_as_if_it_was_loaded_whole(exported, options):
    action = options.get("action", ACT)
    updates = PolicyUpdates(OBS, action)
    updates.load(exported(1, **options))
    newer = exported(2, **options)
    updated, metadata = updates.load(newer)
    whole, _ = PolicyUpdates(OBS, action).load(newer)
    assert type(graph_of(updated)).__name__ == "_LaterActor"
    assert (metadata.policy_version, updated.policy_version, updated.layout) == (2, 2, whole.layout)
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    mask = np.array([[True, False, True]] * 5) if "masked" in options else None
    one, other = (each.actor.decide(rows, mask, None, np.random.default_rng(3)) for each in (updated, whole))
    for mine, its in ((one.action, other.action), (one.logp, other.logp), (one.value, other.value)):
        np.testing.assert_array_equal(mine, its)


def test_a_batch_that_is_too_large_for_the_kernels_passes_the_versions_own_graph(exported):
    updates = PolicyUpdates(OBS, ACT)
    updates.load(exported(1))
    content = exported(2)
    updated, _ = updates.load(content)
    rows = np.random.default_rng(0).normal(size=(updated.actor._max_rows + 1, 4)).astype(np.float32)
    large = updated.actor.decide(rows, None, None, None)
    small = PolicyUpdates(OBS, ACT).load(content)[0].actor.decide(rows[:50], None, None, None)
    np.testing.assert_array_equal(large.action[:50], small.action)
    np.testing.assert_allclose(large.value[:50], small.value, atol=1e-5)


def test_a_version_whose_description_is_not_what_its_exporter_answered_is_refused(exported):
    updates = PolicyUpdates(OBS, ACT)
    updates.load(exported(1))
    with pytest.raises(ModelRefusedError, match="answers the probe otherwise"):
        updates.load(with_metadata(exported(2), mlp=metadata_of(exported(3), "mlp")))
    with pytest.raises(ModelRefusedError):
        updates.load(with_metadata(exported(2), mlp="{}"))
    assert updates.load(exported(4))[1].policy_version == 4


def test_other_spaces_are_refused_and_another_graph_is_loaded_whole(exported):
    updates = PolicyUpdates(OBS, ACT)
    updates.load(exported(1))
    with pytest.raises(ModelRefusedError, match="action space"):
        updates.load(exported(2, action=spaces.Discrete(4)))
    masked, _ = updates.load(exported(3, masked=True))
    assert type(graph_of(masked)).__name__ == "ExportedActor"
    again, _ = updates.load(exported(4, masked=True))
    assert type(graph_of(again)).__name__ == "_LaterActor"


def test_a_file_that_differs_in_its_numbers_alone_is_not_read_again(exported, monkeypatch):
    updates = PolicyUpdates(OBS, ACT)
    updates.load(exported(1))
    updates.load(exported(2))
    monkeypatch.setattr("relayrl.runtime.remote.model_follower.read_policy", None)
    content = exported(3)
    model, metadata = updates.load(content)
    assert (metadata.policy_version, metadata.mlp) == (3, metadata_of(content, "mlp"))
    monkeypatch.undo()
    whole, _ = PolicyUpdates(OBS, ACT).load(content)
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        model.actor.decide(rows, None, None, None).value, whole.actor.decide(rows, None, None, None).value
    )


@pytest.mark.parametrize("where", ["graph", "probe", "version"])
def test_of_a_known_file_too_one_other_byte_is_refused(exported, where):
    """An operator's name, an answer to the probe, a digit: each has its own way to be wrong."""
    updates = PolicyUpdates(OBS, ACT)
    for seed in (1, 2):
        updates.load(exported(seed))
    content = bytearray(exported(3))
    old, new = {"graph": (b"Gemm", b"Geem"), "probe": (b'"shape": [4', b'"shape": [5'), "version": (b"", b"")}[where]
    if where == "version":
        begin = content.index(b"relayrl.policy_version") + len(b"relayrl.policy_version") + 2
        assert content[begin : begin + 1] == b"3"
        content[begin : begin + 1] = b"x"
    else:
        begin = content.index(old)
        content[begin : begin + len(old)] = new
    with pytest.raises(ModelRefusedError):
        updates.load(bytes(content))
