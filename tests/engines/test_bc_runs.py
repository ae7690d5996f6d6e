"""Behavioral cloning from outside: every action space, masks, groups, memory; killed, resumed, exported, gone on from."""

import os
import signal
import subprocess
import sys
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces

import relayrl
from relayrl.errors import ConfigError, TrainingDivergedError
from relayrl.testing import FollowSignal
from waiting import wait_until

SMALL = {"hidden_sizes": [32], "statistics.tensorboard": False, "evaluation.episodes": 8, "time_horizon": 64}
SPACES = {
    "discrete": spaces.Discrete(4, start=2),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
    "grid": spaces.Box(-1.0, 3.0, (2, 2), np.float32),
    "hybrid": None,
    "masked": spaces.MultiDiscrete([3, 4]),
}


def toy(name):
    return FollowSignal(action_space=SPACES[name], masks=name == "masked")


def demonstrate(url, name, episodes=16):
    """What `right_action` does, by a program of the user's."""
    env, num_steps = toy(name), 8
    width = 7 if name == "masked" else None
    header = relayrl.extend.LaneHeader("agent", (UUID(int=1),), ("me",), env.observation_space, env.action_space)
    builder = relayrl.extend.TrajectoryBuilder(header, max_length=100, mask_width=width)
    with relayrl.open_sink(url) as sink:
        for episode in range(episodes):
            seen, info = env.reset(seed=episode)
            for _ in range(num_steps):
                action = env.right_action()
                builder.record_action(seen, action, info.get("action_mask"))
                seen, reward, _, _, info = env.step(action)
                builder.record_reward(reward)
            sink.write([builder.end(False, True, seen)])


def cloned(env, url, path, *, steps=6_000, **settings):
    given = {"algo": "bc", "steps": steps, "run_dir": path, "progress": False}
    return relayrl.train(env, settings=SMALL | {"learn_from": url} | settings, **given)


@pytest.mark.parametrize("name", SPACES)
def test_actions_of_every_space_are_cloned(name, tmp_path):
    url = f"arrow:{tmp_path}/demos"
    demonstrate(url, name)
    run = cloned(lambda: toy(name), url, tmp_path / "run", **{"params.batch_size": 32, "params.pi_lr": 1e-2})
    assert run.result.mean_return > 7.5  # of 8; without the signal 4
    losses = run.history["policy/loss"]
    assert losses[-1] < losses[0] - 0.3
    signal_high = run.policy.act(np.array([1.0], np.float32), mask=allowed(name))
    assert world_height(name, signal_high) > 0.9  # the exported policy


def allowed(name):
    return np.array([1, 0, 1, 1, 0, 0, 1], bool) if name == "masked" else None


def world_height(name, action):
    env = toy(name)
    env.reset(seed=0)
    while env.build_observation()[0] < 0:
        env.step(env.right_action())
    return env.step(action).reward


@pytest.fixture(scope="module")
def tag(tmp_path_factory):
    """Records of two groups."""
    folder = tmp_path_factory.mktemp("tag")
    url = f"sqlite:{folder}/demos.db"
    settings = SMALL | {"record": url, "train_pi_iters": 1, "train_vf_iters": 1}
    relayrl.train("native:simple_tag", steps=256, num_envs=2, run_dir=folder / "run", settings=settings, progress=False)
    return url


def test_two_groups_are_cloned_each_from_its_own_agents(tag, tmp_path):
    run = cloned("native:simple_tag", tag, tmp_path / "run", steps=4096, num_envs=2, **{"params.batch_size": 64})
    groups = [name for name in run.history if name.endswith("policy/loss")]
    assert len(groups) == len(run.policies) == 2
    for name in groups:  # actions were nearly uniform, which is what is left to learn
        assert run.history[name][-1] < np.log(5) + 0.02
    same = cloned("native:simple_tag", tag, tmp_path / "same", steps=4096, num_envs=2, **{"params.batch_size": 64})
    assert same.result.parameter_hash == run.result.parameter_hash


def test_a_killed_run_that_is_resumed_equals_one_that_was_not(tag, tmp_path):
    """With minibatches of a size that no pass ends with, and a memory."""
    flags = ["--algo", "bc", "--from", tag, "--steps", "60000", "--num-envs", "2", "--quiet"]
    values = ["batch_size=48", "hidden_sizes=[8]", "memory={size: 8, sequence_length: 8}"]
    values += ["checkpoint_interval=256", "time_horizon=64", "tensorboard=false", "evaluation.episodes=1"]
    command = [sys.executable, "-m", "relayrl", "train", "native:simple_tag", *flags]
    command += [word for value in values for word in ("--set", value)]
    child = subprocess.Popen([*command, "--run-dir", str(tmp_path / "killed")])
    try:
        wait_until(lambda: len(list((tmp_path / "killed" / "checkpoints").glob("step_*.ckpt"))) > 2)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
    newest = max((tmp_path / "killed" / "checkpoints").glob("step_*.ckpt"))
    stop = int(newest.stem.removeprefix("step_")) + 512
    settings = {"trainer.max_steps": stop}
    hashes = []
    for name, more in {"killed": {"resume": True}, "whole": {}}.items():
        given = {"algo": "bc", "progress": False, "run_dir": tmp_path / name, "num_envs": 2} | more
        own = {"learn_from": tag, "params.batch_size": 48, "hidden_sizes": [8], "time_horizon": 64}
        own |= {"network.memory": {"size": 8, "sequence_length": 8}, "evaluation.episodes": 1}
        hashes.append(relayrl.train("native:simple_tag", settings=own | settings, **given).result.parameter_hash)
    assert hashes[0] == hashes[1]


def test_ppo_starts_from_what_was_cloned(tmp_path):
    """The actor is the clone; the critic is a fresh one."""
    url = f"csv:{tmp_path}/demos"
    demonstrate(url, "discrete")
    settings = {"params.batch_size": 32, "params.pi_lr": 1e-2, "normalize_observations": True}
    clone = cloned(lambda: toy("discrete"), url, tmp_path / "bc", **settings)
    given = {"steps": 64, "run_dir": tmp_path / "ppo", "progress": False, "init_from": tmp_path / "bc"}
    short = SMALL | {"normalize_observations": True, "train_pi_iters": 1, "train_vf_iters": 1, "num_envs": 1}
    warm = relayrl.train(lambda: toy("discrete"), algo="ppo", settings=short, **given)
    assert warm.history["episode/return_mean"][0] > 7.0
    assert clone.result.mean_return > 7.5


def test_what_bc_cannot_do_is_refused(tag, tmp_path):
    with pytest.raises(ConfigError, match="bc learns from recorded trajectories and never acts; name them with --from"):
        relayrl.train("native:simple_tag", algo="bc", run_dir=tmp_path / "a", progress=False)
    with pytest.raises(ConfigError, match="spaces"):
        cloned("native:CartPole", demonstrated_box(tmp_path), tmp_path / "b")
    with pytest.raises(ConfigError, match="takes no loss"):
        cloned("native:simple_tag", tag, tmp_path / "c", loss="builtins:dict")
    with pytest.raises(TrainingDivergedError, match=r"(loss became|not finite).*last good checkpoint"):
        cloned("native:simple_tag", tag, tmp_path / "d", **{"params.pi_lr": 1e30, "params.max_grad_norm": None})


def demonstrated_box(path):
    demonstrate(f"arrow:{path}/box", "box", episodes=1)
    return f"arrow:{path}/box"
