"""Environments in worker processes: the same environments as in this process, however their workers end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_environments import Dice, Masked, Mortal, Relay, Trouble, imports_torch

from relayrl.envs.environment_contract import VectorEnvironment, VectorStep, env_seeds
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy
from relayrl.envs.vector.vectorise import VectorisedEnvironments
from relayrl.envs.workers.worker_pool import WorkerPool
from relayrl.errors import ConfigError, EnvError, EnvironmentFailedError, ObservationError
from waiting import wait_until

SEED = 4
RESTART: dict[str, Any] = {"on_failure": FailurePolicy.RESTART}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No process, file descriptor or shared memory outlives a test."""
    gc.collect()  # what an earlier test left is not this one's
    processes, descriptors, memory = children(), len(os.listdir("/proc/self/fd")), mapped_envs()
    yield
    gc.collect()
    assert children() == processes
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert mapped_envs() == memory
    assert not [name for name in os.listdir("/dev/shm") if "relayrl" in name]


def mapped_envs() -> int:
    """Pieces of shared memory with environments that this process maps."""
    return Path("/proc/self/maps").read_text().count("relayrl-envs")


def children() -> set[int]:
    """The processes whose parent this one is, zombies included."""
    me = os.getpid()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == me:
                found.add(int(entry.name))
    return found


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def process_ids(env: VectorEnvironment) -> list[int]:
    assert isinstance(env, VectorisedEnvironments)
    assert isinstance(env._runner, WorkerPool)
    return env._runner.process_ids


def trouble(how: str, **settings: Any) -> VectorEnvironment:
    """Four environments in two workers, of which the second makes trouble in step 3 of its life; reset already."""
    options = {"how": how, "seeds": [env_seeds(SEED, 4)[1]]}
    env = make_vector(Trouble, EnvSettings(num_envs=4, workers=2, options=options, **settings))
    env.reset(seed=SEED)
    return env


def play(env: VectorEnvironment, num_steps: int) -> VectorStep:
    for _ in range(num_steps):
        result = env.step({"agent": np.zeros((env.num_envs, 1), np.int64)})
    return result


def record(env: VectorEnvironment, num_steps: int) -> list[Any]:
    """Everything that an environment shows under random actions, a partial reset in the middle included."""
    rng = np.random.default_rng(0)
    seen: list[Any] = [np.array(group.obs) for group in env.reset(seed=SEED).groups.values()]
    for t in range(num_steps):
        actions = {}
        for name, group in env.groups.items():
            lanes = (env.num_envs, group.num_agents)
            shape = (*lanes, *group.action_space.shape)
            is_box = group.action_space.dtype == np.float32
            actions[name] = rng.random(shape, np.float32) if is_box else rng.integers(0, 2, shape)
        if t == num_steps // 2:
            env.reset(seed=SEED + 1, env_ids=[env.env_ids[0], env.env_ids[-1]])
        result = env.step(actions)
        seen.append(np.array(result.episode_over))
        if result.state is not None:
            seen.append(np.array(result.state))
        if result.final_state is not None:
            seen.append(np.array(result.final_state))
        for step in result.groups.values():
            seen += [np.array(a) for a in (step.obs, step.active, step.reward, step.terminated, step.truncated)]
            if step.action_mask is not None:
                seen.append(np.array(step.action_mask))
            if step.final is not None:
                seen += [step.final.env, step.final.agent, step.final.obs]
                seen += [] if step.final.action_mask is None else [step.final.action_mask]
    env.close()
    return seen


@pytest.mark.parametrize(("factory", "options"), [(Dice, {}), (Dice, {"continuous": True}), (Masked, {}), (Relay, {})])
def test_environments_are_the_same_in_any_number_of_workers(factory: Any, options: dict[str, Any]) -> None:
    expected = record(make_vector(factory, EnvSettings(num_envs=5, options=options)), 40)
    for workers in (1, 3):
        seen = record(make_vector(factory, EnvSettings(num_envs=5, workers=workers, options=options)), 40)
        assert len(seen) == len(expected)
        assert all(np.array_equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_a_gymnasium_environment_is_the_same_in_workers_as_in_its_own_vector_implementation() -> None:
    here, there = (make_vector("CartPole-v1", EnvSettings(num_envs=3, workers=workers)) for workers in (0, 2))
    seen, expected = record(there, 300), record(here, 300)
    assert all(np.array_equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_shared_memory_is_seen_while_it_is_mapped() -> None:
    before = mapped_envs()
    env = make_vector(Dice, EnvSettings(num_envs=2, workers=1))
    assert mapped_envs() > before
    env.close()


def test_more_workers_than_envs_are_not_started() -> None:
    env = make_vector(Dice, EnvSettings(num_envs=2, workers=8))
    assert len(process_ids(env)) == 2
    env.close()


def test_a_worker_does_not_import_torch() -> None:
    env = make_vector("worker_environments:imports_torch", EnvSettings(num_envs=1, workers=1))
    env.close()
    assert imports_torch.__module__ == "worker_environments"


def test_an_exception_in_a_worker_shows_its_traceback() -> None:
    env = trouble("raise")
    workers = process_ids(env)
    with pytest.raises(EnvironmentFailedError, match="raised RuntimeError: as asked") as caught:
        play(env, 3)
    assert caught.value.env_id == env.env_ids[1]
    assert caught.value.seed == env_seeds(SEED, 4)[1]
    assert caught.value.step == 3
    assert "_make_trouble" in caught.value.remote_traceback
    assert not any(is_running(worker) for worker in workers)
    with pytest.raises(EnvError, match="closed"):
        play(env, 1)


@pytest.mark.parametrize(
    ("how", "reason", "log"),
    [
        ("kill", "its worker process was killed by SIGKILL", ""),
        ("exit", "its worker process exited with code 7", ""),
        ("segfault", "its worker process was killed by SIGSEGV", "_make_trouble"),
        ("leave_child", "its worker process exited with code 9", ""),
        ("hang", "gave no answer within 2 s and was stopped", "_make_trouble"),
    ],
)
def test_a_worker_that_ends_or_hangs_is_an_error(how: str, reason: str, log: str) -> None:
    env = trouble(how, step_timeout_s=2.0 if how == "hang" else 60.0)
    workers = process_ids(env)
    with pytest.raises(EnvironmentFailedError, match=reason) as caught:
        play(env, 3)
    assert caught.value.env_id == env.env_ids[1]
    assert caught.value.seed == env_seeds(SEED, 4)[1]
    assert caught.value.step == 3
    assert log in caught.value.remote_traceback
    assert not any(is_running(worker) for worker in workers)


def test_a_worker_killed_from_outside_between_steps_is_noticed_in_the_next() -> None:
    env = trouble("none")
    play(env, 2)
    os.kill(process_ids(env)[1], signal.SIGKILL)
    time.sleep(0.05)
    with pytest.raises(EnvironmentFailedError, match="killed by SIGKILL") as caught:
        play(env, 1)
    assert caught.value.env_id in env.env_ids[2:]


def test_a_nan_in_a_worker_is_an_observation_error() -> None:
    env = trouble("nan")
    with pytest.raises(ObservationError, match=f"environment {env.env_ids[1]} .* at step 3: agent 'agent'"):
        play(env, 3)


@pytest.mark.parametrize("how", ["raise", "nan"])
def test_an_env_that_raised_is_rebuilt_alone(how: str) -> None:
    env = trouble(how, **RESTART)
    workers = process_ids(env)
    result = play(env, 3)
    assert result.failed is not None
    assert result.failed.tolist() == [False, True, False, False]
    step = result.groups["agent"]
    assert step.obs[:, 0, 0].tolist() == [3.0, 0.0, 3.0, 3.0]
    assert step.reward[:, 0].tolist() == [1.0, 0.0, 1.0, 1.0]
    assert step.final is not None
    assert (step.final.env.tolist(), step.final.obs.tolist()) == ([1], [[2.0, 2.0]])
    assert play(env, 1).groups["agent"].obs[:, 0, 0].tolist() == [4.0, 1.0, 4.0, 4.0]
    assert process_ids(env) == workers
    env.close()


@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_lost_worker_is_replaced_and_all_its_envs_are_voided(how: str) -> None:
    env = trouble(how, step_timeout_s=2.0 if how == "hang" else 60.0, **RESTART)
    workers = process_ids(env)
    result = play(env, 3)
    assert result.failed is not None
    assert result.failed.tolist() == [True, True, False, False]
    assert result.episode_over.tolist() == [True, True, False, False]
    step = result.groups["agent"]
    assert step.truncated[:, 0].tolist() == [True, True, False, False]
    assert not step.terminated.any()
    assert step.reward[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert step.obs[:, 0, 0].tolist() == [0.0, 0.0, 3.0, 3.0]
    assert step.final is not None
    assert (step.final.env.tolist(), step.final.obs.tolist()) == ([0, 1], [[2.0, 2.0], [2.0, 2.0]])
    assert play(env, 1).groups["agent"].obs[:, 0, 0].tolist() == [1.0, 1.0, 4.0, 4.0]
    assert process_ids(env)[1] == workers[1]
    assert process_ids(env)[0] != workers[0]
    env.close()


def test_a_restarted_env_is_the_same_here_and_in_a_worker() -> None:
    options = {"how": "raise", "seeds": [env_seeds(SEED, 4)[1]]}

    def failures(workers: int) -> list[list[bool]]:
        env = make_vector(Trouble, EnvSettings(num_envs=4, workers=workers, options=options, **RESTART))
        env.reset(seed=SEED)
        seen = [(r := play(env, 1)).failed is not None and bool(r.failed[1]) for _ in range(12)]
        env.close()
        return [seen]

    assert failures(0) == failures(2)


def test_too_many_lost_workers_become_an_error_that_says_so() -> None:
    options = {"how": "exit", "at": 1}
    env = make_vector(
        Trouble, EnvSettings(num_envs=2, workers=1, options=options, max_restarts_per_minute=1, **RESTART)
    )
    env.reset(seed=SEED)
    play(env, 1)
    with pytest.raises(EnvironmentFailedError, match=r"exited with code 7 \(not restarted: 1 restarts"):
        play(env, 1)


def test_a_worker_that_cannot_be_replaced_becomes_an_error(tmp_path: Path) -> None:
    options = {"grave": str(tmp_path / "grave")}
    env = make_vector(Mortal, EnvSettings(num_envs=2, workers=1, options=options, max_restarts_per_minute=2, **RESTART))
    env.reset(seed=SEED)
    with pytest.raises(EnvironmentFailedError, match=r"gone for good \(not restarted: 2 restarts"):
        play(env, 1)


def test_an_interrupted_step_stops_the_workers() -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    env = trouble("hang")
    play(env, 2)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            play(env, 1)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(EnvError, match="after an interrupted step"):
        play(env, 1)
    with pytest.raises(EnvError, match="the workers have been stopped"):
        env.reset()
    env.close()


def test_a_factory_that_raises_in_a_worker_shows_its_traceback() -> None:
    options = {"how": "raise_in_init", "at": 0}
    with pytest.raises(EnvironmentFailedError, match="building it raised RuntimeError: cannot be built") as caught:
        make_vector(Trouble, EnvSettings(num_envs=2, workers=2, options=options))
    assert "worker_environments.py" in caught.value.remote_traceback


def dies_in_the_making() -> Dice:
    os._exit(5)


def test_a_worker_that_dies_while_building_is_an_error() -> None:
    with pytest.raises(EnvironmentFailedError, match="exited with code 5"):
        make_vector(dies_in_the_making, EnvSettings(num_envs=2, workers=2))


def hangs_in_the_making() -> Dice:
    time.sleep(3600)
    return Dice()


def test_a_worker_that_hangs_while_building_is_an_error() -> None:
    with pytest.raises(EnvironmentFailedError, match="no answer within 5 s") as caught:
        make_vector(hangs_in_the_making, EnvSettings(num_envs=1, workers=1, start_timeout_s=5.0))
    assert "hangs_in_the_making" in caught.value.remote_traceback


def test_a_lambda_whose_variables_cannot_be_sent_is_refused_with_advice() -> None:
    held = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to worker processes .* set workers to 0"):
        make_vector(lambda: Dice() if held else None, EnvSettings(workers=1))


def test_vector_environments_are_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="steps all environments in one call; set workers to 0"):
        make_vector("relayrl.testing.toy_environments:Herd", EnvSettings(num_envs=1, workers=1))


def test_unknown_names_are_configuration_errors_in_workers_too() -> None:
    with pytest.raises(ConfigError, match="did you mean 'simple_spread_v3'"):
        make_vector("mpe2:simple_spred_v3", EnvSettings(num_envs=1, workers=1))


def test_close_is_bounded_and_may_be_repeated() -> None:
    env = trouble("hang_in_close")  # for an hour
    workers = process_ids(env)
    env.close()
    env.close()
    assert not any(is_running(worker) for worker in workers)


def test_arrays_outlive_the_environment() -> None:
    env = trouble("none")
    obs = play(env, 2).groups["agent"].obs
    env.close()
    assert obs[:, 0, 0].tolist() == [2.0] * 4


def test_an_environment_that_is_dropped_takes_its_workers_along() -> None:
    env = trouble("none")
    workers = process_ids(env)
    del env
    gc.collect()
    assert not any(is_running(worker) for worker in workers)


SCRIPT = """
    import os, sys, time
    import numpy as np
    from worker_environments import Trouble
    from relayrl.envs.environment_registry import make_vector
    from relayrl.envs.environment_settings import EnvSettings

    def mine(**options):
        return Trouble(**options)

    if __name__ == "__main__":
        factory = {"function": mine, "name": "__main__:mine"}[sys.argv[2]]
        env = make_vector(factory, EnvSettings(num_envs=2, workers=2, options={"how": "hang", "at": int(sys.argv[1])}))
        env.reset(seed=0)
        print(*env._runner.process_ids, flush=True)
        env.step({"agent": np.zeros((2, 1), int)})
        time.sleep(3600)
"""


@pytest.mark.parametrize(("hang_at", "factory"), [(1, "function"), (2, "name")])
def test_workers_find_what_a_script_defines_and_end_when_it_is_killed(
    tmp_path: Path, hang_at: int, factory: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, str(script), str(hang_at), factory],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.2)
        parent.kill()
    assert len(workers) == 2
    wait_until(lambda: not any(is_running(worker) for worker in workers))


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).replace('if __name__ == "__main__":', "if True:"))
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, str(script), "9", "function"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=30,
    )
    assert done.returncode == 1
    assert "ConfigError: workers were asked for inside a worker" in done.stderr


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("segfault_in_close", "was killed by SIGSEGV when it was asked to close"),
        ("hang_in_close", "was not done 2 s after"),
    ],
)
def test_an_env_that_crashes_or_hangs_in_close_is_told_with_its_traceback(
    how: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_vector(Trouble, EnvSettings(num_envs=1, workers=1, options={"how": how}))
    env.close()
    assert reason in caplog.text
    assert "in close" in caplog.text


@pytest.mark.parametrize("how", ["sys_exit", "keyboard_interrupt"])
def test_what_an_env_in_a_worker_raises_to_end_the_program_is_its_failure(how: str) -> None:
    env = trouble(how)
    with pytest.raises(EnvironmentFailedError, match=r"step\(\) raised (SystemExit|KeyboardInterrupt)") as caught:
        play(env, 3)
    assert (caught.value.env_id, caught.value.step) == (env.env_ids[1], 3)
    assert "_make_trouble" in caught.value.remote_traceback
