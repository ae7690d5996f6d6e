"""Mutated frames, and what a server makes of them: it never fails, never grows, and serves others meanwhile.

Seeds are messages of every kind. A mutation flips bits, inserts, removes, repeats or swaps pieces, cuts, or writes odd numbers
and odd pieces of JSON; frames are dropped, doubled and exchanged. Most cases go to `decode`, which all that comes from a wire
passes; others go over sockets to a server, as whole messages and as broken ZMTP.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
from dataclasses import dataclass
from typing import Any

import zmq

from relayrl.bench.servers.bench_processes import TIMEOUT_S, bare_context
from relayrl.errors import ProtocolError
from relayrl.transport.messages import Kind, Message, decode, encode

_ODD = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"{",
    b"}",
    b"[" * 40,
    b'"',
    b"\\ud800",
    b"NaN",
    b"1e999",
    b"-",
    b"\xf0\x9f",
    b"RLY",
    b":" * 30,
)
_READ_EVERY = 32
"""Messages between two looks at replies."""
_LAST_NUMBER = (1 << 64) - 2
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


@dataclass(slots=True)
class FuzzCounts:
    """What became of the cases."""

    num_taken: int = 0
    num_refused: int = 0
    num_wrong: int = 0
    """Messages that were taken and do not come back as they are when they are encoded again."""


def seeds() -> list[list[bytes]]:
    """Frames of a message of every kind."""
    deep = {
        "behaviors": {"agent": {"observation_space": json.dumps({"type": "box", "shape": [4]}), "action_space": None}}
    }
    headers: tuple[dict[str, Any], ...] = (
        {},
        deep,
        {"client_id": "8d7c0e0a", "sequence": 3, "lag": 0.5, "ok": True, "names": ["é", "x" * 50]},
    )
    payloads = ((), (b"",), (bytes(range(256)), b"abc" * 40))
    made = [Message(kind, headers[kind % 3], payloads[kind % 3], kind * 7) for kind in Kind]
    return [[bytes(frame) for frame in encode(message)] for message in made]


def mutated(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """The frames with one to four changes."""
    frames = list(frames)
    for _ in range(rng.randint(1, 4)):
        if not frames or rng.random() < 0.1:
            frames = _other_frames(frames, rng)
        else:
            which = rng.randrange(len(frames))
            frames[which] = _other_bytes(frames[which], rng)
    return frames


def _other_frames(frames: list[bytes], rng: random.Random) -> list[bytes]:
    choice = rng.randrange(4)
    if choice == 0 and frames:
        del frames[rng.randrange(len(frames))]
    elif choice == 1:
        frames.insert(rng.randint(0, len(frames)), rng.choice(_ODD))
    elif choice == 2:
        rng.shuffle(frames)
    elif frames:
        frames = frames + [rng.choice(frames)] * rng.choice((1, 2, 300))
    return frames


def _other_bytes(frame: bytes, rng: random.Random) -> bytes:
    choice, at = rng.randrange(6), rng.randint(0, len(frame))
    end = min(len(frame), at + rng.randint(1, 16))
    if choice == 0 and at < len(frame):
        return frame[:at] + bytes([frame[at] ^ (1 << rng.randrange(8))]) + frame[at + 1 :]
    if choice == 1:
        return frame[:at] + rng.choice(_ODD) + frame[at:]
    if choice == 2:
        return frame[:at] + frame[end:]
    if choice == 3:
        return frame[:end] + frame[at:end] * rng.randint(1, 3) + frame[end:]
    if choice == 4:
        return frame[:at]
    return frame[:at] + rng.randbytes(end - at) + frame[end:]


def fuzz_decode(num_cases: int, seed: int = 0) -> FuzzCounts:
    """Decode mutated frames. Whatever else than a refusal is raised comes out of here: it is a defect."""
    rng, counts, beginnings = random.Random(seed), FuzzCounts(), seeds()
    for _ in range(num_cases):
        try:
            message = decode(mutated(rng.choice(beginnings), rng))
        except ProtocolError:
            counts.num_refused += 1
            continue
        counts.num_taken += 1
        counts.num_wrong += decode(encode(message)) != message
    return counts


def fuzz_socket(address: str, num_cases: int, seed: int = 0) -> None:
    """Send mutated messages to a server, as fast as it takes them; returns when it has taken all."""
    rng, beginnings = random.Random(seed), seeds()
    with bare_context() as context:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(address)
        for number in range(num_cases):
            dealer.send_multipart(mutated(rng.choice(beginnings), rng) or [b""])
            if number % _READ_EVERY == 0:
                _drop_replies(dealer)
        # A connection's messages are read in order: when this is answered, all of them were.
        dealer.send_multipart([bytes(frame) for frame in encode(Message(Kind.PING, {}, (), _LAST_NUMBER))])
        while dealer.poll(int(TIMEOUT_S * 1000)):
            if dealer.recv_multipart()[0][8:] == _LAST_NUMBER.to_bytes(8, "big"):
                return
        raise TimeoutError("the server answers no more")


def _drop_replies(dealer: zmq.Socket[bytes]) -> None:
    with contextlib.suppress(zmq.Again):
        while True:
            dealer.recv(zmq.NOBLOCK)


def fuzz_stream(address: str, num_cases: int, seed: int = 0) -> None:
    """Connect and send mutated ZMTP, a connection for each case."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    rng, beginnings = random.Random(seed), seeds()
    for _ in range(num_cases):
        frames = rng.choice(beginnings)
        parts = [bytes([i < len(frames) - 1, min(255, len(part))]) + part for i, part in enumerate(frames)]
        pieces = mutated([_GREETING, bytes([4, len(_READY)]) + _READY, *parts], rng)
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5.0) as peer:
            peer.sendall(b"".join(pieces))
