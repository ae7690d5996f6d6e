"""Captures and replays, by a stand-in for CUDA's graphs: what a capture asks for, and what a spoiled one leaves."""

import contextlib
import gc
import weakref

import pytest
import torch

from relayrl.engines.device.graphed import Graphed

DEVICE = torch.device("cuda")


class Graph:
    work = staticmethod(lambda: None)

    def register_generator_state(self, generator):
        generator.is_capturing = True

    def replay(self):
        self.work()


class Generator:
    """As CUDA's: what is registered with a graph draws nothing until that is captured."""

    def __init__(self, device=DEVICE):
        self.device, self.drawn, self.is_capturing = device, 0, False

    def get_state(self):
        return self.drawn

    def set_state(self, drawn):
        assert not self.is_capturing
        self.drawn = drawn

    def graphsafe_set_state(self, other):
        self.drawn, self.is_capturing = other.drawn, other.is_capturing


@pytest.fixture
def capturing(monkeypatch):
    """Numbers of captures that are under way; one that fails leaves its stream behind, as torch's do."""
    under_way, current = [], ["the usual stream"]

    @contextlib.contextmanager
    def capture(graph):
        under_way.append(graph)
        current[0] = "the capture's"
        try:
            yield
            current[0] = "the usual stream"
        finally:
            under_way.pop()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: current.__setitem__(0, stream))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch, "Generator", Generator)
    return under_way


def test_no_garbage_is_collected_during_a_capture(capturing):
    seen = []

    class Cycle:
        def __init__(self):
            self.own = self

    assert gc.isenabled()
    earlier = Cycle()
    freed = weakref.ref(earlier)
    del earlier

    def work():
        if capturing:
            seen.append((gc.isenabled(), freed()))

    graphed = Graphed(work, DEVICE, [])
    graphed()
    graphed()
    assert seen == [(False, None)]  # what was garbage is gone before, and nothing goes meanwhile
    assert gc.isenabled()


def test_a_spoiled_capture_leaves_generators_as_they_were(capturing, caplog):
    generator = Generator()

    def work():
        if capturing:
            generator.drawn = -1
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        assert not generator.is_capturing
        generator.drawn += 1

    graphed = Graphed(work, DEVICE, [generator])
    for _ in range(4):
        graphed()
    assert generator.drawn == 4
    assert torch.cuda.current_stream() == "the usual stream"
    assert "operation not permitted when stream is capturing);" in caplog.text
    assert gc.isenabled()


def test_work_is_called_once_captured_once_and_replayed(capturing, monkeypatch):
    calls = []

    def work():
        calls.append(bool(capturing))

    monkeypatch.setattr(Graph, "work", lambda _: calls.append("replayed"))
    graphed = Graphed(work, DEVICE, [])
    for _ in range(4):
        graphed()
    assert calls == [False, True, "replayed", "replayed", "replayed"]
