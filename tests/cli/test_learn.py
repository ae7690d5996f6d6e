"""`relayrl learn` takes the command line of mlagents-learn: whole files, several behaviours, runs by id."""

import json
from pathlib import Path

import pytest
import yaml

from cli_in_process import relayrl
from relayrl.engines.settings.mlagents_learn import plan_of
from relayrl.errors import ConfigError

SMALL = {"hyperparameters": {"buffer_size": 64, "batch_size": 32}, "network_settings": {"hidden_units": 8}}
TAG = {
    "default_settings": {"trainer_type": "ppo", "max_steps": 128, **SMALL},
    "behaviors": {
        "adversary": {"keep_checkpoints": 2},
        "agent_0": {"network_settings": {"hidden_units": 4, "num_layers": 1}, "hyperparameters": {"beta": 0.02}},
    },
    "env_settings": {"num_envs": 2, "seed": 3},
    "environment_parameters": {
        "max_cycles": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 5, "max_value": 9}}
    },
    "engine_settings": {"time_scale": 20},
    "checkpoint_settings": {"run_id": "tag", "results_dir": "kept"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tag.yaml").write_text(yaml.safe_dump(TAG))
    return tmp_path


def settings_of(run: str) -> dict:
    return yaml.safe_load((Path(run) / "config.yaml").read_text())


def last_json(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_a_whole_file_of_two_behaviours_runs_resumes_and_plays(folder):
    tag = ("--env", "native:simple_tag")
    done = relayrl("learn", "tag.yaml", *tag, "--json", "--set", "evaluation.episodes=2")
    result = last_json(done)
    assert (result["run_dir"], result["num_env_steps"], result["seed"]) == ("kept/tag", 128, 3)
    assert "has no counterpart" not in done.stderr
    settings = settings_of("kept/tag")
    assert settings["environment"]["num_envs"] == 2
    assert list(settings["environment"]["parameters"]) == ["max_cycles"]
    assert settings["behaviors"]["agent_0"]["network"]["hidden_sizes"] == [4]
    assert settings["schedules"]["agent_0.entropy_coef"] == "linear(0.02, 1e-05)"
    again = relayrl("learn", "tag.yaml", "--env", "native:simple_tag")
    assert again.returncode == 2
    assert "--resume or --force" in again.stderr
    longer = {**TAG, "default_settings": {**TAG["default_settings"], "max_steps": 256}}
    Path("longer.yaml").write_text(yaml.safe_dump(longer))
    resumed = relayrl(
        "learn", "longer.yaml", "--env", "native:simple_tag", "--resume", "--json", "--set", "evaluation.episodes=2"
    )
    assert last_json(resumed)["num_env_steps"] == 256
    played = relayrl("learn", "tag.yaml", "--env", "native:simple_tag", "--inference", "--json")
    assert last_json(played)["episodes"] == 20
    begun = relayrl(
        "learn", "tag.yaml", "--env", "native:simple_tag", "--run-id", "new", "--initialize-from", "tag", "--quiet"
    )
    assert begun.returncode == 0, begun.stderr
    forced = relayrl(
        "learn", "tag.yaml", "--env", "native:simple_tag", "--run-id", "new", "--force", "--json", "--seed", "9"
    )
    assert last_json(forced)["seed"] == 9


def test_options_go_over_the_file(folder):
    plan = plan_of(
        Path("tag.yaml"),
        {"env_path": "CartPole-v1", "run_id": "other", "results_dir": "results", "num_envs": 5, "time_scale": 2.0},
    )
    assert (plan.env, plan.run_dir, plan.is_named) == ("CartPole-v1", Path("results/other"), True)
    assert plan.overlay["env_settings"]["num_envs"] == 5
    assert plan.overlay["engine_settings"] == {"time_scale": 2.0}
    assert not (plan.resume)
    assert not (plan.force)
    assert not (plan.inference)
    assert not (plan.deterministic)


def test_an_executable_is_unitys_and_a_name_is_ours(folder):
    Path("Walker.x86_64").touch()
    assert plan_of(None, {"env_path": "Walker"}).env == "unity:Walker"
    assert plan_of(None, {"env_path": "unity:5004"}).env == "unity:5004"
    assert plan_of(None, {"env_path": "native:CartPole"}).env == "native:CartPole"


def test_what_follows_env_args_is_the_executables(folder):
    done = relayrl("learn", "tag.yaml", "--env", "native:simple_tag", "--quiet", "--env-args", "--resume", "-x", "3")
    assert done.returncode == 0, done.stderr
    from relayrl.cli.mlagents.learn_command import with_env_args

    assert with_env_args(["learn", "a", "--env-args", "--resume", "-x"])[2:] == ["--env-args", '["--resume", "-x"]']
    assert with_env_args(["train", "--env-args", "x"]) == ["train", "--env-args", "x"]


def test_resume_and_initialize_from_are_settled_as_there(folder):
    both = {"checkpoint_settings": {"resume": True, "initialize_from": "old", "run_id": "x"}, "default_settings": {}}
    Path("both.yaml").write_text(yaml.safe_dump(both))
    named = {"env_path": "CartPole-v1"}
    assert plan_of(Path("both.yaml"), named).resume
    assert not plan_of(Path("both.yaml"), {**named, "initialize_from": "older"}).resume
    assert plan_of(Path("both.yaml"), {**named, "initialize_from": "older"}).init_from == Path("results/older")
    with pytest.raises(ConfigError, match="one of them"):
        plan_of(None, {**named, "resume": True, "force": True})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tag.yaml"], "--env"),
        (["tag.yaml", "--env", "native:simple_tag", "--resume"], "holds no run to resume"),
        (["tag.yaml", "--env", "native:simple_tag", "--torch-device", "gpu"], "cuda:N"),
        (["tag.yaml", "--env", "native:CartPole"], "max_cycles"),
        (["missing.yaml", "--env", "native:CartPole"], "missing.yaml"),
        (["named.yaml"], "--trust"),
        (["ours.yaml", "--env", "native:CartPole"], "algo"),
        (["paths.yaml", "--env", "native:CartPole"], "init_path"),
    ],
)
def test_what_cannot_be_is_one_line(folder, arguments, words):
    Path("named.yaml").write_text(
        yaml.safe_dump({"env_settings": {"env_path": "somewhere:make"}, "default_settings": {}})
    )
    Path("ours.yaml").write_text(yaml.safe_dump({"algo": "ppo"}))
    paths = {"behaviors": {name: {"trainer_type": "ppo", "init_path": name} for name in "ab"}}
    Path("paths.yaml").write_text(yaml.safe_dump(paths))
    done = relayrl("learn", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
