"""Frames of strangers, mutated: refused or taken, and nothing else."""

from __future__ import annotations

import pytest
import zmq
from echo_server import assert_served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relayrl.bench.servers.frame_fuzzer import fuzz_decode, fuzz_socket, fuzz_stream, seeds
from relayrl.transport.messages import Kind
from waiting import wait_until


def test_the_decoder_refuses_or_takes():
    counts = fuzz_decode(20_000, seed=1)
    assert counts.num_wrong == 0
    assert counts.num_taken > 100
    assert counts.num_refused > 10_000


def test_seeds_are_messages_of_every_kind():
    assert sorted(frames[0][4] for frames in seeds()) == [kind.value for kind in Kind]


def test_a_server_survives_mutated_messages(make_server):
    server = make_server()
    healthy = server.client()
    fuzz_socket(server.address, 2_000, seed=2)
    assert_served(healthy)
    wait_until(lambda: server.count("messages_total") > 1_900)
    assert server.count("refused_malformed_total") > 1_000
    fuzz_stream(server.address, 100, seed=3)
    assert_served(healthy)


@pytest.fixture
def dealer(make_server):
    server = make_server()
    context = zmq.Context()
    opened = context.socket(zmq.DEALER)
    opened.connect(server.address)
    yield opened, server.client()
    context.destroy(linger=0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.binary(max_size=200) | st.just(seeds()[0][0]), min_size=1, max_size=5), max_size=10))
def test_any_frames_leave_others_alone(dealer, messages):
    opened, healthy = dealer
    for frames in messages:
        opened.send_multipart(frames)
    assert_served(healthy, num_calls=1)
