"""When requests become a batch, on a clock that the test sets."""

import pytest

from relayrl.servers.inference.request_batches import BatchSettings, RequestBatches

LATENCY_S = 0.005


def batches(**settings) -> RequestBatches[str]:
    return RequestBatches(BatchSettings(max_latency_ms=1000 * LATENCY_S, **settings))


def test_a_single_client_never_waits():
    queue = batches()
    for step in range(3):
        now = step * 0.001
        assert queue.put("m", b"a", 1, f"{step}", now)
        assert queue.due(now) == [[f"{step}"]]
        queue.replied(now)
    assert queue.next_due_s(1.0) is None


def test_clients_in_lock_step_share_every_batch_after_the_first():
    queue = batches()
    queue.put("m", b"a", 1, "a0", 0.0)
    assert queue.due(0.0) == [["a0"]]
    queue.replied(0.0)
    queue.put("m", b"b", 1, "b0", 0.001)
    assert queue.due(0.001) == []  # a may ask again in time
    queue.put("m", b"a", 1, "a1", 0.002)
    assert queue.due(0.002) == [["b0", "a1"]]


def test_nobody_waits_for_longer_than_the_latency_bound():
    queue = batches()
    queue.put("m", b"a", 1, "a0", 0.0)
    queue.due(0.0)
    queue.replied(0.004)
    queue.put("m", b"b", 1, "b0", 0.004)
    assert queue.next_due_s(0.004) == pytest.approx(0.009)
    assert queue.due(0.0089) == []
    assert queue.due(0.0091) == [["b0"]]


def test_a_client_that_thinks_for_longer_than_the_bound_holds_nobody_up():
    queue = batches()
    queue.put("m", b"slow", 1, "s", 0.0)
    queue.due(0.0)
    queue.replied(0.0)
    queue.put("m", b"fast", 1, "f", 0.1)
    assert queue.due(0.1) == [["f"]]


def test_a_client_that_left_is_not_waited_for():
    queue = batches()
    queue.put("m", b"a", 1, "a0", 0.0)
    queue.due(0.0)
    queue.replied(0.0)
    queue.forget(b"a")
    queue.put("m", b"b", 1, "b0", 0.001)
    assert queue.due(0.001) == [["b0"]]


def test_a_full_batch_goes_at_once_and_is_cut_to_size():
    queue = batches(max_batch=4)
    for client in (b"a", b"b"):
        queue.put("m", client, 1, "x", 0.0)
    queue.due(0.0)
    queue.replied(0.0)
    for i in range(3):
        queue.put("m", b"a", 2, f"a{i}", 0.001)
    assert queue.due(0.001) == [["a0", "a1"], ["a2"]]
    assert queue.num_rows == 0


def test_models_have_batches_of_their_own():
    queue = batches()
    queue.put("m", b"a", 1, "a", 0.0)
    queue.put("n", b"b", 1, "b", 0.0)
    assert sorted(queue.due(0.0)) == [["a"], ["b"]]


def test_what_waits_is_bounded():
    queue = batches(max_queued_rows=3)
    assert queue.put("m", b"a", 5, "more than all by itself is taken alone", 0.0)
    assert not queue.put("m", b"b", 1, "b", 0.0)
    queue.due(0.0)
    assert queue.put("m", b"b", 1, "b", 0.0)
