"""Captured work on a GPU: what garbage, and work that cannot be captured, leave of the run and of its random numbers."""

import gc

import pytest
import torch

from relayrl.engines.device.graphed import Graphed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = torch.device("cuda")


def drawn(num_calls, *, spoil=lambda: None):
    """Sums of random numbers over so many calls of captured work, and what was captured."""
    generator, total = torch.Generator(DEVICE).manual_seed(3), torch.zeros(1000, device=DEVICE)

    def work():
        total.add_(torch.rand(1000, generator=generator, device=DEVICE))
        spoil()

    graphed = Graphed(work, DEVICE, [generator])
    for _ in range(num_calls):
        graphed()
    return total.cpu(), graphed._graph


def leave_a_graph():
    """A graph that only the collector of garbage can free."""
    graph, kept = torch.cuda.CUDAGraph(), torch.zeros(10, device=DEVICE)
    with torch.cuda.graph(graph):
        kept.add_(1.0)
    cycle = [graph]
    cycle.append(cycle)


def test_garbage_of_earlier_graphs_spoils_no_capture():
    expected, graph = drawn(5)
    assert graph is not None
    leave_a_graph()
    thresholds = gc.get_threshold()
    gc.set_threshold(1)  # as often as can be
    try:
        found, graph = drawn(5, spoil=lambda: [[] for _ in range(1000)])
    finally:
        gc.set_threshold(*thresholds)
    assert graph is not None
    assert torch.equal(found, expected)


def test_work_that_cannot_be_captured_goes_on_with_the_same_random_numbers():
    expected, _ = drawn(5)
    found, graph = drawn(5, spoil=torch.cuda.synchronize)
    assert graph is None
    assert torch.equal(found, expected)
