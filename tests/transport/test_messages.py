"""Messages and their frames: exact bytes, and refusals of all that is not allowed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayrl.errors import ProtocolError
from relayrl.transport.messages import (
    MAX_HEADER_BYTES,
    MAX_HEADER_DEPTH,
    MAX_HEADER_KEYS,
    MAX_PAYLOADS,
    Kind,
    Message,
    decode,
    encode,
)

FIXED = b"RLY\x01\x0a\x00\x00\x00" + (7).to_bytes(8, "big")


def test_frames_are_these_bytes():
    frames = encode(Message(Kind.ACT, {"a": 1, "b": [True, None, "é"]}, (b"xyz", b""), 258))
    assert frames == [
        b"RLY\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02",
        b'{"a":1,"b":[true,null,"\\u00e9"]}',
        b"xyz",
        b"",
    ]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(list(Kind)),
    st.dictionaries(st.text(max_size=8), JSON, max_size=4),
    st.lists(st.binary(max_size=64), max_size=4).map(tuple),
    st.integers(0, 2**64 - 1),
)


@given(MESSAGES)
def test_what_is_encoded_comes_back(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([], "malformed"),
        ([b""], "malformed"),
        ([FIXED], "malformed"),
        ([FIXED[:15], b"{}"], "malformed"),
        ([b"XXX" + FIXED[3:], b"{}"], "malformed"),
        ([b"RLY\x02" + FIXED[4:], b"{}"], "version"),
        ([b"RLY\x00" + FIXED[4:], b"{}"], "version"),
        ([FIXED[:4] + b"\xee" + FIXED[5:], b"{}"], "malformed"),
        ([FIXED[:5] + b"\x01" + FIXED[6:], b"{}"], "malformed"),
        ([FIXED[:7] + b"\x01" + FIXED[8:], b"{}"], "malformed"),
        ([FIXED, b""], "malformed"),
        ([FIXED, b"[]"], "malformed"),
        ([FIXED, b"{} {}"], "malformed"),
        ([FIXED, b"\xff{}"], "malformed"),
        ([FIXED, b'{"a":NaN}'], "malformed"),
        ([FIXED, b'{"a":1e999}'], "malformed"),
        ([FIXED, b'{"a":"\\ud800"}'], "malformed"),
        ([FIXED, b'{"a":' + b"1" * 5000 + b"}"], "malformed"),
        ([FIXED, b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}"], "malformed"),
        ([FIXED, b'{"a":' + b"[" * MAX_HEADER_DEPTH + b"]" * MAX_HEADER_DEPTH + b"}"], "malformed"),
        ([FIXED, b"{" + b",".join(b'"%d":0' % i for i in range(MAX_HEADER_KEYS + 1)) + b"}"], "malformed"),
        ([FIXED, b'{"a":"' + b"x" * MAX_HEADER_BYTES + b'"}'], "malformed"),
        ([FIXED, b"{}", *[b""] * (MAX_PAYLOADS + 1)], "malformed"),
    ],
)
def test_anything_else_is_refused(frames, code):
    with pytest.raises(ProtocolError) as caught:
        decode(frames)
    assert caught.value.code == code


def test_a_refusal_has_the_number_where_it_can_be_read():
    with pytest.raises(ProtocolError) as caught:
        decode([FIXED, b"no json"])
    assert caught.value.number == 7
    with pytest.raises(ProtocolError, match=r"version 9; this side speaks version 1") as caught:
        decode([b"RLY\x09" + FIXED[4:], b"{}"])
    assert caught.value.number == 7


def test_brackets_in_texts_are_no_depth():
    header = {"text": "{[" * 200 + ":" * (MAX_HEADER_KEYS + 1)}
    assert decode(encode(Message(Kind.PING, header))).header == header


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.PING, {"a": float("nan")}),
        Message(Kind.PING, {"a": b"bytes"}),
        Message(Kind.PING, {}, (), -1),
        Message(Kind.PING, {}, (), 2**64),
        Message(Kind.PING, {"a": "x" * MAX_HEADER_BYTES}),
        Message(Kind.PING, {}, (b"",) * (MAX_PAYLOADS + 1)),
    ],
)
def test_what_the_other_side_would_refuse_is_not_sent(message):
    with pytest.raises(ProtocolError):
        encode(message)


@given(MESSAGES, st.data())
def test_a_mutated_message_is_a_message_or_refused(message, data):
    frames = [bytearray(frame) for frame in encode(message)]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(st.sampled_from(frames))
        if frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        again = decode(frames)
        assert decode(encode(again)) == again
