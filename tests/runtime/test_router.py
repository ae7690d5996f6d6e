"""A router's thread and its end: whatever was put before the stop is written, however the threads take turns."""

import time
import uuid

import pytest
from runtime_fakes import ListSink
from test_trajectory_buffer import trajectory

from relayrl.runtime.agents.client_config import RouterBufferSettings, SinkConfig
from relayrl.runtime.agents.runtime_metrics import RuntimeMetrics
from relayrl.runtime.routing.router import Router
from relayrl.runtime.routing.sink_opener import SinkOpener
from relayrl.runtime.routing.trajectory_buffer import Priority

LANE = uuid.UUID(int=1)


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def router(sink):
    return Router(0, SinkOpener(sink), SinkConfig(), RouterBufferSettings(), RuntimeMetrics())


def test_what_was_put_before_the_stop_is_written(router, sink):
    router.start()
    for number in range(3):
        router.buffer.put(LANE, trajectory(LANE, number), Priority.FLUSH)
    assert router.stop(time.monotonic() + 10.0) == []
    assert len(sink.durable) == 3


def test_a_stop_that_comes_while_the_router_looks_at_an_empty_buffer_leaves_nothing_behind(router, sink, monkeypatch):
    """The last trajectories and the stop come after the look, and before what follows from it."""
    take, looks = router.buffer.take, []

    def interrupted(*arguments):
        looks.append(take(0, 0.0) if not looks else take(*arguments))
        if len(looks) == 1:
            router.buffer.put(LANE, trajectory(LANE, 0), Priority.FLUSH)
            router.begin_stop(time.monotonic() + 10.0)
        return looks[-1]

    monkeypatch.setattr(router.buffer, "take", interrupted)
    router.start()
    assert router.stop(time.monotonic() + 10.0) == []
    assert looks[0] == []
    assert len(sink.durable) == 1
