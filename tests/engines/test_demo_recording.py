"""Demonstrations by keys and by policies: what each key does, whole episodes only, any sink."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import relayrl as rl
from relayrl.engines.demos.demo_recording import demo_env, record_keys
from relayrl.engines.demos.key_actor import ScriptedKeys
from relayrl.engines.demos.key_map import KeyMap
from relayrl.errors import ConfigError
from relayrl.testing import FollowSignal

sys.path.append(str(Path(__file__).parent.parent))
from cli_in_process import relayrl, short_run

BOX = spaces.Box(np.array([-2, 1], np.float32), np.array([2, 3], np.float32))


@pytest.mark.parametrize(
    ("space", "keys", "pressed", "action"),
    [
        (spaces.Discrete(2), None, ["right"], 1),
        (spaces.Discrete(3), None, [], 1),
        (spaces.Discrete(3, start=-1), None, ["left"], -1),
        (spaces.Discrete(5), None, ["4"], 4),
        (spaces.Discrete(4), "w=3,s=1,idle=2", ["w"], 3),
        (spaces.Discrete(4), "w=3,s=1,idle=2", ["x"], 2),
        (spaces.MultiDiscrete([3, 2]), None, ["right", "down"], [2, 1]),
        (spaces.MultiDiscrete([3, 2], start=[1, 0]), "a=0:3", ["a"], [3, 0]),
        (spaces.MultiBinary(3), None, ["0", "2"], [1, 0, 1]),
        (BOX, None, ["left"], [-2, 2]),  # the second has no zero: its middle
        (BOX, "left=0:-1,right=0:1,up=1:3", ["left", "right", "up"], [0, 3]),
        (BOX, "right=0:5", ["right"], [2, 2]),
    ],
)
def test_keys_are_actions(space, keys, pressed, action):
    found = KeyMap.of(space, keys).action(pressed)
    np.testing.assert_array_equal(found, action)
    assert space.contains(found) or isinstance(space, spaces.Discrete)


@pytest.mark.parametrize(
    ("space", "keys"),
    [
        (spaces.Discrete(2), "left=2"),
        (spaces.Discrete(2), "left"),
        (spaces.Discrete(2), "left=0:1"),
        (spaces.Discrete(2), "idle=7"),
        (BOX, "left=1"),
        (BOX, "left=2:1"),
        (BOX, "left=0:nan"),
        (spaces.MultiDiscrete([2]), "a=0:2"),
        (spaces.Dict({"a": BOX}), None),
    ],
)
def test_keys_of_actions_that_do_not_exist_are_refused(space, keys):
    with pytest.raises(ConfigError, match="keys"):
        KeyMap.of(space, keys)


def recorded(url):
    with rl.open_source(url) as source:
        return list(source)


def test_only_whole_episodes_are_kept(tmp_path):
    """Eight steps each: of twenty scripted ones, two episodes, and four steps that are given up."""
    url, keys = f"sqlite:{tmp_path}/demos.db", ScriptedKeys([["right"]] * 12 + [["left"]] * 8)
    env = demo_env(lambda: FollowSignal(action_space=spaces.Discrete(2)), {})
    found = record_keys(env, keys, url, key_map=None, episodes=5, seed=3)
    env.close()
    first, second = recorded(url)
    assert found.lengths == (8, 8)
    assert first.action.tolist() == [1] * 8
    assert second.action.tolist() == [1] * 4 + [0] * 4
    assert (first.obs[:, 0] > 0).tolist() == (first.reward == 1.0).tolist()
    assert first.truncated
    assert [sum(first.reward), sum(second.reward)] == list(found.returns)


def test_a_forbidden_key_gives_what_is_allowed(tmp_path):
    url = f"arrow:{tmp_path}/demos"
    env = demo_env(lambda: FollowSignal(action_space=spaces.Discrete(4), masks=True), {})  # 1 and 2 are forbidden
    record_keys(env, ScriptedKeys([["1"], ["2"], ["3"], []] * 2), url, key_map="1=1,2=2,3=3,idle=2", episodes=1, seed=0)
    env.close()
    (one,) = recorded(url)
    assert one.action.tolist() == [0, 0, 3, 0] * 2
    assert one.action_mask.sum(1).tolist() == [2] * 8


def test_keys_play_one_agent(tmp_path):
    env = demo_env("native:simple_spread", {})
    with pytest.raises(ConfigError, match="keys play one agent, and the environment has 3"):
        record_keys(env, ScriptedKeys([["left"]]), f"arrow:{tmp_path}/demos", key_map=None, episodes=1, seed=0)
    env.close()


def test_the_command_records_a_script_and_what_was_recorded_is_cloned(tmp_path):
    """Pendulum by keys: continuous actions, and the record trains a policy."""
    script, url = tmp_path / "keys.txt", f"csv:{tmp_path}/demos"
    script.write_text("left\nright\n\nleft right\n" * 50)
    options = ["--to", url, "--script", str(script), "--keys", "left=0:-2,right=0:1.5", "--episodes", "1", "--json"]
    done = relayrl("demo", "record", "native:Pendulum", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["lengths"] == [200]
    (one,) = recorded(url)
    np.testing.assert_array_equal(one.action[:4, 0], np.array([-2, 1.5, 0, -0.5], np.float32))
    done = relayrl(
        "train",
        "native:Pendulum",
        "--algo",
        "bc",
        "--from",
        url,
        "--steps",
        "512",
        "--quiet",
        "--run-dir",
        f"{tmp_path}/run",
    )
    assert done.returncode == 0, done.stderr


def test_policies_are_recorded_without_a_person(tmp_path):
    short_run(str(tmp_path / "run"))
    url = f"arrow:{tmp_path}/demos"
    found = rl.record_demonstrations("native:CartPole", url, policy=tmp_path / "run", episodes=3, seed=5)
    again = rl.record_demonstrations("native:CartPole", url, policy=tmp_path / "run", episodes=3, seed=5)
    assert found.lengths == again.lengths
    trajectories = recorded(url)
    assert len(trajectories) == 6  # the second time adds to the first
    assert sorted(len(each) for each in trajectories) == sorted(found.lengths * 2)
    policy = rl.load_run(tmp_path / "run").policy
    np.testing.assert_array_equal(policy.act_greedily(trajectories[0].obs), trajectories[0].action)
    with pytest.raises(ConfigError, match="other spaces"):
        rl.record_demonstrations("native:Pendulum", url, policy=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["native:CartPole", "--script", "nothing-here"], "nothing-here"),
        (["native:CartPole", "--policy", "nothing-here"], "nothing-here"),
        (["native:CartPole", "--policy", "x", "--keys", "a=1"], "leave out --keys"),
        (["native:CartPole", "--to", "nowhere", "--script", __file__], "no URL of a sink"),
    ],
)
def test_mistakes_are_one_line(options, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = relayrl("demo", "record", *options)
    assert done.returncode in (1, 2)
    assert complaint in done.complaint


def test_the_window_is_read(tmp_path, monkeypatch):
    """The keyboard through pygame without a display: events are posted, and escape ends the recording."""
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    from relayrl.engines.demos.keyboard import PygameKeys
    from relayrl.envs.rendering import RenderMode

    env = demo_env("CartPole-v1", {"max_episode_steps": 4}, render=RenderMode.RGB_ARRAY)
    window = PygameKeys("test", frames_per_s=1000.0)
    steps = iter(["+right", "", "-right", "", "+left", "-left", "", "", "+escape"])

    def post():
        event = next(steps, "")
        if event:
            kind = pygame.KEYDOWN if event[0] == "+" else pygame.KEYUP
            pygame.event.post(pygame.event.Event(kind, key=pygame.key.key_code(event[1:])))

    show = window.show
    monkeypatch.setattr(window, "show", lambda: (show(), post()))
    try:
        found = record_keys(env, window, f"arrow:{tmp_path}/demos", key_map=None, episodes=9, seed=0)
    finally:
        window.close()
        env.close()
    assert found.lengths == (4, 4)
    actions = [each.action.tolist() for each in recorded(f"arrow:{tmp_path}/demos")]
    assert actions == [[1, 1, 0, 0], [0, 0, 0, 0]]
