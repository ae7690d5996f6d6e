"""Both ends over real sockets: requests, replies, announcements, deadlines, returns."""

from __future__ import annotations

import contextlib
import gc
import threading
import uuid

import pytest

from relayrl.errors import ConfigError, QueueClosedError, ServerUnreachableError
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message
from relayrl.transport.server_endpoint import ServerEndpoint
from waiting import DEADLINE_S, wait_until


@pytest.fixture
def server():
    endpoint = ServerEndpoint("tcp://127.0.0.1:0")
    yield endpoint
    endpoint.close(drain_s=0.0)


@pytest.fixture
def client(server):
    endpoint = ClientEndpoint(server.address, client_id=uuid.uuid4())
    yield endpoint
    endpoint.close()


def requests_of(server, count=1):
    got = []
    wait_until(lambda: got.extend(server.poll(0.1)) or len(got) >= count)
    return got


def test_a_request_and_its_reply(server, client):
    payload = bytes(range(256)) * 400
    number = client.send(Message(Kind.TRAJECTORY, {"sequence": 3}, (payload, b"small")))
    (request,) = requests_of(server)
    assert (request.user, request.message.kind, request.message.header) == ("", Kind.TRAJECTORY, {"sequence": 3})
    assert [bytes(frame) for frame in request.message.payload] == [payload, b"small"]
    server.reply(request, Message(Kind.ACK, {"durable_through": 3}, (payload,)))
    reply = client.receive(DEADLINE_S)
    assert (reply.kind, reply.header, reply.number) == (Kind.ACK, {"durable_through": 3}, number)
    assert bytes(reply.payload[0]) == payload


def test_pipelined_requests_keep_their_order_and_numbers(server, client):
    numbers = [client.send(Message(Kind.ACT, {"i": i})) for i in range(500)]
    got = requests_of(server, 500)
    assert [request.message.header["i"] for request in got] == list(range(500))
    for request in reversed(got):
        server.reply(request, Message(Kind.ACTION, request.message.header))
    replies = [client.receive(DEADLINE_S) for _ in numbers]
    assert [(reply.number, reply.header["i"]) for reply in replies] == list(zip(numbers, range(500), strict=True))[::-1]


def test_replies_come_from_any_thread(server, client):
    numbers = {client.send(Message(Kind.ACT, {})) for _ in range(200)}
    got = requests_of(server, 200)
    threads = [
        threading.Thread(target=lambda some=got[i::4]: [server.reply(r, Message(Kind.ACTION, {})) for r in some])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    replied = set()
    while replied != numbers:
        server.poll(0.01)
        while (reply := client.receive(0.0)) is not None:
            replied.add(reply.number)
    for thread in threads:
        thread.join()
    assert server.metrics["transport/held_bytes"].read() == 0


def test_a_reply_wakes_a_server_that_waits(server, client):
    client.send(Message(Kind.ACT, {}))
    (request,) = requests_of(server)
    waiting = threading.Thread(target=lambda: server.poll(2 * DEADLINE_S))
    waiting.start()
    server.reply(request, Message(Kind.ACTION, {}))
    assert client.receive(DEADLINE_S).kind is Kind.ACTION
    client.send(Message(Kind.BYE, {}))  # ends the wait
    waiting.join()


def test_pings_are_answered_without_the_server(server, client):
    client.send(Message(Kind.PING, {}))
    wait_until(lambda: server.poll(0.01) or server.metrics["transport/messages_total"].read())
    assert client.receive(DEADLINE_S).kind is Kind.PONG


def test_a_call_without_a_server_ends(unused_address):
    client = ClientEndpoint(unused_address, client_id=uuid.uuid4())
    with pytest.raises(ServerUnreachableError, match="did not answer PING"):
        client.call(Message(Kind.PING, {}), timeout_s=0.05)
    client.close()


@pytest.fixture
def unused_address():
    endpoint = ServerEndpoint("tcp://127.0.0.1:0")
    endpoint.close()
    return endpoint.address


def test_a_client_finds_a_server_that_comes_back(unused_address):
    client = ClientEndpoint(unused_address, client_id=uuid.uuid4())
    for _ in range(2):
        with pytest.raises(ServerUnreachableError):
            client.call(Message(Kind.ACT, {"late": True}), timeout_s=0.02)
        server = ServerEndpoint(unused_address)
        client.send(Message(Kind.ACT, {"late": False}))
        (request,) = requests_of(server)
        assert not request.message.header["late"]  # what nobody waits for any more was not sent
        server.close()
    client.close()


def test_a_stale_reply_is_not_taken_for_another(server, client):
    client.send(Message(Kind.ACT, {"i": 0}))
    (late,) = requests_of(server)
    server.reply(late, Message(Kind.ACTION, {"i": 0}))
    replies = []
    caller = threading.Thread(target=lambda: replies.append(client.call(Message(Kind.ACT, {"i": 1}), DEADLINE_S)))
    caller.start()
    (request,) = requests_of(server)
    server.reply(request, Message(Kind.ACTION, {"i": 1}))
    caller.join()
    assert replies[0].header == {"i": 1}


def test_announcements_reach_subscribers_of_the_topic(server, client):
    client.subscribe(server.announce_address, "model")
    heard = []

    def is_heard():
        server.announce("model", {"version": 4})
        server.announce("other", {"version": 5})
        server.poll(0.01)
        heard.extend(client.announcements())
        return heard

    wait_until(is_heard)
    assert all(each == {"topic": "model", "version": 4} for each in heard)


def test_replies_to_clients_that_left_are_counted(server, client):
    client.send(Message(Kind.ACT, {}))
    (request,) = requests_of(server)
    client.close()

    def is_counted():
        server.poll(0.01)
        server.reply(request.client, Message(Kind.ACTION, {}))
        return server.metrics["transport/undeliverable_replies_total"].read()

    wait_until(is_counted)
    wait_until(lambda: server.poll(0.01) or server.num_clients == 0)


def test_a_closed_server_says_so(server):
    server.close()
    server.close()
    with pytest.raises(QueueClosedError, match="after close"):
        server.poll(0.0)


def test_closing_ends_a_wait_of_another_thread(server):
    waiting = threading.Thread(target=lambda: server.poll(10 * DEADLINE_S))
    waiting.start()
    wait_until(lambda: server._polling.locked())
    server.close()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "udp://127.0.0.1:1"])
def test_addresses_that_are_none(address):
    with pytest.raises(ConfigError, match="write tcp://HOST:PORT"):
        ServerEndpoint(address)


def test_a_port_that_is_taken(server):
    with pytest.raises(ConfigError, match="in use"):
        ServerEndpoint(server.address)


def test_the_garbage_collector_leaves_alone_what_was_loaded_until_the_last_server_closes() -> None:
    before = gc.get_freeze_count()
    with contextlib.closing(ServerEndpoint("tcp://127.0.0.1:0")) as first:
        with contextlib.closing(ServerEndpoint("tcp://127.0.0.1:0")):
            assert gc.get_freeze_count() > 10_000
        with pytest.raises(ConfigError, match="in use"):
            ServerEndpoint(first.address)
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == before
