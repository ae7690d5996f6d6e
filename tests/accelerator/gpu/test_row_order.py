"""The order of rows in minibatches, by a kernel: permutations, decided by keys, in which every row is everywhere as often."""

import pytest
import torch

from relayrl.accelerator.gpu.minibatch_kernels import shuffled_rows


@pytest.mark.parametrize("num_rows", [1, 2, 3, 17, 1024, 1025, 5000])
def test_is_a_permutation_that_keys_decide(num_rows):
    generator = torch.Generator().manual_seed(4)
    orders = [shuffled_rows(num_rows, generator) for _ in range(3)]
    assert all(order.sort().values.equal(torch.arange(num_rows)) for order in orders)
    assert shuffled_rows(num_rows, generator.manual_seed(4)).equal(orders[0])
    if num_rows > 3:
        assert not orders[0].equal(orders[1])


def test_puts_every_row_everywhere_and_breaks_up_neighbours():
    generator = torch.Generator().manual_seed(0)
    orders = torch.stack([shuffled_rows(12, generator) for _ in range(300)])
    counts = torch.stack([(orders == row).sum(0) for row in range(12)])  # [rows, places], 25 expected
    squares = float(((counts - 25.0) ** 2 / 25.0).sum())
    assert abs(squares - 121) < 5 * 242**0.5  # χ² with 11² degrees of freedom, within five deviations
    apart = (orders[:, 1:] - orders[:, :-1]).abs()
    assert abs(float((apart == 1).float().mean()) - 2 / 12) < 0.04  # of random orders, 2 / n of neighbours stay such
