"""Wrappers together with agents that have policies of their own, and with states that nobody asks for."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import relayrl
from relayrl.envs.environment_contract import MultiAgentEnvironment, MultiAgentReset, MultiAgentStep
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError

CLIP = {"gymnasium.wrappers:ClipReward": {"min_reward": -1.0, "max_reward": 1.0}}


class Payday(MultiAgentEnvironment):
    """Two agents are paid 3 and 5 on each of four steps. Its state must not be asked for."""

    state_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self.possible_agents = ("worker_0", "worker_1")
        self.observation_spaces = {agent: spaces.Box(-1.0, 1.0, (2,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(2) for agent in self.possible_agents}
        self._num_steps = 0

    @property
    def agents(self) -> tuple[str, ...]:
        return self.possible_agents if self._num_steps < 4 else ()

    def _seen(self) -> dict[str, Any]:
        return {agent: np.zeros(2, np.float32) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._num_steps = 0
        return MultiAgentReset(self._seen(), {})

    def step(self, actions: Any) -> MultiAgentStep:
        self._num_steps += 1
        over = dict.fromkeys(self.possible_agents, self._num_steps == 4)
        return MultiAgentStep(self._seen(), {"worker_0": 3.0, "worker_1": 5.0}, over, {}, {})

    def build_observation(self) -> Any:
        return self._seen()

    def state(self) -> Any:
        raise AssertionError("nobody sees the state of this run")


@pytest.mark.parametrize("sharing", ["shared", "separate"])
def test_reported_returns_are_the_environments_and_states_stay_unasked(sharing, tmp_path):
    settings = {"environment.wrappers": [CLIP], "environment.sharing": sharing, "time_horizon": 8, "hidden_sizes": [8]}
    given = {"algo": "ippo", "steps": 64, "num_envs": 2, "run_dir": tmp_path / "run", "progress": False}
    run = relayrl.train(Payday, settings=settings, **given)
    assert run.history["episode/return_mean"][-1] == pytest.approx(16.0)  # the mean of 12 and 20
    assert run.evaluate(episodes=2).agent_returns == {"worker_0": 12.0, "worker_1": 20.0}


def test_policies_learn_from_clipped_rewards():
    env = relayrl.make_env(Payday, num_envs=2, wrappers=[CLIP])
    env.give_states(False)
    env.reset(seed=0)
    step = env.step({name: np.zeros((2, group.num_agents), np.int64) for name, group in env.groups.items()})
    (group,) = step.groups.values()
    assert group.reward.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    env.close()


class Painted(Payday):
    """It can be drawn."""

    render_mode, metadata = "rgb_array", {"render_modes": ["rgb_array"], "render_fps": 5}

    def render(self) -> Any:
        return np.full((8, 8, 3), 20 * self._num_steps, np.uint8)


def test_a_limit_on_steps_leaves_a_team_drawable():
    env = make_vector(Painted, EnvSettings(num_envs=2, max_episode_steps=3))
    env.give_states(False)
    env.reset(seed=0)
    env.step({name: np.zeros((2, group.num_agents), np.int64) for name, group in env.groups.items()})
    assert env.drawing.frames_per_s == 5.0
    (picture,) = env.frames([1])
    assert picture.shape == (8, 8, 3)
    assert (picture == 20).all()


@pytest.mark.parametrize(
    ("stack", "options", "why"),
    [
        ("minigrid", {"fully_observable": True, "one_hot": True}, "own view"),
        ("atari", {"stack": -1}, "stack of -1 frames"),
        ("carracing", {"skip": 0}, "skip is 0"),
    ],
)
def test_stacks_of_wrappers_refuse_arguments_that_cannot_be(stack, options, why):
    with pytest.raises(ConfigError, match=why):
        relayrl.make_env("CartPole-v1", num_envs=1, wrappers=[{stack: options}])


def gives_nothing(env: Any) -> None:
    del env


def test_a_wrapper_that_gives_no_environment_is_named():
    with pytest.raises(ConfigError, match="gives_nothing gave a NoneType, not an environment"):
        relayrl.make_env("CartPole-v1", num_envs=1, wrappers=[f"{__name__}:gives_nothing"])
