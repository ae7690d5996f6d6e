"""The grids, played by hand: who dies, who goes on, who is paid, and what those see who have gone."""

import numpy as np
import pytest

import relayrl
from relayrl.errors import ConfigError, EnvError
from relayrl.extend import AgentGroup, BatchedEnvironment, Blueprint, Worlds, namespace_of

STAY, UP, DOWN, LEFT, RIGHT = range(5)


def dungeon(position, dragon=(2, 2), door=(4, 4), **options):
    """One world; cells as (x, y)."""
    env = relayrl.make_env("native:dungeon_escape", num_envs=1, **options)
    env.reset(seed=0)
    cells = {"position": np.array([position]), "dragon": np.array([dragon]), "door": np.array([door])}
    env.set_state({**env.get_state(), **cells})
    return env


def play(env, *actions):
    return env.step({"agent": np.array([actions])}).groups["agent"]


def test_the_killer_dies_and_the_others_open_the_door():
    env = dungeon([(1, 2), (2, 1), (0, 0)], door=(3, 2))
    step = play(env, RIGHT, STAY, STAY)
    assert step.terminated[0].tolist() == [True, False, False]
    assert step.active[0].tolist() == [False, True, True]
    assert step.final.agent.tolist() == [0]
    np.testing.assert_array_equal(
        step.final.obs[0][:2], [0.0, 0.0]
    )  # it saw itself in the middle, where the dragon was
    step = play(env, RIGHT, UP, STAY)  # what the dead one wants is ignored
    assert step.obs[0, 1, 4] == 1.0  # holds the key
    assert step.obs[0, 2, 5] == 1.0  # sees that another one does
    assert step.reward.sum() == 0.0
    step = env.step({"agent": np.array([[STAY, RIGHT, STAY]])})
    assert step.episode_over.tolist() == [True]
    assert step.groups["agent"].reward[0].tolist() == [0.0, 1.0, 1.0]  # every living agent
    assert step.groups["agent"].terminated[0].tolist() == [False, True, True]  # an agent ends once
    assert step.groups["agent"].active.all()  # the next episode
    assert env.performance_return({"a": [0.0], "b": [0.0, 1.0], "c": [1.0]}) == 1.0


def test_nobody_is_left_when_all_kill_the_dragon():
    env = dungeon([(1, 2), (3, 2), (2, 1)])
    step = env.step({"agent": np.array([[RIGHT, LEFT, UP]])})
    assert step.episode_over.tolist() == [True]
    assert step.groups["agent"].terminated.all()
    assert step.groups["agent"].reward.sum() == 0.0


def test_the_first_of_those_who_arrive_together_takes_the_key():
    env = dungeon([(2, 1), (1, 2), (3, 2)])
    play(env, UP, STAY, STAY)
    step = play(env, STAY, RIGHT, LEFT)
    assert step.obs[0, :, 4].tolist()[1:] == [1.0, 0.0]


def test_absorbed_agents_stay_see_zeros_and_are_paid():
    env = dungeon([(1, 2), (2, 1), (0, 0)], door=(3, 2), absorbing=True)
    step = play(env, RIGHT, STAY, STAY)
    assert step.active.all()
    assert not step.terminated.any()
    assert not step.obs[0, 0].any()
    play(env, UP, UP, STAY)
    np.testing.assert_array_equal(env.get_state()["position"][0, 0], [2, 2])  # its action did nothing
    step = play(env, STAY, RIGHT, STAY)
    assert step.reward[0].tolist() == [1.0, 1.0, 1.0]
    assert step.terminated.all()


def test_a_truncated_episode_truncates_the_living_only():
    env = dungeon([(1, 2), (2, 1), (0, 0)], max_episode_steps=1)
    step = play(env, RIGHT, STAY, STAY)
    assert step.terminated[0].tolist() == [True, False, False]
    assert step.truncated[0].tolist() == [False, True, True]
    assert step.final.agent.tolist() == [0, 1, 2]


def test_runners_hand_over_and_leave():
    env = relayrl.make_env("native:baton_pass", num_envs=1, num_agents=2)
    env.reset(seed=0)
    cells = {"position": np.array([[(0, 0), (1, 0)]]), "target": np.array([[(1, 0), (1, 1)]])}
    env.set_state({**env.get_state(), **cells})
    assert env.build_observation().groups["agent"].active.tolist() == [[True, False]]
    step = play(env, RIGHT, LEFT)  # who waits does not move
    assert step.terminated.tolist() == [[True, False]]
    assert step.active.tolist() == [[False, True]]
    step = play(env, RIGHT, UP)
    assert step.reward.tolist() == [[0.0, 1.0]]
    assert step.terminated.tolist() == [[False, True]]


@pytest.mark.parametrize("name", ["dungeon_escape", "baton_pass"])
def test_worlds_draw_themselves_wherever_they_are(name):
    env = relayrl.make_env(f"native:{name}", num_envs=2)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    pictures = set()
    for _ in range(30):
        env.step({"agent": rng.integers(0, 5, (2, 3))})
        pictures.add(env.render(1).tobytes())
    assert env.render(0).shape == (300, 300, 3)
    assert len(pictures) > 5


class Alive(Worlds):
    """Agents that never do anything; `alive` of a group, beside a state space."""

    def __init__(self, num_worlds):
        self.state = {}
        self.observations = {"agent": np.zeros((num_worlds, 1, 1), np.float32)}
        self.rewards = {"agent": np.zeros((num_worlds, 1), np.float32)}
        self.terminated = np.zeros(num_worlds, bool)
        self.alive = {"agent": np.ones((num_worlds, 1), bool)}

    def begin(self, draws):
        pass

    def advance(self, actions):
        pass

    def observe(self):
        pass


def test_a_global_state_has_no_place_for_the_dead():
    env = relayrl.make_env("native:dungeon_escape", num_envs=1)
    space, action = env.groups["agent"].observation_space, env.groups["agent"].action_space
    group = AgentGroup("agent", ("a",), space, action)
    blueprint = Blueprint("ghosts", {"agent": group}, 5, 0, Alive, namespace_of("cpu"), state_space=space)
    with pytest.raises(EnvError, match="no place for the dead"):
        BatchedEnvironment(blueprint).init_num_envs(2)


def test_a_grid_that_is_too_small_is_refused():
    with pytest.raises(ConfigError, match="use a larger size"):
        relayrl.make_env("native:dungeon_escape", num_envs=1, size=3, num_agents=8)
