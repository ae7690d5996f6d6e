"""The bad network does what its settings say, and nothing else."""

from __future__ import annotations

import uuid

import pytest

from relayrl.bench.servers.chaos_proxy import ChaosProxy, ChaosSettings, MessageSplitter
from relayrl.errors import ServerUnreachableError
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message
from relayrl.transport.server_endpoint import ServerEndpoint
from waiting import wait_until


@pytest.fixture
def server():
    endpoint = ServerEndpoint("tcp://127.0.0.1:0")
    yield endpoint
    endpoint.close(drain_s=0.0)


@pytest.fixture
def through(server):
    """A client that talks to the server through a proxy with these settings."""
    opened = []

    def make(**probabilities):
        opened.append(ChaosProxy(server.address, ChaosSettings(**probabilities), seed=1))
        opened.append(ClientEndpoint(opened[-1].address, client_id=uuid.uuid4()))
        return opened[-2:]

    yield make
    for each in reversed(opened):
        each.close()


def received(server, is_enough):
    """Numbers `i` of the messages that the server got when there are enough."""
    got = []
    wait_until(lambda: got.extend(request.message.header["i"] for request in server.poll(0.05)) or is_enough(got))
    return got


def send(client, count=20, size=100_000):
    for i in range(count):
        client.send(Message(Kind.TRAJECTORY, {"i": i}, (b"x" * size, b"y")))


def test_nothing_happens_without_faults(server, through):
    proxy, client = through()
    send(client)
    assert received(server, lambda got: len(got) >= 20) == list(range(20))
    assert proxy.faults == {}


def test_messages_come_twice(server, through):
    proxy, client = through(duplicate=1.0)
    send(client)
    assert received(server, lambda got: len(got) >= 40) == [i for i in range(20) for _ in range(2)]
    assert proxy.faults["duplicate"] >= 20


def test_messages_overtake_each_other(server, through):
    _, client = through(reorder=0.5)
    send(client)
    got = received(server, lambda got: len(got) >= 20)
    assert sorted(got) == list(range(20))
    assert got != list(range(20))


def test_messages_are_lost_and_others_come(server, through):
    proxy, client = through(drop=0.5)
    send(client)
    wait_until(lambda: sum(proxy.faults.values()) and (server.poll(0.05) or True))
    proxy.settings = ChaosSettings()
    client.send(Message(Kind.TRAJECTORY, {"i": 99}))
    got = received(server, lambda got: 99 in got)
    assert got == sorted(set(got))
    assert len(got) < 21


def test_late_messages_come(server, through):
    proxy, client = through(delay=1.0, max_delay_s=0.01)
    send(client)
    assert received(server, lambda got: len(got) >= 20) == list(range(20))
    assert proxy.faults["delay"] >= 20


@pytest.mark.parametrize("fault", ["reset", "truncate"])
def test_connections_break_and_come_back(server, through, fault):
    proxy, client = through(**{fault: 1.0})
    send(client, count=1)
    wait_until(lambda: server.poll(0.01) == [] and proxy.faults[fault])
    proxy.settings = ChaosSettings()

    def is_back():
        client.send(Message(Kind.TRAJECTORY, {"i": 7}))
        return any(request.message.header["i"] == 7 for request in server.poll(0.05))

    wait_until(is_back)


def test_a_half_open_connection_carries_nothing_until_it_is_renewed(server, through):
    proxy, client = through(half_open=1.0)
    client.send(Message(Kind.TRAJECTORY, {"i": 0}))
    wait_until(lambda: server.poll(0.01) == [] and proxy.faults["half_open"])
    proxy.settings = ChaosSettings()
    assert proxy.num_open == 1
    with pytest.raises(ServerUnreachableError):
        client.call(Message(Kind.TRAJECTORY, {"i": 1}), timeout_s=0.2)
    client.send(Message(Kind.TRAJECTORY, {"i": 2}))
    assert received(server, bool) == [2]


def test_the_network_goes_down_and_comes_up(server, through):
    proxy, client = through()
    send(client, count=1)
    assert received(server, bool) == [0]
    proxy.go_down()
    wait_until(lambda: proxy.num_open == 0)
    with pytest.raises(ServerUnreachableError):
        client.call(Message(Kind.PING, {}), timeout_s=0.3)
    proxy.come_up()
    client.send(Message(Kind.TRAJECTORY, {"i": 5}))
    assert received(server, bool) == [5]


def test_a_stream_is_cut_into_messages_wherever_its_pieces_end():
    greeting = bytes(64)
    command = b"\x04\x05READY"
    message = b"\x01\x03abc" + b"\x02" + (300).to_bytes(8, "big") + b"z" * 300
    stream = greeting + command + message + message
    for size in (1, 7, 64, 65, 1000):
        splitter = MessageSplitter()
        units = [unit for i in range(0, len(stream), size) for unit in splitter.feed(stream[i : i + size])]
        assert b"".join(unit for unit, _ in units) == stream
        assert [unit for unit, is_message in units if is_message] == [message, message]
