"""An evaluation ends, whatever the environment and the policy do, and states what kept it from playing to the end."""

import json
import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from typer.testing import CliRunner

import relayrl
from relayrl.cli.main import app
from relayrl.data.trees import Array, Tree
from relayrl.engines.runs.run_record import RunResult
from relayrl.envs.adapters.gymnasium_vector import GymnasiumVector
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings, EvaluationBounds
from relayrl.models.acting.actor import Actor
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.runtime.evaluation import Bound, evaluate

COUNTING = "relayrl.testing.toy_environments:CountingEnv"


class FirstAction(Actor):
    """Takes the first action, whatever it sees."""

    def __init__(self, action_space) -> None:
        self.head = likelihood_head(action_space)

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self.head.parameters_numpy(np.zeros((len(obs), self.head.num_outputs), np.float32), mask)


def play(env, *, episodes: int, **bounds):
    actors = {name: FirstAction(group.action_space) for name, group in env.groups.items()}
    try:
        return evaluate(env, actors, episodes=episodes, seed=0, bounds=EvaluationBounds(**bounds))
    finally:
        env.close()


def counting(num_envs: int, terminate_at: int | None):
    return make_vector(COUNTING, EnvSettings(num_envs=num_envs, options={"terminate_at": terminate_at}))


def test_an_environment_that_never_ends_is_cut_at_the_step_bound():
    result = play(counting(2, None), episodes=5, max_episode_steps=4)
    assert result.returns == (10.0,) * 5  # 1 + 2 + 3 + 4: each episode begins anew
    assert result.lengths == (4,) * 5
    assert (result.num_asked, result.num_ended, result.num_cut, result.stopped_by) == (5, 0, 5, Bound.EPISODE_STEPS)
    assert result.mean_return == 10.0


class Uneven(gymnasium.Env):
    """Episodes of one step and episodes without an end, in turns; each step rewards 1."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    _episode = 0

    def reset(self, *, seed=None, options=None):
        self._episode = 0 if seed is not None else self._episode + 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, self._episode % 2 == 0, False, {}


def test_episodes_that_end_and_that_are_cut_both_count():
    result = play(make_vector(Uneven, EnvSettings(num_envs=1)), episodes=4, max_episode_steps=3)
    assert result.returns == (1.0, 3.0, 1.0, 3.0)
    assert result.is_cut == (False, True, False, True)
    assert (result.num_ended, result.num_cut, result.mean_return) == (2, 2, 2.0)


def test_an_episode_that_ends_on_the_bound_is_not_cut():
    result = play(counting(1, 4), episodes=2, max_episode_steps=4)
    assert (result.lengths, result.num_cut, result.stopped_by) == ((4, 4), 0, None)


def test_the_time_bound_ends_an_evaluation_with_what_it_has():
    result = play(counting(3, None), episodes=6, timeout_s=1e-9)
    assert result.returns == (1.0, 1.0, 1.0)  # one step was played
    assert (result.num_asked, result.num_ended, result.num_cut, result.stopped_by) == (6, 0, 3, Bound.TIMEOUT)


class Endless(gymnasium.vector.VectorEnv):
    """A vector environment that never ends and can only reset as a whole."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as Gymnasium declares it
    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 1), np.float32), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}


def test_environments_that_cannot_be_reset_alone_play_one_cut_episode_each():
    env = GymnasiumVector(Endless())
    env.init_num_envs(2)
    result = play(env, episodes=6, max_episode_steps=5)
    assert (result.returns, result.num_asked, result.num_cut) == ((5.0, 5.0), 6, 2)


def test_environments_that_always_fail_leave_an_evaluation_without_episodes():
    options = {"at_step": 1}
    settings = EnvSettings(num_envs=1, options=options, on_failure="restart", max_restarts_per_minute=1000)
    result = play(make_vector("relayrl.testing.toy_environments:Crashing", settings), episodes=2, timeout_s=1e-9)
    assert (result.returns, result.num_asked, result.stopped_by) == ((), 2, Bound.TIMEOUT)
    assert math.isnan(result.mean_return)


@pytest.fixture(scope="module")
def endless_run(tmp_path_factory) -> Path:
    """A run in an environment that never ends, with an evaluation during it."""
    path = tmp_path_factory.mktemp("endless") / "run"
    settings = {
        "environment.options.terminate_at": None,
        "network.hidden_sizes": (4,),
        "trainer.time_horizon": 8,
        "evaluation.episodes": 3,
        "evaluation.interval": 16,
        "evaluation.max_episode_steps": 4,
        "statistics.tensorboard": False,
    }
    relayrl.train(COUNTING, steps=32, num_envs=2, run_dir=path, settings=settings, progress=False)
    return path


def test_a_run_in_an_env_that_never_ends_comes_to_its_end_and_says_what_was_cut(endless_run):
    run = relayrl.load_run(endless_run)
    result = run.result
    assert (result.mean_return, result.returns) == (10.0, (10.0,) * 3)
    counts = (result.episodes_asked, result.episodes_ended, result.episodes_cut, result.stopped_by)
    assert counts == (3, 0, 3, "max_episode_steps")
    assert run.history["evaluation/episodes_cut"] == [10.0, 10.0]
    log = (endless_run / "run.log").read_text()
    assert "0 of 3 episodes ended, 3 were cut (evaluation.max_episode_steps)" in log


def test_the_evaluate_command_keeps_the_bounds_of_the_run_and_takes_others(endless_run):
    assert relayrl.load_run(endless_run, trust=True).evaluate(episodes=2, max_episode_steps=2).returns == (3.0, 3.0)
    for flags, expected in (([], 10.0), (["--max-episode-steps", "3"], 6.0)):
        done = CliRunner().invoke(app, ["evaluate", str(endless_run), "--episodes", "2", "--json", "--trust", *flags])
        assert "0 of 2 episodes ended, 2 were cut (evaluation.max_episode_steps)" in done.stdout
        assert "of cut episodes only" in done.stdout
        values = json.loads(done.stdout.splitlines()[-1])
        assert values["mean_return"] == expected
        counts = {key: values[f"episodes_{key}"] for key in ("asked", "ended", "cut")}
        assert (counts, values["stopped_by"]) == ({"asked": 2, "ended": 0, "cut": 2}, "max_episode_steps")


def test_results_of_runs_without_bounds_can_still_be_read(endless_run):
    values = json.loads((endless_run / "result.json").read_text())
    for key in ("episodes_asked", "episodes_ended", "episodes_cut", "stopped_by"):
        del values[key]
    old = RunResult.from_json(json.dumps(values))
    assert (old.episodes_cut, old.stopped_by) == (0, "")
