"""What clients must not do is refused, counted and cut off, while a healthy client is served all the time."""

from __future__ import annotations

import contextlib
import itertools
import random
import resource
import socket
import threading
import uuid

import psutil
import pytest
import zmq
from echo_server import assert_served
from zmtp_peer import COMMAND, LONG, MORE, RawPeer, frame, greeting

from relayrl.bench.servers.chaos_proxy import ChaosProxy, ChaosSettings
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.connection_watch import max_connections
from relayrl.transport.keys import Access, ClientKeys, KeyPair, authorise
from relayrl.transport.limits import ClientLimits, TokenBucket
from relayrl.transport.messages import Kind, Message, encode
from waiting import DEADLINE_S, wait_until

MIB = 1 << 20


@pytest.fixture
def peers():
    """Makes raw peers that are closed when the test ends."""
    opened = []

    def make(address):
        opened.append(RawPeer(address))
        return opened[-1]

    yield make
    for peer in opened:
        peer.close()


def memory_bytes():
    return psutil.Process().memory_info().rss


def refusal(client, message):
    reply = client.call(message, DEADLINE_S)
    assert reply.kind is Kind.ERROR, reply
    return reply.header["code"]


def act(payload=b""):
    return Message(Kind.ACT, {}, (payload,))


def test_a_bucket_lets_a_burst_and_then_the_rate_pass():
    bucket = TokenBucket(10.0, now_s=0.0)
    assert [bucket.take(1.0, 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert [bucket.take(1.0, 0.15) for _ in range(3)] == [True, True, False]
    assert bucket.take(100.0, 10.0)
    assert not bucket.take(1.0, 17.9)
    assert bucket.take(1.0, 18.1)


def test_a_message_that_is_too_large(make_server):
    server = make_server(limits=ClientLimits(message_bytes=10_000))
    client = server.client()
    assert refusal(client, act(bytes(10_001))) == "too_large"
    assert refusal(client, Message(Kind.ACT, {}, (bytes(6_000), bytes(6_000)))) == "too_large"
    assert_served(client)
    assert server.count("refused_too_large_total") == 2


def test_a_frame_of_ten_gigabytes_is_cut_before_it_costs_memory(make_server, peers):
    server = make_server()
    healthy = server.client()
    assert_served(healthy)
    before = memory_bytes()
    for _ in range(20):
        peer = peers(server.address).handshake()
        peer.send(bytes([LONG]) + (10 << 30).to_bytes(8, "big") + bytes(1000))
        assert peer.is_closed()
        assert_served(healthy, num_calls=1)
    assert memory_bytes() - before < 64 * MIB


def test_a_message_without_end_is_cut(make_server, peers):
    server = make_server(limits=ClientLimits(message_bytes=MIB))
    healthy = server.client()
    assert_served(healthy)
    peer = peers(server.address).handshake()
    part = frame(bytes(MIB), MORE)
    num_sent = 0
    with contextlib.suppress(ConnectionError):
        for _ in range(16_000):  # would be 16 GB
            peer.send(part)
            num_sent += 1
    assert num_sent < 16_000
    assert server.count("endless_messages_total") == 1
    assert_served(healthy)


def test_too_many_messages(make_server):
    server = make_server(limits=ClientLimits(messages_per_s=5.0))
    eager, healthy = server.client(), server.client()
    numbers = [eager.send(act()) for _ in range(50)]
    replies = {reply.number: reply for reply in (eager.receive(DEADLINE_S) for _ in numbers)}
    assert [replies[number].kind for number in numbers[:10]] == [Kind.ACTION] * 10
    refused = [reply for reply in replies.values() if reply.kind is Kind.ERROR]
    assert {reply.header["code"] for reply in refused} == {"rate"}
    assert server.count("refused_rate_total") == len(refused) > 0
    assert_served(healthy, num_calls=2)
    wait_until(lambda: eager.call(act(), DEADLINE_S).kind is Kind.ACTION)  # the bucket fills again


def test_too_many_bytes(make_server):
    server = make_server(limits=ClientLimits(bytes_per_s=float(MIB)))
    eager, healthy = server.client(), server.client()
    codes = {eager.call(act(bytes(MIB)), DEADLINE_S).header.get("code") for _ in range(8)}
    assert codes == {None, "rate"}
    assert_served(healthy)


def test_too_much_that_waits_for_a_reply(make_server):
    server = make_server(limits=ClientLimits(held_bytes=100_000))
    greedy, healthy = server.client(), server.client()
    waiting = [greedy.send(Message(Kind.TRAJECTORY, {}, (bytes(30_000),))) for _ in range(4)]
    assert refusal(greedy, act(bytes(30_000))) == "memory"
    assert_served(healthy)
    assert len(server.kept) == len(waiting) - 1
    server.endpoint.reply(server.kept[0], Message(Kind.ACK, {}))
    server.endpoint.reply(server.kept[0], Message(Kind.ACK, {}))  # lets go of it only once
    server.endpoint.release(server.kept[1])
    assert greedy.call(act(bytes(30_000)), DEADLINE_S).kind is Kind.ACTION
    assert server.count("held_bytes") < 31_000


def test_all_clients_together_hold_too_much(make_server):
    server = make_server(limits=ClientLimits(total_held_bytes=100_000))
    greedy, other = server.client(), server.client()
    for _ in range(3):
        greedy.send(Message(Kind.TRAJECTORY, {}, (bytes(30_000),)))
    wait_until(lambda: len(server.kept) == 3)
    assert refusal(other, act(bytes(30_000))) == "memory"
    assert_served(other)


def test_too_many_connections(make_server, peers):
    server = make_server(limits=ClientLimits(connections=3))
    healthy = [server.client() for _ in range(3)]
    for client in healthy:
        assert_served(client)
    last = server.client()
    assert refusal(last, act()) == "connections"
    opened = [peers(server.address) for _ in range(10)]
    wait_until(lambda: server.count("refused_connections_total") >= 8)  # beyond twice the limit without a word
    for client in healthy:
        assert_served(client)
    for peer in opened:
        peer.close()
    healthy[0].close()
    wait_until(lambda: last.call(act(), DEADLINE_S).kind is Kind.ACTION)


def test_clients_that_come_and_go_leave_nothing(make_server):
    server = make_server()
    healthy = server.client()
    for _ in range(100):
        client = ClientEndpoint(server.address, client_id=uuid.uuid4())
        assert client.call(act(), DEADLINE_S).kind is Kind.ACTION
        client.close()
    assert_served(healthy)
    wait_until(lambda: server.endpoint.num_clients == 1)
    assert server.count("held_bytes") == 0


def test_a_handshake_that_never_ends(make_server, peers):
    server = make_server(limits=ClientLimits(handshake_timeout_s=0.3))
    healthy = server.client()
    silent, slow, half = (peers(server.address) for _ in range(3))
    half.send(greeting())
    stops = threading.Event()

    def drip():
        try:
            while not stops.wait(0.02):
                slow.send(greeting()[:1])
        except ConnectionError:
            pass

    dripping = threading.Thread(target=drip)
    dripping.start()
    for peer in (silent, slow, half):
        assert_served(healthy)
        assert peer.is_closed()
    stops.set()
    dripping.join()
    assert_served(healthy)


def test_a_message_that_comes_byte_by_byte(make_server, peers):
    server = make_server(limits=ClientLimits(heartbeat_s=0.1, heartbeat_timeout_s=0.3))
    healthy = server.client()
    peer = peers(server.address).handshake()
    peer.send(bytes([LONG]) + MIB.to_bytes(8, "big"))
    stops = threading.Event()

    def drip():
        try:
            while not stops.wait(0.02):
                peer.send(b"x")
        except ConnectionError:
            pass

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert_served(healthy)
    assert peer.is_closed()
    stops.set()
    dripping.join()
    assert_served(healthy)


def test_a_half_open_connection_is_noticed(make_server, peers):
    server = make_server(limits=ClientLimits(heartbeat_s=0.1, heartbeat_timeout_s=0.3))
    healthy = server.client()
    peer = peers(server.address).handshake()
    *parts, last = encode(Message(Kind.STATUS, {}, (), 1))
    peer.send(b"".join(frame(part, MORE) for part in parts) + frame(last))
    wait_until(lambda: server.kept and server.endpoint.num_clients == 1)
    assert_served(healthy)
    wait_until(lambda: server.endpoint.num_clients == 1)  # the peer stays connected and answers no heartbeat
    assert_served(healthy)


def test_a_server_that_is_gone_without_a_word_is_noticed_by_its_clients(make_server):
    server = make_server()
    with ChaosProxy(server.address, ChaosSettings()) as proxy:
        client = ClientEndpoint(proxy.address, client_id=uuid.uuid4())
        assert client.call(act(), DEADLINE_S).kind is Kind.ACTION
        proxy.settings = ChaosSettings(half_open=1.0)
        with pytest.raises(Exception, match="did not answer"):
            client.call(act(), timeout_s=0.3)
        proxy.settings = ChaosSettings()
        assert client.call(act(), DEADLINE_S).kind is Kind.ACTION
        client.close()


def test_a_client_that_never_reads(make_server, peers):
    server = make_server()
    healthy = server.client()
    peer = peers(server.address).handshake()
    *parts, last = encode(Message(Kind.ACT, {}, (bytes(100_000),), 1))
    message = b"".join(frame(part, MORE) for part in parts) + frame(last)
    before = memory_bytes()
    peer.socket.settimeout(1.0)
    try:
        for _ in range(3_000):  # 300 MB of replies
            peer.send(message)
    except TimeoutError:
        pass
    assert_served(healthy)
    assert memory_bytes() - before < 400 * MIB


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_gets_a_clear_refusal(make_server, version):
    server = make_server()
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(server.address)
    dealer.send_multipart([b"RLY" + bytes([version]) + b"\x01\0\0\0" + (9).to_bytes(8, "big"), b"{}"])
    assert dealer.poll(DEADLINE_S * 1000)
    fixed, header = dealer.recv_multipart()
    context.destroy(linger=0)
    assert fixed == b"RLY\x01\x0e\0\0\0" + (9).to_bytes(8, "big")
    assert b'"code":"version"' in header
    assert f"protocol version {version}; this side speaks version 1".encode() in header


def test_malformed_messages_are_answered_where_their_number_can_be_read(make_server):
    server = make_server()
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(server.address)
    for frames in ([b"x"], [b""], [b"", b"", b""], [b"RLY\x01\x08\0\0\0" + bytes(7) + b"\x05", b"no json"]):
        dealer.send_multipart(frames)
    assert dealer.poll(DEADLINE_S * 1000)
    fixed, header = dealer.recv_multipart()
    context.destroy(linger=0)
    assert (fixed[4], fixed[15]) == (Kind.ERROR, 5)
    assert b'"code":"malformed"' in header
    assert server.count("refused_malformed_total") == 4


def test_garbage_on_the_socket(make_server, peers):
    server = make_server()
    healthy = server.client()
    rng = random.Random(0)
    for i in range(60):
        peer = peers(server.address)
        try:
            if i % 2:
                peer.handshake()
            peer.send(rng.randbytes(rng.randrange(1, 5_000)))
        except ConnectionError:
            pass
        if i % 10 == 0:
            assert_served(healthy, num_calls=1)
        peer.close()
    assert_served(healthy)


def test_too_many_subscriptions(make_server, peers):
    server = make_server()
    listener = server.client()
    listener.subscribe(server.announce_address, "model")
    peer = peers(server.announce_address).handshake(b"SUB")
    try:
        for i in range(10_000):
            peer.send(frame(b"\x09SUBSCRIBE" + b"topic %d" % i, COMMAND))
    except ConnectionError:
        pass
    assert peer.is_closed()
    wait_until(lambda: server.endpoint.announce("model", {}) or listener.announcements())


@pytest.fixture
def curve(tmp_path):
    """What a server with keys needs, and a client that it lets in."""
    own, alice = KeyPair.new(), KeyPair.new()
    authorise(tmp_path / "authorised_keys", alice.public, "alice")
    return Access(own, tmp_path / "authorised_keys"), ClientKeys(alice, own.public)


def test_a_peer_without_keys_gets_no_further_than_the_greeting(make_server, peers, curve):
    access, keys = curve
    server = make_server(access=access)
    healthy = server.client(keys)
    assert_served(healthy, user="alice")
    peer = peers(server.address)
    peer.send(greeting())
    peer.send(frame(b"\x05READY", COMMAND))
    assert peer.is_closed()
    assert_served(healthy, user="alice")


def test_recorded_bytes_of_another_session_are_worth_nothing(make_server, peers, curve):
    access, keys = curve
    server = make_server(access=access)
    healthy = server.client(keys)
    with _Recorder(server.address) as recorder:
        victim = ClientEndpoint(recorder.address, client_id=uuid.uuid4(), keys=keys)
        assert_served(victim, user="alice")
        victim.close()
        recorded = bytes(recorder.recorded)
    num_messages = server.count("messages_total")
    peer = peers(server.address)
    with contextlib.suppress(ConnectionError):
        peer.send(recorded)
    assert peer.is_closed()
    assert server.count("messages_total") == num_messages
    assert_served(healthy, user="alice")


def test_a_frame_that_comes_twice_is_taken_once(make_server, curve):
    access, keys = curve
    server = make_server(access=access)
    with ChaosProxy(server.address, ChaosSettings(duplicate=1.0)) as proxy:
        client, sent = ClientEndpoint(proxy.address, client_id=uuid.uuid4(), keys=keys), itertools.count()

        def one_more_and_five_were_doubled():
            """Sends all the time: on a silent connection heartbeats are doubled too, and a client that gets one twice does not
            connect again."""
            client.send(Message(Kind.STATUS, {"i": next(sent)}), DEADLINE_S)
            return proxy.faults["duplicate"] >= 5

        wait_until(one_more_and_five_were_doubled)
        client.close()
    assert_served(server.client(keys), user="alice")
    numbers = [request.message.header["i"] for request in server.kept]
    assert numbers == sorted(set(numbers))


class _Recorder:
    """A proxy that keeps what clients send."""

    def __init__(self, target):
        self._host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._port = int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.recorded = bytearray()

    def __enter__(self):
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join()
        self._listener.close()

    def _serve(self):
        client, _ = self._listener.accept()
        server = socket.create_connection((self._host, self._port))

        def carry(source, target, keep):
            while chunk := source.recv(1 << 16):
                if keep:
                    self.recorded.extend(chunk)
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=carry, args=(server, client, False))
        back.start()
        carry(client, server, True)
        back.join()
        client.close()
        server.close()


def test_descriptors_are_kept_for_the_rest_of_the_process():
    assert 2 * max_connections() <= max(32, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
