"""A trajectory cut in two at a step of its environment."""

from dataclasses import replace

import numpy as np
import pytest

from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_parts import cut_at_step, end_of
from relayrl.testing import example_trajectories


def example() -> Trajectory:
    return next(t for t in example_trajectories(0) if len(t) >= 4 and t.action_mask is not None)


@pytest.mark.parametrize("row", [1, 3])
def test_both_parts_together_are_the_whole(row):
    whole = replace(example(), step=None, end_step=None, first_step=10, terminated=True, truncated=False, failed=False)
    before, rest = cut_at_step(whole, 10 + row)
    assert (len(before), len(rest)) == (row, len(whole) - row)
    assert (before.first_step, rest.first_step, end_of(before), end_of(rest)) == (10, 10 + row, 10 + row, end_of(whole))
    assert (before.terminated, rest.terminated) == (False, True)
    np.testing.assert_array_equal(np.concatenate([before.reward, rest.reward]), whole.reward)
    np.testing.assert_array_equal(before.final_mask, whole.action_mask[row])
    assert before.trajectory_id == whole.trajectory_id != rest.trajectory_id


def test_steps_are_those_of_the_environment_where_they_are_known():
    whole = example()
    steps = 5 + 2 * np.arange(len(whole))  # it acts on every other step, from the fifth on
    whole = replace(whole, first_step=0, step=steps, end_step=int(steps[-1]) + 4, failed=False)
    before, rest = cut_at_step(whole, 8)
    assert (before.step.tolist(), before.first_step, before.end_step) == ([5, 7], 0, 8)
    assert (rest.step[0], rest.first_step, rest.end_step) == (9, 8, whole.end_step)


def test_there_is_no_part_without_a_step():
    whole = example()
    assert cut_at_step(whole, whole.first_step) == (None, whole)
    before, rest = cut_at_step(whole, end_of(whole))
    assert (before, rest) == (whole, None)
