"""Runs whose environments are divided among collectors end with the local engine's parameters, bit for bit."""

import csv
import json
import pickle
from uuid import UUID

import pytest
from fleet_in_process import build

import relayrl
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.errors import ConfigError, EnvironmentFailedError, UnknownNameError, UntrustedError
from relayrl.sinks.contract import open_source

SMALL = {
    "num_envs": 5,
    "time_horizon": 12,
    "summary_freq": 60,
    "checkpoint_interval": 120,
    "evaluation.episodes": 2,
    "network.hidden_sizes": [16],
    "tensorboard": False,
}
ON_POLICY = {"train_pi_iters": 2, "train_vf_iters": 2}
REPLAY = {"learning_starts": 40, "batch_size": 16, "update_interval": 20, "train_iters": 2}
STEPS = 240
SAMPLED = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 5, "max_value": 15}}


@pytest.fixture(autouse=True)
def engine():
    relayrl.extend.register_engine("parts", build)
    yield
    unregister_plugin(PluginKind.ENGINE, "parts")


def train(path, env, algo, settings, *, workers=None, **arguments):
    placed = {} if workers is None else {"engine": "parts", "workers": workers}
    chosen = {**SMALL, **settings, **placed}
    return relayrl.train(env, algo=algo, steps=STEPS, run_dir=path, settings=chosen, progress=False, **arguments).result


CASES = {
    "one agent": ("CartPole-v1", "ppo", ON_POLICY),
    "agents and states": ("native:simple_spread", "mappo", ON_POLICY),
    "masks and turns": ("pettingzoo:classic.tictactoe_v3", "ppo", ON_POLICY),
    "agents that die": ("relayrl.testing:DyingAgents", "mappo", ON_POLICY),
    "memory": ("CartPole-v1", "ppo", {**ON_POLICY, "network.memory.size": 8}),
    "nested spaces": ("relayrl.testing:NestedSpaces", "ppo", ON_POLICY),
    "normal actions": ("Pendulum-v1", "ppo", ON_POLICY),
    "drawn parameters": ("Pendulum-v1", "ppo", {**ON_POLICY, "environment_parameters": {"g": SAMPLED}}),
    "novelty": ("native:simple_tag", "ppo", {**ON_POLICY, "reward_signals": {"extrinsic": {}, "rnd": {}}}),
    "corrected": ("CartPole-v1", "impala", {}),
    "a team": ("native:simple_spread", "poca", {}),
    "replay": ("Pendulum-v1", "sac", REPLAY),
    "replay of agents": ("native:simple_spread", "maddpg", {**REPLAY, "environment.options.continuous_actions": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_collectors_learns_the_same(case, tmp_path):
    env, algo, settings = CASES[case]
    whole = train(tmp_path / "whole", env, algo, settings)
    for workers in (1, 2, 3):
        parts = train(tmp_path / f"parts{workers}", env, algo, settings, workers=workers)
        assert parts.parameter_hash == whole.parameter_hash, workers
        assert (parts.returns, parts.train_return) == (whole.returns, pytest.approx(whole.train_return, nan_ok=True))


def interrupt_at(steps):
    def callback(run):
        if run.num_env_steps >= steps:
            raise KeyboardInterrupt

    return callback


def recorded(url):
    """Rewards and end of every episode, by environment, agent and number; fragments put together."""
    with open_source(url) as source:
        found = sorted(source, key=lambda each: each.first_step)
    episodes: dict = {}
    for t in found:
        rewards, _ = episodes.get((t.env_id, t.agent_id, t.episode), ([], None))
        episodes[t.env_id, t.agent_id, t.episode] = ([*rewards, *t.reward.tolist()], (t.terminated, t.truncated))
    by_env: dict = {}
    for (env_id, *lane), episode in episodes.items():
        by_env.setdefault(env_id, {})[tuple(lane)] = episode
    return sorted(by_env.values(), key=repr)  # ids are drawn anew in every run


@pytest.mark.parametrize(
    ("env", "algo", "settings"),
    [
        ("CartPole-v1", "ppo", ON_POLICY),
        ("relayrl.testing:DyingAgents", "ppo", ON_POLICY),
        ("Pendulum-v1", "sac", REPLAY),
    ],
)
def test_an_interrupted_run_goes_on_as_the_local_one_would_and_records_the_same(env, algo, settings, tmp_path):
    chosen = {**settings, "record": f"arrow:{tmp_path / 'whole-steps'}"}
    whole = train(tmp_path / "whole", env, algo, chosen)
    chosen = {**settings, "record": f"arrow:{tmp_path / 'steps'}"}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", env, algo, chosen, workers=3, callbacks=[interrupt_at(180)])
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False, trust=True).result
    assert resumed.parameter_hash == whole.parameter_hash
    assert resumed.returns == whole.returns
    assert recorded(f"arrow:{tmp_path / 'steps'}") == recorded(f"arrow:{tmp_path / 'whole-steps'}")


def test_another_number_of_collectors_or_the_local_engine_goes_on_with_new_episodes(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", "CartPole-v1", "ppo", ON_POLICY, workers=3, callbacks=[interrupt_at(120)])
    for settings in ({"workers": 2}, {"engine": "local", "workers": 0}):
        with pytest.raises(KeyboardInterrupt):
            relayrl.train(
                run_dir=tmp_path / "run",
                resume=True,
                settings=settings,
                progress=False,
                callbacks=[interrupt_at(180)],
            )
        assert "environments begin new episodes" in caplog.text
        caplog.clear()


def test_an_environment_that_raises_ends_the_run_with_its_traceback_and_seed(tmp_path):
    with pytest.raises(EnvironmentFailedError, match=r"(?s)seed [0-9]+.*traceback of the environment.*in step"):
        train(tmp_path / "run", "relayrl.testing:Crashing", "ppo", ON_POLICY, workers=2)


def test_names_of_engines_are_checked_and_ours_cannot_be_taken(tmp_path):
    with pytest.raises(UnknownNameError, match=r"engine 'rey'.*ray"):
        train(tmp_path / "run", "CartPole-v1", "ppo", {"engine": "rey"})
    for name in ("local", "ray"):
        with pytest.raises(ConfigError, match="is an engine of RelayRL"):
            relayrl.extend.register_engine(name, build)
    for settings, match in (
        ({"threaded": True}, "cluster.asynchronous"),
        ({"exclusive": True, "evaluation.interval": None}, "exclusive"),
    ):
        with pytest.raises(ConfigError, match=match):
            train(tmp_path / "run", "CartPole-v1", "ppo", settings, workers=1)


def test_errors_of_collectors_arrive_as_they_are():
    failed = EnvironmentFailedError("it fell", env_id=UUID(int=7), seed=3, step=5, remote_traceback="in step")
    arrived = pickle.loads(pickle.dumps(failed))
    assert (str(arrived), arrived.env_id, arrived.seed, arrived.step) == (str(failed), UUID(int=7), 3, 5)
    unknown = pickle.loads(pickle.dumps(UnknownNameError("engine", "rey", ["ray"])))
    assert (str(unknown), unknown.nearest) == ("unknown engine 'rey'; did you mean 'ray'?", ("ray",))


def test_what_depends_on_the_number_of_collectors_is_said(tmp_path):
    settings = {**ON_POLICY, "environment.wrappers": ["NormalizeObservation"]}
    train(tmp_path / "run", "CartPole-v1", "ppo", settings, workers=2)
    assert "share NormalizeObservation: another number than 2 collectors" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("address", "198.51.100.7:6379", "names the Ray cluster"),
        ("runtime_env", {"pip": ["x"]}, "installs and runs code"),
    ],
)
def test_a_file_sends_nobody_to_a_cluster_without_their_word(setting, value, says, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({"env": "CartPole-v1", "engine": "parts", "cluster": {setting: value}, **DOTTED}))
    with pytest.raises(UntrustedError, match=says):
        relayrl.train(config=file, steps=60, run_dir=tmp_path / "run", progress=False)
    given = {f"cluster.{setting}": value}
    assert relayrl.train(config=file, steps=60, run_dir=tmp_path / "a", settings=given, progress=False).result
    assert relayrl.train(config=file, steps=60, run_dir=tmp_path / "b", trust=True, progress=False).result


DOTTED = {"environment": {"num_envs": 5}, "trainer": {"time_horizon": 12}, "evaluation": {"episodes": 0}}


def lessons(*criteria, name="g", values=(5, 10, 15)):
    """A lesson for each of the criteria, and a last one."""
    own = [
        {"name": f"lesson {k}", "value": values[k], "completion_criteria": {"behavior": "agent", **each}}
        for k, each in enumerate(criteria)
    ]
    own.append({"name": "last", "value": values[len(criteria)]})
    return {**ON_POLICY, "environment_parameters": {name: {"curriculum": own}}}


BY_REWARD = {"measure": "reward", "min_lesson_length": 9, "threshold": -1e4, "signal_smoothing": True}
BY_PROGRESS = {"measure": "progress", "threshold": 0.4}
WITH_LESSONS = {
    "by reward": (
        "CartPole-v1",
        {
            **lessons(
                {**BY_REWARD, "min_lesson_length": 3, "threshold": 15}, BY_REWARD, name="high", values=(0.05, 0.1, 0.15)
            ),
            "environment.parameters_through": "reset_options",
        },
    ),
    "by reward, all at once": (
        "native:rooms",
        lessons({**BY_REWARD, "threshold": 0.1}, BY_REWARD, name="num_rooms", values=(1, 2, 3)),
    ),
    "new episodes": ("Pendulum-v1", lessons({**BY_PROGRESS, "require_reset": True})),
    "new episodes, all at once": (
        "native:rooms",
        lessons({**BY_PROGRESS, "require_reset": True}, name="num_rooms", values=(1, 2)),
    ),
}


def lesson_rows(path):
    """The lesson of each row of statistics."""
    with open(path / "progress.csv") as file:
        return [
            (row["num_env_steps"], *(value for key, value in row.items() if key.startswith("curriculum/")))
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("case", WITH_LESSONS)
def test_lessons_begin_where_the_local_engine_begins_them(case, tmp_path):
    env, settings = WITH_LESSONS[case]
    if env == "native:rooms":
        settings = {**settings, "environment.options": {"num_rooms": 3, "room_size": 2, "max_episode_steps": 12}}
    settings = {**settings, "record": f"arrow:{tmp_path / 'whole-steps'}"}
    whole = train(tmp_path / "whole", env, "ppo", settings)
    rows = lesson_rows(tmp_path / "whole")
    assert rows[0][1] == "0.0"
    assert rows[-1][1] != "0.0"
    for workers in (1, 2, 3):
        chosen = {**settings, "record": f"arrow:{tmp_path / f'steps{workers}'}"}
        parts = train(tmp_path / f"parts{workers}", env, "ppo", chosen, workers=workers)
        assert parts.parameter_hash == whole.parameter_hash, workers
        assert lesson_rows(tmp_path / f"parts{workers}") == rows
        assert recorded(chosen["record"]) == recorded(settings["record"])


def test_a_run_that_is_interrupted_between_lessons_goes_on_as_the_local_one_would(tmp_path):
    env, settings = WITH_LESSONS["by reward"]
    whole = train(tmp_path / "whole", env, "ppo", settings)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", env, "ppo", settings, workers=3, callbacks=[interrupt_at(180)])
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False, trust=True).result
    assert resumed.parameter_hash == whole.parameter_hash
    assert lesson_rows(tmp_path / "run") == lesson_rows(tmp_path / "whole")


def test_what_collectors_elsewhere_cannot_do_is_refused(tmp_path):
    own = {**lessons(BY_PROGRESS), "cluster.asynchronous": True}
    with pytest.raises(ConfigError, match="lessons begin in all environments at one step"):
        train(tmp_path / "lessons", "Pendulum-v1", "impala", {k: own[k] for k in own if k not in ON_POLICY}, workers=2)
