"""The client without our package, as another language would write it, against the real server."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from remote_parts import cartpole_server

import relayrl
from relayrl.data.raw_columns import decode_columns
from relayrl.errors import DecodeError
from waiting import DEADLINE_S

CLIENT = Path(__file__).parents[2] / "examples" / "standalone_client.py"


def test_it_needs_pyzmq_only_and_is_short():
    source = CLIENT.read_text()
    names = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert names - set(sys.stdlib_module_names) == {"zmq"}
    assert len(source.splitlines()) <= 150


def test_its_episodes_are_in_the_journal(tmp_path):
    server = cartpole_server(tmp_path)
    try:
        command = [sys.executable, str(CLIENT), server.address, "--episodes", "30"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("30 episodes are durable; policy ")
    with relayrl.open_source(f"arrow:{tmp_path / 'run' / 'journal'}") as source:
        stored = list(source)
    assert sorted(trajectory.episode for trajectory in stored) == list(range(30))
    for trajectory in stored:
        assert trajectory.obs.shape == (len(trajectory), 4)
        assert trajectory.terminated
        assert np.all(trajectory.reward == 1.0)
        assert np.all(trajectory.logp == np.float32(np.log(0.5)))
        np.testing.assert_allclose(
            trajectory.obs[1:, 0], trajectory.obs[:-1, 0] + 0.02 * trajectory.obs[:-1, 1], atol=1e-6
        )


SEEN, DONE = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3)
META = {
    "env_id": "12345678-1234-5678-1234-567812345678",
    "agent_id": "a",
    "episode": 4,
    "first_step": 7,
    "num_steps": 2,
}
META |= {"policy_version": 9, "terminated": True}
FRAMES = {
    "obs": np.array([[1, 2], [3, 4]], "<f4").tobytes(),
    "action": np.array([0, 2], "<i8").tobytes(),
    "reward": np.array([0.5, -1], "<f4").tobytes(),
    "final_obs": np.array([5, 6], "<f4").tobytes(),
}


def decoded(frames=FRAMES, observation_space=SEEN, **changes):
    header = {"columns": list(frames), "trajectory": META | changes}
    return decode_columns(header, list(frames.values()), "agent", observation_space, DONE)


def test_raw_columns_are_a_trajectory():
    (trajectory,) = decoded()
    assert trajectory.obs.tolist() == [[1, 2], [3, 4]]
    assert trajectory.action.tolist() == [0, 2]
    assert trajectory.reward.tolist() == [0.5, -1]
    assert trajectory.final_obs.tolist() == [5, 6]
    assert trajectory.policy_version.tolist() == [9, 9]
    assert (trajectory.episode, trajectory.first_step, trajectory.terminated, trajectory.truncated) == (
        4,
        7,
        True,
        False,
    )
    assert trajectory.logp is None


@pytest.mark.parametrize(
    ("frames", "changes"),
    [
        ({name: frame for name, frame in FRAMES.items() if name != "reward"}, {}),
        (FRAMES | {"extra": b""}, {}),
        (FRAMES | {"obs": b"\0" * 15}, {}),
        (FRAMES, {"num_steps": 3}),
        (FRAMES, {"num_steps": 2**40}),
        (FRAMES, {"num_steps": True}),
        (FRAMES, {"env_id": "x"}),
        (FRAMES, {"env_id": 5}),
        (FRAMES, {"episode": -1}),
        (FRAMES, {"policy_version": "1"}),
    ],
)
def test_other_columns_are_refused(frames, changes):
    with pytest.raises(DecodeError):
        decoded(frames, **changes)


def test_spaces_of_several_arrays_need_arrow():
    with pytest.raises(DecodeError, match="Arrow"):
        decoded(observation_space=spaces.Dict(a=SEEN))
