"""From which step on a chain of rooms counts as solved."""

import numpy as np
import pytest

from rooms_training import solved_from

STEPS = np.array([1000, 2000, 3000])


@pytest.mark.parametrize(
    ("is_solved", "expected"),
    [
        ([True, True, True], "1,000"),
        ([False, True, True], "2,000"),
        ([True, False, True], "3,000"),
        ([True, True, False], "never"),
    ],
)
def test_a_chain_is_solved_from_the_first_row_that_no_other_follows_which_is_not(is_solved, expected):
    assert solved_from(STEPS, np.array(is_solved)) == expected
