"""Filling rollouts row by row: what lands where, how blocks join, and what failures leave behind."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.data.arrow.codec import decode_rollout, encode
from relayrl.data.columns import LaneHeader
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.errors import ConfigError, EnvError

ENV_IDS = (uuid.UUID(int=1), uuid.UUID(int=2))
HEADER = LaneHeader("g", ENV_IDS, ("a", "b"), spaces.Box(-1e9, 1e9, (1,), np.float64), spaces.Discrete(9))
B, N, L = 2, 2, 4


@dataclass
class Final:
    """What lanes that ended saw last."""

    env: np.ndarray
    agent: np.ndarray
    obs: Any
    action_mask: np.ndarray | None = None


def lanes(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float64).reshape(B, N)


def flags(text: str) -> np.ndarray:
    return np.array([letter == "1" for letter in text]).reshape(B, N)


def final(text: str, base: float) -> Final:
    env, agent = np.nonzero(flags(text))
    return Final(env, agent, (base + env * N + agent)[:, None].astype(np.float64))


class Driver:
    """Writes rows whose observations, actions and rewards tell their row and lane: lane `l` of row `t` has `10 t + l`."""

    def __init__(self, num_steps: int, **options: Any) -> None:
        self.builder = RolloutBuilder(HEADER, num_steps, **options)
        self.t = 0

    def numbers(self) -> np.ndarray:
        return 10.0 * self.t + np.arange(L).reshape(B, N)

    def row(
        self,
        terminated: str = "....",
        truncated: str = "....",
        active: str = "1111",
        failed: str | None = None,
        last: Final | None = None,
        **columns: Any,
    ) -> None:
        numbers = self.numbers()
        self.builder.add(numbers[..., None], (numbers % 9).astype(np.int64), flags(active), **columns)
        broken = None if failed is None else np.array([letter == "1" for letter in failed])
        self.builder.finish_row(numbers.astype(np.float32), flags(terminated), flags(truncated), broken, last)
        self.t += 1

    def build(self, policy_version: int = 0) -> Any:
        return self.builder.build(self.numbers()[..., None], policy_version)


def test_rows_land_where_they_belong() -> None:
    driver = Driver(2, mask_width=3, with_logp=True, with_value=True)
    for _ in range(2):
        mask = np.zeros((B, N, 3), bool)
        mask[0, 1, 2] = True
        driver.row(logp=-driver.numbers(), value=driver.numbers() / 2, action_mask=mask)
    rollout = driver.build(policy_version=7)
    assert rollout.obs[..., 0].tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert rollout.action.tolist() == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert rollout.reward.tolist() == rollout.obs[..., 0].tolist()
    assert rollout.logp.tolist() == (-rollout.reward).tolist()
    assert rollout.value[1].tolist() == [5, 5.5, 6, 6.5]
    assert rollout.action_mask[0].tolist() == [[False] * 3, [False, False, True], [False] * 3, [False] * 3]
    assert rollout.policy_version.tolist() == [[7] * 4, [7] * 4]
    assert rollout.valid.all()
    assert not rollout.failed.any()
    assert (rollout.first_episode.tolist(), rollout.first_step.tolist()) == ([0] * 4, [0] * 4)
    assert rollout.successors.step.tolist() == [1, 1, 1, 1]
    assert rollout.successors.lane.tolist() == [0, 1, 2, 3]
    assert rollout.successors.obs[:, 0].tolist() == [20, 21, 22, 23]


def test_arrays_may_come_by_lane_instead_of_by_env_and_agent() -> None:
    by_lane, by_env = RolloutBuilder(HEADER, 1), RolloutBuilder(HEADER, 1)
    obs, action, active = np.arange(4.0)[:, None], np.arange(4), np.array([True, False, True, True])
    by_lane.add(obs, action, active)
    by_lane.finish_row(np.ones(4, np.float32), np.zeros(4, bool), np.zeros(4, bool))
    by_env.add(obs.reshape(2, 2, 1), action.reshape(2, 2), active.reshape(2, 2))
    by_env.finish_row(np.ones((2, 2), np.float32), np.zeros((2, 2), bool), np.zeros((2, 2), bool))
    one, other = by_lane.build(obs, 0), by_env.build(obs.reshape(2, 2, 1), 0)
    assert bytes(encode(one)) == bytes(encode(other))


def test_nested_spaces_and_memory_are_filled_leaf_by_leaf() -> None:
    space = spaces.Dict({"x": spaces.Box(-9, 9, (2,)), "t": spaces.Tuple([spaces.Discrete(5)])})
    header = LaneHeader("g", ENV_IDS, ("a",), space, spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]))
    builder = RolloutBuilder(header, 1, memory_space=spaces.Box(-9, 9, (3,)))
    obs = {"x": np.arange(4.0).reshape(2, 1, 2), "t": (np.array([[1], [2]]),)}
    action = (np.array([[0], [1]]), np.array([[[0, 1]], [[1, 1]]]))
    builder.add(obs, action, np.ones((2, 1), bool), memory=np.arange(6.0).reshape(2, 1, 3))
    builder.finish_row(np.zeros((2, 1)), np.zeros((2, 1), bool), np.zeros((2, 1), bool))
    rollout = builder.build(obs, 0)
    assert rollout.obs["x"].tolist() == [[[0, 1], [2, 3]]]
    assert rollout.obs["t"][0].tolist() == [[1, 2]]
    assert rollout.action[1].tolist() == [[[0, 1], [1, 1]]]
    assert rollout.memory.tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert rollout.successors.obs["x"].tolist() == [[0, 1], [2, 3]]


def test_final_observations_stand_beside_next_ones_in_the_order_of_rows_and_lanes() -> None:
    driver = Driver(3)
    driver.row(terminated=".1..", last=final(".1..", 500))
    driver.row()
    driver.row(truncated="1..1", last=final("1..1", 700))
    rollout = driver.build()
    successors = rollout.successors
    assert successors.step.tolist() == [0, 2, 2, 2, 2]
    assert successors.lane.tolist() == [1, 0, 1, 2, 3]
    assert successors.obs[:, 0].tolist() == [501, 700, 31, 32, 703]
    assert rollout.episode()[:, 1].tolist() == [0, 1, 1]


def test_numbers_run_on_from_block_to_block() -> None:
    driver = Driver(2)
    driver.row(terminated="1...", last=final("1...", 0))
    driver.row(terminated=".1..", last=final(".1..", 0))
    driver.build()
    driver.row()
    driver.row(terminated="..1.", last=final("..1.", 0))
    second = driver.build()
    assert second.first_episode.tolist() == [1, 1, 0, 0]
    assert second.first_step.tolist() == [1, 0, 2, 2]
    driver.row()
    third = driver.build()
    assert third.first_episode.tolist() == [1, 1, 1, 0]
    assert third.first_step.tolist() == [3, 2, 0, 4]
    assert third.num_steps == 1


def test_a_lanes_part_of_an_episode_begins_with_its_first_action_even_in_a_later_block() -> None:
    driver = Driver(2)
    driver.row(active="11.1", terminated="1...", last=final("1...", 0))
    driver.row(active=".1.1")
    driver.build()
    driver.row(active="1.11")
    second = driver.build()
    #  lane 0 ended and has not acted since; lane 1 acted; lane 2 never did; lane 3 always
    assert second.first_episode.tolist() == [1, 0, 0, 0]
    assert second.first_step.tolist() == [0, 2, 0, 2]
    driver.row(active="....")
    assert driver.build().first_step.tolist() == [1, 3, 1, 3]


def test_a_failed_envs_row_is_void_truncated_and_never_valid() -> None:
    driver = Driver(2)
    driver.row(failed=".1", terminated="1.1.", truncated="...1", last=final("1.11", 500))
    driver.row()
    rollout = driver.build()
    assert rollout.failed.tolist() == [[False, False, True, True], [False] * 4]
    assert rollout.valid.tolist() == [[True, True, False, False], [True] * 4]
    assert rollout.terminated[0].tolist() == [True, False, False, False]
    assert rollout.truncated[0].tolist() == [False, False, True, True]
    assert rollout.reward[0].tolist() == [0, 1, 0, 0]
    assert rollout.successors.obs[:3, 0].tolist() == [500, 502, 503]
    assert rollout.episode()[1].tolist() == [1, 0, 1, 1]


def test_masks_of_what_followed_stand_beside_it() -> None:
    driver, only = Driver(2, mask_width=2), np.array([[True, False], [False, True]])
    last = final(".1.1", 500)
    last.action_mask = only
    driver.row(truncated=".1.1", last=last)
    driver.row(truncated="1...", last=final("1...", 700))  # an environment that does not know
    rollout = driver.builder.build(driver.numbers()[..., None], 0, np.tile([False, True], (B, N, 1)))
    assert rollout.successors.lane.tolist() == [1, 3, 0, 1, 2, 3]
    assert rollout.successors.action_mask.tolist() == [*only.tolist(), [True, True], *[[False, True]] * 3]


def test_a_failed_lane_keeps_the_mask_that_it_acted_under() -> None:
    driver, own = Driver(1, mask_width=2), np.tile([False, True], (B, N, 1))
    last = final(".1.1", 500)
    last.action_mask = np.array([[True, True], [True, False]])
    driver.row(failed="1.", terminated="...1", last=last, action_mask=own)
    successors = driver.build().successors
    assert successors.lane.tolist() == [0, 1, 2, 3]
    assert successors.action_mask.tolist() == [[False, True], [False, True], [True, True], [True, False]]


def test_a_failed_lane_without_final_observation_keeps_what_it_acted_on() -> None:
    driver = Driver(2)
    driver.row()
    driver.row(failed="1.", terminated="...1", last=final(".1.1", 500))
    successors = driver.build().successors
    assert successors.lane.tolist() == [0, 1, 2, 3]
    assert successors.obs[:, 0].tolist() == [10, 501, 22, 503]
    driver.row(failed=".1")
    assert driver.build().successors.obs[:, 0].tolist() == [30, 31, 22, 23]


def test_failures_do_not_haunt_later_blocks() -> None:
    driver = Driver(1)
    driver.row(failed="11")
    assert driver.build().failed.all()
    for _ in range(3):
        driver.row()
        assert not driver.build().failed.any()


def test_a_rollout_is_left_alone_until_the_block_after_the_next_begins() -> None:
    driver = Driver(1)
    driver.row(terminated="1...", last=final("1...", 500))
    first = driver.build()
    kept = bytes(encode(first))
    driver.row()
    assert bytes(encode(first)) == kept
    driver.build()
    assert bytes(encode(first)) == kept
    driver.row()
    assert first.obs[0, 0, 0] == 20


def test_what_environments_reuse_is_copied() -> None:
    builder = RolloutBuilder(HEADER, 1)
    obs, reward, ended = np.ones((B, N, 1)), np.ones((B, N), np.float32), flags("1...")
    last = final("1...", 500)
    builder.add(obs, np.zeros((B, N), np.int64), flags("1111"))
    builder.finish_row(reward, ended, flags("...."), final=last)
    next_obs = np.full((B, N, 1), 2.0)
    rollout = builder.build(next_obs, 0)
    for array in (obs, reward, last.obs, next_obs):
        array[...] = -1
    assert rollout.obs.tolist() == [[[1]] * 4]
    assert rollout.reward.tolist() == [[1] * 4]
    assert rollout.successors.obs.tolist() == [[500], [2], [2], [2]]


def test_more_ends_than_first_reserved_for_are_kept() -> None:
    driver = Driver(50)
    for t in range(50):
        driver.row(terminated="1111", last=final("1111", 100 * t))
    successors = driver.build().successors
    assert len(successors) == 200
    assert successors.obs[:, 0].tolist() == [100 * t + lane for t in range(50) for lane in range(4)]


def test_a_row_without_mask_allows_everything() -> None:
    driver = Driver(1, mask_width=2)
    driver.row()
    assert driver.build().action_mask.all()


def test_blocks_survive_the_codec() -> None:
    driver = Driver(5)
    driver.row(failed="1.", terminated="..1.", last=final("..1.", 500), active="1.11")
    driver.row(active="..11")
    rollout = driver.build(policy_version=3)
    assert decode_rollout(encode(rollout)).successors.obs.tolist() == rollout.successors.obs.tolist()


def test_numbering_goes_on_from_a_saved_state() -> None:
    driver = Driver(2)
    driver.row(terminated="1...", last=final("1...", 0))
    driver.row()
    driver.build()
    resumed = Driver(2)
    resumed.builder.set_state(driver.builder.get_state())
    for one in (driver, resumed):
        one.row()
    ours, theirs = driver.build(), resumed.build()
    assert ours.first_episode.tolist() == theirs.first_episode.tolist() == [1, 0, 0, 0]
    assert ours.first_step.tolist() == theirs.first_step.tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize(("ended", "kept"), [("1...", None), ("1...", ".1.."), ("....", "1..."), ("11..", "1...")])
def test_an_end_without_final_observation_is_the_environments_fault(ended: str, kept: str | None) -> None:
    driver = Driver(1)
    driver.row(terminated=ended, last=None if kept is None else final(kept, 0))
    with pytest.raises(EnvError, match="of environment 00000000-0000-0000-0000-000000000001 on row 0"):
        driver.build()


def test_calls_out_of_order_and_missing_columns_say_what_to_do() -> None:
    driver = Driver(1, with_logp=True)
    builder = driver.builder
    arrays = (np.zeros((B, N, 1)), np.zeros((B, N), np.int64), flags("1111"))
    row = (np.zeros((B, N)), flags("...."), flags("...."))
    with pytest.raises(ConfigError, match=r"finish_row\(\) without add"):
        builder.finish_row(*row)
    with pytest.raises(ConfigError, match=r"build\(\) after 0 finished rows"):
        driver.build()
    with pytest.raises(ConfigError, match="logp and value must be given exactly when"):
        builder.add(*arrays)
    with pytest.raises(ConfigError, match="memory and action_mask must be given only when"):
        builder.add(*arrays, logp=np.zeros((B, N)), action_mask=np.ones((B, N, 2), bool))
    builder.add(*arrays, logp=np.zeros((B, N)))
    with pytest.raises(ConfigError, match="call finish_row"):
        builder.add(*arrays, logp=np.zeros((B, N)))
    with pytest.raises(ConfigError, match="inside a block"):
        builder.get_state()
    builder.finish_row(*row)
    with pytest.raises(ConfigError, match="row 1 of 1"):
        builder.add(*arrays, logp=np.zeros((B, N)))
    with pytest.raises(ConfigError, match="at least one step"):
        RolloutBuilder(HEADER, 0)
