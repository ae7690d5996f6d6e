"""The command line as a user meets it: train, evaluate, export, plot, resume, interrupt."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    assert [row["num_env_steps"] for row in rows] == ["2048", "4096"]
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
    deadline = time.monotonic() + 60
    while not (folder / "run" / "progress.csv").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_and_can_be_resumed(number, tmp_path):
    process = start("train", "CartPole-v1", "--steps", "10000000", "--run-dir", "run", cwd=tmp_path)
    wait_for_progress(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    assert list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))
    steps = int(next((tmp_path / "run" / "checkpoints").glob("*.ckpt")).stem.split("_")[1])
    block = 8 * 128
    resumed = last_json(
        relayrl(*("train", "--resume", "--run-dir", "run", "--steps", str(steps + 2 * block), "--json"), cwd=tmp_path)
    )
    assert resumed["num_env_steps"] == steps + 2 * block
