"""The model of a cluster's run against hand-computed updates, and its limits."""

import pytest

from cluster_scaling import Costs, network_s, simulate, simulate_asynchronous

# 64 rows of 1 ms, 2 ms for a call, 0.5 ms for each collector, 5 µs to learn from a step.
COSTS = Costs((0.064,), 0.0, 0.002, 0.0005, 5e-6, step_bytes=0.0, snapshot_bytes=0.0)


@pytest.mark.parametrize("collectors", [1, 4, 1000])
def test_a_synchronous_update_is_the_sum_of_its_parts(collectors):
    steps = 64 * collectors
    seconds = 0.064 + 0.002 + collectors * 0.0005 + steps * 5e-6
    assert simulate(COSTS, collectors) == pytest.approx(steps / seconds)


def test_collectors_that_share_cores_are_bounded_by_them():
    shared = Costs((0.064,), 1e-3, 0.0, 0.0, 0.0, 0.0, 0.0, cores=2)
    assert simulate(shared, 2) == pytest.approx(2 * 64 / 0.064)
    assert simulate(shared, 8) == pytest.approx(2000.0)  # two cores of a thousand rows a second each


def test_the_slowest_collector_of_an_update_counts():
    uneven = Costs((0.05, 0.1), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert simulate(uneven, 64) == pytest.approx(64 * 64 / 0.1)


def test_rollouts_and_snapshots_cross_the_network_once_per_update():
    costs = Costs((0.064,), 0.0, 0.0, 0.0, 0.0, 100.0, 1e6, link_bytes_s=1e9, collectors_per_node=32)
    assert network_s(costs, 33) == pytest.approx((33 * 64 * 100.0 + 2 * 1e6) / 1e9)


def test_asynchronous_collectors_are_bounded_by_themselves_or_by_the_learner():
    assert simulate_asynchronous(COSTS, 2) == pytest.approx(2 * 64 / 0.064, rel=0.02)
    learner = 64 / (0.0005 + 64 * 5e-6)
    assert simulate_asynchronous(COSTS, 1000) == pytest.approx(learner, rel=0.02)
