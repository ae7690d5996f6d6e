"""A training server stores the bytes that actors send, after a check of every row; what it has to decode is stored as well."""

import numpy as np
import pytest
from remote_parts import frames, hello, send, stored_ids

from relayrl.bench.servers.trajectory_producer import numbered_trajectory, trajectory_name
from relayrl.compiled import loader
from relayrl.data.arrow.codec import Compression, encode_block
from relayrl.sinks.buffered import checked_blocks
from waiting import wait_until

needs_kernels = pytest.mark.skipif(loader.kernels() is None, reason="without the kernels all messages are decoded")


@pytest.fixture
def client(client):
    hello(client)
    return client


def stored_bytes(server):
    return b"".join(path.read_bytes() for path in sorted((server.run_dir / "journal").glob("part-*.arrows")))


def names(client, count):
    return [trajectory_name(client.client_id, number) for number in range(count)]


@needs_kernels
def test_the_journal_holds_the_bytes_of_every_message(server, client):
    sent = [bytes(frames(client, number, num_steps)[0]) for number, num_steps in enumerate((5, 1, 30))]
    for number, frame in enumerate(sent):
        assert send(client, number, (frame,)).header["durable_through"] == number
    schema = server._ingest._plans.check(sent[0]).layout.fingerprint
    assert stored_bytes(server) == schema + b"".join(frame[len(schema) : -8] for frame in sent)
    assert stored_ids(f"arrow:{server.run_dir / 'journal'}") == names(client, 3)


def test_of_a_known_layout_too_a_wrong_message_is_refused_for_good_with_its_reason(server, client):
    assert "rejected" not in send(client, 0).header
    wrong = frames(client, 1, reward=np.array([1.0, np.nan, 1.0, 1.0, 1.0], np.float32))
    ((number, reason),) = send(client, 1, wrong).header["rejected"]
    assert number == 1
    assert "NaN" in reason
    newer = frames(client, 2, policy_version=np.full(5, 9_999))
    ((number, reason),) = send(client, 2, newer).header["rejected"]
    assert number == 2
    assert "newer than version" in reason
    assert "rejected" not in send(client, 3).header
    assert server.metrics.invalid.value == 2
    assert stored_ids(f"arrow:{server.run_dir / 'journal'}") == [names(client, 4)[0], names(client, 4)[3]]


def test_what_has_to_be_decoded_is_stored_beside_what_has_not(server, client):
    """Messages of another Arrow, for example one that compresses."""
    send(client, 0)
    (block,) = checked_blocks([numbered_trajectory(client.client_id, 1, 5)])
    send(client, 1, (bytes(encode_block(block, Compression.ZSTD)),))
    send(client, 2)
    wait_until(lambda: server.metrics.received.value == 3)
    assert sorted(stored_ids(f"arrow:{server.run_dir / 'journal'}")) == sorted(names(client, 3))
