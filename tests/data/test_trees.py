"""Trees of arrays: what holds for their leaves."""

import numpy as np
import pytest

from relayrl.data.trees import all_finite


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_all_finite_is_exact_for_numbers_whose_squares_overflow(dtype):
    large = np.full((3, 2), np.finfo(dtype).max, dtype)
    assert all_finite(large)
    for wrong in (np.nan, np.inf, -np.inf):
        for numbers in (large.copy(), np.zeros((3, 2), dtype)):
            numbers[2, 1] = wrong
            assert not all_finite(numbers)
            assert not all_finite(numbers[::2, 1:])
            assert not all_finite(numbers[2:, 1:])
    assert all_finite(np.zeros((0, 2), dtype))
    assert all_finite(np.array([2**62]))
