"""pong and soccer: rules, with numbers, and that both sides see the same game."""

import numpy as np
import pytest

from relayrl.envs import native


def begun(name, **state):
    """One world with some of its arrays set, `[…]` without the world axis."""
    env = native.make(name, dtype="float64")
    env.init_num_envs(1)
    env.reset(seed=0)
    now = env.get_state()
    now |= {key: np.array([value], now[key].dtype).reshape(now[key].shape) for key, value in state.items()}
    env.set_state(now)
    return env


def step(env, *actions):
    return env.step({"player": np.array([actions])})


def test_who_misses_the_ball_loses_what_the_other_wins():
    env = begun("pong", ball=[0.98, 0.9], velocity=[0.05, 0.0], paddles=[0.0, -0.5])
    result = step(env, 0, 0)
    assert result.groups["player"].reward.tolist() == [[1.0, -1.0]]
    assert result.groups["player"].terminated.all()
    assert result.episode_over.all()


def test_a_paddle_sends_the_ball_back_faster_and_as_steeply_as_it_was_hit():
    env = begun("pong", ball=[-0.98, 0.1], velocity=[-0.05, 0.0], paddles=[0.0, 0.0])
    result = step(env, 0, 0)
    assert not result.episode_over.any()
    left = result.groups["player"].obs[0, 0]
    assert left[0] == pytest.approx(-0.97)  # 0.03 beyond the line, and as much back
    assert left[2] == pytest.approx(0.055 / 0.16)
    assert left[3] == pytest.approx(0.5)  # half of the paddle above its middle


@pytest.mark.parametrize("name", ["pong", "soccer"])
def test_both_sides_see_the_same_game_mirrored(name):
    """What the left side sees when it and the right side are exchanged is what the right side saw."""
    env = native.make(name, dtype="float64")
    env.init_num_envs(4)
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(5):
        env.step({"player": rng.integers(0, 3, (4, env.groups["player"].num_agents))})
    seen, state = env.build_observation().groups["player"].obs.copy(), env.get_state()
    half = seen.shape[1] // 2
    mirrored = dict(state)
    for key in ("ball", "velocity"):
        mirrored[key] = state[key] * np.array([-1.0, 1.0])
    if name == "pong":
        mirrored["paddles"] = state["paddles"][:, ::-1].copy()
    else:
        mirrored["position"] = np.roll(state["position"], half, axis=1) * np.array([-1.0, 1.0])
    env.set_state(mirrored)
    swapped = env.build_observation().groups["player"].obs
    np.testing.assert_allclose(swapped, np.roll(seen, half, axis=1), atol=1e-7)


def test_a_goal_pays_every_player_of_the_team_that_scored_and_costs_the_others():
    env = begun("soccer", ball=[0.95, 0.0], velocity=[0.1, 0.0], position=[[-0.5, 0.5]] * 4)
    result = step(env, 0, 0, 0, 0)
    assert result.groups["player"].reward.tolist() == [[1.0, 1.0, -1.0, -1.0]]
    assert result.episode_over.all()


def test_beside_the_goal_the_ball_comes_back():
    env = begun("soccer", ball=[0.95, 0.5], velocity=[0.1, 0.0], position=[[-0.5, -0.5]] * 4)
    result = step(env, 0, 0, 0, 0)
    assert not result.episode_over.any()
    assert env.get_state()["ball"][0].tolist() == pytest.approx([0.95, 0.5])
    assert env.get_state()["velocity"][0, 0] < 0


def test_who_touches_the_ball_kicks_it_away_from_itself():
    env = begun(
        "soccer", ball=[0.0, 0.0], velocity=[0.0, 0.0], position=[[-0.1, 0.0], [-0.9, 0.5], [0.9, 0.5], [0.9, -0.5]]
    )
    step(env, 0, 0, 0, 0)
    ball = env.get_state()["ball"][0]
    assert ball[0] == pytest.approx(0.15, abs=1e-4)
    assert ball[1] == pytest.approx(0.0)


def test_both_games_can_be_drawn():
    for name in ("pong", "soccer"):
        env = begun(name)
        assert env.render(0).std() > 5
