"""`relayrl models` and `relayrl serve inference` as a user types them, and what their page says."""

import json
from pathlib import Path

import pytest
from exported_policies import exported_policy

from cli_in_process import relayrl
from relayrl.servers.inference.inference_metrics import CODES
from relayrl.servers.inference.inference_server import InferenceServer

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def models(tmp_path):
    return [exported_policy(tmp_path / f"{version}.onnx", version=version, seed=version) for version in (1, 2, 3)]


def test_models_are_added_promoted_and_rolled_back(models, tmp_path):
    store = str(tmp_path / "store")
    assert relayrl("models", "add", store, str(models[0])).stdout == "agent 1\n"
    assert relayrl("models", "add", store, str(models[1]), "--canary", "25%").stdout == "agent 2\n"
    assert relayrl("models", "add", store, str(models[2])).returncode == 0
    listed = relayrl("models", "list", store, "--json").stdout.splitlines()
    assert listed[:3] == ["agent 1  stable", "agent 2  canary, 25% of actors", "agent 3"]
    state = {"versions": [1, 2, 3], "stable": 1, "canary": 2, "share": 0.25, "rolled_back": []}
    assert json.loads(listed[-1]) == {"agent": state}
    assert relayrl("models", "rollback", store).stdout == "agent 1 is stable\n"
    assert relayrl("models", "promote", store, "3").stdout == "agent 3 is stable\n"
    assert relayrl("models", "rollback", store).stdout == "agent 1 is stable\n"
    events = [json.loads(line) for line in relayrl("models", "list", store, "--history").stdout.splitlines()]
    expected = ["added", "promoted", "added", "canary", "added", "rolled_back", "promoted", "rolled_back"]
    assert [event["event"] for event in events] == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["models", "list", "nowhere"], "is no model store"),
        (["models", "promote", "STORE", "9"], "has no version 9; it has 1"),
        (["models", "promote", "STORE", "1", "--group", "x"], "has no group 'x'"),
        (["models", "rollback", "STORE"], "no canary and no former version"),
        (["models", "add", "STORE", "missing.onnx"], "cannot read missing.onnx"),
        (["models", "add", "STORE", "2.onnx", "--canary", "200%"], "write new@10%"),
        (["serve", "inference"], "there is no model to serve"),
        (["serve", "inference", "missing.onnx"], "there is no model missing.onnx"),
        (["serve", "inference", "1.onnx", "--canary", "10%"], "write new@10%"),
        (["serve", "inference", "1.onnx", "--canary", "7@10%"], "0 groups of the store have this version"),
        (["serve", "inference", "1.onnx", "--bind", "tcp://0.0.0.0:0"], "relayrl keys new"),
        (["serve", "inference", "1.onnx", "--bind", "nonsense"], "tcp://HOST:PORT"),
        (["serve", "inference", "1.onnx", "--max-batch", "0"], "max_batch"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(arguments, complaint, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relayrl("models", "add", "STORE", "1.onnx").returncode == 0
    done = relayrl(*arguments, *(["--quiet"] if arguments[0] == "serve" else []))
    assert done.returncode == 2
    assert complaint in done.complaint


def test_every_metric_and_code_is_documented(models):
    page = (ROOT / "docs" / "inference.md").read_text()
    server = InferenceServer("tcp://127.0.0.1:0", models[:1])
    try:
        names = {each.name for each in server.metrics.snapshot() if each.name.startswith("inference/")}
    finally:
        server.stop()
    failures = {f"inference/failed_{code}_total" for code in CODES}
    assert failures <= names
    for name in names - failures:
        assert f"`{name}`" in page, name
    for code in set(CODES) - {"failed"}:
        assert f"`{code}`" in page, code
    documented = {part for part in page.split("`") if part.startswith("inference/")}
    assert documented - {"inference/failed_CODE_total"} == names - failures
