"""Which environment a run trains and is evaluated in: the same one, wherever its environments are stepped."""

import os
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml

import relayrl
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.errors import ConfigError, EnvironmentFailedError

SHORT = {
    "network.hidden_sizes": (4,),
    "trainer.time_horizon": 8,
    "trainer.max_steps": 32,
    "evaluation.episodes": 3,
    "statistics.tensorboard": False,
}
LOUD = """
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Loud(gymnasium.Env):
    '''Shows two numbers and rewards 10, once.'''

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    reward = 10.0

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.ones(self.observation_space.shape, np.float32), self.reward, True, False, {}


class Quiet(Loud):
    '''Shows one number and rewards 1.'''

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
    reward = 1.0


def as_vector(num_envs):
    return SyncVectorEnv([Quiet] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


gymnasium.register("Loud-v0", entry_point=Loud, vector_entry_point=as_vector)
"""


@pytest.fixture
def loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An environment whose vector implementation is another environment."""
    (tmp_path / "loud_task.py").write_text(LOUD)
    monkeypatch.syspath_prepend(tmp_path)
    yield "loud_task:Loud-v0"
    gymnasium.registry.pop("Loud-v0", None)
    sys.modules.pop("loud_task", None)


def train(env: str, path: Path, **settings) -> relayrl.Run:
    return relayrl.train(env, run_dir=path, settings={**SHORT, "environment.num_envs": 2, **settings}, progress=False)


def test_a_run_has_the_same_environment_with_and_without_workers(loud, tmp_path):
    here, there = (train(loud, tmp_path / str(n), **{"environment.workers": n}) for n in (0, 1))
    for run in (here, there):
        assert run.result.returns == (10.0, 10.0, 10.0)
        assert run.evaluate(episodes=2).returns == (10.0, 10.0)
        assert run.policy.metadata.observation_space.shape == (2,)
    assert here.result.parameter_hash == there.result.parameter_hash


def test_an_own_vector_that_was_asked_for_is_trained_and_evaluated_in(loud, tmp_path):
    run = train(loud, tmp_path / "run", **{"environment.vector": "own"})
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["environment"]["vector"] == "own"
    assert run.result.returns == (1.0, 1.0, 1.0)
    assert run.evaluate(episodes=2).returns == (1.0, 1.0)
    again = relayrl.train(run_dir=tmp_path / "run", resume=True, trust=True, settings={"max_steps": 64}, progress=False)
    assert again.result.returns == (1.0, 1.0, 1.0)
    with pytest.raises(ConfigError, match=r"cannot resume with a changed environment\.vector"):
        relayrl.train(run_dir=tmp_path / "run", resume=True, trust=True, settings={"vector": "auto"}, progress=False)


def test_a_refused_own_vector_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="Acrobot-v1 has no vector implementation of its own"):
        train("Acrobot-v1", tmp_path / "run", **{"environment.vector": "own"})
    assert not (tmp_path / "run").exists()


def counting(number: int) -> gymnasium.Env:
    return Counting(ends_at=3 + number, truncates=number == 1)


class Counting(gymnasium.Env):
    """Shows its step, rewards it, and terminates or is truncated in step `ends_at`; both actions do the same."""

    observation_space = gymnasium.spaces.Box(0.0, 99.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, *, ends_at: int = 3, truncates: bool = False) -> None:
        self._ends_at, self._truncates = ends_at, truncates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._step += 1
        ends = self._step == self._ends_at
        seen = np.array([self._step], np.float32)
        return seen, float(self._step), ends and not self._truncates, ends and self._truncates, {}


def vector_of(kind, mode: str):
    modes = gymnasium.vector.AutoresetMode
    return kind([lambda: counting(0), lambda: counting(1)], autoreset_mode=modes[mode])


def same_step():
    return vector_of(gymnasium.vector.SyncVectorEnv, "SAME_STEP")


def next_step():
    return vector_of(gymnasium.vector.SyncVectorEnv, "NEXT_STEP")


def disabled():
    return vector_of(gymnasium.vector.SyncVectorEnv, "DISABLED")


def in_processes():
    return vector_of(gymnasium.vector.AsyncVectorEnv, "NEXT_STEP")


def of_any_number(num_envs: int):
    return gymnasium.vector.SyncVectorEnv([Counting] * num_envs)


def settings_for(factory, **flags) -> RunSettings:
    return build_run_settings(f"{__name__}:{factory.__name__}", None, {**SHORT, **flags}, [])


def engine_for(settings: RunSettings, path: Path) -> LocalEngine:
    directory = RunDirectory(path)
    directory.create(settings)
    return LocalEngine(settings, directory)


_ALTERNATING = iter(range(10**6))


def alternating() -> gymnasium.Env:
    """The two environments of `vector_of`, one after the other, for RelayRL's own loop."""
    return counting(next(_ALTERNATING) % 2)


def learned_from(engine: LocalEngine, num_rows: int) -> list[tuple]:
    """Every row that is learned from, lane by lane: what was seen, the reward, the end, and what followed."""
    rollout = engine._parts.collector.collect(0, num_rows)["agent"]
    followed = dict(
        zip(
            zip(rollout.successors.step.tolist(), rollout.successors.lane.tolist(), strict=True),
            rollout.successors.obs[:, 0].tolist(),
            strict=True,
        )
    )
    return [
        (
            lane,
            rollout.obs[t, lane, 0].item(),
            rollout.reward[t, lane].item(),
            bool(rollout.terminated[t, lane]),
            bool(rollout.truncated[t, lane]),
            followed[t, lane] if (t, lane) in followed else rollout.obs[t + 1, lane, 0].item(),
        )
        for lane in range(2)
        for t in range(num_rows)
        if rollout.valid[t, lane]
    ]


EXPECTED = [
    (0, 0.0, 1.0, False, False, 1.0),
    (0, 1.0, 2.0, False, False, 2.0),
    (0, 2.0, 3.0, True, False, 3.0),
    (1, 0.0, 1.0, False, False, 1.0),
    (1, 1.0, 2.0, False, False, 2.0),
    (1, 2.0, 3.0, False, False, 3.0),
    (1, 3.0, 4.0, False, True, 4.0),
]
"""Episode by episode, for environment 0, which terminates in step 3, and environment 1, which is truncated in step 4."""


@pytest.mark.parametrize("factory", [alternating, same_step, disabled, next_step, in_processes])
def test_a_vector_environment_of_a_factory_gives_the_rows_of_its_environments(factory, tmp_path):
    flags = {"environment.num_envs": 2, "trainer.time_horizon": 20}
    engine = engine_for(settings_for(factory, **flags), tmp_path / "run")
    rows = learned_from(engine, 20)
    returns, lengths = engine._parts.collector.take_episodes()
    engine.close()
    spent = 1 if factory in (next_step, in_processes) else 0  # rows per episode that a reset takes
    for lane, length in ((0, 3), (1, 4)):
        own = [row for row in rows if row[0] == lane]
        whole = [row for row in EXPECTED if row[0] == lane]
        per_episode = length + spent
        assert len(own) == 20 // per_episode * length + min(20 % per_episode, length)
        assert own == (whole * 20)[: len(own)]
    assert set(zip(returns, lengths, strict=True)) == {(6.0, 3), (10.0, 4)}


@pytest.mark.parametrize("factory", [same_step, next_step, in_processes])
def test_a_factory_that_returns_a_vector_environment_trains(factory, tmp_path):
    run = relayrl.train(factory, run_dir=tmp_path / "run", settings=SHORT, progress=False)
    assert run.settings.environment.num_envs == 2
    assert run.result.num_env_steps == 32
    assert run.result.returns == (6.0, 6.0, 10.0)
    assert run.evaluate(episodes=4).lengths == (3, 3, 4, 4)
    again = relayrl.train(run_dir=tmp_path / "run", resume=True, trust=True, settings={"max_steps": 64}, progress=False)
    assert again.result.num_env_steps == 64


def test_a_number_of_envs_is_handed_to_a_factory_that_takes_one(tmp_path):
    run = relayrl.train(of_any_number, num_envs=4, run_dir=tmp_path / "run", settings=SHORT, progress=False)
    assert run.settings.environment.num_envs == 4
    assert run.result.returns == (6.0, 6.0, 6.0)


def test_another_number_of_envs_than_the_vector_environment_has_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"a vector environment of 2 environments, num_envs says 3; leave num_envs out"
    ):
        relayrl.train(same_step, num_envs=3, run_dir=tmp_path / "run", settings=SHORT, progress=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="steps all environments in one call; set workers to 0"):
        relayrl.train(same_step, run_dir=tmp_path / "run", settings={**SHORT, "workers": 1}, progress=False)


FRAGILE = """
import ctypes, os, sys, time
from pathlib import Path
from relayrl.testing.toy_environments import CountingEnv

(Path(__file__).parent / "pids").open("a").write(f"{os.getpid()}\\\\n")

def fail(how):
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        sys.exit(0)
    if how == "hang":
        time.sleep(3600)

class Fragile(CountingEnv):
    def __init__(self, *, where="", how=""):
        super().__init__(terminate_at=2)
        self.where, self.how = where, how
        if where == "init":
            fail(how)

    def reset(self, *, seed=None):
        if self.where == "reset":
            fail(self.how)
        return super().reset(seed=seed)
"""


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment of a module that notes in which processes it is imported, and that fails as asked."""
    (tmp_path / "fragile_task.py").write_text(FRAGILE.replace("\\\\", "\\"))
    monkeypatch.syspath_prepend(tmp_path)
    return "fragile_task:Fragile"


def test_with_workers_the_environment_never_runs_in_the_process_of_the_run(fragile, tmp_path):
    settings = {"environment.workers": 1, "evaluation.interval": 16}
    run = train(fragile, tmp_path / "run", **settings)
    assert run.result.returns == (3.0,) * 3
    assert run.evaluate(episodes=2).returns == (3.0, 3.0)
    pids = (tmp_path / "pids").read_text().split()
    assert str(os.getpid()) not in pids
    assert len(set(pids)) == 5  # the trial, the run, the evaluations during and at the end, and the one just now


@pytest.mark.parametrize(
    ("where", "how", "reason", "log"),
    [
        ("init", "segfault", "was killed by SIGSEGV", "fail"),
        ("init", "hang", "gave no answer within 4 s and was stopped", "in fail"),
        ("reset", "exit", "building it raised SystemExit: 0", "in fail"),
    ],
)
def test_with_workers_a_start_up_that_fails_is_an_error_with_its_traceback(fragile, tmp_path, where, how, reason, log):
    options = {"environment.options": {"where": where, "how": how}}
    with pytest.raises(EnvironmentFailedError, match=reason) as caught:
        train(fragile, tmp_path / "run", **options, **{"environment.workers": 1, "environment.start_timeout_s": 4.0})
    assert log in caught.value.remote_traceback
    assert not (tmp_path / "run").exists()
