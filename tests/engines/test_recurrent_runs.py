"""Whole runs of recurrent policies: settings, resuming, starting from another run, recording, evaluation from files."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from relayrl.cli.main import app
from relayrl.engines.local.local_engine import LocalEngine, RunInterrupted, RunResult
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.engines.settings.settings_schema import settings_schema
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.exports.exported import ExportedActor
from relayrl.models.network_settings import MemoryKind, MemorySettings
from relayrl.sinks.contract import open_source

RECALL = "relayrl.testing.toy_environments:RecallCue"
SMALL = {
    "environment.num_envs": 2,
    "trainer.time_horizon": 10,
    "trainer.max_steps": 200,
    "network.hidden_sizes": (8,),
    "network.memory": {"size": 6, "sequence_length": 4},
    "network.normalize_observations": True,
    "evaluation.episodes": 2,
    "params.train_vf_iters": 2,
}


def settings_of(algo: str, env: str = "native:simple_spread", **flags) -> RunSettings:
    return build_run_settings(env, None, SMALL | {"algo": algo} | flags, [])


def run(settings: RunSettings, path: Path, *, interrupted_at: int | None = None) -> RunResult:
    directory = RunDirectory(path)
    resumes = directory.config.exists()
    if not resumes:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    if resumes:
        assert engine.resume()
    seen = [0]
    return engine.run(
        lambda progress: seen.__setitem__(0, progress.num_env_steps),
        lambda: interrupted_at is not None and seen[0] >= interrupted_at,
    )


@pytest.mark.parametrize("algo", ["reinforce", "ireinforce", "mareinforce", "ppo", "ippo", "mappo", "impala", "maappo"])
def test_a_resumed_run_ends_as_if_it_had_not_stopped(algo, tmp_path):
    env, options = ("native:simple_spread", {}) if "pp" in algo and algo != "ppo" else (RECALL, {"delay": 7})
    settings = settings_of(algo, env, **{"environment.options": options})
    whole = run(settings, tmp_path / "whole")
    with pytest.raises(RunInterrupted):
        run(settings, tmp_path / "parts", interrupted_at=100)
    resumed = run(settings, tmp_path / "parts")
    assert resumed.parameter_hash == whole.parameter_hash
    assert resumed.returns == whole.returns


def test_overlapping_collection_learns_with_a_memory(tmp_path):
    result = run(settings_of("ppo", RECALL, **{"trainer.threaded": True}), tmp_path / "run")
    assert result.num_env_steps == 200


def test_a_run_starts_from_the_networks_of_another(tmp_path):
    settings = settings_of("ppo", RECALL)
    run(settings, tmp_path / "first")
    directory = RunDirectory(tmp_path / "second")
    directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    engine.init_from(tmp_path / "first")
    engine.close()
    memoryless = settings_of("ppo", RECALL, **{"network.memory": None})
    other = RunDirectory(tmp_path / "third")
    other.create(memoryless)
    engine = LocalEngine(memoryless, other, tensorboard=False)
    with pytest.raises(ConfigError, match="networks differ"):
        engine.init_from(tmp_path / "first")
    engine.close()


@pytest.mark.parametrize("sink", ["arrow", "parquet", "csv", "sqlite"])
def test_what_was_remembered_is_recorded(sink, tmp_path):
    url = f"{sink}:{tmp_path / 'data'}" + (".db" if sink == "sqlite" else "")
    run(settings_of("ppo", RECALL, record=url), tmp_path / "run")
    with open_source(url) as source:
        trajectories = list(source)
    assert sum(len(t) for t in trajectories) == 200
    for trajectory in trajectories:
        assert trajectory.memory.shape == (len(trajectory), 24)
        assert trajectory.memory[0].any() == (trajectory.first_step > 0)
        assert trajectory.memory[1:].any()


def test_the_command_line_trains_and_evaluates_with_a_memory(tmp_path):
    flags = [part for key, value in SMALL.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    flags += ["--set", "network.memory.kind=gru", "--run-dir", str(tmp_path / "run")]
    trained = CliRunner().invoke(app, ["train", RECALL, *flags])
    assert trained.exit_code == 0, trained.output
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert saved["network"]["memory"] == {"kind": "gru", "size": 6, "sequence_length": 4}
    actor = ExportedActor(next((tmp_path / "run").rglob("*.onnx")))
    assert actor.memory_width == 12
    evaluated = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--episodes", "3", "--trust"])
    assert evaluated.exit_code == 0, evaluated.output


def test_a_memory_is_set_by_parts_and_overridden_for_one_group():
    settings = build_run_settings(
        "relayrl.testing.toy_environments:DyingAgents",
        None,
        {"behaviors": {"wolf": {"network": {"memory": {"size": 3}}}, "sheep": {"network": {"memory": None}}}},
        ["network.memory.kind=gru", "sequence_length=7"],
    )
    assert settings.network.memory == MemorySettings(kind=MemoryKind.GRU, size=128, sequence_length=7)
    assert settings.network_of("wolf").memory == MemorySettings(kind=MemoryKind.GRU, size=3, sequence_length=7)
    assert settings.network_of("sheep").memory is None


def test_a_misspelt_part_of_the_memory_is_named():
    with pytest.raises(UnknownNameError, match=r"network\.memory\.size"):
        build_run_settings("CartPole-v1", None, {"network.memory": {"siz": 3}}, [])


def test_the_schema_describes_the_memory():
    schema = settings_schema()
    assert schema["$defs"]["MemorySettings"]["properties"]["sequence_length"]["default"] == 64
    assert "MemorySettings" in json.dumps(schema["$defs"]["NetworkSettings"])


def test_an_ml_agents_file_describes_a_memory(tmp_path):
    file = tmp_path / "trainer.yaml"
    memory = {"memory_size": 256, "sequence_length": 32}
    behaviors = {
        "first": {"trainer_type": "ppo", "network_settings": {"memory": memory}},
        "second": {"trainer_type": "ppo", "network_settings": {"memory": None}},
    }
    file.write_text(yaml.safe_dump({"behaviors": behaviors}))
    notes: list[str] = []
    settings = build_run_settings("CartPole-v1", file, {}, [], notes)
    assert settings.network.memory == MemorySettings(kind=MemoryKind.LSTM, size=128, sequence_length=32)
    assert settings.network_of("second").memory is None
    assert not [note for note in notes if "memory" in note]


def test_the_presets_train_a_recurrent_policy():
    settings = build_run_settings(RECALL, None, {}, [])
    assert settings.network.memory is not None
    assert np.isclose(settings.params.gamma, 0.99)
