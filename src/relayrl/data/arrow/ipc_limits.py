"""What reading an Arrow IPC stream would cost, found out before Arrow reads it.

Arrow believes what a stream says about itself: it allocates the uncompressed length that stands before each compressed
buffer, and copies a name or a value of metadata as often as the (possibly shared) tables of a forged schema refer to it. It has
no option that limits either: pyarrow 26 allocates 6 GiB for a message of 328 bytes that claims as much, and finds out after
that. So this file walks the messages' frames and flatbuffers, in bounds, touching no more than those, and adds up the claims:

    stream    0xFFFFFFFF, int32 length, Message (flatbuffer), body; …; 0xFFFFFFFF, 0
    Message   version, header type, header, bodyLength, custom_metadata
    Schema    endianness, fields, custom_metadata           Field        name, nullable, type, …, children, custom_metadata
    RecordBatch  length, nodes, buffers, compression        DictionaryBatch  id, data: RecordBatch, isDelta

Only what RelayRL writes is let through: one schema, dictionaries, one record batch, the end. Anything else is a
`DecodeError`. Not its job: whether columns are right (`arrow_reading`, `rollout_batches`).
See https://arrow.apache.org/docs/format/Columnar.html and https://flatbuffers.dev/internals.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from relayrl.errors import DecodeError

_CONTINUATION = 0xFFFF_FFFF
_VERSION_5, _LITTLE_ENDIAN = 4, 0
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_MAX_METADATA_BYTES = 16 << 20
_MAX_DICTIONARIES = 4
_MAX_FIELDS = 20_000
_MAX_FIELD_DEPTH = 4
_TABLE_BYTES = 12
"""A table, key or field takes at least this beside its text."""


@dataclass(frozen=True, slots=True)
class StreamClaims:
    """What a stream says that it holds."""

    num_rows: int
    num_bytes: int
    """Of all buffers, uncompressed."""
    schema: bytes
    """The schema message, framed as it stands in the stream."""


def read_claims(data: memoryview) -> StreamClaims:
    """Walk a whole stream; `DecodeError` if it is no stream of one schema, dictionaries and one record batch."""
    try:
        return _Walk(data).claims()
    except struct.error as error:
        raise DecodeError("the data is cut off or damaged: an offset points outside of it") from error


class NumberPlaces(NamedTuple):
    """Where the numbers of a dictionary or record batch stand, counted from where its message begins."""

    begin: int
    """Of the message in the stream."""
    num_bytes: int
    """Up to its body."""
    length: int
    body_length: int
    nodes: int
    num_nodes: int
    buffers: int
    num_buffers: int


def number_places(data: memoryview) -> list[NumberPlaces]:
    """The numbers of every message but the schema; of a stream that `read_claims` accepts."""
    return list(_Walk(data).places())


class _Walk:
    """One pass over the messages of a stream."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._num_bytes = 0

    def claims(self) -> StreamClaims:
        position, schema, num_dictionaries, num_rows = 0, b"", 0, None
        while (frame := self._frame(position)) is not None:
            kind, header, metadata, body = frame
            if (kind == _SCHEMA) == bool(schema) or num_rows is not None:
                raise DecodeError("the messages are not one schema, its dictionaries and one record batch")
            if kind == _SCHEMA:
                schema = bytes(self._data[position : position + 8 + len(metadata)])
            elif kind == _DICTIONARY_BATCH and num_dictionaries < _MAX_DICTIONARIES:
                num_dictionaries += 1
                self._dictionary(header, body)
            elif kind == _RECORD_BATCH:
                num_rows = self._record_batch(header, body)
            else:
                raise DecodeError(f"a message of type {kind} where RelayRL writes none")
            position += 8 + len(metadata) + len(body)
        if position + 8 != len(self._data):
            raise DecodeError(f"{len(self._data) - position - 8} bytes follow the end of the stream")
        if num_rows is None:
            raise DecodeError("the stream ends before its record batch")
        return StreamClaims(num_rows, self._num_bytes, schema)

    def places(self) -> Iterator[NumberPlaces]:
        position = 0
        while (frame := self._frame(position)) is not None:
            kind, header, metadata, body = frame
            batch = header.table(1) if kind == _DICTIONARY_BATCH else header
            if kind != _SCHEMA and batch is not None:
                length, body_length = batch.place(0), _Table.root(metadata).place(3)
                (nodes, num_nodes), (buffers, num_buffers) = batch.vector(1, 16), batch.vector(2, 16)
                numbers = (8 + length, 8 + body_length, 8 + nodes, num_nodes, 8 + buffers, num_buffers)
                yield NumberPlaces(position, 8 + len(metadata), *numbers)
            position += 8 + len(metadata) + len(body)

    def _frame(self, position: int) -> tuple[int, _Table, memoryview, memoryview] | None:
        """The message at `position`: type, header, metadata and body; None for the mark at the end of the stream."""
        continuation, length = struct.unpack_from("<Ii", self._data, position)
        if continuation != _CONTINUATION:
            raise DecodeError("this is no Arrow IPC stream, or it is damaged")
        if length == 0:
            return None
        start, end = position + 8, position + 8 + length
        if not 0 < length <= _MAX_METADATA_BYTES or length % 8 or end > len(self._data):
            raise DecodeError(f"the data is cut off or damaged: a message header of {length} bytes")
        metadata = self._data[start:end]
        message = _Table.root(metadata)
        body_length = message.number(3, "<q")
        if body_length < 0 or body_length % 8 or end + body_length > len(self._data):
            raise DecodeError(f"the data is cut off or damaged: a message body of {body_length} bytes")
        if message.number(0, "<h") != _VERSION_5 or message.vector(4)[1]:
            raise DecodeError("a message of another Arrow version, or with metadata of its own")
        header = message.table(2)
        if header is None:
            raise DecodeError("a message without a header")
        return message.number(1, "<B"), header, metadata, self._data[end : end + body_length]

    def _dictionary(self, header: _Table, body: memoryview) -> None:
        batch = header.table(1)
        if batch is None or header.number(2, "<B"):
            raise DecodeError("a dictionary without data, or one that adds to another")
        self._record_batch(batch, body)

    def _record_batch(self, batch: _Table, body: memoryview) -> int:
        """Adds up the buffers' claims; they must follow each other, so that none is counted on twice."""
        start, count = batch.vector(2, item_bytes=16)
        is_compressed = batch.table(3) is not None
        position = 0
        for offset, length in struct.iter_unpack("<qq", batch.data[start : start + 16 * count]):
            if offset < position or length < 0 or offset + length > len(body):
                raise DecodeError("the data is damaged: a column's buffer lies outside of its message")
            position = offset + length
            claimed = length
            if is_compressed and length:
                (claimed,) = struct.unpack_from("<q", body[offset:position])
                claimed = length if claimed == -1 else claimed
            if claimed < 0:
                raise DecodeError("the data is damaged: a compressed buffer of negative length")
            self._num_bytes += claimed
        return batch.number(0, "<q")


def check_schema(schema_message: bytes) -> None:
    """`DecodeError` if reading `StreamClaims.schema` would cost more than its length.

    Tables may be shared; whoever refers to one often enough makes a small schema huge. Ours are not shared, so that all
    names, keys and values together are never longer than the message.
    """
    try:
        _walk_schema(schema_message)
    except struct.error as error:
        raise DecodeError("the schema is damaged: an offset points outside of it") from error


def _walk_schema(schema_message: bytes) -> None:
    budget = len(schema_message)
    schema = _Table.root(memoryview(schema_message)[8:]).table(2)
    if schema is None:
        raise DecodeError("a message without a header")
    if schema.number(0, "<h") != _LITTLE_ENDIAN:
        raise DecodeError("the data is big-endian")
    for pair in schema.tables(2):
        budget -= _TABLE_BYTES + pair.text_length(0) + pair.text_length(1)
        _require_within(budget)
    open_fields = [schema.tables(1)]
    num_fields = 0
    while open_fields:
        field = next(open_fields[-1], None)
        if field is None:
            open_fields.pop()
            continue
        num_fields += 1
        budget -= _TABLE_BYTES + field.text_length(0)
        _require_within(budget)
        if num_fields > _MAX_FIELDS or len(open_fields) > _MAX_FIELD_DEPTH or field.vector(6)[1]:
            raise DecodeError("there are too many columns, one is nested too deeply, or one has metadata of its own")
        open_fields.append(field.tables(5))


def _require_within(budget: int) -> None:
    if budget < 0:
        raise DecodeError("the schema refers to the same tables more than once")


class _Table:
    """A flatbuffer table. Reading outside of `data` is a `struct.error`; absent fields are zero, empty or None."""

    __slots__ = ("_fields", "_position", "data")

    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self._position = position
        (back,) = struct.unpack_from("<i", data, position)
        vtable = position - back
        if vtable < 0:
            raise DecodeError("the data is damaged: a table points outside of its message")
        size, _ = struct.unpack_from("<HH", data, vtable)
        count = max(size // 2 - 2, 0)
        self._fields: tuple[int, ...] = struct.unpack_from(f"<{count}H", data, vtable + 4)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        (position,) = struct.unpack_from("<I", data, 0)
        return cls(data, position)

    def number(self, slot: int, kind: str) -> int:
        position = self._at(slot)
        return int(struct.unpack_from(kind, self.data, position)[0]) if position else 0

    def table(self, slot: int) -> _Table | None:
        position = self._at(slot)
        return _Table(self.data, self._follow(position)) if position else None

    def vector(self, slot: int, item_bytes: int = 4) -> tuple[int, int]:
        """Position of the first item, and their number; all of them lie within the data."""
        position = self._at(slot)
        if not position:
            return 0, 0
        start = self._follow(position)
        (count,) = struct.unpack_from("<I", self.data, start)
        if start + 4 + count * item_bytes > len(self.data):
            raise DecodeError("the data is damaged: a list reaches outside of its message")
        return start + 4, count

    def text_length(self, slot: int) -> int:
        return self.vector(slot, item_bytes=1)[1]

    def tables(self, slot: int) -> Iterator[_Table]:
        start, count = self.vector(slot)
        return (_Table(self.data, self._follow(start + 4 * i)) for i in range(count))

    def place(self, slot: int) -> int:
        """Where a field stands in the data; 0 where it is absent."""
        return self._at(slot)

    def _at(self, slot: int) -> int:
        offset = self._fields[slot] if slot < len(self._fields) else 0
        return self._position + offset if offset else 0

    def _follow(self, position: int) -> int:
        return position + int(struct.unpack_from("<I", self.data, position)[0])
