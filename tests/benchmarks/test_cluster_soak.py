"""A short form of the cluster's soak: a node comes and one is lost, and the run goes on with a small object store."""

import pytest

from cluster_soak import STORE_MB, Soak, soak, summary


@pytest.mark.filterwarnings("ignore")  # of Ray's
def test_nodes_come_and_go_while_a_run_learns_and_its_object_store_stays_small():
    asked = Soak(minutes=10.0, churn_s=5.0, sample_s=0.5, num_losses=1)
    found = soak(asked)
    assert found["nodes_added"] == found["nodes_removed"] == 1
    assert found["collectors_replaced"] >= 1
    assert asked.num_steps >= 100_000
    # Rollouts of 64 environments × 256 steps are 1 MB: two calls of two collectors, weights and states are a few of them.
    assert 0.0 < found["store_mb_highest"] < STORE_MB / 4


def test_the_summary_is_of_thirds_and_of_the_longest_pause():
    asked = Soak(samples=[(0, 1.0, 0, 100), (2, 3.0, 10, 100), (4, 2.0, 10, 100), (6, 2.0, 10, 130), (8, 5.0, 20, 130)])
    found = summary(asked)
    assert (found["store_mb_first_third"], found["store_mb_last_third"], found["store_mb_highest"]) == (1.0, 5.0, 5.0)
    assert found["longest_s_without_steps"] == 4
