"""Environments in this process, stepped one after the other: rows, ends, seeds, partial resets."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from worker_environments import Dice, Masked, Relay

from relayrl.envs.agent_groups import group_agents
from relayrl.envs.environment_contract import StatefulEnvironment, env_seeds
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import EnvError
from relayrl.testing.toy_environments import CountingEnv, MaskedBandit, NestedSpaces

STAY = {"agent": np.zeros((2, 1), np.int64)}


def counting(**options: Any) -> Any:
    return make_vector(CountingEnv, EnvSettings(num_envs=2, options=options))


def test_a_step_gives_the_rows_of_all_envs() -> None:
    env = counting()
    first = env.reset(seed=0)
    assert first.groups["agent"].obs.tolist() == [[[0.0]], [[0.0]]]
    step = env.step(STAY).groups["agent"]
    assert step.obs.tolist() == [[[1.0]], [[1.0]]]
    assert step.reward.tolist() == [[1.0], [1.0]]
    assert step.active.all()
    assert step.final is None


def test_an_ended_env_begins_anew_in_the_same_step_and_leaves_its_final_observation() -> None:
    env = counting(terminate_at=2)
    env.reset(seed=0)
    env.step(STAY)
    result = env.step(STAY)
    step = result.groups["agent"]
    assert result.episode_over.tolist() == [True, True]
    assert step.terminated.tolist() == [[True], [True]]
    assert not step.truncated.any()
    assert step.reward.tolist() == [[2.0], [2.0]]
    assert step.obs.tolist() == [[[0.0]], [[0.0]]]
    assert step.final.env.tolist() == [0, 1]
    assert step.final.obs.tolist() == [[2.0], [2.0]]
    after = env.step(STAY)
    assert not after.episode_over.any()
    assert not after.groups["agent"].terminated.any()


def test_truncation_is_not_termination() -> None:
    env = counting(terminate_at=None, truncate_at=1)
    env.reset(seed=0)
    step = env.step(STAY).groups["agent"]
    assert step.truncated.all()
    assert not step.terminated.any()


def test_a_partial_reset_leaves_the_other_envs_where_they_are() -> None:
    env = counting()
    env.reset(seed=0)
    env.step(STAY)
    assert env.reset(env_ids=[env.env_ids[1]]).groups["agent"].obs.tolist() == [[[1.0]], [[0.0]]]
    assert env.step(STAY).groups["agent"].obs.tolist() == [[[2.0]], [[1.0]]]


def test_an_env_does_not_depend_on_how_many_others_there_are() -> None:
    few, many = (make_vector(Dice, EnvSettings(num_envs=n)) for n in (2, 5))
    assert (few.reset(seed=3).groups["agent"].obs == many.reset(seed=3).groups["agent"].obs[:2]).all()
    for _ in range(30):
        ours = few.step({"agent": np.ones((2, 1), np.int64)}).groups["agent"]
        theirs = many.step({"agent": np.ones((5, 1), np.int64)}).groups["agent"]
        assert (ours.obs == theirs.obs[:2]).all()
        assert (ours.reward == theirs.reward[:2]).all()


def test_an_env_equals_the_environment_that_it_runs() -> None:
    env = make_vector("Pendulum-v1", EnvSettings(num_envs=3))
    alone = gymnasium.make("Pendulum-v1")
    obs = env.reset(seed=11).groups["agent"].obs
    expected, _ = alone.reset(seed=env_seeds(11, 3)[2])
    actions = np.random.default_rng(0).uniform(-2, 2, (250, 3, 1, 1)).astype(np.float32)
    for row in actions:
        assert (obs[2, 0] == expected).all()
        step = env.step({"agent": row}).groups["agent"]
        expected, reward, _, truncated, _ = alone.step(row[2, 0])
        assert step.reward[2, 0] == np.float32(reward)
        if truncated:
            assert (step.final.obs[2] == expected).all()
            expected, _ = alone.reset()
        obs = step.obs
    env.close()


def test_masks_come_from_info_and_after_an_end_from_the_reset() -> None:
    env = make_vector(Masked, EnvSettings(num_envs=1))
    assert env.groups["agent"].masks_actions
    allowed = [int(env.reset(seed=0).groups["agent"].action_mask[0, 0].argmax())]
    for _ in range(5):
        step = env.step({"agent": np.zeros((1, 1), np.int64)}).groups["agent"]
        assert step.action_mask.sum() == 1
        allowed.append(int(step.action_mask[0, 0].argmax()))
        if step.final is not None:
            assert step.final.action_mask.tolist() == [[False, True, False]]  # of step 4, before the reset
    assert allowed == [0, 1, 2, 0, 0, 1]


def test_a_reset_without_a_mask_does_not_get_that_of_the_ended_episode() -> None:
    class MaskedOnce(Masked):
        def reset(self, **options: Any) -> Any:
            began = hasattr(self, "_step") and self._step == 4
            observation, info = super().reset(**options)
            return observation, {} if began else info

    env = make_vector(MaskedOnce, EnvSettings(num_envs=1))
    env.reset(seed=0)
    for _ in range(3):
        env.step({"agent": np.zeros((1, 1), np.int64)})
    with pytest.raises(EnvError, match="no 'action_mask'"):
        env.step({"agent": np.zeros((1, 1), np.int64)})


def test_the_mask_of_a_truncated_agent_is_that_of_what_it_saw_last() -> None:
    envs: list[MaskedBandit] = []

    def make() -> MaskedBandit:
        envs.append(MaskedBandit(episode_length=2))
        return envs[-1]

    env = make_vector(make, EnvSettings(num_envs=1))
    drawn: list[list[bool]] = []
    reset = envs[0].reset
    envs[0].reset = lambda **options: (drawn.append(envs[0].action_masks()["agent"].tolist()), reset(**options))[1]  # type: ignore[method-assign]
    env.reset(seed=0)
    for _ in range(2):
        step = env.step({"agent": np.zeros((1, 1), np.int64)}).groups["agent"]
    assert step.final.action_mask.tolist() == drawn[1:]


def test_nested_observations_and_actions_are_trees() -> None:
    env = make_vector(NestedSpaces, EnvSettings(num_envs=2))
    obs = env.reset(seed=0).groups["agent"].obs
    group = env.groups["agent"]
    assert isinstance(obs, dict)
    assert list(obs) == list(group.observation_space.spaces)
    env.close()


def test_infos_are_those_of_the_step_that_ended_the_episode() -> None:
    env = make_vector("CliffWalking-v1", EnvSettings(num_envs=1))
    env.reset(seed=0)
    assert env.step({"agent": np.zeros((1, 1), np.int64)}).infos[0]["prob"] == 1.0


def test_actions_of_another_shape_or_kind_are_refused() -> None:
    env = counting()
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"int64\[2\], the environment takes int64\[2, 1\]"):
        env.step({"agent": np.zeros(2, np.int64)})
    with pytest.raises(EnvError, match="float64"):
        env.step({"agent": np.zeros((2, 1))})
    with pytest.raises(EnvError, match="no actions for group 'agent'"):
        env.step({})


def test_order_of_calls_is_enforced() -> None:
    env = counting()
    with pytest.raises(EnvError, match="before reset"):
        env.step(STAY)
    env.close()
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.reset()


def test_an_env_may_keep_the_action_that_it_was_given() -> None:
    kept: list[Any] = []

    class Keeping(Dice):
        def step(self, action: Any) -> Any:
            kept.append(action)
            return super().step(action)

    env = make_vector(lambda: Keeping(continuous=True), EnvSettings(num_envs=1))
    env.reset(seed=0)
    actions = np.full((1, 1, 2), 0.5, np.float32)
    env.step({"agent": actions})
    actions[:] = -1.0
    env.step({"agent": actions})
    assert kept[0].tolist() == [0.5, 0.5]


def relay_turn(env: Any, number: int) -> Any:
    return env.step({"runner": np.full((1, 2), number % 2), "coach": np.full((1, 1), 1)})


def test_agents_act_in_turns_appear_and_end_once() -> None:
    env = make_vector(Relay, EnvSettings(num_envs=1))
    assert {name: group.agent_ids for name, group in env.groups.items()} == {
        "runner": ("runner_0", "runner_1"),
        "coach": ("coach",),
    }
    first = env.reset(seed=0)
    assert first.groups["runner"].active.tolist() == [[True, False]]
    assert first.groups["coach"].active.tolist() == [[False]]
    seen = []
    for number in range(1, 5):
        result = relay_turn(env, number)
        runner, coach = result.groups["runner"], result.groups["coach"]
        seen.append((runner.active[0].tolist(), bool(coach.active[0, 0]), runner.reward[0].tolist()))
    assert seen == [
        ([False, True], True, [1.0, 1.0]),
        ([True, False], True, [2.0, 2.0]),
        ([False, True], True, [3.0, 3.0]),
        ([True, False], False, [0.0, 4.0]),  # runner_0 has ended; the next episode has begun
    ]
    assert result.episode_over.tolist() == [True]
    assert runner.truncated.tolist() == [[False, True]]
    assert not runner.terminated.any()
    assert runner.final.obs.tolist() == [[4.0]]
    assert coach.truncated.tolist() == [[True]]
    assert result.state.tolist() == [0]
    assert result.final_state.tolist() == [4]
    env.close()


def test_only_acting_agents_act_and_masks_are_theirs() -> None:
    envs: list[Relay] = []

    def make() -> Relay:
        envs.append(Relay())
        return envs[-1]

    env = make_vector(make, EnvSettings(num_envs=1))
    env.reset(seed=0)
    mask = relay_turn(env, 1).groups["runner"].action_mask
    assert mask.tolist() == [[[True, True], [True, False]]]
    relay_turn(env, 2)
    assert envs[0].taken == [{"runner_0": 1}, {"runner_1": 0, "coach": 1}]


def test_an_agent_that_ended_gets_no_second_end() -> None:
    env = make_vector(Relay, EnvSettings(num_envs=1))
    env.reset(seed=0)
    ends = np.zeros(2)
    for number in range(1, 5):
        step = relay_turn(env, number).groups["runner"]
        ends += (step.terminated | step.truncated)[0]
    assert ends.tolist() == [1, 1]


def test_groups_are_agents_with_equal_spaces_and_equal_prefix() -> None:
    small, large = spaces.Discrete(2), spaces.Discrete(3)
    obs = spaces.Box(0, 1, (1,))
    actions = {"wolf_0": small, "wolf_1": small, "wolf_2": large, "wolf_3": large, "sheep_0": small, "dog": small}
    groups = group_agents(list(actions), dict.fromkeys(actions, obs), actions, masks_actions=True)
    assert {name: group.agent_ids for name, group in groups.items()} == {
        "wolf": ("wolf_0", "wolf_1"),
        "wolf_2": ("wolf_2", "wolf_3"),
        "sheep_0": ("sheep_0",),
        "dog": ("dog",),
    }


@pytest.mark.parametrize(
    ("env_id", "workers"),
    [
        ("CartPole-v1", 0),
        ("CartPole-v1", 2),
        ("Pendulum-v1", 0),
        ("MountainCar-v0", 0),
        ("MountainCarContinuous-v0", 0),
        ("Acrobot-v1", 0),
    ],
)
def test_classic_control_continues_from_a_saved_state(env_id: str, workers: int) -> None:
    settings = EnvSettings(num_envs=2, workers=workers, options={"max_episode_steps": 30})
    env, other = (make_vector(env_id, settings) for _ in range(2))
    assert isinstance(env, StatefulEnvironment)
    assert isinstance(other, StatefulEnvironment)
    space = env.groups["agent"].action_space
    space.seed(0)
    actions = [np.array([[space.sample()], [space.sample()]], space.dtype) for _ in range(80)]
    env.reset(seed=5)
    for action in actions[:20]:
        env.step({"agent": action})
    other.set_state(env.get_state())
    assert (other.build_observation().groups["agent"].obs == env.build_observation().groups["agent"].obs).all()
    for action in actions[20:]:
        ours, theirs = (e.step({"agent": action}) for e in (env, other))
        assert (ours.groups["agent"].obs == theirs.groups["agent"].obs).all()
        assert (ours.episode_over == theirs.episode_over).all()
    env.close()
    other.close()
