"""Parameters reach environments at the beginning of their episodes, drawn alike wherever the environments run."""

import numpy as np
import pytest
from gymnasium import spaces

import relayrl
from relayrl.config.settings import parse_settings
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.parameters.parameter_settings import require_no_lessons, values_of
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.extend import StatefulEnvironment
from relayrl.testing import Herd

UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 2.0, "max_value": 3.0}}
TWO_LESSONS = {
    "curriculum": [
        {"name": "low", "value": UNIFORM, "completion_criteria": {"behavior": "agent", "threshold": 1.0}},
        {"name": "high", "value": 50},
    ]
}


def make(env, parameters, **settings):
    return make_vector(env, parse_settings(EnvSettings, {"num_envs": 3, "parameters": parameters, **settings}))


def shown(env, steps=7, lessons_at=None, seed=5):
    """[steps + 1, B] what the environments show, of three steps an episode."""
    first = env.reset(seed=seed)
    name = next(iter(env.groups))
    rows = [first.groups[name].obs[:, -1, 0].copy()]
    for step in range(steps):
        if step == lessons_at:
            env.begin_lessons([1])
        actions = {group: np.zeros((env.num_envs, own.num_agents), np.int64) for group, own in env.groups.items()}
        rows.append(env.step(actions).groups[name].obs[:, -1, 0].copy())
    env.close()
    return np.array(rows)


WAYS = {
    "method": ("parameter_environments:Settable", {}),
    "wrapped": ("parameter_environments:Settable", {"wrappers": ["OrderEnforcing"], "max_episode_steps": 50}),
    "reset options": ("parameter_environments:ByOptions", {"parameters_through": "reset_options"}),
    "constructor": ("parameter_environments:ByConstructor", {}),
    "constructor of our own kind": ("parameter_environments:OwnKind", {}),
    "PettingZoo": ("parameter_environments:pair", {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_episode_of_every_environment_has_a_value_of_its_own(way):
    env, settings = WAYS[way]
    rows = shown(make(env, {"size": UNIFORM}, **settings))
    assert ((rows >= 2) & (rows <= 3)).all()
    np.testing.assert_array_equal(rows[0], rows[2])  # one episode
    assert len(np.unique(rows)) == 9  # three environments, three episodes begun
    np.testing.assert_array_equal(rows, shown(make(WAYS["method"][0], {"size": UNIFORM})))


@pytest.mark.parametrize(("way", "workers"), [("method", 2), ("constructor", 1), ("PettingZoo", 2)])
def test_workers_draw_the_same(way, workers):
    env, settings = WAYS[way]
    expected = shown(make(env, {"size": TWO_LESSONS}, **settings), lessons_at=4)
    np.testing.assert_array_equal(
        shown(make(env, {"size": TWO_LESSONS}, workers=workers, **settings), lessons_at=4), expected
    )


def test_running_episodes_keep_their_lesson():
    rows = shown(make("parameter_environments:Settable", {"size": TWO_LESSONS}), lessons_at=4)
    assert (rows[:6] < 4).all()
    assert (rows[6:] == 50).all()


def test_draws_are_of_the_seed():
    one, again, other = (
        shown(make("parameter_environments:Settable", {"size": UNIFORM}), seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.isin(one, other).any()


@pytest.mark.parametrize(
    ("sampler_type", "sampler_parameters", "mean", "low", "high"),
    [
        ("uniform", {"min_value": -1, "max_value": 3}, 1.0, -1, 3),
        ("gaussian", {"mean": 5, "st_dev": 0.5}, 5.0, 2, 8),
        ("multirangeuniform", {"intervals": [[0, 1], [10, 13]]}, (0.5 + 3 * 11.5) / 4, 0, 13),
        ("constant", {"value": 7}, 7.0, 7, 7),
    ],
)
def test_samplers_have_their_distribution(sampler_type, sampler_parameters, mean, low, high):
    given = {"x": {"sampler_type": sampler_type, "sampler_parameters": sampler_parameters}}
    parameters = parse_settings(EnvSettings, {"parameters": given}).parameters
    drawn = np.array([values_of(parameters, [0], stream=3, episode=k)["x"] for k in range(2000)])
    assert drawn.mean() == pytest.approx(mean, abs=0.35)
    assert low <= drawn.min() <= drawn.max() <= high
    if sampler_type == "multirangeuniform":
        assert not ((drawn > 1) & (drawn < 10)).any()
        assert (drawn >= 10).mean() == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(
    ("env", "parameters", "settings", "words"),
    [
        ("parameter_environments:Plain", {"size": 1}, {}, ["'size'", "set_parameters", "reset_options"]),
        ("parameter_environments:Plain", {"size": 1}, {"workers": 1}, ["'size'", "set_parameters"]),
        ("parameter_environments:Plain", {"size": 1}, {"parameters_through": "set_parameters"}, ["no set_parameters"]),
        ("CartPole-v1", {"gravity": 1}, {}, ["'gravity'"]),
        ("CartPole-v1", {"gravity": 1}, {"vector": "own"}, ["vector"]),
        ("mpe2:simple_spread_v3", {"gravity": 1}, {}, ["'gravity'"]),
        ("native:CartPole", {"gravity": 1}, {}, ["gravity", "max_episode_steps"]),
        ("native:rooms", {"room_size": 1}, {}, ["room_size", "num_rooms"]),
        (Herd, {"length": 1}, {}, ["set_parameters", "length"]),
    ],
)
def test_an_environment_that_offers_none_is_one_line(env, parameters, settings, words):
    with pytest.raises(ConfigError) as error:
        make(env, parameters, **settings)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sampler_type": "uniform", "sampler_parameters": {"min_value": 2, "max_value": 1}}, "above max_value"),
        ({"sampler_type": "uniform", "sampler_parameters": {"mean": 2}}, "mean"),
        ({"sampler_type": "poisson", "sampler_parameters": {}}, "sampler_type"),
        ({"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[2, 1]]}}, "ends below"),
        ({"curriculum": []}, "curriculum"),
        ({"curriculum": [{"name": "a", "value": 1}, {"name": "b", "value": 2}]}, "needs completion_criteria"),
        ({"value": 3}, "sampler_type"),
        ("nine", "give a number"),
        (
            {
                "curriculum": [
                    {
                        "name": "a",
                        "value": 1,
                        "completion_criteria": {"behavior": "x", "measure": "progress", "threshold": 2},
                    },
                    {"name": "b", "value": 2},
                ]
            },
            "between 0 and 1",
        ),
    ],
)
def test_wrong_parameters_are_refused(given, words):
    with pytest.raises((ConfigError, UnknownNameError)) as error:
        parse_settings(EnvSettings, {"parameters": {"size": given}})
    assert words in str(error.value)


def test_a_saved_environment_goes_on_with_its_parameters():
    given = {"max_cycles": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 3, "max_value": 9}}}
    given["local_ratio"] = UNIFORM | {"sampler_parameters": {"min_value": 0.1, "max_value": 0.9}}
    one, two = (make("mpe2:simple_spread_v3", given) for _ in range(2))
    assert isinstance(one, StatefulEnvironment)
    assert isinstance(two, StatefulEnvironment)
    one.reset(seed=1)
    two.reset(seed=2)
    actions = {"agent": np.ones((3, 3), np.int64)}
    for _ in range(7):
        one.step(actions)
    two.set_state(one.get_state())
    for _ in range(20):
        left, right = one.step(actions), two.step(actions)
        np.testing.assert_array_equal(left.episode_over, right.episode_over)
        np.testing.assert_array_equal(left.groups["agent"].reward, right.groups["agent"].reward)
        np.testing.assert_array_equal(left.groups["agent"].obs, right.groups["agent"].obs)
    one.close()
    two.close()


def test_agents_refuse_a_curriculum_that_nobody_leads():
    given = parse_settings(EnvSettings, {"parameters": {"a": TWO_LESSONS}}).parameters
    with pytest.raises(ConfigError, match="'a' needs a run"):
        require_no_lessons(given)
    require_no_lessons(parse_settings(EnvSettings, {"parameters": {"a": UNIFORM}}).parameters)


def test_native_rooms_end_where_their_number_says():
    """Who walks east through open doors reaches the goal of a shorter chain earlier; environments differ side by side."""
    env = relayrl.make_env("native:rooms", num_envs=2, num_rooms=3, room_size=2)
    env.set_parameters({"num_rooms": np.array([1.0, 3.0])})
    env.reset(seed=0)
    over = np.zeros(2, bool)
    rng = np.random.default_rng(0)
    ended_at = [0, 0]
    for step in range(400):
        result = env.step({"agent": rng.integers(0, 5, (2, 1))})
        for b in np.flatnonzero(result.groups["agent"].terminated[:, 0] & ~over):
            ended_at[b] = step
            over[b] = True
            break
        if over.all():
            break
    assert over[0]
    assert ended_at[0] < 50 < ended_at[1] or not over[1]
    env.close()


def test_a_limit_of_steps_may_be_another_in_every_environment():
    env = make("native:simple_spread", {"max_cycles": 4})
    env.reset(seed=0)
    actions = {name: np.zeros((3, own.num_agents), np.int64) for name, own in env.groups.items()}
    assert [bool(env.step(actions).episode_over.all()) for _ in range(8)] == [False, False, False, True] * 2
    env.close()


def test_pendulum_with_its_own_gravity_is_the_pendulum_with_that_option():
    moved, made = make("native:Pendulum", {"g": 3.0}), relayrl.make_env("native:Pendulum", num_envs=3, g=3.0)
    assert isinstance(next(iter(made.groups.values())).action_space, spaces.Box)
    for env in (moved, made):
        env.reset(seed=4)
    for _ in range(230):
        left, right = (env.step({"agent": np.ones((3, 1, 1), np.float32)}) for env in (moved, made))
        np.testing.assert_array_equal(left.groups["agent"].obs, right.groups["agent"].obs)
    moved.close()
    made.close()
