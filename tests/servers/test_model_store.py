"""The store of models: what is deployed, how it is recorded, and that kills leave it whole."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from exported_policies import exported_policy
from gymnasium import spaces

from relayrl.errors import CheckpointError, ConfigError, ModelRefusedError
from relayrl.runtime.remote.deployment import Deployment, position
from relayrl.servers.inference.model_store import HISTORY, ModelStore
from waiting import wait_until


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[int, bytes]:
    folder = tmp_path_factory.mktemp("models")
    return {v: exported_policy(folder / f"{v}.onnx", version=v, seed=v).read_bytes() for v in (1, 2, 3)}


@pytest.fixture
def store(tmp_path, models) -> ModelStore:
    opened = ModelStore(tmp_path / "store", create=True)
    for version, content in models.items():
        opened.add(content, f"{version}.onnx")
    opened.promote("agent", 1, by="test")
    return opened


def test_versions_are_kept_and_the_record_is_the_state(store, models):
    store.begin_canary("agent", 2, 0.1, by="test")
    again = ModelStore(store.path)
    assert again.groups["agent"].deployment == Deployment(2, 1, 2, 0.1)
    assert again.read("agent", 3) == models[3]
    assert [event["event"] for event in again.history()] == ["added"] * 3 + ["promoted", "canary"]


def test_a_canary_can_be_rolled_back_and_promoted(store):
    store.begin_canary("agent", 2, 0.1, by="test")
    assert store.roll_back("agent", by="test", why={"difference": -1.0}) == 1
    assert (store.groups["agent"].canary, store.groups["agent"].withdrawn) == (None, {2})
    assert store.history()[-1]["why"] == {"difference": -1.0}
    store.begin_canary("agent", 3, 0.5, by="test")
    store.promote("agent", 3, by="test")
    assert store.groups["agent"].deployment == Deployment(5, 3, None, 0.0)


def test_stable_versions_are_rolled_back_in_order(store):
    store.promote("agent", 2, by="test")
    store.promote("agent", 3, by="test")
    assert store.roll_back("agent", by="test") == 2
    assert store.roll_back("agent", by="test") == 1
    with pytest.raises(ConfigError, match="no former version"):
        store.roll_back("agent", by="test")


def test_a_canary_that_is_gone_is_not_rolled_back_again(store):
    store.begin_canary("agent", 2, 0.1, by="test")
    other = ModelStore(store.path)
    other.promote("agent", 2, by="a person, meanwhile")
    assert store.roll_back("agent", by="the test", canary=2) == 2
    assert store.groups["agent"].stable == 2


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_shares_are_between_nobody_and_everybody(store, share):
    with pytest.raises(ConfigError, match="share"):
        store.begin_canary("agent", 2, share, by="test")


def test_unknown_versions_and_groups_are_named(store):
    with pytest.raises(ConfigError, match="it has 1, 2, 3"):
        store.promote("agent", 9, by="test")
    with pytest.raises(ConfigError, match="no group 'other'"):
        store.promote("other", 1, by="test")


def test_another_model_of_the_same_version_is_refused(store, tmp_path):
    other = exported_policy(tmp_path / "x.onnx", version=2, seed=9).read_bytes()
    with pytest.raises(ModelRefusedError, match="another model than version 2"):
        store.add(other, "x.onnx")
    assert store.add(store.read("agent", 2), "again")[2] is False


def test_a_version_of_other_spaces_is_refused(store, tmp_path):
    other = exported_policy(tmp_path / "x.onnx", version=4, observation=spaces.Box(-1, 1, (7,), np.float32))
    with pytest.raises(ModelRefusedError, match="other spaces"):
        store.add(other.read_bytes(), "x.onnx")


def test_hostile_models_do_not_get_in(store):
    with pytest.raises(ModelRefusedError):
        store.add(b"not a model", "x")
    assert len(store.history()) == 4


def test_group_names_do_not_lead_out_of_the_store(tmp_path):
    content = exported_policy(tmp_path / "x.onnx", version=1, group="..").read_bytes()
    store = ModelStore(tmp_path / "a" / "store", create=True)
    store.add(content, "x")
    assert store.file("..", 1).resolve().is_relative_to(store.path.resolve())


def test_a_torn_last_line_is_dropped_and_written_over(store):
    path = store.path / HISTORY
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "promo')
    again = ModelStore(store.path)
    assert again.groups["agent"].stable == 1
    again.promote("agent", 3, by="test")
    assert path.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert ModelStore(store.path).groups["agent"].stable == 3


def test_damage_in_the_middle_is_not_overlooked(store):
    path = store.path / HISTORY
    path.write_bytes(b"garbage\n" + path.read_bytes())
    with pytest.raises(CheckpointError, match="damaged line"):
        ModelStore(store.path)


def test_a_file_that_changed_is_not_served(store):
    store.file("agent", 2).write_bytes(store.read("agent", 3))
    with pytest.raises(CheckpointError, match="not the file that was added"):
        store.read("agent", 2)


CHANGES = """
import sys
from pathlib import Path
from relayrl.servers.inference.model_store import ModelStore
store = ModelStore(Path(sys.argv[1]))
content = Path(sys.argv[2]).read_bytes()
print("ready", flush=True)
while True:
    for version in (2, 3, 1):
        store.promote("agent", version, by="killed")
        store.file("agent", 3).unlink()
        store.add(content, "again")
"""


def test_kills_leave_the_store_whole(store, models, tmp_path):
    model = tmp_path / "3.onnx"
    model.write_bytes(models[3])
    for seed in range(4):
        arguments = [sys.executable, "-c", CHANGES, str(store.path), str(model)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            before = len(store.history())
            wait_until(lambda before=before, seed=seed: len(store.history()) >= before + 3 + seed)
            os.kill(process.pid, signal.SIGKILL)
        again = ModelStore(store.path)
        stable = again.groups["agent"].stable
        assert stable in (1, 2, 3)
        if again.file("agent", 3).exists():
            assert again.read("agent", 3) == models[3]
        again.add(models[3], "mended")
        again.promote("agent", 1 if stable != 1 else 2, by="after the kill")
        assert ModelStore(store.path).groups == again.groups


def test_two_processes_take_turns(store):
    """Promotions of several processes at once are all in the record, and it can be read."""
    code = (
        "import sys; from pathlib import Path; from relayrl.servers.inference.model_store import ModelStore\n"
        "store = ModelStore(Path(sys.argv[1]))\n"
        "for i in range(30): store.promote('agent', 1 + i % 3, by=sys.argv[2])"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(store.path), name]) for name in "ab"]
    assert [process.wait(60) for process in processes] == [0, 0]
    store.refresh()
    assert ModelStore(store.path).groups == store.groups
    assert store.groups["agent"].number == len([e for e in store.history() if e["event"] == "promoted"])


def test_actors_are_assigned_by_their_id():
    deployment = Deployment(1, 5, 7, 0.1)
    ids = [f"{i:032x}" for i in range(20_000)]
    chosen = [deployment.version_for("agent", each) for each in ids]
    assert chosen == [deployment.version_for("agent", each) for each in ids]
    assert 0.09 < chosen.count(7) / len(ids) < 0.11
    other = Deployment(2, 5, 8, 0.1)
    both = sum(a == 7 and b == 8 for a, b in zip(chosen, (other.version_for("agent", i) for i in ids), strict=True))
    assert both / len(ids) < 0.02  # another canary, other actors
    larger = Deployment(3, 5, 7, 0.3)
    assert all(larger.version_for("agent", i) == 7 for i, v in zip(ids, chosen, strict=True) if v == 7)


def test_the_position_of_an_actor_is_documented_arithmetic():
    assert position("agent", 7, "a") == 0x8789DF8C6691765F / 2**64
