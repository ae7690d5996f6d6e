"""Names of environments: all that exist are found, all that do not are one line that says what to do."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from worker_environments import Dice, Relay

from relayrl.envs.adapters.pettingzoo_modules import known_names, usable_names
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import environments_by_package, list_environments, make_vector
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy
from relayrl.errors import ConfigError, MissingExtraError, UnknownNameError
from relayrl.testing.toy_environments import CountingEnv


def gymnasium_env() -> Any:
    return gymnasium.make("Acrobot-v1")


def gymnasium_vector() -> Any:
    return SyncVectorEnv([gymnasium_env] * 2, autoreset_mode=AutoresetMode.SAME_STEP)


def parallel_env() -> Any:
    return importlib.import_module("mpe2.simple_v3").parallel_env()


def turns_env() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo warns of its own module at import.
        return importlib.import_module("pettingzoo.classic.tictactoe_v3").env()


@pytest.mark.parametrize("factory", [Dice, Relay, gymnasium_env, gymnasium_vector, parallel_env, turns_env])
def test_a_factory_may_make_any_kind_of_environment(factory: Any) -> None:
    env = make_vector(factory, EnvSettings(num_envs=2))
    assert isinstance(env, VectorEnvironment)
    assert env.num_envs == len(set(env.env_ids)) == 2
    shown = env.reset(seed=0)
    assert set(shown.groups) == set(env.groups)
    env.close()


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        "Taxi-v4",
        "mpe2:simple_spread_v3",
        "pettingzoo:classic.connect_four_v3",
        "vmas:simple_spread",
        "native:simple_spread",
        "relayrl.testing.toy_environments:CountingEnv",
        "gymnasium:CartPole-v1",
    ],
)
def test_every_kind_of_name_is_made(name: str) -> None:
    env = make_vector(name, EnvSettings(num_envs=2))
    assert env.num_envs == 2
    env.reset(seed=0)
    env.close()


def test_the_current_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(
        "from worker_environments import Dice\n\ndef task(end=0.5):\n    return Dice(end=end)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for workers in (0, 1):
        env = make_vector("my_task:task", EnvSettings(num_envs=1, workers=workers, options={"end": 1.0}))
        env.reset(seed=0)
        env.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPol-v1", "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("CartPole", "did you mean 'CartPole-v1'"),
        ("mpe2:simple_spred_v3", "did you mean 'simple_spread_v3'"),
        ("pettingzoo:classic.conect_four_v3", "did you mean 'classic.connect_four_v3'"),
        ("vmas:simple_spred", "did you mean 'simple_spread'"),
        ("native:simple_spred", "did you mean 'simple_spread'"),
        ("worker_environments:Dise", "unknown factory in module 'worker_environments' 'Dise'; did you mean 'Dice'"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message) as caught:
        make_vector(name, EnvSettings(num_envs=1))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")  # of connect_four_v3
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nativ:simple_spread", "there is no module 'nativ'; did you mean 'native'"),
        ("no_such_package.module:f", "there is no module 'no_such_package'"),
        ("worker_environments:HANG_S", "'HANG_S' is a float, not a function or class"),
        ("pettingzoo.classic:connect_four_v3", "write pettingzoo:classic.connect_four_v3"),
        ("test_registry:not_an_env", "not_an_env made a list; it must make a gymnasium.Env"),
    ],
)
def test_what_cannot_be_an_environment_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_vector(name, EnvSettings(num_envs=1))
    assert "\n" not in str(caught.value)


def not_an_env() -> list[int]:
    return []


def test_a_module_that_fails_to_import_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_task.py").write_text("import no_such_simulator\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"importing 'broken_task' raised ModuleNotFoundError: .*no_such_simulator"):
        make_vector("broken_task:f", EnvSettings())


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("vmas:simple_spread", "vmas", "vmas"), ("mpe2:simple_v3", "mpe2", "pettingzoo")],
)
def test_a_missing_library_names_its_extra(name: str, module: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from relayrl.envs.environment_registry import make_vector\n"
        "from relayrl.envs.environment_settings import EnvSettings\n"
        f"make_vector({name!r}, EnvSettings(num_envs=1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert MissingExtraError.__name__ in done.stderr
    assert f"pip install 'relayrl[{extra}]'" in done.stderr


def test_the_registry_and_the_workers_do_not_import_torch() -> None:
    code = (
        "import sys, relayrl.envs.environment_registry, relayrl.envs.workers.worker_pool, relayrl.envs.workers.worker_process\n"
        "assert not {'torch', 'pettingzoo', 'vmas', 'mpe2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_listed_kind_is_there() -> None:
    names = list_environments()
    assert {"CartPole-v1", "mpe2:simple_spread_v3", "pettingzoo:classic.connect_four_v3", "vmas:simple_spread"} <= set(
        names
    )
    assert "native:simple_spread" in names
    assert len(names) == len(set(names))


def test_only_environments_whose_packages_are_installed_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "__init__.py": "",
        "here_v0.py": "import json\nfrom . import base\ntry:\n    import no_such_package\nexcept ImportError:\n    pass\n",
        "base.py": "from zoo_of_tests import here_v0\n",  # a circle
        "games/__init__.py": "",
        "games/gone_v1.py": "from .rules import play\nraise SystemExit\n",  # they are not run
        "games/rules.py": "from no_such_package.deep import play\n",
    }
    for name, text in files.items():
        (tmp_path / "zoo_of_tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "zoo_of_tests" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert known_names("zoo_of_tests") == ["games.gone_v1", "here_v0"]
    assert usable_names("zoo_of_tests") == ["here_v0"]


class NamesAnother(gymnasium.Env[Any, Any]):
    """Makes another environment, as compatibility layers do."""

    observation_space, action_space = gymnasium.spaces.Box(0.0, 9.0, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id

    def reset(self, **_: Any) -> Any:
        return np.array([len(self.env_id)], np.float32), {}


def test_options_may_have_the_names_of_our_own_arguments() -> None:
    gymnasium.register("relayrl-tests/NamesAnother-v0", NamesAnother)
    try:
        env = make_vector("relayrl-tests/NamesAnother-v0", EnvSettings(num_envs=1, options={"env_id": "Old-v0"}))
        assert env.reset(seed=0).groups["agent"].obs.item() == 6.0
    finally:
        del gymnasium.registry["relayrl-tests/NamesAnother-v0"]


def test_entry_points_that_are_partial_functions_are_listed_under_their_package() -> None:
    gymnasium.register("relayrl-tests/Partial-v0", partial(CountingEnv))
    try:
        assert "relayrl-tests/Partial-v0" in environments_by_package()["relayrl"]
    finally:
        del gymnasium.registry["relayrl-tests/Partial-v0"]


def test_environments_that_step_in_one_call_cannot_be_restarted_one_by_one() -> None:
    settings = EnvSettings(num_envs=2, on_failure=FailurePolicy.RESTART)
    with pytest.raises(ConfigError, match="set on_failure to 'raise'"):
        make_vector("relayrl.testing.toy_environments:Herd", settings)
    env = make_vector("CartPole-v1", settings)
    assert env.reset(seed=0).groups["agent"].obs.shape == (2, 1, 4)


def test_options_reach_the_environment() -> None:
    env = make_vector("CartPole-v1", EnvSettings(num_envs=1, options={"max_episode_steps": 1}))
    env.reset(seed=0)
    assert env.step({"agent": np.zeros((1, 1), np.int64)}).groups["agent"].truncated.all()
