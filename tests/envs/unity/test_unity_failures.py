"""Simulators that crash, stall, lie or never come: one clear error, no hang, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scenes import SIMULATOR, Scenes, actions, free_port, is_running, scenes

import relayrl
from relayrl import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError, EnvError, EnvironmentFailedError, ObservationError, RelayRLError
from waiting import wait_until

__all__ = ["scenes"]


def played(env: VectorEnvironment, num_steps: int = 40) -> None:
    env.reset()
    for _ in range(num_steps):
        env.step(actions(env, lambda _: 2))


def test_a_crash_names_the_log_and_its_last_line(scenes: Scenes) -> None:
    env = scenes.make("walk", "--crash-after", 30)
    with pytest.raises(EnvironmentFailedError) as caught:
        played(env)
    text = str(caught.value)
    assert "its process ended with exit code 7" in text
    assert f"log {scenes.folder}/logs/Player-" in text
    assert "which ends with: segmentation fault in the physics" in text
    assert "on_failure=restart" in text
    with pytest.raises(EnvError, match="closed"):
        env.reset()


def test_a_killed_simulator_is_named_as_such(scenes: Scenes, tmp_path: Path) -> None:
    env = scenes.make("walk", "--pid", tmp_path / "pid")
    played(env, 5)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(EnvironmentFailedError, match="its process was killed by SIGKILL"):
        played(env)


def test_a_crash_before_the_greeting(scenes: Scenes) -> None:
    with pytest.raises(
        EnvError, match=r"its process ended with exit code 2.*output .*Player-\d+.out, which ends with: .*error"
    ):
        scenes.make("walk", "--no-such-flag")


def test_a_stall_ends_at_the_deadline_and_the_process_is_killed(scenes: Scenes, tmp_path: Path) -> None:
    options = scenes.options("walk", "--stall-after", 30, "--child", tmp_path / "child")
    env = make_vector(scenes.name, EnvSettings(options=options, step_timeout_s=1.0))
    with pytest.raises(EnvironmentFailedError, match="no message from it within 1 s"):
        played(env)
    wait_until(lambda: not is_running(int((tmp_path / "child").read_text())))


def test_close_ends_the_simulator_and_its_children(scenes: Scenes, tmp_path: Path) -> None:
    env = scenes.make("walk", "--child", tmp_path / "child")
    child = int((tmp_path / "child").read_text())
    assert is_running(child)
    env.close()
    wait_until(lambda: not is_running(child))


@pytest.mark.parametrize("how", ["crash", "stall"])
def test_a_failed_simulator_is_started_again_and_its_step_is_void(scenes: Scenes, tmp_path: Path, how: str) -> None:
    once = ("--crash-after", 30, "--once", tmp_path / "crashed") if how == "crash" else ("--stall-after", 30)
    options = scenes.options("walk", "--agents", 2, *once)
    timeout_s = 60.0 if how == "crash" else 3.0
    settings = EnvSettings(num_envs=2, options=options, on_failure="restart", step_timeout_s=timeout_s)
    env = make_vector(scenes.name, settings)
    try:
        before = env.reset().groups["Walk"].obs.copy()
        for _ in range(60):
            step = env.step(actions(env, lambda _: 2))
            group = step.groups["Walk"]
            if step.failed is not None:
                break
            before = group.obs.copy()
        assert step.failed is not None
        failed = step.failed
        assert failed.sum() in (2, 4)  # the areas of one simulator, or of both
        assert step.episode_over[failed].all()
        assert group.truncated[failed].all()
        assert not group.terminated[failed].any()
        assert not group.reward[failed].any()
        assert group.final is not None
        last = {int(b): obs.tolist() for b, obs in zip(group.final.env, group.final.obs, strict=True)}
        assert all(last[b] == before[b, 0].tolist() for b in failed.nonzero()[0].tolist())
        assert group.active.all()
        assert env.step(actions(env, lambda _: 2)).failed is None
    finally:
        env.close()


def test_a_simulator_that_fails_too_often_is_an_error(scenes: Scenes) -> None:
    options = scenes.options("walk", "--crash-after", 14)
    env = make_vector(scenes.name, EnvSettings(options=options, on_failure="restart", max_restarts_per_minute=1))
    with pytest.raises(EnvironmentFailedError, match="exit code 7"):
        played(env)


LIES = {
    "reward": "the reward of agent .* is inf",
    "twice": "an agent asks twice in one exchange",
    "crowd": "more agents of 'Walk.team=0' than the 1 in each of 4 areas",
    "behavior": "agents of 'Ghost.team=0' appeared, a behaviour that the simulator has not announced",
    "side_channel": "damaged side channel message",
}


@pytest.mark.parametrize(("evil", "what"), LIES.items())
def test_what_a_simulator_sends_is_checked(scenes: Scenes, evil: str, what: str) -> None:
    env = scenes.make("walk", "--evil", evil)
    with pytest.raises(EnvironmentFailedError, match=what):
        played(env)


def test_observations_that_are_not_finite_are_errors(scenes: Scenes) -> None:
    env = scenes.make("walk", "--evil", "nan")
    with pytest.raises(ObservationError, match="not finite"):
        played(env)


def test_other_versions_of_the_protocol_are_refused(scenes: Scenes) -> None:
    with pytest.raises(
        ConfigError, match=r"speaks version '1\.4\.0' of ML-Agents' communication protocol, RelayRL 1.5.0"
    ):
        scenes.make("walk", "--version", "1.4.0")


def test_there_must_be_an_executable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no executable; tried none, none\.x86_64"):
        relayrl.make_env(f"unity:{tmp_path}/none")
    (tmp_path / "plain").write_text("x")
    with pytest.raises(ConfigError, match="is not executable; chmod"):
        relayrl.make_env(f"unity:{tmp_path}/plain")


# --- simulators of somebody else's --------------------------------------------------------------------------------------------


@pytest.fixture
def connecting() -> object:
    """Starts simulators by hand; they are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SIMULATOR), "--mlagents-port", str(port), "--wait", *arguments]
        started.append(subprocess.Popen(command))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(60)


def test_a_simulator_that_connects_stays_for_the_next_environment(connecting) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    process = connecting(port)
    for _ in range(2):
        env = relayrl.make_env(f"unity:{port}")
        played(env, 5)
        assert process.poll() is None
        with pytest.raises(ConfigError, match=r"in use.*environment.exclusive=true"):
            relayrl.make_env(f"unity:{port}")
        env.close()
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    with pytest.raises(RelayRLError, match=r"no message from it within 1 s; press Play|it closed the connection"):
        make_vector(f"unity:{port}", EnvSettings(start_timeout_s=1.0))


def test_a_simulator_that_hangs_up_is_an_error(connecting) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    process = connecting(port)
    env = make_vector(f"unity:{port}", EnvSettings(step_timeout_s=5.0))
    played(env, 5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    with pytest.raises(EnvironmentFailedError, match=f"simulator on port {port} is gone"):
        played(env)


def test_a_port_has_one_simulator() -> None:
    with pytest.raises(ConfigError, match="is one simulator, num_envs says 3"):
        relayrl.make_env("unity:5004", num_envs=3)


FORKS = """
import subprocess, sys
from relayrl.envs.unity.simulator_link import SimulatorLink
link = SimulatorLink("localhost", int(sys.argv[1]))
print({subprocess.run(["true"], preexec_fn=int).returncode for _ in range(20)})
link.close()
"""


def test_a_process_with_a_simulator_starts_others_without_grpc_in_between() -> None:
    """With its handlers of fork(), which say so on stderr, a child in a hundred aborts or hangs: Ray's servers, for one."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", FORKS, str(free_port())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "{0}"
    assert "fork" not in done.stderr
