"""Code that a file names is run only when the user names it too, or says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml

import relayrl as library
from cli_in_process import relayrl, short_run
from relayrl.engines.runs.trust import require_trusted
from relayrl.errors import ConfigError

MODULE = """
from pathlib import Path
from relayrl.envs.native import make as make_native
Path("{marker}").touch()
def make(**options):
    return make_native("CartPole", **options)
"""


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trust") / "run"
    short_run(str(folder))
    return folder


@pytest.fixture
def prepared(honest, tmp_path, monkeypatch):
    """A run directory beside a module that its config and model name, and the marker that importing it would leave."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    marker, name = tmp_path / "marker", f"payload_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(marker=marker))
    shutil.copytree(honest, "run")
    env = f"{name}:make"
    rename_environment(Path("run"), env)
    yield env, marker
    sys.modules.pop(name, None)


def rename_environment(run: Path, env: str) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("native:CartPole", env))
    model = onnx.load(run / "model.onnx")
    for entry in model.metadata_props:
        if entry.key == "relayrl.env":
            entry.value = env
    onnx.save(model, run / "model.onnx")


COMMANDS = {
    "resume": ["train", "--resume", "--run-dir", "run", "--steps", "96", "--quiet"],
    "config": ["train", "--config", "run/config.yaml", "--run-dir", "new", "--quiet"],
    "evaluate a run": ["evaluate", "run", "--episodes", "1"],
    "evaluate a model": ["evaluate", "run/model.onnx", "--episodes", "1"],
    "export": ["export", "run", "-o", "copy.onnx"],
}


@pytest.mark.parametrize("case", COMMANDS)
def test_code_named_by_a_file_is_not_run(case, prepared):
    env, marker = prepared
    done = relayrl(*COMMANDS[case])
    assert done.returncode == 2
    assert "--trust" in done.complaint
    assert env in done.complaint
    assert not marker.exists()


@pytest.mark.parametrize("case", COMMANDS)
def test_code_named_by_a_file_is_run_with_trust(case, prepared):
    done = relayrl(*COMMANDS[case], "--trust")
    assert done.returncode == 0, done.stderr
    assert prepared[1].exists()


@pytest.mark.parametrize("case", COMMANDS)
def test_code_that_the_user_names_as_well_is_run(case, prepared):
    named = [prepared[0]] if COMMANDS[case][0] == "train" else ["--env", prepared[0]]
    done = relayrl(*COMMANDS[case], *named)
    assert done.returncode == 0, done.stderr
    assert prepared[1].exists()


def test_showing_and_drawing_a_prepared_run_runs_nothing(prepared):
    assert relayrl("train", "--config", "run/config.yaml", "--print-config").returncode == 0
    relayrl("plot", "run")
    assert not prepared[1].exists()


def test_python_asks_for_trust_as_well(prepared):
    env, marker = prepared
    run = library.load_run("run")
    for refused in (run.evaluate, run.export, lambda: library.train(run_dir="run", resume=True, progress=False)):
        with pytest.raises(ConfigError, match="trust"):
            refused()
    assert run.result.num_env_steps == 64
    assert not marker.exists()
    assert len(library.load_run("run", env=env).evaluate(episodes=1).returns) == 1
    assert library.load_run("run", trust=True).export(file_format="onnx")
    assert marker.exists()


@pytest.mark.parametrize(
    "env", ["os:system", "gymnasium:make", "gymnasium.envs.registration:make", "GymV26Environment-v0", "a:b:C-v0"]
)
def test_names_that_could_run_anything_need_trust(env):
    with pytest.raises(ConfigError, match=f"add --env {env} or --trust"):
        require_trusted(env, Path("run"), named=(None,), trust=False, how="add --env {} or --trust")


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "native:CartPole",
        "mpe2:simple_spread_v3",
        "vmas:balance",
        "ale_py:ALE/Pong-v5",
        "minigrid:MiniGrid-Empty-5x5-v0",
    ],
)
def test_installed_environments_need_none(env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_trusted(env, Path("run"), named=(None,), trust=False, how="")


def test_a_module_of_the_current_directory_is_no_installed_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mpe2").mkdir()  # a folder of results gives way to the installed package
    require_trusted("mpe2:simple_spread_v3", Path("run"), named=(None,), trust=False, how="")
    (tmp_path / "mpe2" / "__init__.py").write_text("")
    (tmp_path / "minigrid.py").write_text("")
    for env in ("mpe2:simple_spread_v3", "minigrid:MiniGrid-Empty-5x5-v0"):
        with pytest.raises(ConfigError, match="if you trust it"):
            require_trusted(env, Path("run"), named=(None,), trust=False, how="")


def test_a_name_with_a_line_break_stays_one_line():
    with pytest.raises(ConfigError) as refused:
        require_trusted("os:system\nrelayrl: fine", Path("run"), named=(), trust=False, how="--env {}")
    assert "\n" not in str(refused.value)


def test_workers_take_nothing_from_the_current_directory(tmp_path):
    for name in ("json", "pickle", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('marker', 'w')")
    flags = ["--num-envs", "1", "--workers", "1", "--steps", "16", "--set", "time_horizon=8", "--run-dir", "new"]
    command = [sys.executable, "-P", "-c", "from relayrl.cli.main import main; main()", "train", "Acrobot-v1", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "marker").exists()


def test_installed_packages_import_nothing_from_the_current_directory(tmp_path):
    (tmp_path / "pygame.py").write_text("open('marker', 'w')")
    config = {"env": "gymnasium:CartPole-v1", "environment": {"options": {"render_mode": "human"}}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-P", "-c", "from relayrl.cli.main import main; main()", "train", "--config", "run.yaml"]
    flags = ["--steps", "16", "--set", "time_horizon=8", "--num-envs", "1", "--run-dir", "new"]
    env = os.environ | {"SDL_VIDEODRIVER": "dummy"}
    subprocess.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert not (tmp_path / "marker").exists()


def test_links_in_a_prepared_run_are_not_written_through(honest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(honest, "run")
    victims = {"episode.gif": Path("picture"), "run.log": Path("log")}
    for name, victim in victims.items():
        victim.write_text("mine")
        Path("run", name).unlink(missing_ok=True)
        Path("run", name).symlink_to(victim.absolute())
    assert relayrl("evaluate", "run", "--episodes", "1", "--render", "gif").returncode == 0
    assert relayrl("train", "--resume", "--run-dir", "run", "--steps", "96", "--quiet").returncode == 0
    assert {victim.read_text() for victim in victims.values()} == {"mine"}
