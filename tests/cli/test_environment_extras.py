"""Environments of the extras `box2d` and `mujoco` train from the command line.

In processes of their own: Box2D's bindings warn at import in a way that kills a process whose warnings are errors.
"""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("env", "algo", "num_env_steps"),
    [("LunarLander-v3", "ppo", 16_384), ("LunarLanderContinuous-v3", "sac", 1_024), ("HalfCheetah-v5", "td3", 1_024)],
)
def test_an_environment_of_an_extra_trains_and_is_evaluated(env, algo, num_env_steps, tmp_path):
    options = ["--steps", str(num_env_steps), "--set", "evaluation.episodes=1", "--quiet", "--json"]
    command = [sys.executable, "-m", "relayrl.cli.main", "train", env, "--algo", algo, "--run-dir", "run", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["num_env_steps"] == num_env_steps
    assert len(result["returns"]) == 1
