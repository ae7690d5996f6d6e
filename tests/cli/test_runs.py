"""The command line as a user meets it: train, evaluate, export, plot, resume, interrupt."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cli_in_process import relayrl as relayrl_here
from cli_in_process import short_run
from waiting import DEADLINE_S, wait_until

RUN_FILES = {"config.yaml", "checkpoints", "model.onnx", "model.pt", "progress.csv", "run.log", "result.json"}
TRAIN_KEYS = {
    "env",
    "algo",
    "seed",
    "num_env_steps",
    "seconds",
    "env_steps_per_s",
    "mean_return",
    "parameter_hash",
    "run_dir",
}
SHORT = ["CartPole-v1", "--steps", "4096", "--seed", "3"]


def relayrl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relayrl.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    return done


def last_json(done: subprocess.CompletedProcess[str]) -> dict:
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("cli")
    return folder, last_json(relayrl("train", *SHORT, "--run-dir", "run", "--json", cwd=folder))


def test_train_reports_and_leaves_a_whole_run_directory(trained):
    folder, result = trained
    assert result.keys() >= TRAIN_KEYS
    assert (result["num_env_steps"], result["seed"], result["algo"]) == (4096, 3, "ppo")
    names = {path.name for path in (folder / "run").iterdir()}
    assert names >= RUN_FILES
    assert any(name.startswith("events.out.tfevents") for name in names)


def test_progress_csv_has_rows_of_statistics(trained):
    rows = list(csv.DictReader((trained[0] / "run" / "progress.csv").read_text().splitlines()))
    assert [row["num_env_steps"] for row in rows] == [str(512 * i) for i in range(1, 9)]  # one per update
    assert float(rows[-1]["policy/entropy"]) > 0.1
    assert float(rows[-1]["time/env_steps_per_s"]) > 0


def test_the_same_seed_gives_the_same_parameters_however_one_watches(trained):
    folder, result = trained
    again = last_json(relayrl("train", *SHORT, "--run-dir", "again", "--json", "--quiet", cwd=folder))
    assert again["parameter_hash"] == result["parameter_hash"]
    assert again["returns"] == result["returns"]


def test_another_seed_gives_other_parameters(trained):
    folder, result = trained
    other = last_json(relayrl("train", *SHORT[:-1], "4", "--run-dir", "other", "--json", cwd=folder))
    assert other["parameter_hash"] != result["parameter_hash"]


def test_the_config_of_a_run_repeats_it(trained):
    folder, result = trained
    repeated = last_json(relayrl("train", "--config", "run/config.yaml", "--run-dir", "repeated", "--json", cwd=folder))
    assert repeated["parameter_hash"] == result["parameter_hash"]


def test_evaluate_a_run_and_a_model_file_alike(trained):
    folder, _ = trained
    of_run = last_json(relayrl("evaluate", "run", "--episodes", "5", "--json", cwd=folder))
    of_file = last_json(relayrl("evaluate", "run/model.onnx", "--episodes", "5", "--json", cwd=folder))
    assert of_run["returns"] == of_file["returns"]
    assert of_run["episodes"] == len(of_run["returns"]) == 5
    assert of_run["mean_return"] == pytest.approx(sum(of_run["returns"]) / 5)


def test_evaluate_hands_options_to_the_environment(trained):
    folder, _ = trained
    shortened = ["--option", "max_episode_steps=7", "--episodes", "3", "--json"]
    assert last_json(relayrl("evaluate", "run", *shortened, cwd=folder))["lengths"] == [7, 7, 7]


def test_export_rewrites_the_same_policy(trained):
    folder, _ = trained
    relayrl("export", "run", "--format", "onnx", "-o", "copy.onnx", cwd=folder)
    of_copy = last_json(relayrl("evaluate", "copy.onnx", "--episodes", "3", "--json", cwd=folder))
    of_run = last_json(relayrl("evaluate", "run", "--episodes", "3", "--json", cwd=folder))
    assert of_copy["returns"] == of_run["returns"]


def test_plot_draws_a_picture(trained):
    folder, _ = trained
    relayrl("plot", "run", "-o", "curve.png", cwd=folder)
    relayrl("plot", "run", "-o", "curve.svg", cwd=folder)
    assert (folder / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in (folder / "curve.svg").read_text()[:500]


def test_print_config_shows_precedence_and_writes_nothing(tmp_path):
    (tmp_path / "c.toml").write_text('env = "CartPole-v1"\n[params]\ngamma = 0.5\nlam = 0.5\n')
    done = relayrl(
        "train", "--config", "c.toml", "--set", "lam=0.25", "--set", "pi_lr=1e-4", "--print-config", cwd=tmp_path
    )
    assert "gamma: 0.5\n" in done.stdout  # file over preset
    assert "lam: 0.25\n" in done.stdout  # flag over file
    assert "pi_lr: 0.0001\n" in done.stdout
    assert "clip_ratio: 0.2\n" in done.stdout  # default
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_listings_name_what_exists(tmp_path):
    assert "ppo" in relayrl("list", "algos", cwd=tmp_path).stdout
    assert "relayrl train CartPole-v1 --algo ppo" in relayrl("list", "presets", cwd=tmp_path).stdout
    envs = relayrl("list", "envs", cwd=tmp_path).stdout.splitlines()
    assert {"CartPole-v1", "mpe2:simple_spread_v3", "native:simple_spread", "vmas:simple_spread"} <= set(envs)


def test_training_ends_by_saying_where_the_run_lies_and_what_to_try(trained, tmp_path):
    done = relayrl("train", *SHORT, "--run-dir", "here", cwd=tmp_path)
    assert "run directory: here" in done.stdout
    assert "relayrl evaluate here" in done.stdout
    assert "steps/s" in done.stderr


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "relayrl.cli.main", *arguments]
    return subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_progress(folder: Path) -> None:
    wait_until((folder / "run" / "progress.csv").exists)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_and_can_be_resumed(number, tmp_path):
    process = start("train", "CartPole-v1", "--steps", "10000000", "--run-dir", "run", cwd=tmp_path)
    wait_for_progress(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "--resume" in errors
    steps = max(int(path.stem.split("_")[1]) for path in (tmp_path / "run" / "checkpoints").glob("step_*.ckpt"))
    assert steps > 0
    block = 8 * 128
    resumed = last_json(
        relayrl(*("train", "--resume", "--run-dir", "run", "--steps", str(steps + 2 * block), "--json"), cwd=tmp_path)
    )
    assert resumed["num_env_steps"] == steps + 2 * block


def test_a_second_interrupt_leaves_at_once(tmp_path):
    endless = ["--set", "params.train_pi_iters=10000000", "--set", "params.train_vf_iters=10000000"]
    process = start("train", "native:CartPole", "--run-dir", "run", *endless, cwd=tmp_path)
    wait_until(lambda: list((tmp_path / "run" / "checkpoints").glob("step_*.ckpt")))
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)  # the update that it waits for never ends
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=DEADLINE_S) == 130
    process.communicate()


def test_resuming_with_changed_settings_says_which_and_whether_it_is_allowed(trained):
    folder, _ = trained
    command = [sys.executable, "-m", "relayrl.cli.main", "train", "--resume", "--run-dir", "run"]
    refused = subprocess.run(
        [*command, "--set", "hidden_sizes=[8]"], capture_output=True, text=True, cwd=folder, check=False
    )
    assert refused.returncode == 2
    assert "network.hidden_sizes ([64, 64] → [8])" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    shown = subprocess.run(
        [*command, "--steps", "8192", "--print-config"], capture_output=True, text=True, cwd=folder, check=True
    )
    assert "trainer.max_steps (4096 → 8192): allowed" in shown.stderr
    assert "max_steps: 4096" in (folder / "run" / "config.yaml").read_text()


def test_a_run_begins_with_another_ones_networks(trained):
    folder, result = trained
    still = ["--set", "pi_lr=1e-30", "--set", "vf_lr=1e-30", "--steps", "1024", "--seed", "9"]
    started = last_json(
        relayrl("train", "CartPole-v1", "--init-from", "run", *still, "--run-dir", "from", "--json", cwd=folder)
    )
    assert started["parameter_hash"] == result["parameter_hash"]
    assert started["num_env_steps"] == 1024


def test_an_mlagents_file_trains_and_tells_what_it_left_out(tmp_path):
    (tmp_path / "walker.yaml").write_text(
        "behaviors:\n  Walker:\n    trainer_type: ppo\n    max_steps: 512\n    framework: pytorch\n"
        "    hyperparameters: {buffer_size: 512, batch_size: 64}\n"
    )
    done = relayrl("train", "native:CartPole", "--config", "walker.yaml", "--run-dir", "run", "--json", cwd=tmp_path)
    assert "Walker.framework has no counterpart" in done.stderr
    assert last_json(done)["num_env_steps"] == 512


def test_seeds_are_aggregated_over_the_steps_they_share():
    from relayrl.cli.plot_command import aggregate

    one = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0]))
    other = (np.array([5.0, 15.0]), np.array([7.0, 17.0]))
    grid, mean, half = aggregate([one, other])
    assert grid.tolist() == [5.0, 10.0, 15.0]
    assert mean.tolist() == [6.0, 11.0, 16.0]
    # Values differ by 2: standard deviation √2, standard error 1.
    assert half.tolist() == pytest.approx([1.96] * 3)


STUCK = """
import ctypes, sys, time
from pathlib import Path
from relayrl.testing.toy_environments import CountingEnv

def get_stuck(how):
    Path("stuck").touch()
    if how == "exit":
        sys.exit(0)
    if how == "sleep":
        time.sleep(3600)
    if how == "C":  # a mutex that is locked already is waited for without the GIL, and no signal ends the wait
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)
    while True:
        pass

class Stuck(CountingEnv):
    def __init__(self, *, where, how):
        super().__init__()
        self.where, self.how = where, how
        if where == "init":
            get_stuck(how)

    def step(self, action):
        if self.where == "step":
            get_stuck(self.how)
        return super().step(action)
"""


def start_stuck(folder: Path, where: str, how: str, *flags: str) -> subprocess.Popen[str]:
    """A run whose environment sleeps or loops for ever in the given place, where it is now."""
    (folder / "stuck_task.py").write_text(STUCK)
    options = ["--set", f"environment.options.where={where}", "--set", f"environment.options.how={how}"]
    process = start("train", "stuck_task:Stuck", "--run-dir", "run", *options, *flags, cwd=folder)
    wait_until((folder / "stuck").exists)
    return process


@pytest.mark.parametrize(
    ("number", "how", "workers"),
    [(signal.SIGTERM, "sleep", "0"), (signal.SIGTERM, "loop", "1"), (signal.SIGINT, "loop", "0")],
)
def test_one_signal_ends_a_start_up_that_hangs_and_leaves_nothing_behind(number, how, workers, tmp_path):
    process = start_stuck(tmp_path, "init", how, "--workers", workers)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"{number.name}: the start-up ends" in errors
    assert "interrupted before the first update; nothing was changed" in errors
    assert not (tmp_path / "run").exists()


def test_one_signal_ends_a_start_up_that_hangs_in_c(tmp_path):
    process = start_stuck(tmp_path, "init", "C")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "SIGTERM: the start-up ends" in errors
    assert not (tmp_path / "run").exists()


def test_the_first_interrupt_is_answered_while_a_step_hangs_and_the_second_leaves(tmp_path):
    process = start_stuck(tmp_path, "step", "sleep")
    too_late = threading.Timer(60.0, process.kill)
    too_late.start()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and "SIGINT" not in line:
        line = process.stderr.readline()
    too_late.cancel()
    assert "the run stops after the present update and saves its state; again: leave at once" in line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_an_environment_that_exits_is_an_error_and_not_the_end_of_a_good_run(tmp_path):
    process = start_stuck(tmp_path, "step", "exit", "--num-envs", "1")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "failed at step 1: step() raised SystemExit: 0" in errors
    assert "get_stuck" in errors


def test_plot_joins_seeds_of_equal_settings_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short_run("zero", "--seed", "0", "--steps", "320")
    short_run("one", "--seed", "1", "--steps", "320", "--record", "arrow:records")
    short_run("other", "--seed", "1", "--steps", "320", "--set", "lam=0.5")
    done = relayrl_here("plot", "zero", "one", "other", "-o", "all.svg")
    assert done.returncode == 0, done.stderr
    drawn = (tmp_path / "all.svg").read_text()
    assert "params.lam=0.5" in drawn
    assert "params.lam=0.95, mean and 95% interval of 2 seeds" in drawn
    shutil.copytree("one", "copy")
    done = relayrl_here("plot", "one", "copy")
    assert done.returncode != 0
    assert "equal settings and seed 1" in done.complaint


def test_plot_draws_any_metric_over_steps_or_seconds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short_run("run", "--steps", "320")
    done = relayrl_here("plot", "run", "--metric", "value/loss", "--x", "seconds", "-o", "loss.svg")
    assert done.returncode == 0, done.stderr
    drawn = (tmp_path / "loss.svg").read_text()
    assert "value/loss" in drawn
    assert "seconds of training" in drawn
    assert "did you mean" in relayrl_here("plot", "run", "--x", "second").complaint
    assert "value/loss" in relayrl_here("plot", "run", "--metric", "value/los").complaint
