"""Wrappers by settings, around every kind of environment: what agents see, what is saved, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from wrapped_environments import Lives, Pictures, Told

import relayrl
from relayrl.accelerator.live_actor import live_actor
from relayrl.config.settings import parse_settings
from relayrl.engines.local.run_parts import build_parts
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.environment_contract import StatefulEnvironment, VectorEnvironment, VectorStep
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.wrappers.wrapper_names import is_installed_wrapper, parse_wrap
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.runtime.evaluation import evaluate
from relayrl.testing import check_environment

STACK = {"FrameStackObservation": {"stack_size": 2}}
COUNTING = "relayrl.testing:CountingEnv"


def made(env: Any, **values: Any) -> VectorEnvironment:
    return make_vector(env, parse_settings(EnvSettings, {"num_envs": 2, **values}))


def seen(env: VectorEnvironment, group: str = "agent") -> Any:
    return env.build_observation().groups[group].obs


def still(env: VectorEnvironment) -> dict[str, Any]:
    """Actions of all zeros."""
    return {
        name: np.zeros((env.num_envs, group.num_agents, *group.action_space.shape), group.action_space.dtype)
        for name, group in env.groups.items()
    }


def played(env: VectorEnvironment, num_steps: int) -> Iterator[VectorStep]:
    """Steps, each to be looked at before the next is taken."""
    for _ in range(num_steps):
        yield env.step(still(env))


def test_a_lost_life_ends_the_lane_and_not_the_episode() -> None:
    env = made(Lives)
    env.reset(seed=0)
    ends = [(bool(step.groups["agent"].terminated[0, 0]), bool(step.episode_over[0])) for step in played(env, 6)]
    assert ends == [(False, False), (True, False)] * 2 + [(False, False), (True, True)]
    assert seen(env)[0, 0, 0] == 0
    assert check_environment(lambda count: made(Lives, num_envs=count)).passed


def test_returns_are_scores_of_whole_games_while_rewards_are_clipped() -> None:
    flags = {
        "environment.num_envs": 2,
        "trainer.time_horizon": 12,
        "environment.wrappers": [{"ClipReward": {"max_reward": 1}}],
    }
    parts = build_parts(build_run_settings("wrapped_environments:Lives", None, flags, []))
    rollout = parts.collector.collect(0)["agent"]
    assert rollout.reward.max() == 1.0
    assert [len(each.reward) for each in rollout.trajectories()] == [2] * 12  # lives, which are learned from
    assert parts.collector.take_episodes() == ([30.0] * 4, [6] * 4)
    actors = {name: live_actor(policy) for name, policy in parts.policies.items()}
    result = evaluate(parts.env, actors, episodes=4, seed=0)
    assert (result.returns, result.lengths) == ((30.0,) * 4, (6,) * 4)
    parts.env.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_stacks_go_on_exactly_from_a_saved_state(workers: int) -> None:
    values = {"workers": workers, "wrappers": [STACK, "NormalizeReward"], "max_episode_steps": 9}
    env, again = (made("Acrobot-v1", **values) for _ in range(2))
    assert isinstance(env, StatefulEnvironment)
    assert isinstance(again, StatefulEnvironment)
    env.reset(seed=3)
    again.reset(seed=4)
    for _ in range(7):
        env.step(still(env))
    again.set_state(env.get_state())
    np.testing.assert_array_equal(seen(env), seen(again))
    for _ in range(20):
        one, other = env.step(still(env)), again.step(still(env))
        np.testing.assert_array_equal(one.groups["agent"].obs, other.groups["agent"].obs)
        np.testing.assert_array_equal(one.groups["agent"].reward, other.groups["agent"].reward)
        np.testing.assert_array_equal(one.episode_over, other.episode_over)
    env.close()
    again.close()


@pytest.mark.parametrize(
    "wrappers",
    [
        [STACK, {"ReshapeObservation": {"shape": [4]}}],
        [{"TimeLimit": {"max_episode_steps": 4}}, "NormalizeObservation", {"ReshapeObservation": {"shape": [1, 1]}}],
    ],
    ids=["a stack within", "a limit and moments within"],
)
def test_wrappers_of_single_environments_are_saved_too(wrappers: Any) -> None:
    if wrappers[0] is STACK:
        env, again = (made("MountainCar-v0", wrappers=wrappers) for _ in range(2))
    else:
        env, again = (made(COUNTING, options={"terminate_at": 11}, wrappers=wrappers) for _ in range(2))
    env.reset(seed=1)
    for _ in range(3):
        env.step(still(env))
    again.set_state(env.get_state())  # type: ignore[attr-defined]
    for _ in range(9):
        one, other = env.step(still(env)), again.step(still(env))
        np.testing.assert_array_equal(one.groups["agent"].obs, other.groups["agent"].obs)
        np.testing.assert_array_equal(one.episode_over, other.episode_over)


def test_a_game_goes_on_exactly_from_a_saved_state() -> None:
    env, again = (made("ALE/Breakout-v5", wrappers=["atari"]) for _ in range(2))
    assert env.groups["agent"].observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
    draw = np.random.default_rng(0)
    env.reset(seed=3)
    again.reset(seed=4)
    for _ in range(30):
        env.step({"agent": draw.integers(0, 4, (2, 1))})
    again.set_state(env.get_state())  # type: ignore[attr-defined]
    num_lives = 0
    for _ in range(100):
        actions = {"agent": draw.integers(0, 4, (2, 1))}
        one, other = env.step(actions), again.step(actions)
        np.testing.assert_array_equal(one.groups["agent"].obs, other.groups["agent"].obs)
        np.testing.assert_array_equal(one.groups["agent"].terminated, other.groups["agent"].terminated)
        num_lives += int((one.groups["agent"].terminated[:, 0] & ~one.episode_over).sum())
    assert num_lives > 0
    env.close()
    again.close()


def test_dying_agents_and_turns_are_stacked_lane_by_lane() -> None:
    env = made("relayrl.testing:TakingTurns", wrappers=[STACK])
    plain = made("relayrl.testing:TakingTurns")
    shown = env.reset(seed=0).groups
    raw = plain.reset(seed=0).groups
    last: dict[str, Any] = {}
    num_compared = 0
    for _ in range(30):
        for name, view in raw.items():
            for b, n in np.argwhere(view.active):
                frames, key = shown[name].obs[b, n], f"{name}{b}{n}"
                np.testing.assert_array_equal(frames[-1], view.obs[b, n])
                np.testing.assert_array_equal(frames[0], last.get(key, view.obs[b, n]))
                last[key] = view.obs[b, n].copy()
                num_compared += key in last
        step, whole = env.step(still(env)), plain.step(still(plain))
        shown, raw = step.groups, whole.groups
        for b in np.flatnonzero(whole.episode_over):
            last = {key: own for key, own in last.items() if key[-2] != str(b)}
        for name, group in whole.groups.items():
            if group.final is not None:
                assert step.groups[name].final is not None
                np.testing.assert_array_equal(step.groups[name].final.obs[:, -1], group.final.obs)  # type: ignore[union-attr]
    assert num_compared > 20


@pytest.mark.parametrize("env", ["relayrl.testing:DyingAgents", "relayrl.testing:MaskedBandit", "native:simple_spread"])
def test_wrapped_environments_keep_the_contract(env: str) -> None:
    report = check_environment(lambda count: made(env, num_envs=count, wrappers=[STACK], flatten=True))
    report.raise_if_failed()


def test_pettingzoos_own_wrappers_are_applied_before_the_adapter() -> None:
    wrapper = "pettingzoo.utils.wrappers:BaseParallelWrapper"
    env = made("mpe2:simple_spread_v3", wrappers=[wrapper, STACK])
    group = env.groups["agent"]
    assert group.observation_space.shape == (2, 18)
    env.reset(seed=0)
    assert env.step(still(env)).groups["agent"].obs.shape == (2, 3, 2, 18)


def test_a_users_function_wraps_with_arguments_also_in_workers() -> None:
    wrappers = [{"wrapped_environments:doubled": {"factor": 3.0}}]
    for workers in (0, 1):
        env = made("CartPole-v1", workers=workers, wrappers=wrappers)
        env.reset(seed=0)
        assert env.step(still(env)).groups["agent"].reward.tolist() == [[3.0], [3.0]]
        env.close()


def test_keys_are_dropped_and_what_is_left_is_flattened() -> None:
    env = made(Told, ignore_keys=["text"])
    assert env.groups["agent"].observation_space == spaces.Dict({"numbers": spaces.Box(-1, 1, (3,), np.float32)})
    flat = made(Told, ignore_keys=["text"], flatten=True)
    assert flat.reset(seed=0).groups["agent"].obs.tolist() == [[[1.0] * 3]] * 2
    assert made(Told).groups["agent"].observation_space["text"] == spaces.MultiDiscrete([128] * 16)  # tokens
    with pytest.raises(ConfigError, match="no key 'speech' to ignore; its keys are numbers, text"):
        made(Told, ignore_keys=["speech"])


@pytest.mark.parametrize(
    ("env", "values"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("Pendulum-v1", {"wrappers": [{"RepeatAction": {"num_repeats": 2}}]}),
        (COUNTING, {"options": {"terminate_at": None}}),
        ("mpe2:simple_spread_v3", {}),
    ],
    ids=str,
)
def test_episodes_are_truncated_after_max_episode_steps(env: str, values: Any) -> None:
    limited = made(env, max_episode_steps=3, **values)
    limited.reset(seed=0)
    ends = [
        (bool(step.episode_over.all()), all(group.truncated.all() for group in step.groups.values()))
        for step in played(limited, 6)
    ]
    assert ends == [(False, False), (False, False), (True, True)] * 2


def test_a_limit_of_gymnasiums_gives_way_to_a_longer_one() -> None:
    env = made("Pendulum-v1", max_episode_steps=300)
    env.reset(seed=0)
    assert [t for t in range(1, 301) if env.step(still(env)).episode_over.any()] == [300]


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'FrameStackObservation'"):
        made("CartPole-v1", wrappers=["FrameStackObservatio"])
    with pytest.raises(ConfigError, match="GrayscaleObservation needs pictures of uint8"):
        made("CartPole-v1", wrappers=["GrayscaleObservation"])
    with pytest.raises(ConfigError, match="cannot be enlarged"):
        made(Pictures, wrappers=[{"ResizeObservation": {"shape": [200, 200]}}])
    with pytest.raises(ConfigError, match="steps all environments in one call"):
        made("native:simple_spread", wrappers=["TimeAwareObservation"])
    with pytest.raises(ConfigError, match=r"stack 'atari' of wrappers.*'skip'"):
        made("ALE/Pong-v5", wrappers=[{"atari": {"skip": 2}}])
    with pytest.raises(ConfigError, match="limits their episodes itself"):
        made("native:simple_spread", max_episode_steps=5)
    with pytest.raises(ConfigError, match=r"set environment.wrappers=\[\] or environment.vector"):
        made("ALE/Pong-v5", wrappers=["atari"], vector="own")


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("atari", {"atari": {}}),
        ("Stack=size=4,padding_type=zero", {"Stack": {"size": 4, "padding_type": "zero"}}),
        ("a.b:C=shape=[84, 84],keep=true", {"a.b:C": {"shape": [84, 84], "keep": True}}),
        ('ClipReward={"min_reward": -1, "max_reward": 1.5}', {"ClipReward": {"min_reward": -1, "max_reward": 1.5}}),
    ],
)
def test_wrappers_are_read_from_the_command_line(text: str, entry: Any) -> None:
    assert parse_wrap(text) == entry


def test_only_wrappers_of_known_packages_are_trusted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed_wrapper("gymnasium.wrappers:FrameStackObservation")
    assert not is_installed_wrapper("gymnasium.wrappers:RecordVideo")
    assert not is_installed_wrapper("os:system")
    assert not is_installed_wrapper("gymnasium.wrappers:utils.x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minigrid").mkdir()
    (tmp_path / "minigrid" / "__init__.py").write_text("")
    assert not is_installed_wrapper("minigrid.wrappers:ImgObsWrapper")


def test_minigrid_is_an_environment_by_its_plain_name_and_stack() -> None:
    env = relayrl.make_env("MiniGrid-Empty-5x5-v0", num_envs=2, wrappers=["minigrid"])
    assert env.reset(seed=0).groups["agent"].obs.shape == (2, 1, 7, 7, 3)
    env.close()
