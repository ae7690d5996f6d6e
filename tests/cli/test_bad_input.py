"""Wrong input: exit code 2, one line that says what to do, no traceback, nothing left behind."""

import os
import subprocess
import sys

import pytest


def relayrl(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relayrl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


BAD = {
    "environment": (["train", "CartPol-v1"], "CartPole-v1"),
    "algorithm": (["train", "CartPole-v1", "--algo", "pop"], "'ppo'"),
    "set key": (["train", "CartPole-v1", "--set", "pi_lrr=1"], "pi_lr"),
    "nested set key": (["train", "CartPole-v1", "--set", "params.gama=1"], "gamma"),
    "set without value": (["train", "CartPole-v1", "--set", "gamma"], "key=value"),
    "value of a wrong type": (["train", "CartPole-v1", "--set", "gamma=high"], "gamma"),
    "value out of range": (["train", "CartPole-v1", "--set", "gamma=2"], "less than or equal to 1"),
    "no environment": (["train"], "CartPole-v1"),
    "negative steps": (["train", "CartPole-v1", "--steps", "-5"], "max_steps"),
    "missing config": (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
    "resume without folder": (["train", "CartPole-v1", "--resume"], "--run-dir"),
    "listing": (["list", "algo"], "algos"),
    "format": (["export", ".", "--format", "onx"], "onnx"),
    "evaluate nothing": (["evaluate", "no-such-run"], "no-such-run"),
    "evaluate TorchScript": (["evaluate", "model.pt"], ".onnx"),
    "option without value": (["evaluate", "RUN", "--option", "max_cycles"], "key=value"),
    "plot suffix": (["plot", "run", "-o", "x.jpg"], ".png"),
    "benchmark": (["bench", "W9"], "W"),
    "user factory": (["train", "no_such_package.worlds:make"], "no_such_package"),
    "actions that the algorithm does not take": (
        ["train", "CartPole-v1", "--algo", "td3"],
        "use ppo, reinforce, impala or appo, or sac",
    ),
    "records that are not there": (["train", "CartPole-v1", "--algo", "sac", "--from", "arrow:nowhere"], "nowhere"),
    "folder of a refused run": (
        ["train", "CartPole-v1", "--algo", "td3", "--run-dir", "a/b"],
        "use ppo, reinforce, impala or appo, or sac",
    ),
    "flag": (["train", "CartPole-v1", "--no-such-flag"], "--no-such-flag"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, tmp_path):
    arguments, hint = BAD[case]
    done = relayrl(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    if case != "flag":  # the parser's own usage errors bring a usage line with them
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not os.listdir(tmp_path)


def test_unknown_key_in_a_config_file_names_the_nearest(tmp_path):
    (tmp_path / "run.yaml").write_text("env: CartPole-v1\ntrainer: {max_step: 100}\n")
    done = relayrl("train", "--config", "run.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "trainer.max_steps" in done.stderr


def test_a_config_file_that_cannot_be_parsed(tmp_path):
    (tmp_path / "run.yaml").write_text("env: [unclosed\n")
    done = relayrl("train", "--config", "run.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_existing_run_is_not_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("env: CartPole-v1\n")
    done = relayrl("train", "CartPole-v1", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert (tmp_path / "run" / "config.yaml").read_text() == "env: CartPole-v1\n"


def test_a_run_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = relayrl("train", "CartPole-v1", "--run-dir", "file/run", cwd=tmp_path)
    assert done.returncode == 2
    assert "choose another --run-dir" in done.stderr
