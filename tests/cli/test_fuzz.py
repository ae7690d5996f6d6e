"""Hostile arguments and damaged files: every command ends with 0, 1 or 2, without a traceback."""

import random
import shutil
from pathlib import Path

import pytest

from cli_in_process import relayrl, short_run

TINY = ["--steps", "16", "--quiet", "--set", "evaluation.episodes=1", "--set", "tensorboard=false"]
WORDS = [
    *(
        "",
        " ",
        "-1",
        "0",
        "1e400",
        "nan",
        "9" * 30,
        "a" * 300,
        "é\u202e",
        "../..",
        "/",
        "/dev/null",
        "~",
        "\t",
        "\n",
        "%s",
        "{}",
        "a:b:c",
    ),
    *(
        "CartPole-v1",
        "native:CartPole",
        "native:",
        ":x",
        "arrow:",
        "arrow:x",
        "csv:/proc/x",
        "sqlite:/",
        "memory:x",
        "json",
        "[",
        "{a: b",
    ),
    *(
        "gamma=[",
        "gamma=.nan",
        "env=[a]",
        "algo={}",
        "hidden_sizes=[0]",
        "params=3",
        "=",
        "a=b",
        "record=[x]",
        "behaviors=[1]",
        "seed=-1",
    ),
    *(
        "threads=99999",
        "num_envs=0",
        "trainer=1",
        "environment.options.x={}",
        "network.memory=3",
        "run",
        "run/model.onnx",
        "run/model.pt",
    ),
    *(
        "run/config.yaml",
        "run/progress.csv",
        "--json",
        "--best",
        "--quiet",
        "--print-config",
        "--resume",
        "--stochastic",
        "--help",
    ),
]
OPTIONS = [
    "--env",
    "--option",
    "--set",
    "--seed",
    "--episodes",
    "--algo",
    "--run-dir",
    "--config",
    "--init-from",
    "-o",
    "--format",
    "--from",
]
OPTIONS += ["--record", "--render", "--limit", "--group", "--num-envs", "--engine"]
COMMANDS = [
    ["evaluate"],
    ["export"],
    ["plot"],
    ["list"],
    ["check-env"],
    ["data", "inspect"],
    ["data", "convert"],
    ["data", "replay"],
    ["models", "list"],
    ["models", "add"],
    ["models", "promote"],
    ["models", "rollback"],
    ["keys", "list"],
    ["nonsense"],
]


def check(*arguments: str) -> None:
    done = relayrl(*arguments)
    assert done.returncode in (0, 1, 2), (arguments, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout, (arguments, done.stderr)
    assert "internal error" not in done.stderr, (arguments, done.stderr)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run, its records in every kind of file, and a store with its model."""
    folder = tmp_path_factory.mktemp("fuzz")
    short_run(str(folder / "run"), "--record", f"arrow:{folder}/arrow", "--set", "evaluation.interval=32")
    for target in ("parquet:{}/parquet", "csv:{}/csv", "sqlite:{}/records.db"):
        assert relayrl("data", "convert", f"arrow:{folder}/arrow", target.format(folder)).returncode == 0
    assert relayrl("models", "add", str(folder / "store"), str(folder / "run" / "model.onnx")).returncode == 0
    return folder


@pytest.fixture
def here(whole, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("here")
def test_hostile_arguments(seed):
    rng = random.Random(seed)
    for _ in range(25):
        check(*rng.choice(COMMANDS), *some_arguments(rng))
    for _ in range(10):
        check("train", *rng.choice([[], ["native:CartPole"]]), *some_arguments(rng), *TINY)


def some_arguments(rng: random.Random) -> list[str]:
    arguments = []
    for _ in range(rng.randrange(4)):
        arguments += rng.choice([[rng.choice(WORDS)], [rng.choice(OPTIONS), rng.choice(WORDS)]])
    return arguments


READERS = {
    "run/config.yaml": [
        ["train", "--resume", "--run-dir", "run", "--steps", "80", "--quiet"],
        ["plot", "run"],
        ["evaluate", "run", "--episodes", "1"],
    ],
    "run/progress.csv": [["plot", "run"], ["train", "--resume", "--run-dir", "run", "--steps", "80", "--quiet"]],
    "run/model.onnx": [["evaluate", "run", "--episodes", "1"], ["evaluate", "run/model.onnx", "--episodes", "1"]],
    "run/checkpoints/step_*": [
        ["export", "run"],
        ["train", "native:CartPole", "--init-from", "run", "--run-dir", "new", *TINY],
    ],
    "run/checkpoints/best*": [["export", "run", "--best"]],
    "arrow/*.arrows": [["data", "inspect", "arrow:arrow"], ["data", "replay", "arrow:arrow"]],
    "parquet/*": [["data", "inspect", "parquet:parquet"], ["data", "convert", "parquet:parquet", "arrow:new"]],
    "csv/*.csv": [["data", "inspect", "csv:csv"], ["data", "convert", "csv:csv", "sqlite:new.db"]],
    "csv/*.json": [["data", "inspect", "csv:csv"]],
    "run/result.json": [["evaluate", "run", "--episodes", "1"], ["plot", "run"]],
    "store/history.jsonl": [["models", "list", "store"], ["models", "rollback", "store", "agent"]],
    "store/*/*.onnx": [["models", "promote", "store", "agent", "4"], ["models", "add", "store", "run/model.onnx"]],
    "records.db": [
        ["data", "inspect", "sqlite:records.db"],
        ["data", "replay", "sqlite:records.db"],
        ["data", "convert", "arrow:arrow", "sqlite:records.db"],
    ],
}


@pytest.mark.parametrize("pattern", READERS)
def test_damaged_files(pattern, here, whole):
    rng = random.Random(pattern)
    for _ in range(12):
        path = rng.choice(sorted(here.glob(pattern)))
        path.write_bytes(damaged(path.read_bytes(), rng))
        check(*rng.choice(READERS[pattern]))
        for left in ("new", "new.db"):
            shutil.rmtree(here / left, ignore_errors=True)
            (here / left).unlink(missing_ok=True) if (here / left).is_file() else None
        for folder in ("run", "arrow", "parquet", "csv", "store"):
            shutil.rmtree(here / folder)
        shutil.copytree(whole, here, dirs_exist_ok=True)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut short, with bits flipped, with bytes from elsewhere, or nothing."""
    kind = rng.randrange(4)
    if kind == 0 or not content:
        return content[: rng.randrange(len(content) + 1)]
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 8, 200])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    if kind == 1:
        begin = rng.randrange(len(changed))
        del changed[begin : begin + rng.randrange(64)]
    return bytes(changed)
