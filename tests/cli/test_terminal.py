"""What people see in a terminal: help, lists, advice that works as printed, and runs that are watched."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from cli_in_process import relayrl, short_run
from relayrl.cli.main import app
from relayrl.cli.terminal.curve_plot import plot
from relayrl.cli.terminal.invocation import command
from relayrl.cli.terminal.watch_command import frame
from relayrl.cli.terminal.watched_runs import RunState, look_at, short_names
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.settings_schema import settings_schema
from relayrl.errors import UnknownNameError
from relayrl.runtime.scored_agents import describe_returns

ROOT = typer.main.get_command(app)


def commands(group=ROOT, path=()):
    yield path
    for name, one in getattr(group, "commands", {}).items():
        yield from commands(one, (*path, name))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_has_a_short_help_option(path):
    done = relayrl(*path, "-h")
    assert done.returncode == 0
    assert done.stdout == relayrl(*path, "--help").stdout


@pytest.mark.parametrize("path", [(), ("data",), ("keys",), ("models",), ("serve",)], ids=" ".join)
def test_summaries_of_commands_are_whole_sentences(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = relayrl(*path, "--help").stdout.partition("Commands:")[2].splitlines()[1:]
    assert [line for line in listed if line.endswith("...")] == []


def test_help_of_train_has_the_defaults_of_the_schema(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = relayrl("train", "--help").stdout
    settings = settings_schema()
    run, named = settings["properties"], settings["$defs"]
    expected = {
        "--algo": run["algo"]["default"],
        "--seed": run["seed"]["default"],
        "--engine": run["engine"]["default"],
        "--steps": f"the preset's, or {named['TrainerSettings']['properties']['max_steps']['default']}",
        "--num-envs": f"the preset's, or {named['EnvSettings']['properties']['num_envs']['default']}",
        "--workers": named["EnvSettings"]["properties"]["workers"]["default"],
    }
    found = dict(re.findall(r"^  (--[a-z-]+) <[^\n]*\[default: (.*?)\]$", shown, re.MULTILINE))
    assert {name: found.get(name) for name in expected} == {name: str(value) for name, value in expected.items()}


def test_completion_is_offered():
    # Otherwise the shell is that of the parent process, of which there need not be one.
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "relayrl", "--show-completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=named)
    assert "_RELAYRL_COMPLETE=complete_bash" in done.stdout
    environment = {**os.environ, "_RELAYRL_COMPLETE": "complete_bash", "COMP_WORDS": "relayrl wat", "COMP_CWORD": "1"}
    code = "from relayrl.cli.main import main; main()"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert completed.stdout.split() == ["watch"]


@pytest.mark.parametrize("what", ["envs", "algos", "presets", "plugins"])
def test_lists_are_json_for_programs(what):
    entries = json.loads(relayrl("list", what, "--json").stdout)
    shown = [line for line in relayrl("list", what).stdout.splitlines() if not line.startswith("# ")]
    assert len(entries) == len(shown)


def test_the_schema_and_keys_are_json_too(tmp_path):
    assert json.loads(relayrl("list", "schema", "--json").stdout) == json.loads(relayrl("list", "schema").stdout)
    relayrl("keys", "new", "alice", "--dir", str(tmp_path))
    relayrl("keys", "authorise", str(tmp_path / "alice.pub"), "--file", "allowed")
    shown = relayrl("keys", "list", "--file", "allowed", "--json").stdout
    assert [one["name"] for one in json.loads(shown)] == ["alice"]


def test_no_list_is_cut_without_a_word():
    names = [f"name{i:03d}" for i in range(30)]
    assert str(UnknownNameError("thing", "?", names)).endswith("name023 and 6 more")
    assert "more" not in str(UnknownNameError("thing", "?", names[:24]))
    (line,) = describe_returns({}, {f"a{i}": float(i) for i in range(20)}, {})
    assert line == "return by agent: 20 agents, lowest a0 0.00, highest a19 19.00; --json lists all"


def test_commands_name_the_program_where_the_shell_would_not_find_it(tmp_path, monkeypatch):
    own = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(own))
    assert command("relayrl", "plot", "a b") == "relayrl plot 'a b'"
    monkeypatch.setenv("PATH", "")
    assert command("relayrl", "plot") == f"{own / 'relayrl'} plot"
    monkeypatch.chdir(own.parent)
    assert command("relayrl", "plot") == "bin/relayrl plot"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert command("tensorboard") == f"{tmp_path / 'python'} -m tensorboard.main"


@pytest.mark.slow
def test_what_is_advised_after_a_run_works_as_it_is_printed(tmp_path):
    train = [
        sys.executable,
        "-m",
        "relayrl",
        "train",
        "native:CartPole",
        "--steps",
        "64",
        "--set",
        "evaluation.episodes=1",
    ]
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    options = {"capture_output": True, "text": True, "env": environment, "check": False, "timeout": 240}
    done = subprocess.run([*train, "--set", "num_envs=2"], **options)
    assert done.returncode == 0, done.stderr
    advice = [line.strip() for line in done.stdout.partition("next:\n")[2].splitlines()]
    assert [re.split(r"[ /](?=relayrl|tensorboard)", line)[-1].split()[:2][-1] for line in advice][:3] == [
        "evaluate",
        "plot",
        "watch",
    ]
    assert len(advice) == 4
    for line in advice:
        more = " --inspect" if "tensorboard" in line else ""  # which would serve for ever
        ran = subprocess.run(line + more, shell=True, **options)
        assert ran.returncode == 0, (line, ran.stderr)
    assert Path("returns.png").exists()


@pytest.fixture
def runs(tmp_path):
    """Four runs under `all`: ended, stopped, damaged, and one that is locked."""
    short_run("all/ended")
    for name in ("stopped", "damaged", "running"):
        short_run(f"all/{name}")
        (tmp_path / f"all/{name}/result.json").unlink()
    (tmp_path / "all/damaged/progress.csv").write_text("num_env_steps,x\nten,1\n")
    (tmp_path / "all/nothing").mkdir()
    directory = RunDirectory(tmp_path / "all/running")
    directory.lock()
    yield tmp_path / "all"
    directory.release()


def test_watch_tells_the_states_of_runs(runs):
    shown = json.loads(relayrl("watch", str(runs), "--json").stdout)
    states = {Path(one["run_dir"]).name: one["state"] for one in shown}
    expected = {"ended": "ended", "stopped": "stopped", "damaged": "damaged", "running": "running"}
    assert states == (expected if Path("/proc/locks").exists() else expected | {"running": "stopped"})
    by_name = {Path(one["run_dir"]).name: one for one in shown}
    assert (by_name["ended"]["num_env_steps"], by_name["ended"]["max_steps"]) == (64, 64)
    assert "damaged" in by_name["damaged"]["complaint"]


def test_watch_draws_tables_and_curves(runs):
    done = relayrl("watch", str(runs), "--once", "--metric", "policy/entropy")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in sorted(lines[1:5])] == [
        ["damaged", "damaged"],
        ["ended", "ended"],
        ["running", "running" if Path("/proc/locks").exists() else "stopped"],
        ["stopped", "stopped"],
    ]
    assert "policy/entropy" in done.stdout
    assert re.search("[\u2801-\u28ff]", done.stdout)
    single = relayrl("watch", str(runs / "ended"), "--once").stdout
    assert "entropy" in single


def test_watch_refuses_what_it_cannot_show(runs):
    assert "there is no run in" in relayrl("watch", str(runs / "nothing")).complaint
    assert "did you mean 'policy/entropy'" in relayrl("watch", str(runs), "--metric", "policy/entropi").complaint
    assert "policy/entropy" in relayrl("watch", str(runs), "--metrics").stdout.splitlines()


@pytest.mark.parametrize(("width", "height"), [(40, 8), (80, 24), (160, 50)])
def test_a_frame_fits_the_terminal(runs, width, height):
    seen = [look_at(path) for path in sorted(runs.iterdir()) if path.name != "nothing"] * 3
    console = Console(width=width, height=height, color_system=None, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(frame(seen, "episode/return_mean", width, height))
    console.file.close()
    assert console.export_text().count("\n") <= height


def test_watching_leaves_a_run_alone(tmp_path):
    short_run("run")
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    assert look_at(Path("run")).state is RunState.ENDED
    relayrl("watch", "run", "--once")
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before


def test_names_of_runs_leave_out_what_they_share():
    assert short_names([Path("a/b/one"), Path("a/b/two")]) == ["one", "two"]
    assert short_names([Path("a/one/seed0"), Path("a/two/seed0")]) == ["one/seed0", "two/seed0"]


def test_a_straight_curve_is_a_diagonal_of_dots():
    lines = [line.plain for line in plot([([0, 100], [0.0, 1.0])], 24, 5)]
    assert [line.partition("│")[0].strip() for line in lines[:4]] == ["1", "", "", "0"]
    drawn = [line.partition("│")[2] for line in lines[:4]]
    firsts = [len(row) - len(row.lstrip()) for row in drawn]
    assert firsts == sorted(firsts, reverse=True)
    assert lines[4].endswith("100 steps")
    assert plot([([], [])], 80, 20) == []


def test_every_command_is_found_in_the_tree():
    assert {("watch",), ("check-env",), ("models", "list")} <= set(commands())
