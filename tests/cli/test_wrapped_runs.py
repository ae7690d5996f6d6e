"""Wrappers as part of a run: config, evaluation, model files, resume, remote actors, agents, and whose word they need."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

import relayrl as library
from cli_in_process import relayrl
from relayrl import load_run
from relayrl.errors import UntrustedError
from relayrl.runtime.remote.remote_actor import run_remote_actor
from relayrl.servers.training.training_server import TrainingServer

SMALL = (
    "num_envs=2",
    "time_horizon=8",
    "hidden_sizes=[4]",
    "train_pi_iters=1",
    "train_vf_iters=1",
    "tensorboard=false",
)
SETS = [part for each in (*SMALL, "evaluation.episodes=2") for part in ("--set", each)]
STACK = ("--wrap", "FrameStackObservation=stack_size=3")
MODULE = """
import gymnasium
from pathlib import Path
Path("{marker}").touch()
def halved(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)
"""


def trained(folder: Path, env: str, *more: str) -> Path:
    done = relayrl("train", env, "--steps", "64", "--run-dir", str(folder), "--quiet", *SETS, *more)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def stacked(tmp_path_factory) -> Path:
    """A run of CartPole with wrappers, an option and a limit."""
    more = [*STACK, "--env-option", "sutton_barto_reward=true", "--set", "environment.max_episode_steps=6"]
    return trained(tmp_path_factory.mktemp("wrapped") / "run", "CartPole-v1", *more)


def test_wrappers_and_options_are_in_the_config(stacked):
    environment = yaml.safe_load((stacked / "config.yaml").read_text())["environment"]
    assert environment["wrappers"] == [{"FrameStackObservation": {"stack_size": 3}}]
    assert environment["options"] == {"sutton_barto_reward": True}
    assert load_run(stacked).policy.metadata.observation_space.shape == (3, 4)


def test_a_run_and_its_model_file_alone_are_evaluated_in_their_wrappers(stacked):
    for what in (stacked, stacked / "model.onnx"):
        done = relayrl("evaluate", str(what), "--episodes", "3", "--json")
        assert done.returncode == 0, done.stderr
        lengths = json.loads(done.stdout.splitlines()[-1])["lengths"]
        assert lengths == [6, 6, 6]


def test_evaluation_says_what_it_was_trained_with_when_wrappers_differ(stacked):
    done = relayrl("evaluate", str(stacked), "--wrap", "FrameStackObservation=stack_size=2")
    assert done.returncode == 2
    assert "is Box(2, 4) of float32, the policy was trained with Box(3, 4) of float32" in done.complaint
    assert "options that differ: wrappers" in done.complaint


def test_a_resumed_run_keeps_its_wrappers(stacked):
    again = ("train", "--resume", "--run-dir", str(stacked), "--steps", "96", "--quiet")
    refused = relayrl(*again, "--wrap", "FrameStackObservation=stack_size=4")
    assert refused.returncode == 2
    assert "environment.wrappers" in refused.complaint
    done = relayrl(*again)
    assert done.returncode == 0, done.stderr


def test_check_env_takes_wrappers_options_and_settings(monkeypatch):
    options = ("--env-option", "max_episode_steps=5", "--set", "environment.flatten=true")
    done = relayrl("check-env", "CartPole-v1", *STACK, *options)
    assert done.returncode == 0, done.stderr
    bad = relayrl("check-env", "CartPole-v1", "--wrap", "FrameStack")
    assert bad.returncode == 2
    assert "did you mean 'FrameStackObservation'" in bad.complaint


@pytest.fixture
def prepared(stacked, tmp_path, monkeypatch):
    """A copy of a run whose config and model name a wrapper beside it, and the marker that importing it would leave."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    marker, module = tmp_path / "marker", f"wrapper_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(marker=marker))
    name = f"{module}:halved"
    shutil.copytree(stacked, "run")
    entry = [{name: {}}, {"FrameStackObservation": {"stack_size": 3}}]
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    config["environment"]["wrappers"] = entry
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    model = onnx.load("run/model.onnx")
    for each in model.metadata_props:
        if each.key == "relayrl.environment":
            each.value = json.dumps({"wrappers": entry})
    onnx.save(model, "run/model.onnx")
    return name, marker


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--resume", "--run-dir", "run", "--steps", "400", "--quiet"],
        ["train", "--config", "run/config.yaml", "--run-dir", "new", "--quiet"],
        ["evaluate", "run", "--episodes", "1"],
        ["evaluate", "run/model.onnx", "--episodes", "1"],
        ["export", "run", "-o", "copy.onnx"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_wrapper_that_a_file_names_is_not_run_without_the_users_word(command, prepared):
    name, marker = prepared
    done = relayrl(*command)
    assert done.returncode == 2
    assert name in done.complaint
    assert "--trust" in done.complaint
    assert not marker.exists()


def test_a_wrapper_that_a_file_names_is_run_with_the_users_word(prepared):
    name, marker = prepared
    with pytest.raises(UntrustedError, match="names the wrapper"):
        load_run("run").evaluate(episodes=1)
    done = relayrl("evaluate", "run", "--episodes", "1", "--wrap", name, *STACK)
    assert done.returncode == 0, done.stderr
    assert marker.exists()
    assert load_run("run", trust=True).evaluate(episodes=1).returns


def test_remote_actors_play_in_the_wrappers_of_the_run(tmp_path):
    settings = {
        "environment.wrappers": [{"FrameStackObservation": {"stack_size": 2}}],
        "environment.flatten": True,
        "evaluation.episodes": 0,
        "statistics.tensorboard": False,
        "network.hidden_sizes": (4,),
    }
    server = TrainingServer(
        "Acrobot-v1", bind="tcp://127.0.0.1:0", run_dir=tmp_path / "run", steps=600, settings=settings
    )
    with server:
        actor = threading.Thread(
            target=run_remote_actor,
            args=("Acrobot-v1", server.address),
            kwargs={"spool_base": tmp_path / "spool", "num_envs": 2, "seed": 0},
        )
        actor.start()
        result = server.run()
        actor.join(60)
    assert result.num_env_steps >= 600
    assert load_run(tmp_path / "run").policy.metadata.observation_space.shape == (12,)


def test_an_agent_plays_in_wrapped_environments(stacked):
    settings = {"wrappers": [{"FrameStackObservation": {"stack_size": 3}}], "max_episode_steps": 5}
    with library.AgentBuilder().default_model(stacked / "model.onnx").build() as agent:
        actor = agent.new_actor()
        agent.set_env(actor, "CartPole-v1", 2, settings=settings)
        assert agent.run_env(actor, 10).lengths == (5,) * 4


def test_a_game_is_trained_and_evaluated_by_its_plain_name(tmp_path):
    """From pixels to an exported policy, in few steps: plumbing, not play."""
    small = ["num_envs=2", "time_horizon=16", "hidden_sizes=[8]", "tensorboard=false", "evaluation.episodes=1"]
    sets = [part for each in [*small, "evaluation.max_episode_steps=20"] for part in ("--set", each)]
    run = tmp_path / "run"
    done = relayrl("train", "ALE/Breakout-v5", "--steps", "128", "--run-dir", str(run), "--quiet", *sets)
    assert done.returncode == 0, done.stderr
    metadata = load_run(run).policy.metadata
    assert metadata.observation_space.shape == (4, 84, 84)
    assert metadata.observation_space.dtype == np.uint8
    assert json.loads(metadata.environment) == {"wrappers": [{"atari": {}}]}
    done = relayrl("evaluate", str(run / "model.onnx"), "--episodes", "1", "--max-episode-steps", "10", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["lengths"] == [10]


def test_minigrid_takes_its_wrappers_with_every_algorithm(tmp_path):
    run = tmp_path / "run"
    flags = (
        "--algo",
        "impala",
        "--set",
        "time_horizon=8",
        "--set",
        "tensorboard=false",
        "--set",
        "evaluation.episodes=0",
    )
    done = relayrl("train", "MiniGrid-Empty-5x5-v0", "--steps", "64", "--run-dir", str(run), "--quiet", *flags)
    assert done.returncode == 0, done.stderr
    assert load_run(run).policy.metadata.observation_space.shape == (7, 7, 3)


def test_names_of_packages_that_are_missing_or_misspelt_are_one_line():
    missing = relayrl("train", "gym_xarm/XarmLift-v0", "--steps", "8")
    assert missing.returncode == 2
    assert "pip install 'gym-xarm'" in missing.complaint
    misspelt = relayrl("check-env", "MiniGrid-Emty-5x5-v0")
    assert "did you mean 'MiniGrid-Empty-5x5-v0'" in misspelt.complaint
    assert "package:Id-v0" in misspelt.complaint


def test_environments_are_listed_by_package():
    lines = relayrl("list", "envs").stdout.splitlines()
    headings = [line for line in lines if line.startswith("# ")]
    assert {"# minigrid", "# ale_py", "# native"} <= {line.partition(":")[0] for line in headings}
    counts = [int(line.rpartition(" ")[2]) for line in headings]
    assert sum(counts) + len(headings) == len(lines)
    assert lines[lines.index(next(line for line in lines if line.startswith("# ale_py"))) + 1].startswith("ALE/")
