"""Both writers give the same columns, or their times mean nothing."""

from dataclasses import replace

import numpy as np
import pytest

import step_writers


@pytest.mark.parametrize("shape", step_writers.SHAPES, ids=lambda shape: shape.name)
def test_both_writers_give_the_same_columns(shape):
    lanes = step_writers.Lanes(replace(shape, num_lanes=3, num_steps=70))
    for _ in range(2):
        rollout, block = lanes.together(), lanes.by_pages()
        for name in ("obs", "action", "logp", "value"):
            np.testing.assert_array_equal(getattr(rollout, name), block[name])
        np.testing.assert_array_equal(rollout.reward[:-1], block["reward"][:-1])


def test_every_work_has_its_iteration_on_the_page_of_speed():
    known = step_writers.iterations()
    assert all(f"{shape.name} {shape.variant}" in known for shape in step_writers.SHAPES if shape.name != "images")
    assert min(known.values()) > 0
