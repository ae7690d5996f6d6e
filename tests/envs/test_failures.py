"""What an environment's failure means in this process: an error that says everything, or a voided step and a new episode."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_environments import Dice, Relay, Trouble

from relayrl.engines.process.interrupts import Interrupt, LeaveAtOnce, StartInterrupted
from relayrl.envs.environment_contract import VectorEnvironment, VectorReset, VectorStep, env_seeds
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy, ObservationCheck
from relayrl.envs.failures import RestartBudget
from relayrl.errors import ConfigError, EnvError, EnvironmentFailedError, ObservationError
from relayrl.testing.toy_environments import Herd

SEED = 4


def trouble_in_env_1(how: str, **settings: Any) -> VectorEnvironment:
    """Three environments, of which the second makes trouble in step 3 of its life; reset already."""
    options = {"how": how, "seeds": [env_seeds(SEED, 3)[1]]}
    env = make_vector(Trouble, EnvSettings(num_envs=3, options=options, **settings))
    env.reset(seed=SEED)
    return env


def play(env: VectorEnvironment, num_steps: int) -> VectorStep:
    for _ in range(num_steps):
        result = env.step({"agent": np.zeros((env.num_envs, 1), np.int64)})
    return result


def test_an_exception_names_environment_seed_and_step_and_shows_the_traceback() -> None:
    env = trouble_in_env_1("raise")
    with pytest.raises(EnvironmentFailedError, match=r"raised RuntimeError: as asked") as caught:
        play(env, 3)
    assert caught.value.env_id == env.env_ids[1]
    assert caught.value.seed == env_seeds(SEED, 3)[1]
    assert caught.value.step == 3
    assert "_make_trouble" in caught.value.remote_traceback
    with pytest.raises(EnvError, match="closed"):
        play(env, 1)


def test_a_restarted_env_voids_its_step_and_begins_anew() -> None:
    env = trouble_in_env_1("raise", on_failure=FailurePolicy.RESTART)
    before = play(env, 2)
    assert before.failed is None
    result = play(env, 1)
    step = result.groups["agent"]
    assert result.failed is not None
    assert result.failed.tolist() == [False, True, False]
    assert result.episode_over.tolist() == [False, True, False]
    assert step.reward.tolist() == [[1.0], [0.0], [1.0]]
    assert step.truncated.tolist() == [[False], [True], [False]]
    assert not step.terminated.any()
    assert step.final is not None
    assert step.final.env.tolist() == [1]
    assert step.final.obs.tolist() == [[2.0, 2.0]]
    assert step.obs[:, 0, 0].tolist() == [3.0, 0.0, 3.0]
    after = play(env, 1)
    assert after.failed is None
    assert after.groups["agent"].obs[:, 0, 0].tolist() == [4.0, 1.0, 4.0]


@pytest.mark.parametrize(
    ("how", "check", "message"),
    [
        ("nan", ObservationCheck.FINITE, r"agent 'agent': observation is not finite at \[1\] = nan"),
        ("outside", ObservationCheck.SPACE, r"observation lies outside Box.* at \[1\] = 11.0"),
    ],
)
def test_a_bad_observation_names_env_agent_step_and_entries(how: str, check: ObservationCheck, message: str) -> None:
    env = trouble_in_env_1(how, observation_check=check)
    with pytest.raises(ObservationError, match=message) as caught:
        play(env, 3)
    assert f"environment {env.env_ids[1]} (seed {env_seeds(SEED, 3)[1]}) at step 3" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "check"),
    [("nan", ObservationCheck.OFF), ("outside", ObservationCheck.FINITE), ("none", ObservationCheck.SPACE)],
)
def test_only_what_was_asked_for_is_checked(how: str, check: ObservationCheck) -> None:
    play(trouble_in_env_1(how, observation_check=check), 5)


def test_a_bad_observation_counts_as_a_failure_that_can_be_restarted() -> None:
    env = trouble_in_env_1("nan", on_failure=FailurePolicy.RESTART)
    result = play(env, 3)
    assert result.failed is not None
    assert result.failed.tolist() == [False, True, False]
    assert np.isfinite(result.groups["agent"].obs).all()
    assert result.groups["agent"].final is not None
    assert result.groups["agent"].final.obs.tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("wrong_shape", r"observation is float32\[3\], its space is float32\[2\]"),
        ("wrong_reward", "agent 'agent': the reward is nan"),
    ],
)
def test_results_of_the_wrong_form_are_the_failure_of_their_env(how: str, message: str) -> None:
    env = trouble_in_env_1(how)
    with pytest.raises(EnvironmentFailedError, match=message) as caught:
        play(env, 3)
    assert caught.value.env_id == env.env_ids[1]


def test_the_good_envs_of_a_failed_step_keep_their_results() -> None:
    env = trouble_in_env_1("wrong_reward", on_failure=FailurePolicy.RESTART)
    step = play(env, 3).groups["agent"]
    assert step.reward.tolist() == [[1.0], [0.0], [1.0]]
    assert step.obs[:, 0, 0].tolist() == [3.0, 0.0, 3.0]


def test_too_many_restarts_become_an_error_that_says_so() -> None:
    settings = EnvSettings(
        num_envs=1, options={"how": "raise", "at": 1}, on_failure=FailurePolicy.RESTART, max_restarts_per_minute=2
    )
    env = make_vector(Trouble, settings)
    env.reset(seed=0)
    play(env, 2)
    with pytest.raises(EnvironmentFailedError, match=r"as asked \(not restarted: 2 restarts in the last minute"):
        play(env, 1)


class Unseedable(Dice):
    """Cannot be reset with a seed."""

    def reset(self, *, seed: int | None = None) -> Any:
        if seed is not None:
            raise RuntimeError("no seeds, please")
        return super().reset()


def test_an_env_that_cannot_be_reset_uses_up_its_restarts() -> None:
    settings = EnvSettings(num_envs=1, on_failure=FailurePolicy.RESTART, max_restarts_per_minute=3)
    env = make_vector(Unseedable, settings)
    with pytest.raises(EnvironmentFailedError, match=r"no seeds, please.*3 restarts in the last minute"):
        env.reset(seed=0)


def test_the_budget_is_per_minute() -> None:
    now_s = 0.0
    budget = RestartBudget(2, clock_s=lambda: now_s)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    now_s = 59.9
    assert not budget.spend()
    now_s = 60.0
    assert [budget.spend() for _ in range(3)] == [True, True, False]


def test_restarts_are_reproducible_and_differ_from_the_first_episode() -> None:
    class Shaky(Dice):
        def step(self, action: Any) -> Any:
            if self._random.random() < 0.2:
                raise RuntimeError("shaky")
            return super().step(action)

    def record() -> tuple[list[Any], list[bool]]:
        env = make_vector(
            Shaky, EnvSettings(num_envs=1, on_failure=FailurePolicy.RESTART, max_restarts_per_minute=1000)
        )
        obs, failed = [env.reset(seed=9).groups["agent"].obs.copy()], []
        for _ in range(40):
            result = env.step({"agent": np.zeros((1, 1), np.int64)})
            obs.append(result.groups["agent"].obs.copy())
            failed.append(result.failed is not None)
        return obs, failed

    (first, failed), (second, _) = record(), record()
    assert np.array_equal(first, second)
    restarts = [first[0], *(obs for obs, was_failed in zip(first[1:], failed, strict=True) if was_failed)]
    assert len(restarts) > 3
    assert len({obs.tobytes() for obs in restarts}) == len(restarts)


def test_agents_alive_are_truncated_when_their_env_is_voided() -> None:
    class Stumbling(Relay):
        def step(self, actions: Any) -> Any:
            if self._step == 3 and len(self.taken) == 3:
                self.taken.append({})
                raise RuntimeError("stumbled")
            return super().step(actions)

    env = make_vector(Stumbling, EnvSettings(num_envs=1, on_failure=FailurePolicy.RESTART))
    env.reset(seed=0)
    for _ in range(4):
        result = env.step({"runner": np.zeros((1, 2), np.int64), "coach": np.zeros((1, 1), np.int64)})
    runner, coach = result.groups["runner"], result.groups["coach"]
    assert result.failed is not None
    assert runner.truncated.tolist() == [[False, True]]  # runner_0 had ended one step before
    assert coach.truncated.tolist() == [[True]]
    assert runner.final is not None
    assert runner.final.obs.tolist() == [[3.0]]
    assert runner.active.tolist() == [[True, False]]
    assert (result.state.tolist(), result.final_state.tolist()) == ([0], [3])


def test_a_factory_that_raises_shows_its_traceback() -> None:
    with pytest.raises(EnvironmentFailedError, match=r"building it raised RuntimeError: cannot be built") as caught:
        make_vector(Trouble, EnvSettings(options={"how": "raise_in_init", "at": 0}))
    assert "worker_environments.py" in caught.value.remote_traceback


def test_environments_are_closed_when_a_later_one_cannot_be_built() -> None:
    built: list[Any] = []

    class Closing(Dice):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    def make() -> Dice:
        if len(built) == 2:
            raise RuntimeError("no third")
        built.append(Closing())
        return built[-1]

    with pytest.raises(EnvironmentFailedError, match="no third"):
        make_vector(make, EnvSettings(num_envs=3))
    assert [env.is_closed for env in built] == [True, True]


class BadHerd(Herd):
    """A user's vector environment that goes wrong: it observes NaN in step 2 and raises in step 4."""

    _step = 0

    def step(self, actions: Any) -> VectorStep:
        self._step += 1
        if self._step == 4:
            raise RuntimeError("the herd is gone")
        result = super().step(actions)
        if self._step == 2:
            result.groups["dog"].obs[1, 0] = np.nan
        return result


def herd_step(env: VectorEnvironment, shown: VectorReset | VectorStep) -> VectorStep:
    actions = {}
    for name, group in env.groups.items():
        actions[name] = np.zeros((env.num_envs, group.num_agents, *group.action_space.shape), group.action_space.dtype)
    return env.step(actions)


def test_vector_environments_of_users_are_watched_too() -> None:
    env = make_vector(BadHerd, EnvSettings(num_envs=2))
    first = env.reset(seed=SEED)
    herd_step(env, first)
    with pytest.raises(ObservationError, match=f"environment {env.env_ids[1]} .* at step 2"):
        herd_step(env, first)
    herd_step(env, first)
    with pytest.raises(EnvironmentFailedError, match=r"step\(\) raised RuntimeError: the herd is gone"):
        herd_step(env, first)


def test_an_env_that_exits_is_a_failure_and_not_the_end_of_the_program() -> None:
    env = trouble_in_env_1("sys_exit")
    with pytest.raises(EnvironmentFailedError, match=r"step\(\) raised SystemExit: 0") as caught:
        play(env, 3)
    assert (caught.value.env_id, caught.value.step) == (env.env_ids[1], 3)
    assert caught.value.seed == env_seeds(SEED, 3)[1]
    for how in ("exit_in_init", "exit_in_reset"):
        with pytest.raises(EnvironmentFailedError, match="building it raised SystemExit: 3"):
            make_vector(Trouble, EnvSettings(num_envs=1, options={"how": how}))
    env = trouble_in_env_1("exit_in_close")
    with pytest.raises(EnvironmentFailedError, match=r"close\(\) raised SystemExit: 3") as caught:
        env.close()
    assert caught.value.env_id == env.env_ids[0]


def test_an_env_that_exits_can_be_restarted() -> None:
    result = play(trouble_in_env_1("sys_exit", on_failure=FailurePolicy.RESTART), 3)
    assert result.failed is not None
    assert result.failed.tolist() == [False, True, False]


def test_a_module_that_exits_when_it_is_imported_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting_task.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="importing 'exiting_task' raised SystemExit: 0"):
        make_vector("exiting_task:f", EnvSettings())


class ExitingHerd(Herd):
    """A user's vector environment that exits."""

    def step(self, actions: Any) -> VectorStep:
        raise SystemExit(0)


def test_a_vector_environment_that_exits_is_a_failure() -> None:
    env = make_vector(ExitingHerd, EnvSettings(num_envs=2))
    with pytest.raises(EnvironmentFailedError, match=r"step\(\) raised SystemExit: 0"):
        herd_step(env, env.reset(seed=SEED))


@pytest.fixture
def _ctrl_c_raises() -> Iterator[None]:
    """Python's own handler, which whoever started the tests in the background took away."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_only_where_a_ctrl_c_cannot_raise_it_is_a_keyboard_interrupt_the_environments_own() -> None:
    with pytest.raises(KeyboardInterrupt):
        play(trouble_in_env_1("keyboard_interrupt"), 3)
    with Interrupt():
        env = trouble_in_env_1("keyboard_interrupt")
        with pytest.raises(EnvironmentFailedError, match=r"step\(\) raised KeyboardInterrupt"):
            play(env, 3)


def test_an_interrupt_of_the_run_passes_through_an_env(capfd: pytest.CaptureFixture[str]) -> None:
    class Pressing(Dice):
        """Presses Ctrl-C in every step."""

        def step(self, action: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return super().step(action)

    with Interrupt() as interrupt:
        env = make_vector(Pressing, EnvSettings(num_envs=1))
        env.reset(seed=0)
        interrupt.begin()
        play(env, 1)
        assert interrupt.is_requested()
        with pytest.raises(LeaveAtOnce):
            play(env, 1)
    assert "SIGINT: the run stops after the present update" in capfd.readouterr().err
    with Interrupt():
        env = make_vector(Pressing, EnvSettings(num_envs=1))
        env.reset(seed=0)
        with pytest.raises(StartInterrupted):
            play(env, 1)
    assert "SIGINT: the start-up ends" in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # newer Pythons warn of threads beside a fork
def test_in_a_process_that_an_environment_forked_a_ctrl_c_is_left_to_the_run() -> None:
    with Interrupt():
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(9)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
