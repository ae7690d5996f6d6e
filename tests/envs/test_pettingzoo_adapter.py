"""PettingZoo's conventions, as `MultiAgentEnvironment` sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from mpe2 import simple_spread_v3
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from relayrl.envs.adapters import pettingzoo_adapter
from relayrl.envs.adapters.pettingzoo_modules import known_names
from relayrl.envs.environment_contract import MultiAgentEnvironment, MultiAgentStep, StatefulEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import CheckpointError, ConfigError, EnvError, MissingExtraError, UnknownNameError


def connect_four(columns: Sequence[int]) -> tuple[MultiAgentEnvironment, list[MultiAgentStep]]:
    """A game of connect four played with `columns` in turn."""
    env = pettingzoo_adapter.make("pettingzoo", "classic.connect_four_v3")
    env.reset(seed=0)
    return env, [env.step({env.acting_agents()[0]: column}) for column in columns]


def test_the_mask_is_taken_out_of_the_observation() -> None:
    env, _ = connect_four([])
    assert env.observation_spaces["player_0"] == spaces.Box(0, 1, (6, 7, 2), np.int8)
    assert env.build_observation()["player_0"].shape == (6, 7, 2)
    assert env.masks_actions


def test_a_full_column_is_masked_for_the_player_whose_turn_it_is() -> None:
    env, _ = connect_four([0, 0, 0, 0, 0, 0])
    assert {agent: mask.tolist() for agent, mask in env.action_masks().items()} == {
        "player_0": [False, True, True, True, True, True, True]
    }


def test_players_take_turns() -> None:
    env, _ = connect_four([])
    turns = []
    for column in (0, 1, 0):
        turns.append(tuple(env.acting_agents()))
        env.step({env.acting_agents()[0]: column})
    assert turns == [("player_0",), ("player_1",), ("player_0",)]


def test_the_loser_is_paid_and_ends_in_the_winners_step() -> None:
    env, steps = connect_four([0, 1, 0, 1, 0, 1, 0])
    assert [step.terminated for step in steps[:-1]] == [{}] * 6
    assert steps[-1].rewards == {"player_0": 1.0, "player_1": -1.0}
    assert steps[-1].terminated == {"player_0": True, "player_1": True}
    assert steps[-1].truncated == {"player_0": False, "player_1": False}
    assert tuple(env.agents) == tuple(env.acting_agents()) == ()


def test_final_observations_show_the_last_move_to_both_players() -> None:
    _, steps = connect_four([0, 1, 0, 1, 0, 1, 0])
    last = steps[-1].observations
    assert last["player_0"].sum(axis=(0, 1)).tolist() == [4, 3]
    assert last["player_1"].sum(axis=(0, 1)).tolist() == [3, 4]


def test_an_illegal_move_loses_the_game() -> None:
    env, steps = connect_four([0, 0, 0, 0, 0, 0, 0])
    assert steps[-1].rewards == {"player_0": -1.0, "player_1": 0.0}
    assert steps[-1].terminated == {"player_0": True, "player_1": True}
    assert tuple(env.agents) == ()


def test_a_game_can_follow_an_illegal_move() -> None:
    env, _ = connect_four([0, 0, 0, 0, 0, 0, 0])
    env.reset(seed=1)
    assert env.action_masks()["player_0"].all()


class Countdown(AECEnv[str, Any, int]):
    """Three agents in turn. Each move pays its mover 1 and everybody else 10; `b` dies on `a`'s second move."""

    metadata = {"name": "countdown_v0", "is_parallelizable": False}  # noqa: RUF012 - PettingZoo's convention
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["a", "b", "c"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(100))
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(4))

    def observe(self, agent: str) -> int:
        return self.num_moves

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.num_moves = 0
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"action_mask": (np.arange(4) <= 2).astype(np.int8)} for agent in self.agents}
        self.agent_selection = "a"

    def step(self, action: int | None) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.num_moves += 1
        mover = self.agent_selection
        self._cumulative_rewards[mover] = 0
        self.rewards = {agent: 1 if agent == mover else 10 for agent in self.agents}
        if self.num_moves == 4:
            self.terminations["b"] = True
        if self.num_moves == 6:
            self.truncations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        after = self.possible_agents.index(mover) + 1
        turns = [*self.possible_agents[after:], *self.possible_agents[:after]]
        self.agent_selection = next(agent for agent in turns if not self.terminations.get(agent, True))
        self._deads_step_first()


def play_countdown() -> tuple[list[str], list[MultiAgentStep]]:
    env = pettingzoo_adapter.wrap(Countdown())
    env.reset(seed=0)
    movers, steps = [], []
    while env.agents:
        movers.append(env.acting_agents()[0])
        steps.append(env.step({movers[-1]: np.int64(0)}))
    return movers, steps


def test_dead_agents_get_their_none_step_and_no_turn() -> None:
    movers, _ = play_countdown()
    assert movers == ["a", "b", "c", "a", "c", "a"]


def test_every_end_is_reported_once_with_its_observation() -> None:
    _, steps = play_countdown()
    ends = {
        t: [a for a in step.terminated if step.terminated[a] or step.truncated[a]] for t, step in enumerate(steps, 1)
    }
    assert {t: agents for t, agents in ends.items() if agents} == {4: ["b"], 6: ["a", "c"]}
    assert steps[3].observations["b"] == 4
    assert steps[5].truncated == {"a": True, "c": True}


def test_rewards_between_turns_are_all_delivered() -> None:
    _, steps = play_countdown()
    totals = {agent: sum(step.rewards.get(agent, 0.0) for step in steps) for agent in "abc"}
    # a moved in steps 1, 4 and 6; b in step 2 and died after step 4; c in steps 3 and 5.
    assert totals == {"a": 3 * 1 + 3 * 10, "b": 1 + 3 * 10, "c": 2 * 1 + 4 * 10}


def test_masks_in_infos_are_offered() -> None:
    env = pettingzoo_adapter.wrap(Countdown())
    assert env.masks_actions
    env.reset(seed=0)
    assert env.action_masks()["a"].tolist() == [True, True, True, False]


def test_masks_of_agents_that_are_truncated_are_offered_once() -> None:
    env = make_vector(lambda: pettingzoo_adapter.wrap(Countdown()), EnvSettings(num_envs=1))
    env.reset(seed=0)
    finals = {}
    for _ in range(6):
        step = env.step({name: np.zeros((1, group.num_agents), int) for name, group in env.groups.items()})
        finals |= {name: got.final.action_mask.tolist() for name, got in step.groups.items() if got.final is not None}
    # `b` terminated, which is the end of it; the others could have gone on.
    assert finals == {"a": [[True, True, True, False]], "b": [[True] * 4], "c": [[True, True, True, False]]}


def test_an_undead_agent_is_an_error_and_no_endless_loop() -> None:
    class Undead(Countdown):
        def _was_dead_step(self, action: Any) -> None:
            pass

    env = pettingzoo_adapter.wrap(Undead())
    env.reset(seed=0)
    for _ in range(3):
        env.step({env.acting_agents()[0]: 0})
    with pytest.raises(EnvError, match="did not remove the dead agent"):
        env.step({"a": 0})


class Party(ParallelEnv[str, Any, Any]):
    """`host` stays for four steps; `leaver` goes without a word in step 2; `late` comes in step 2, is flagged in step 3."""

    metadata = {"name": "party_v0"}  # noqa: RUF012 - PettingZoo's convention

    def __init__(self) -> None:
        self.possible_agents = ["host", "leaver", "late"]
        space = spaces.Dict(
            {"view": spaces.Box(0, 9, (1,)), "extra": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)}
        )
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(3))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        self.agents = ["host", "leaver"]
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        if self.t == 2:
            self.agents = ["host", "late"]
        flags = {agent: agent == "late" and self.t >= 3 for agent in self.agents}
        if self.t == 4:
            flags["host"] = True
        seen, rewards = self._observe(), dict.fromkeys(self.agents, 1.0)
        if self.t == 4:
            self.agents = []
        return seen, rewards, flags, dict.fromkeys(flags, False), {}

    def _observe(self) -> Any:
        return {
            a: {"view": np.array([self.t], np.float32), "extra": 1, "action_mask": np.array([1, 0, 1], np.int8)}
            for a in self.agents
        }


def test_parallel_agents_come_and_go() -> None:
    env = pettingzoo_adapter.wrap(Party())
    env.reset(seed=0)
    present, ends = [], []
    while env.agents:
        present.append(tuple(env.agents))
        step = env.step(dict.fromkeys(env.agents, 0))
        ends.append({a: (step.terminated[a], step.truncated[a]) for a in step.terminated})
    assert present == [("host", "leaver"), ("host", "leaver"), ("host", "late"), ("host",)]
    # An agent that leaves unflagged is truncated; one that is flagged again and again ends once.
    assert ends == [{}, {"leaver": (False, True)}, {"late": (True, False)}, {"host": (True, False)}]


def test_an_agent_that_left_is_shown_what_it_saw_last() -> None:
    env = pettingzoo_adapter.wrap(Party())
    env.reset(seed=0)
    env.step({"host": 0, "leaver": 0})
    last = env.step({"host": 0, "leaver": 0}).observations["leaver"]
    assert last["view"].tolist() == [1.0]


def test_other_keys_beside_the_mask_stay() -> None:
    env = pettingzoo_adapter.wrap(Party())
    assert list(env.observation_spaces["host"].spaces) == ["extra", "view"]
    observations, _ = env.reset(seed=0)
    assert sorted(observations["host"]) == ["extra", "view"]
    assert env.action_masks()["host"].tolist() == [True, False, True]


def test_a_missing_action_is_refused() -> None:
    env = pettingzoo_adapter.wrap(Party())
    env.reset(seed=0)
    with pytest.raises(EnvError, match="no action for agent 'leaver'"):
        env.step({"host": 0})


def test_the_parallel_api_is_taken_where_there_is_one() -> None:
    env = pettingzoo_adapter.make("mpe2", "simple_spread_v3", N=2)
    env.reset(seed=0)
    assert tuple(env.acting_agents()) == ("agent_0", "agent_1")
    assert not env.masks_actions


def test_mpe2_offers_its_global_state() -> None:
    env = pettingzoo_adapter.make("mpe2", "simple_spread_v3")
    observations, _ = env.reset(seed=3)
    assert env.state_space is not None
    assert env.state_space.shape == (54,)
    np.testing.assert_array_equal(env.state(), np.concatenate([observations[a] for a in env.possible_agents]))
    assert env.state_repeats_observations


def test_actions_beyond_their_bounds_are_clipped_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    rewards = []
    for scale in (1.0, 50.0):
        env = pettingzoo_adapter.make("mpe2", "simple_spread_v3", continuous_actions=True)
        env.reset(seed=0)
        rewards.append(env.step({agent: np.full(5, scale, np.float32) for agent in env.agents}).rewards)
    assert rewards[0] == rewards[1]
    assert capsys.readouterr() == ("", "")


def test_an_action_array_of_the_callers_may_be_used_again() -> None:
    env = pettingzoo_adapter.make("mpe2", "simple_spread_v3", continuous_actions=True)
    env.reset(seed=0)
    actions = {agent: np.full(5, 0.5, np.float32) for agent in env.agents}
    env.step(actions)
    assert all((action == 0.5).all() for action in actions.values())


def play(env: MultiAgentEnvironment, seed: int, num_steps: int) -> list[Any]:
    """Random play through as many episodes as it takes."""
    rng = np.random.default_rng(seed)
    seen: list[Any] = []
    for _ in range(num_steps):
        step = env.step({agent: rng.integers(env.action_spaces[agent].n) for agent in env.agents})
        seen.append((step.rewards, {agent: obs.tolist() for agent, obs in step.observations.items()}))
        if not env.agents:
            seen.append({agent: obs.tolist() for agent, obs in env.reset().observations.items()})
    return seen


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("name", known_names("mpe2"))
def test_turns_taken_directly_give_what_pettingzoos_conversion_gives(name: str, continuous: bool) -> None:
    options = {"max_cycles": 4, "continuous_actions": continuous}
    direct = pettingzoo_adapter.make("mpe2", name, **options)
    converted = pettingzoo_adapter.load("mpe2", name).parallel_env(**options)
    rng = np.random.default_rng(0)
    for episode in range(2):
        direct.reset(seed=episode)
        converted.reset(seed=episode)
        for _ in range(4):
            spaces_of = direct.action_spaces.items()
            actions = {a: int(rng.integers(s.n)) if not continuous else rng.random(s.shape, "f4") for a, s in spaces_of}
            step, (observations, rewards, terminated, truncated, infos) = direct.step(actions), converted.step(actions)
            np.testing.assert_equal(dict(step.observations), observations)
            assert (dict(step.rewards), dict(step.infos)) == (dict(rewards), infos)
            assert set(step.terminated) == {agent for agent, flag in terminated.items() if flag}
            assert set(step.truncated) == {agent for agent, flag in truncated.items() if flag}
            np.testing.assert_equal(direct.state(), converted.state())
            assert list(direct.agents) == list(converted.agents)
        assert not direct.agents


def test_an_action_that_mpe2_does_not_have_is_refused_before_anybody_moves() -> None:
    env = pettingzoo_adapter.make("mpe2", "simple_spread_v3")
    env.reset(seed=0)
    assert isinstance(env, StatefulEnvironment)
    before = env.get_state()
    with pytest.raises(EnvError, match="'agent_2' cannot do 5; its actions are 0 to 4"):
        env.step({"agent_0": 1, "agent_1": 1, "agent_2": 5})
    np.testing.assert_equal(env.get_state(), before)


@pytest.mark.parametrize("name", known_names("mpe2"))
def test_an_mpe2_env_continues_bit_for_bit_from_its_state(name: str) -> None:
    env = pettingzoo_adapter.make("mpe2", name, max_cycles=10)
    assert isinstance(env, StatefulEnvironment)
    env.reset(seed=0)
    play(env, seed=1, num_steps=14)
    state = env.get_state()
    observed = {agent: obs.tolist() for agent, obs in env.build_observation().items()}
    expected = play(env, seed=2, num_steps=25)
    other = pettingzoo_adapter.make("mpe2", name, max_cycles=10)
    other.reset(seed=99)
    assert isinstance(other, StatefulEnvironment)
    other.set_state(state)
    assert {agent: obs.tolist() for agent, obs in other.build_observation().items()} == observed
    assert play(other, seed=2, num_steps=25) == expected


def test_states_of_mpe2_hold_plain_arrays_only() -> None:
    env = pettingzoo_adapter.make("mpe2", "simple_world_comm_v3")
    env.reset(seed=0)
    assert isinstance(env, StatefulEnvironment)
    assert {array.dtype.kind for array in env.get_state().values()} <= set("biuf")


def test_a_state_of_another_mpe2_environment_is_refused() -> None:
    three, two = (pettingzoo_adapter.make("mpe2", "simple_spread_v3", N=n) for n in (3, 2))
    three.reset(seed=0)
    with pytest.raises(CheckpointError, match="another environment"):
        two.set_state(three.get_state())


def test_a_state_is_not_given_after_the_end() -> None:
    env = pettingzoo_adapter.make("mpe2", "simple_spread_v3", max_cycles=1)
    env.reset(seed=0)
    env.step(dict.fromkeys(env.agents, 0))
    with pytest.raises(EnvError, match="reset"):
        env.get_state()


def test_a_wrapper_that_may_hold_state_makes_an_env_unsaved() -> None:
    class Wrapper(BaseParallelWrapper[str, Any, Any]):
        pass

    env = pettingzoo_adapter.wrap(Wrapper(simple_spread_v3.parallel_env()))
    assert not isinstance(env, StatefulEnvironment)
    assert len(env.reset(seed=0).observations) == 3


def test_names_are_found_without_importing_the_environments() -> None:
    assert "classic.connect_four_v3" in known_names("pettingzoo")
    assert "simple_spread_v3" in known_names("mpe2")


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'classic\.connect_four_v3'"):
        pettingzoo_adapter.make("pettingzoo", "classic.connect_four_v2")


def test_a_missing_library_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"relayrl\[pettingzoo\]"):
        pettingzoo_adapter.make("no_such_library", "game_v0")


@pytest.mark.parametrize("options", [{"no_such_option": 1}, {"local_ratio": 7.0}])
def test_wrong_options_are_configuration_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="does not accept the options"):
        pettingzoo_adapter.make("mpe2", "simple_spread_v3", **options)


def test_only_pettingzoo_environments_are_wrapped() -> None:
    with pytest.raises(ConfigError, match="no PettingZoo environment"):
        pettingzoo_adapter.wrap(object())


def test_closing_twice_closes_once() -> None:
    class Counted(Party):
        num_closed = 0

        def close(self) -> None:
            self.num_closed += 1

    inner = Counted()
    env = pettingzoo_adapter.wrap(inner)
    env.close()
    env.close()
    assert inner.num_closed == 1
