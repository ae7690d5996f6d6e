"""Queues between acting and learning: full ones push back, the newest policy wins, nobody waits for the dead."""

import threading

import pytest

from relayrl.errors import ConfigError, QueueClosedError, QueueTimeoutError, RelayRLError
from relayrl.training.queued.queues import PolicyQueue, TrajectoryQueue
from waiting import DEADLINE_S


def test_items_come_out_in_order():
    queue = TrajectoryQueue(capacity=3)
    for item in "abc":
        queue.put(item)
    assert len(queue) == 3
    assert [queue.get() for _ in range(3)] == ["a", "b", "c"]
    assert queue.get() is None


def test_a_full_queue_pushes_back_until_the_taker_is_done():
    queue = TrajectoryQueue(capacity=1)
    queue.put("a", timeout_s=0)
    with pytest.raises(QueueTimeoutError):
        queue.put("b", timeout_s=0.01)
    assert queue.get() == "a"
    with pytest.raises(QueueTimeoutError):
        queue.put("b", timeout_s=0.01)  # taken, but not learned from
    queue.done()
    queue.put("b", timeout_s=0)
    assert queue.get() == "b"


def in_thread(function):
    """Runs `function` in a thread; gives a call that joins it and gives what it raised."""
    raised = []

    def target():
        try:
            function()
        except (ValueError, RelayRLError) as error:
            raised.append(error)

    thread = threading.Thread(target=target)
    thread.start()

    def join():
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        return raised[0] if raised else None

    return join


@pytest.mark.parametrize("wait", ["put", "get", "drain"])
def test_closing_with_an_error_wakes_whoever_waits(wait):
    queue = TrajectoryQueue(capacity=1)
    if wait != "get":
        queue.put("a")
    waits = {"put": lambda: queue.put("b"), "get": lambda: queue.get(timeout_s=30), "drain": queue.drain}
    join = in_thread(waits[wait])
    error = ValueError("the other side crashed")
    queue.close(error)
    assert join() is error
    with pytest.raises(ValueError, match="the other side crashed"):
        queue.put("c")


def test_a_closed_queue_says_so():
    queue = TrajectoryQueue()
    queue.close()
    with pytest.raises(QueueClosedError, match="closed"):
        queue.put("a")


def test_draining_waits_for_everything_to_be_done():
    queue = TrajectoryQueue(capacity=2)
    queue.put("a")
    queue.put("b")
    join = in_thread(lambda: queue.drain(timeout_s=30))
    for _ in range(2):
        queue.get(timeout_s=10)
        queue.done()
    assert join() is None


def test_a_queue_needs_room():
    with pytest.raises(ConfigError):
        TrajectoryQueue(capacity=0)


def test_the_newest_policy_wins_and_is_taken_once():
    queue = PolicyQueue()
    assert queue.take() is None
    queue.put(1)
    queue.put(2)
    assert queue.take() == 2
    assert queue.take() is None
