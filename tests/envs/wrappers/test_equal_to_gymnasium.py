"""Wrappers over all environments at once give the numbers of Gymnasium's, which wrap one."""

from __future__ import annotations

import hashlib
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from wrapped_environments import Nested, Pictures

import relayrl
from relayrl.envs.environment_contract import VectorEnvironment, env_seeds
from relayrl.envs.wrappers.area_resize import AreaResize

NUM_ENVS, SEED, NUM_STEPS = 3, 5, 120


def actions() -> Any:
    return np.random.default_rng(2).integers(0, 2, (NUM_STEPS, NUM_ENVS, 1))


def assert_like_one_by_one(env: VectorEnvironment, singles: list[gymnasium.Env[Any, Any]]) -> None:
    """Observations, rewards, flags and last observations of `env` are those of `singles`, episode after episode."""
    group = env.groups["agent"]
    assert group.observation_space == singles[0].observation_space
    seen = env.reset(seed=SEED).groups["agent"].obs[:, 0]
    for b, (single, seed) in enumerate(zip(singles, env_seeds(SEED, NUM_ENVS), strict=True)):
        np.testing.assert_array_equal(seen[b], single.reset(seed=seed)[0])
    num_ends = 0
    for row in actions():
        step = env.step({"agent": row}).groups["agent"]
        final = {} if step.final is None else dict(zip(step.final.env.tolist(), step.final.obs, strict=True))
        for b, single in enumerate(singles):
            obs, reward, terminated, truncated, _ = single.step(row[b, 0])
            assert step.reward[b, 0] == np.float32(reward)
            assert bool(step.terminated[b, 0]) == terminated
            if terminated or truncated:
                np.testing.assert_array_equal(final[b], obs)
                obs, num_ends = single.reset()[0], num_ends + 1
            np.testing.assert_array_equal(step.obs[b, 0], obs)
    assert num_ends > 3
    env.close()


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("make", ["CartPole-v1", Pictures], ids=["vector of its own", "one by one"])
def test_frames_are_stacked_like_gymnasiums(make: Any, padding: str) -> None:
    options = {"stack_size": 3, "padding_type": padding}
    env = relayrl.make_env(make, num_envs=NUM_ENVS, wrappers=[{"FrameStackObservation": options}])
    singles = [
        gymnasium.wrappers.FrameStackObservation(make() if callable(make) else gymnasium.make(make), **options)
        for _ in range(NUM_ENVS)
    ]
    assert_like_one_by_one(env, singles)


@pytest.mark.parametrize(
    ("name", "options"),
    [("GrayscaleObservation", {}), ("GrayscaleObservation", {"keep_dim": True}), ("ClipReward", {"max_reward": 1})],
)
def test_pictures_and_rewards_are_changed_like_gymnasiums(name: str, options: dict[str, Any]) -> None:
    env = relayrl.make_env(Pictures, num_envs=NUM_ENVS, wrappers=[{name: options}])
    assert_like_one_by_one(env, [getattr(gymnasium.wrappers, name)(Pictures(), **options) for _ in range(NUM_ENVS)])


def test_nested_observations_are_flattened_like_gymnasiums() -> None:
    env = relayrl.make_env(Nested, num_envs=NUM_ENVS, wrappers=["FlattenObservation"])
    assert_like_one_by_one(env, [gymnasium.wrappers.FlattenObservation(Nested()) for _ in range(NUM_ENVS)])


def test_rewards_are_normalised_like_those_of_gymnasiums_vector() -> None:
    env = relayrl.make_env(Pictures, num_envs=NUM_ENVS, wrappers=[{"NormalizeReward": {"gamma": 0.9}}])
    theirs = gymnasium.wrappers.vector.NormalizeReward(
        SyncVectorEnv([Pictures] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP), gamma=0.9
    )
    env.reset(seed=SEED)
    theirs.reset(seed=env_seeds(SEED, NUM_ENVS))
    for row in actions():
        reward = theirs.step(row[:, 0])[1]
        np.testing.assert_array_equal(env.step({"agent": row}).groups["agent"].reward[:, 0], reward.astype(np.float32))


def test_observations_of_one_environment_are_normalised_like_gymnasiums() -> None:
    env = relayrl.make_env("CartPole-v1", num_envs=1, wrappers=["NormalizeObservation"])
    theirs = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))
    obs, _ = theirs.reset(seed=env_seeds(SEED, 1)[0])
    np.testing.assert_allclose(env.reset(seed=SEED).groups["agent"].obs[0, 0], obs, rtol=1e-6)
    for row in actions()[:, :1]:
        obs, _, terminated, truncated, _ = theirs.step(int(row[0, 0]))
        if terminated or truncated:
            obs, _ = theirs.reset()
        np.testing.assert_allclose(env.step({"agent": row}).groups["agent"].obs[0, 0], obs, rtol=1e-4, atol=1e-5)


def picture(*shape: int) -> Any:
    count = np.arange(np.prod(shape), dtype=np.int64)
    return (count**2 * 7919 % 251 + count % 5).astype(np.uint8).reshape(shape)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((10, 8), (4, 3), [[112, 160, 188], [180, 132, 141], [116, 122, 89], [170, 130, 128]]),
        ((8, 8), (4, 4), [[82, 168, 167, 203], [187, 133, 116, 135], [166, 160, 126, 131], [84, 123, 136, 63]]),
    ],
)
def test_pictures_shrink_to_what_opencv_makes_of_them(old: Any, new: Any, expected: Any) -> None:
    assert AreaResize(old, new)(picture(*old), has_channels=False).tolist() == expected


@pytest.mark.parametrize(
    ("shape", "new", "digest"),
    [
        ((210, 160), (84, 84), "4d2e23b12a86c855"),
        ((96, 96, 3), (64, 64), "a7341307ee4320d9"),
        ((210, 160, 3), (84, 84), "2033e47b1629833b"),
        ((96, 96), (48, 48), "c3156c798feae72e"),
    ],
)
def test_whole_screens_shrink_to_opencvs_bytes(shape: Any, new: Any, digest: str) -> None:
    """Digests of `cv2.resize(..., interpolation=cv2.INTER_AREA)`, OpenCV 5.0."""
    small = AreaResize(shape[:2], new)(picture(*shape), has_channels=len(shape) == 3)
    assert hashlib.sha256(small.tobytes()).hexdigest()[:16] == digest


def test_an_environment_of_pictures_is_resized_in_one_call() -> None:
    env = relayrl.make_env(Pictures, num_envs=NUM_ENVS, wrappers=[{"ResizeObservation": {"shape": [6, 5]}}])
    plain = relayrl.make_env(Pictures, num_envs=NUM_ENVS)
    whole, small = plain.reset(seed=1).groups["agent"].obs, env.reset(seed=1).groups["agent"].obs
    assert small.shape == (NUM_ENVS, 1, 6, 5, 3)
    means = whole.reshape(NUM_ENVS, 1, 6, 2, 5, 2, 3).mean(axis=(3, 5))
    np.testing.assert_array_equal(small, np.floor(means + 0.5).astype(np.uint8))


def test_a_game_is_preprocessed_like_gymnasiums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames skipped, the brighter of two, beginnings without action; OpenCV's part is held above."""

    def resize(screen: Any, size: Any, interpolation: int) -> Any:
        return AreaResize(screen.shape, size)(screen, has_channels=False)

    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(resize=resize, INTER_AREA=3))
    game = {"atari": {"life_loss": False, "fire": False, "stack": 1, "clip_reward": False}}
    env = relayrl.make_env("ALE/Breakout-v5", num_envs=1, wrappers=[game])
    theirs = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Breakout-v5", frameskip=1))
    obs, _ = theirs.reset(seed=env_seeds(SEED, 1)[0])
    np.testing.assert_array_equal(env.reset(seed=SEED).groups["agent"].obs[0, 0], obs)
    rewards = num_ends = 0
    for action in np.random.default_rng(0).integers(0, 4, 400):
        obs, reward, terminated, _, _ = theirs.step(int(action))
        step = env.step({"agent": np.array([[action]])}).groups["agent"]
        if terminated:
            obs, num_ends = theirs.reset()[0], num_ends + 1
        assert (float(step.reward[0, 0]), bool(step.terminated[0, 0])) == (reward, terminated)
        np.testing.assert_array_equal(step.obs[0, 0], obs)
        rewards += reward
    assert rewards > 0
    assert num_ends > 0
    env.close()
