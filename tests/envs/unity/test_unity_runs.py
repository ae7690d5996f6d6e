"""Whole runs in Unity scenes, as a user starts them: learning, recording, resuming, kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scenes import Scenes, flags, free_port, is_running, scenes

import relayrl as library
from cli_in_process import relayrl
from relayrl.errors import MissingExtraError
from waiting import wait_until

__all__ = ["scenes"]

SMALL = ("--quiet", "--set", "tensorboard=false", "--set", "hidden_sizes=[16]", "--set", "evaluation.episodes=4")


def trained(scenes: Scenes, folder: Path, *arguments: str) -> dict[str, Any]:
    done = relayrl("train", scenes.name, "--run-dir", str(folder), *SMALL, *arguments)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def test_ppo_learns_to_walk(scenes: Scenes, tmp_path: Path) -> None:
    """Six places to the right: 0.95 on average at best, about 0 with random actions."""
    steps = ("--steps", "6144", "--set", "time_horizon=128", "--set", "pi_lr=0.003")
    result = trained(scenes, tmp_path / "run", *steps, *flags(scenes, "walk", "--agents", 8))
    assert result["mean_return"] > 0.9


def test_statistics_of_the_scene_are_metrics(scenes: Scenes, tmp_path: Path) -> None:
    """A scene of eight environments records a sum of one a step, and the latest value of a parameter."""
    steps = ("--steps", "1024", "--set", "time_horizon=32", "--set", "trainer.summary_freq=512")
    trained(scenes, tmp_path / "run", *steps, *flags(scenes, "walk", "--agents", 8, parameters={"goal": 5.0}))
    history = library.load_run(tmp_path / "run").history
    assert sum(history["environment/Walk/Steps"]) == 1024 / 8
    assert set(history["environment/Walk/goal"]) == {5.0}
    assert all(0.0 <= share < 1.0 for share in history["environment/Walk/Arrived"])


@pytest.mark.slow
def test_poca_credits_who_dies_for_the_group_and_ppo_does_not(scenes: Scenes, tmp_path: Path) -> None:
    """Two survivors of three get 1 where the right one dies: 2/3 on average; 0.2 where nobody dies."""
    returns = {}
    for algo in ("poca", "ppo"):
        more = (
            "--algo",
            algo,
            "--steps",
            "6144",
            "--set",
            "time_horizon=32",
            "--set",
            "pi_lr=0.005",
            "--set",
            "num_minibatches=8",
        )
        returns[algo] = trained(scenes, tmp_path / algo, *more, *flags(scenes, "team", "--agents", 8))["mean_return"]
    assert returns["poca"] > 0.6
    assert returns["ppo"] < 0.3


@pytest.mark.slow
def test_sac_reaches_the_middle(scenes: Scenes, tmp_path: Path) -> None:
    more = ("--algo", "sac", "--steps", "3000", "--set", "learning_starts=256", "--set", "num_envs=2")
    result = trained(scenes, tmp_path / "run", *more, *flags(scenes, "reach"))
    assert result["mean_return"] > -1.5  # standing still: -5


def test_hybrid_actions_and_every_sensor_are_trained_recorded_and_resumed(scenes: Scenes, tmp_path: Path) -> None:
    run, sink = tmp_path / "run", f"arrow:{tmp_path / 'steps'}"
    short = ("--set", "time_horizon=16", "--set", "train_pi_iters=1", "--set", "train_vf_iters=1", "--record", sink)
    trained(scenes, run, "--steps", "32", *short, *flags(scenes, "sensors"))
    done = relayrl("train", "--resume", "--run-dir", str(run), "--steps", "64", "--quiet", "--trust")
    assert done.returncode == 0, done.stderr
    with library.open_source(sink) as source:
        recorded = list(source)
    assert sum(len(trajectory) for trajectory in recorded) == 64
    first = recorded[0]
    assert first.obs["buffer_present"][:4].tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert first.action["discrete"].shape[1:] == (2,)
    assert (first.action["discrete"][:, 0] != 0).all()  # what is masked is not done
    assert json.loads((run / "result.json").read_text())["num_env_steps"] == 64


def test_the_same_seeds_give_the_same_parameters(scenes: Scenes, tmp_path: Path) -> None:
    short = ("--steps", "256", "--set", "time_horizon=32", "--set", "num_envs=2")
    hashes = [
        trained(scenes, tmp_path / str(n), *short, *flags(scenes, "walk", seed=5))["parameter_hash"] for n in range(2)
    ]
    assert hashes[0] == hashes[1]


def test_a_crash_in_mid_run_is_one_line_and_a_restart_finishes_the_run(scenes: Scenes, tmp_path: Path) -> None:
    steps = ("--steps", "512", "--set", "time_horizon=32")
    crashing = flags(scenes, "walk", "--crash-after", 60)
    done = relayrl("train", scenes.name, "--run-dir", str(tmp_path / "one"), *SMALL, *steps, *crashing)
    assert done.returncode != 0
    assert "its process ended with exit code 7" in done.stderr
    assert "Traceback" not in done.stderr
    once = flags(scenes, "walk", "--crash-after", 60, "--once", tmp_path / "crashed")
    result = trained(scenes, tmp_path / "two", *steps, "--set", "on_failure=restart", *once)
    assert (tmp_path / "crashed").exists()
    assert result["num_env_steps"] == 512


def test_simulators_end_when_the_run_is_killed_and_it_is_resumed(scenes: Scenes, tmp_path: Path) -> None:
    run, pid = tmp_path / "run", tmp_path / "pid"
    command = [sys.executable, "-m", "relayrl", "train", scenes.name, "--run-dir", str(run), *SMALL]
    command += ["--steps", "100000000", "--set", "time_horizon=32", "--set", "checkpoint_interval=512"]
    command += flags(scenes, "walk", "--pid", pid)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: len(list(run.rglob("*.ckpt"))) > 1 or process.poll() is not None)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(int(pid.read_text())))
    before = max(int(file.stem.removeprefix("step_")) for file in run.rglob("step_*.ckpt"))
    done = relayrl("train", "--resume", "--run-dir", str(run), "--steps", str(before + 512), "--quiet", "--trust")
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "result.json").read_text())["num_env_steps"] == before + 512


@pytest.mark.parametrize("is_port", [False, True])
def test_files_do_not_launch_programs_or_open_ports(scenes: Scenes, tmp_path: Path, is_port: bool) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"env: {f'unity:{free_port()}' if is_port else scenes.name}\n")
    done = relayrl("train", "--config", str(file), "--run-dir", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "which runs code of that name; if you trust it" in done.complaint


def test_the_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'relayrl\[unity\]'"):
        library.make_env(f"unity:{free_port()}")


def test_the_editor_is_evaluated_in_its_own_environment(scenes: Scenes, tmp_path: Path) -> None:
    """One simulator, which somebody else started, serves the trial, the run and its evaluation."""
    port = free_port()
    simulator = Path(__file__).with_name("fake_simulator.py")
    process = subprocess.Popen(
        [sys.executable, str(simulator), "--mlagents-port", str(port), "--wait", "--agents", "2"]
    )
    try:
        steps = ("--steps", "128", "--set", "time_horizon=32", "--run-dir", str(tmp_path / "run"))
        done = relayrl("train", f"unity:{port}", *SMALL, *steps)
        assert done.returncode == 0, done.stderr
        assert process.poll() is None
        assert json.loads((tmp_path / "run" / "result.json").read_text())["episodes_ended"] == 4
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
