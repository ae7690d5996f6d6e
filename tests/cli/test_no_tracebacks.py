"""What a user can cause ends in one line that names it, with exit code 1 or 2; `--debug` shows the traceback."""

import shutil
from pathlib import Path

import pytest

import relayrl as library
from cli_in_process import relayrl, short_run
from relayrl.engines.local import run_parts
from relayrl.errors import DecodeError

TINY = [
    "--run-dir",
    "new",
    "--steps",
    "16",
    "--quiet",
    "--set",
    "num_envs=2",
    "--set",
    "time_horizon=8",
    "--set",
    "tensorboard=false",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    short_run(str(folder / "run"))
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    """A copy of a short run, in the current directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "run")
    return Path("run")


FAULTY = {
    "sequence_observation": (2, "observation space of 'agent' is Sequence"),
    "no_observation_space": (2, "observation space of 'agent' is None"),
    "empty_observation": (2, "observation space of 'agent' is empty"),
    "empty_dict": (2, "observation space of 'agent' is empty"),
    "sequence_action": (2, "action space of 'agent' is Sequence"),
    "no_action_space": (2, "action space of 'agent' is None"),
    "empty_action": (2, "action space of 'agent' is empty"),
    "RaisesOnClose": (1, "close() raised RuntimeError: cannot be closed"),
    "OldReset": (2, "old Gym API"),
    "OldStep": (1, "old Gym API"),
    "endless_choices": (2, "the networks would take"),
    "endless_actions": (2, "the networks would take"),
    "ShortMask": (1, "the action mask has shape (3,); give one entry per action, (2,)"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_odd_environments(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, hint = FAULTY[name]
    done = relayrl("train", f"odd_environments:{name}", *TINY)
    assert done.returncode == code
    assert hint in done.complaint


SETTINGS = {
    "hidden_sizes=[0]": "hidden_sizes.0",
    "hidden_sizes=[-3]": "hidden_sizes.0",
    "hidden_sizes=[70000]": "65536",
    f"hidden_sizes=[{'4,' * 16}]": "at most 15",
    "time_horizon=99999999999": "16777216",
    "trainer.max_steps=1" + "0" * 40: "max_steps",
    "gamma=[": "--set gamma: the value is no YAML",
    "gamma=!!python/object/apply:os.system [true]": "--set gamma: the value is no YAML",
    "gamma=" + "[" * 10_000: "nested deeper than 64",
    "env=[a]": "'env'",
    "algo=[ppo]": "give the name of one algorithm",
    "params=3": "'params'",
    "seed=-1": "'seed'",
    "threads=2000": "1024",
    "workers=5000": "4096",
    "num_envs=2000000": "1048576",
    "evaluation.episodes=10000000": "1000000",
    "log_std_init=.nan": "finite",
    "record=arrow:" + "a" * 300: "File name too long",
}


@pytest.mark.parametrize("assignment", SETTINGS, ids=lambda text: text[:30])
def test_wrong_settings(assignment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = relayrl("train", "native:CartPole", *TINY, "--set", assignment)
    assert done.returncode == 2
    assert SETTINGS[assignment] in done.complaint
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_into_memory_is_refused_before_it_is_allocated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rollout = ["--set", "time_horizon=16000000", "--set", "num_envs=100000"]
    assert "a rollout would take" in relayrl("train", "native:CartPole", *TINY, *rollout).complaint
    networks = ["--set", "hidden_sizes=[65536, 65536, 65536, 65536, 65536]"]
    monkeypatch.setattr("relayrl.engines.local.memory_needs.memory_bytes", lambda: 16 << 30)
    assert (
        "the networks would take 256 GiB of memory, and there are 16"
        in relayrl("train", "native:CartPole", *TINY, *networks).complaint
    )
    replay = ["--algo", "sac", "--set", "buffer_size=1000000000000", "--steps", "1000000000000"]
    assert "lower params.buffer_size" in relayrl("train", "native:Pendulum", *TINY, *replay).complaint


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{now}: &{now} [{', '.join([f'*{before}'] * 10)}]\n" for before, now in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{now}: &{now} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, now in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = {
    "laughs.yaml": (LAUGHS, "more than 100,000 values"),
    "merges.yaml": (MERGES, "more than 100,000 values"),
    "self.yaml": ("env: &a [*a]\n", "inside of what it refers to"),
    "deep.yaml": ("env: " + "[" * 10_000, "nested deeper than 64"),
    "deep.json": ('{"env": ' + "[" * 10_000 + "]" * 10_000 + "}", "nested deeper than 64"),
    "deep.toml": ("env = " + "[" * 10_000 + "]" * 10_000, "nested deeper than 64"),
    "middle.json": ('{"env": ' + "[" * 100 + "]" * 100 + "}", "nested deeper than 64"),
    "long.yaml": ("env: x\n" + "#" * (1 << 20), "longer than 1,048,576 characters"),
    "digits.json": ('{"seed": ' + "9" * 5000 + "}", "cannot be parsed"),
    "numbers.yaml": ("1: 2\n", "by name"),
    "list.yaml": ("env: [CartPole-v1]\nalgo: [ppo]\n", "'algo'"),
    "code.yaml": ("env: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", FILES)
def test_hostile_config_files(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(FILES[name][0])
    done = relayrl("train", "--config", name, *TINY)  # an alias bomb would take hours, and the test's deadline end it
    assert done.returncode == 2
    assert FILES[name][1] in done.complaint


def test_aliases_that_stay_small_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("env: native:CartPole\nseed: &s 3\nthreads: *s\n")
    assert "threads: 3" in relayrl("train", "--config", "run.yaml", "--print-config").stdout


PROGRESS = {
    "num_env_steps,episode/return_mean\nx,1\n": "line 2",
    "num_env_steps,episode/return_mean\n8,1,2\n": "more cells",
    "num_env_steps,episode/return_mean\n8,high\n": "'high'",
    "wrong,columns\n1,2\n": "num_env_steps",
    "num_env_steps,episode/return_mean\n8," + "a" * 200_000 + "\n": "field limit",
}


@pytest.mark.parametrize("text", PROGRESS, ids=PROGRESS.values())
def test_damaged_progress(text, run):
    (run / "progress.csv").write_text(text)
    for command in (["plot", "run"], ["train", "--resume", "--run-dir", "run", "--steps", "64", "--quiet"]):
        done = relayrl(*command)
        assert done.returncode == 1
        assert "progress.csv is damaged" in done.complaint
        assert PROGRESS[text] in done.complaint


def test_another_environments_checkpoint(run):
    assert relayrl("train", "native:Pendulum", *TINY).returncode == 0
    shutil.rmtree(run / "checkpoints")
    shutil.copytree("new/checkpoints", run / "checkpoints")
    for command in (["export", "run"], ["train", "--resume", "--run-dir", "run", "--steps", "64", "--quiet"]):
        done = relayrl(*command)
        assert done.returncode == 1
        assert "another run's" in done.complaint


@pytest.mark.usefixtures("run")
def test_evaluating_in_another_environment_says_what_differs():
    done = relayrl("evaluate", "run", "--env", "native:Acrobot")
    assert done.returncode == 2
    assert "observation space of 'agent'" in done.complaint
    spread = ["native:simple_spread", "--algo", "ippo", "--set", "environment.options.continuous_actions=true"]
    assert relayrl("train", *spread, *TINY).returncode == 0
    done = relayrl("evaluate", "new", "--option", "continuous_actions=false")
    assert done.returncode == 2
    assert "continuous_actions (trained with True, now False)" in done.complaint


@pytest.mark.usefixtures("run")
def test_targets_that_cannot_be_written():
    for command in (
        ["plot", "run", "-o", "run/config.yaml/x.png"],
        ["plot", "run", "-o", "a" * 300 + ".png"],
        ["export", "run", "-o", "run/config.yaml/x.onnx"],
        ["export", "run", "-o", "run"],
        ["train", "native:CartPole", "--run-dir", "a" * 300],
        ["train", "native:CartPole", "--run-dir", "run/config.yaml/new"],
        ["data", "convert", "csv:x", "sqlite:run"],
    ):
        done = relayrl(*command)
        assert done.returncode in (1, 2)
        assert len(done.complaint) < 400


@pytest.mark.usefixtures("run")
def test_negative_seeds():
    for command in (["train", "native:CartPole", "--seed", "-1"], ["evaluate", "run", "--seed", "-1"]):
        done = relayrl(*command)
        assert done.returncode == 2
        assert "greater than or equal to 0" in done.stderr


def test_a_damaged_result(run):
    (run / "result.json").write_text('{"env": 1')
    with pytest.raises(DecodeError, match=r"result\.json is damaged"):
        _ = library.load_run(run).result


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback_wherever_it_stands(place):
    words = ["data", "inspect", "arrow:nowhere"]
    assert "Traceback" not in relayrl(*words).stderr
    done = relayrl(*words[:place], "--debug", *words[place:]) if place != 1 else relayrl("list", "--debug", "algo")
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(run, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(run_parts.Collector, "collect", broken)
    done = relayrl("train", "--resume", "--run-dir", "run", "--steps", "96", "--quiet")
    assert done.returncode == 1
    assert done.complaint.endswith(
        "internal error: ZeroDivisionError: nobody thought of this; run again with --debug for the traceback"
    )
    assert "in broken" in (run / "run.log").read_text()


def test_an_environment_that_fails_shows_its_own_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = relayrl("train", "odd_environments:Breaks", *TINY)
    assert done.returncode == 1
    assert "a key of the environment's own" in done.stderr.splitlines()[0]
    assert "odd_environments.py" in done.stderr
