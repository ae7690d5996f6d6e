"""What sinks refuse when it is written, naming the trajectory, the column and the first row that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from recorded_steps import plain_trajectory

from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError
from relayrl.sinks.contract import open_sink, open_source
from relayrl.sinks.memory import forget

T = 20
PARTS = spaces.MultiDiscrete([2, 3], start=[0, 5])


def _with(column: Any, where: Any, value: Any) -> Any:
    changed = np.array(column)
    changed[where] = value
    return changed


def _written(*trajectories: Trajectory) -> list[Trajectory]:
    """What a sink has of trajectories."""
    try:
        with open_sink("memory:checked") as sink:
            sink.write(trajectories)
        with open_source("memory:checked") as source:
            return list(source)
    finally:
        forget("checked")


DISCRETE = plain_trajectory(0, 7)
MULTI = replace(DISCRETE, action_space=PARTS, action=np.tile(np.array([1, 7]), (T, 1)))
BINARY = replace(DISCRETE, action_space=spaces.MultiBinary(3), action=np.ones((T, 3), np.int8))
SEES_CHOICES = replace(
    DISCRETE,
    observation_space=spaces.Dict(room=spaces.Discrete(4, start=-2)),
    obs={"room": np.full(T, -2)},
    final_obs={"room": np.int64(1)},
)
WRONG: dict[str, tuple[Trajectory, dict[str, Any], str]] = {
    "an action too large": (
        DISCRETE,
        {"action": _with(DISCRETE.action, 3, 2)},
        r"'action' in row 3 is 2, expected 0 to 1",
    ),
    "a negative action": (DISCRETE, {"action": _with(DISCRETE.action, 0, -1)}, r"'action' in row 0 is -1"),
    "one part too large": (
        MULTI,
        {"action": _with(MULTI.action, (19, 1), 8)},
        r"row 19 is 8, expected \[0, 5\] to \[1, 7\]",
    ),
    "one part too small": (MULTI, {"action": _with(MULTI.action, (4, 1), 4)}, r"row 4 is 4"),
    "neither 0 nor 1": (BINARY, {"action": _with(BINARY.action, (5, 2), 2)}, r"row 5 is 2, expected 0 to 1"),
    "a room that is not": (SEES_CHOICES, {"obs": {"room": _with(np.full(T, -2), 6, 2)}}, r"'obs.room' in row 6 is 2"),
    "a last room that is not": (SEES_CHOICES, {"final_obs": {"room": np.int64(-3)}}, r"'final_obs.room' is -3"),
    "no such key": (
        SEES_CHOICES,
        {"obs": {"hall": np.zeros(T, np.int64)}},
        r"'obs' should be a dict with keys \['room'\]",
    ),
    "a mask of another width": (
        DISCRETE,
        {"action_mask": np.ones((T, 3), bool)},
        "'action_mask' has 3 entries a row",
    ),
    "a shorter column": (DISCRETE, {"obs": DISCRETE.obs[:-1]}, r"'obs' is float32 \[19, 4\], expected .* \[20, 4\]"),
    "another dtype": (DISCRETE, {"reward": np.ones(T)}, "'reward' is float64"),
    "failed and not truncated": (DISCRETE, {"failed": True}, "failed, so it must be truncated"),
    "no steps": (DISCRETE, {"reward": DISCRETE.reward[:0]}, "has no steps"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_with_the_name_of_its_trajectory(name: str) -> None:
    right, change, message = WRONG[name]
    others = [replace(plain_trajectory(1, number), action_space=right.action_space) for number in range(2)]
    others = [replace(each, action=right.action) for each in others]
    who = f"trajectory {right.trajectory_id} of agent 'agent' in environment {right.env_id}"
    with pytest.raises(ConfigError, match=f"^{who}.*{message}"):
        _written(*others, replace(right, **change))
    assert [each.trajectory_id for each in _written(right)] == [right.trajectory_id]


def test_of_a_block_the_trajectory_of_the_first_wrong_row_is_named() -> None:
    (block,) = layout_book().blocks([plain_trajectory(0, number) for number in range(3)])
    reward, version, obs, action, *others = block.arrays
    wrong = replace(block, arrays=(reward, version, obs, _with(action, 2 * T + 4, 9), *others))
    with open_sink("memory:block") as sink:
        sink.write(block)
        with pytest.raises(ConfigError, match=f"^trajectory {block[2].trajectory_id} .*'action' in row 4 is 9"):
            sink.write(wrong)
    forget("block")


def test_a_box_may_hold_anything_that_its_dtype_holds() -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    action = np.full((T, 2), 50.0, np.float32)
    action[3] = np.nan
    (found,) = _written(replace(DISCRETE, action_space=box, action=action, reward=np.full(T, np.inf, np.float32)))
    np.testing.assert_array_equal(found.action, action)
