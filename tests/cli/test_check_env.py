"""`relayrl check-env`: what it prints of each check, when, and its verdict."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli_in_process import relayrl
from relayrl.testing import CountingEnv
from relayrl.testing.env_contract import CHECKS, Outcome, check_environment

HANGS = """
import time
from relayrl.testing import CountingEnv

class Hangs(CountingEnv):
    def step(self, action):
        time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # so that commands are plain


def test_a_sound_environment_ends_in_its_train_command(tmp_path):
    done = relayrl("check-env", "CartPole-v1", "--set", "max_episode_steps=9", "--steps", "20", "--json")
    *_, counts, verdict, last = done.stdout.splitlines()
    assert (done.returncode, counts) == (0, "CartPole-v1: 34 checks: 32 ok, 2 skip")
    command = "relayrl train CartPole-v1 --env-option max_episode_steps=9"
    assert verdict == f"can be trained on: {command}"
    assert [json.loads(last)[key] for key in ("can_train", "command", "failed")] == [True, command, []]
    trained = relayrl(*shlex.split(command)[1:], "--print-config")
    assert "max_episode_steps: 9" in trained.stdout


def test_skipped_checks_say_why():
    lines = relayrl("check-env", "CartPole-v1", "--steps", "3", "--num-envs", "1").stdout.splitlines()
    skipped = {line.split()[1].rstrip(":") for line in lines if line.startswith("skip")}
    assert {"an_episode_begins_where_one_ends", "partial_reset_leaves_the_others_alone"} <= skipped
    assert all(": " in line for line in lines if line.startswith("skip"))


def test_checks_that_could_not_be_reached_are_not_called_ok(tmp_path):
    (tmp_path / "raising_env.py").write_text(HANGS.replace("time.sleep(600)", "raise ValueError('boom')"))
    done = relayrl("check-env", "raising_env:Hangs", "--json")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0].startswith("FAIL    runs: ")
    assert "boom" in lines[0]
    assert [line.startswith("not run ") for line in lines[1:-3]] == [True] * (len(CHECKS) - 1)
    assert lines[-2] == "cannot be trained on: runs; mend these, then: relayrl train raising_env:Hangs"
    assert json.loads(lines[-1])["can_train"] is False


def test_an_environment_that_hangs_is_given_up(tmp_path):
    (tmp_path / "hanging_env.py").write_text(HANGS)
    command = [sys.executable, "-m", "relayrl", "check-env", "hanging_env:Hangs", "--timeout-s", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    *_, counts, verdict, last = done.stdout.splitlines()
    assert (done.returncode, counts) == (1, "hanging_env:Hangs: 34 checks: 34 not run")
    assert verdict.startswith("not known whether it can be trained on")
    assert json.loads(last)["can_train"] is None


def test_results_come_as_checks_end():
    from relayrl import make_env

    seen = []
    report = check_environment(lambda n: make_env(CountingEnv, num_envs=n), on_result=seen.append)
    assert tuple(seen) == report.checks
    assert report.can_train


def test_no_check_that_training_needs_builds_on_an_optional_one():
    optional = {check.name for check in CHECKS if check.is_optional}
    assert 0 < len(optional) < len(CHECKS)
    assert [check.name for check in CHECKS if not check.is_optional and optional & set(check.needs)] == []


def test_what_fails_optionally_does_not_keep_from_training(tmp_path):
    source = HANGS.replace("time.sleep(600)", "return super().step(action)")
    source += """
    def reset(self, *, seed=None):
        return super().reset(seed=time.time_ns() % 1000)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + time.time_ns() % 7, *rest
"""
    (tmp_path / "drifting_env.py").write_text(source)
    done = relayrl("check-env", "drifting_env:Hangs")
    assert done.returncode == 1
    assert "FAIL    same_seed_same_trajectory (optional): " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("can be trained on; 1 optional checks fail: relayrl train drifting")


def test_the_report_tells_skipped_from_not_run():
    assert {one.value for one in Outcome} == {"passed", "failed", "skipped", "not run"}


@pytest.mark.parametrize("end", ["os._exit(9)", "os.kill(os.getpid(), 11)"])
def test_an_environment_that_ends_the_process_has_a_verdict(end, tmp_path):
    """In a process of its own, as it is the command's that ends."""
    (tmp_path / "deadly_env.py").write_text(HANGS.replace("time.sleep(600)", end).replace("import time", "import os"))
    command = [sys.executable, "-m", "relayrl", "check-env", "deadly_env:Hangs", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    first, verdict, last = done.stdout.splitlines()
    assert done.returncode not in (0, 1)
    assert first.startswith("FAIL    runs: the process ended in this check: by the environment")
    assert verdict == "cannot be trained on: runs; mend this, then: relayrl train deadly_env:Hangs"
    assert json.loads(last) == json.loads(last) | {"can_train": False, "failed": ["runs"], "checks": len(CHECKS)}


def test_processes_that_an_environment_leaves_behind_are_not_waited_for(tmp_path):
    forks = (
        "import os, time\nif os.fork() == 0:\n    os.close(1)\n    os.close(2)\n    time.sleep(100)\n    os._exit(0)\n"
    )
    (tmp_path / "forking_env.py").write_text(forks + "from relayrl.testing import CountingEnv\n")
    command = [sys.executable, "-m", "relayrl", "check-env", "forking_env:CountingEnv", "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1].startswith("can be trained on")
