"""Random actions: inside their spaces, within their masks, and a stream for each environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.data.trees import index
from relayrl.envs.environment_contract import AgentGroup, GroupObservation
from relayrl.testing.env_contract import random_actions
from relayrl.testing.random_play import Player

SPACES = [
    spaces.Discrete(5, start=2),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiBinary(4),
    spaces.Box(-2.0, 3.0, (2, 2), np.float32),
    spaces.Box(np.array([0.0, -np.inf, -np.inf]), np.array([np.inf, 1.0, np.inf]), dtype=np.float64),
    spaces.Box(0, 3, (2,), np.uint8),
    spaces.Dict({"hand": spaces.Discrete(2), "gaze": spaces.Tuple((spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(3)))}),
]


def group_of(space: spaces.Space[Any]) -> dict[str, AgentGroup]:
    return {"g": AgentGroup("g", ("a", "b"), spaces.Discrete(1), space)}


def seen(num_envs: int, mask: Any = None, active: Any = True) -> dict[str, GroupObservation]:
    lanes = (num_envs, 2)
    return {"g": GroupObservation(np.zeros(lanes), np.broadcast_to(np.asarray(active), lanes).copy(), mask)}


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_lie_in_their_space(space: spaces.Space[Any]) -> None:
    actions = random_actions(group_of(space), seen(50), np.random.default_rng(0))["g"]
    rows = [index(actions, (b, n)) for b in range(50) for n in range(2)]
    assert all(space.contains(row) for row in rows)


def test_all_whole_numbers_of_a_box_are_drawn() -> None:
    actions = random_actions(group_of(spaces.Box(0, 3, (1,), np.uint8)), seen(100), np.random.default_rng(0))["g"]
    assert set(actions.ravel().tolist()) == {0, 1, 2, 3}


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_only_allowed_actions_are_drawn(seed: int, num_actions: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((20, 2, num_actions)) < 0.4
    actions = random_actions(group_of(spaces.Discrete(num_actions)), seen(20, mask), rng)["g"]
    chosen = np.take_along_axis(mask, actions[..., None], axis=-1)[..., 0]
    assert (chosen | ~mask.any(axis=-1)).all()


def test_masks_of_components_lie_side_by_side() -> None:
    mask = np.zeros((30, 2, 5), bool)
    mask[..., [1, 2, 4]] = True  # of MultiDiscrete([2, 3]): the first must be 1, the second 0 or 2
    actions = random_actions(group_of(spaces.MultiDiscrete([2, 3])), seen(30, mask), np.random.default_rng(0))["g"]
    assert set(actions[..., 0].ravel().tolist()) == {1}
    assert set(actions[..., 1].ravel().tolist()) == {0, 2}


def test_allowed_actions_are_equally_likely() -> None:
    mask = np.broadcast_to(np.array([True, False, True, True]), (5000, 2, 4))
    actions = random_actions(group_of(spaces.Discrete(4)), seen(5000, mask), np.random.default_rng(0))["g"]
    shares = np.bincount(actions.ravel(), minlength=4) / actions.size
    np.testing.assert_allclose(shares, [1 / 3, 0.0, 1 / 3, 1 / 3], atol=0.02)


def test_an_env_is_played_alike_however_many_there_are() -> None:
    groups = group_of(spaces.Discrete(100))
    few, many = Player(groups, 2, seed=3), Player(groups, 5, seed=3)
    for _ in range(3):
        np.testing.assert_array_equal(few.act(seen(2))["g"], many.act(seen(5))["g"][:2])


def test_idle_lanes_draw_from_other_streams() -> None:
    groups = group_of(spaces.Discrete(1000))
    one, other = (Player(groups, 4, seed=3, idle_seed=idle_seed) for idle_seed in (0, 1))
    for _ in range(3):
        a, b = (player.act(seen(4, active=[True, False]))["g"] for player in (one, other))
        np.testing.assert_array_equal(a[:, 0], b[:, 0])
        assert (a[:, 1] != b[:, 1]).any()
