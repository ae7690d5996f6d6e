"""A training server whose journal is slow, fails or refuses: others are answered, and nothing is lost or doubled."""

import threading
from uuid import uuid4

import pytest
from remote_parts import cartpole_server, frames, greeting, hello, send, stored_ids

import relayrl
from relayrl.bench.servers.trajectory_producer import trajectory_name
from relayrl.errors import ConfigError, SinkWriteError
from relayrl.sinks.contract import SinkPlugin, TrajectorySink
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message
from waiting import DEADLINE_S, wait_until


class HardSink(TrajectorySink):
    """A memory sink whose flush waits for `may_flush`, fails while `num_failures` are left, and that refuses long episodes."""

    may_flush = threading.Event()
    num_failures = 0
    num_flushes = 0

    def __init__(self, url, settings):
        del settings
        self._stored = relayrl.open_sink(url.replace("hard:", "memory:"))

    @property
    def url(self):
        return self._stored.url

    def write(self, trajectories):
        if any(len(each) > 100 for each in trajectories):
            raise ConfigError("this sink takes no long episodes")
        self._stored.write(trajectories)

    def flush(self):
        assert self.may_flush.wait(DEADLINE_S)
        if HardSink.num_failures:
            HardSink.num_failures -= 1
            raise SinkWriteError("the disk is full", 1)
        HardSink.num_flushes += 1
        self._stored.flush()

    def close(self):
        self._stored.close()


@pytest.fixture
def name():
    relayrl.register_sink(
        "hard", SinkPlugin(HardSink, lambda url: relayrl.open_source(url.replace("hard:", "memory:")))
    )
    HardSink.num_failures = HardSink.num_flushes = 0
    HardSink.may_flush.set()
    yield uuid4().hex
    HardSink.may_flush.set()


@pytest.fixture
def server(tmp_path, name):
    with cartpole_server(tmp_path, steps=1_000_000, settings={"record": f"hard:{name}"}) as made:
        yield made
        HardSink.may_flush.set()


@pytest.fixture
def clients(server):
    opened = [ClientEndpoint(server.address, client_id=uuid4()) for _ in range(2)]
    for each in opened:
        hello(each)
    yield opened
    for each in opened:
        each.close()


def post(client, number, num_steps=5):
    """Send without waiting for the acknowledgement."""
    header = {"client_id": str(client.client_id), "sequence": number}
    client.send(Message(Kind.TRAJECTORY, header, frames(client, number, num_steps)))


def acknowledged(replies):
    return max(reply.header["durable_through"] for reply in replies if reply.kind is Kind.ACK)


def is_alive(client):
    return client.call(Message(Kind.MODEL_GET, {"group": "agent"}), DEADLINE_S).kind is Kind.MODEL


def names(client, count):
    return [trajectory_name(client.client_id, number) for number in range(count)]


def test_others_are_answered_and_what_comes_meanwhile_shares_the_next_flush(server, clients, name):
    one, other = clients
    HardSink.may_flush.clear()
    post(one, 0)
    for number in range(1, 40):
        post(one, number)
        assert is_alive(other)
    assert HardSink.num_flushes == 0
    assert server.metrics.received.value == 0
    HardSink.may_flush.set()
    wait_until(lambda: server.metrics.received.value == 40)
    assert HardSink.num_flushes <= 3
    assert stored_ids(f"memory:{name}") == names(one, 40)


def test_a_journal_that_fails_is_tried_again_and_nothing_is_acknowledged_before(server, clients, name):
    HardSink.num_failures = 2
    assert send(clients[0], 0).header["durable_through"] == 0
    assert (HardSink.num_failures, server.metrics.journal_failures.value) == (0, 2)
    assert stored_ids(f"memory:{name}") == names(clients[0], 1)


def test_whoever_connects_again_before_the_flush_is_welcomed_after_it_and_not_taken_twice(server, clients, name):
    """A client lets go of what comes before its next number. It has said good-bye, so that the journal alone knows it."""
    one, other = clients
    HardSink.may_flush.clear()
    for number in range(3):
        post(one, number)
    one.send(Message(Kind.BYE, {}))
    wait_until(lambda: server.metrics.actors.read() == 1)
    for _ in range(2):
        one.send(greeting(one))
    assert is_alive(other)
    assert one.receive(0.1) is None
    HardSink.may_flush.set()
    replies = [one.receive(DEADLINE_S)]
    while {reply.kind for reply in replies} != {Kind.ACK, Kind.WELCOME} or acknowledged(replies) < 2:
        replies.append(one.receive(DEADLINE_S))  # the flush of the first may end before that of the others begins
    (welcome,) = [reply for reply in replies if reply.kind is Kind.WELCOME]
    assert welcome.header["next_sequence"] == 3
    post(one, 1)
    assert send(one, 3).header["durable_through"] == 3
    assert stored_ids(f"memory:{name}") == names(one, 4)
    assert server.metrics.received.value == 4


def test_what_the_sink_refuses_is_refused_for_good_and_the_next_is_taken(server, clients, name):
    one, _ = clients
    reply = send(one, 0, frames(one, 0, num_steps=101))
    assert reply.header["durable_through"] == 0
    assert reply.header["rejected"][0][0] == 0
    assert "no long episodes" in reply.header["rejected"][0][1]
    assert send(one, 1).header["durable_through"] == 1
    assert (server.metrics.invalid.value, server.metrics.received.value) == (1, 1)
    assert stored_ids(f"memory:{name}") == names(one, 2)[1:]
