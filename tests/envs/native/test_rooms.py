"""native:rooms, cell by cell."""

from __future__ import annotations

import numpy as np
import pytest

from relayrl.envs import native
from relayrl.envs.environment_contract import SINGLE_AGENT

NORTH, SOUTH, WEST, EAST, OPEN = range(5)


def placed(
    cell: tuple[int, int], exits: tuple[int, ...], device: str = "cpu", size: int = 3
) -> native.BatchedEnvironment:
    """One world of rooms with `exits`, and the agent in `cell`."""
    env = native.make("rooms", num_rooms=len(exits), room_size=size, device=device)
    env.init_num_envs(1)
    env.reset(seed=0)
    state = env.get_state()
    state["cell"], state["exits"] = np.array([cell]), np.array([exits])
    state["is_open"][...] = False
    env.set_state(state)
    return env


def walked(env: native.BatchedEnvironment, *actions: int) -> list[tuple[int, int]]:
    cells = []
    for action in actions:
        env.step({SINGLE_AGENT: np.array([[action]])})
        cells.append(tuple(env.get_state()["cell"][0].tolist()))
    return cells


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_walls_and_closed_doors_stop_the_agent_and_an_open_door_does_not(device: str) -> None:
    env = placed((2, 0), exits=(1, 2), device=device)
    assert walked(env, SOUTH, EAST) == [(2, 0), (2, 0)]  # the border, and the wall
    assert walked(env, NORTH, EAST) == [(2, 1), (2, 1)]  # before the closed door
    assert walked(env, OPEN, EAST) == [(2, 1), (3, 1)]
    assert walked(env, NORTH, SOUTH) == [(3, 1), (3, 1)]  # a doorway has walls
    assert walked(env, EAST, WEST, WEST, WEST, WEST, WEST) == [(4, 1), (3, 1), (2, 1), (1, 1), (0, 1), (0, 1)]


def test_a_door_opens_from_the_cell_west_of_it_only() -> None:
    env = placed((1, 1), exits=(1, 0))
    walked(env, OPEN)
    assert not env.get_state()["is_open"].any()
    walked(env, EAST, OPEN)
    assert env.get_state()["is_open"].tolist() == [[True, False]]


def test_only_the_goal_is_rewarded_and_ends_the_episode() -> None:
    env = placed((2, 1), exits=(1, 2))
    rewards, ends = [], []
    for action in (OPEN, EAST, EAST, EAST, EAST, NORTH):
        step = env.step({SINGLE_AGENT: np.array([[action]])})
        rewards.append(float(step.groups[SINGLE_AGENT].reward[0, 0]))
        ends.append(bool(step.groups[SINGLE_AGENT].terminated[0, 0]))
    assert rewards == [0, 0, 0, 0, 0, 1]
    assert ends == [False] * 5 + [True]


def test_what_is_seen() -> None:
    env = placed((0, 2), exits=(1, 2))
    assert env.build_observation().groups[SINGLE_AGENT].obs[0, 0].tolist() == [-1.0, 1.0, 1.0, -0.5, 0.0]
    walked(env, SOUTH, EAST, EAST, OPEN)
    np.testing.assert_allclose(
        env.build_observation().groups[SINGLE_AGENT].obs[0, 0], [4 / 6 - 1, 0, 1 / 3, 0, 1], atol=1e-6
    )
    walked(env, EAST, EAST)
    np.testing.assert_allclose(
        env.build_observation().groups[SINGLE_AGENT].obs[0, 0], [8 / 6 - 1, 0, 1, 0.5, 0], atol=1e-6
    )


def test_episodes_begin_in_the_first_room_with_all_rows_equally_likely() -> None:
    env = native.make("rooms", num_rooms=3, room_size=4)
    env.init_num_envs(4000)
    env.reset(seed=1)
    state = env.get_state()
    for drawn in (*state["cell"].T, *state["exits"].T):
        assert np.abs(np.bincount(drawn, minlength=4) / 4000 - 0.25).max() < 0.03
