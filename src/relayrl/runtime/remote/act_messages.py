"""The messages ACT and ACTION: observations to the server, decisions back. Both ends use these functions.

    ACT     {group, version | null, actor, rows, choice, wait_ms, arrays}     + one frame
    ACTION  {group, version, number, arrays}                                  + one frame

`arrays` lists `[name, dtype, shape]` of the arrays that lie in the frame one after the other, each from the next multiple of 8
bytes on: little-endian, in C order, the first axis counting rows. One frame for all, because frames cost more than bytes. A
request has one array for each leaf of the observation space (`obs`, or `obs.PATH` in the space's order), then `action_mask` and
`memory` where there are any. The reply has `distribution` or, where the server chose, `action` (`action.PATH` for the leaves of
a nested space) and `logp`; then `value` and `memory`.

Not its job: what a policy expects of them (`relayrl.servers.inference`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import ProtocolError
from relayrl.transport.messages import Bytes, Kind, Message

DTYPES = {kind: np.dtype(kind) for kind in ("<f4", "|u1", "<i8", "|b1", "<f8", "<i4", "|i1", "<i2", "<f2")}
_NAMES = {dtype: kind for kind, dtype in DTYPES.items()}
MAX_AXES = 8
MAX_ARRAYS = 256
ALIGNMENT = 8
MAX_ROWS = 1 << 20
MAX_WAIT_MS = 600_000


class RemoteChoice(Enum):
    """Who chooses actions from the distribution, and how."""

    CLIENT = "client"
    """The reply holds the distribution; the client draws with its own generator."""
    SAMPLE = "sample"
    GREEDY = "greedy"


@dataclass(slots=True, eq=False)
class ActRequest:
    """What a client asks."""

    group: str
    version: int | None
    """None: the one that the actor is assigned."""
    actor: str
    num_rows: int
    choice: RemoteChoice
    wait_s: float
    """How long the client waits for the reply."""
    arrays: dict[str, Array]

    def as_message(self) -> Message:
        arrays, payload = packed(self.arrays)
        header = {
            "group": self.group,
            "version": self.version,
            "actor": self.actor,
            "rows": self.num_rows,
            "choice": self.choice.value,
            "wait_ms": int(self.wait_s * 1000),
            "arrays": arrays,
        }
        return Message(Kind.ACT, header, payload)

    @classmethod
    def from_message(cls, message: Message) -> ActRequest:
        """The request in a message; `ProtocolError` if it is none."""
        header = message.header
        try:
            group, version, num_rows, wait_ms = (header[key] for key in ("group", "version", "rows", "wait_ms"))
            actor, choice = header["actor"], _CHOICES[header["choice"]]
        except (KeyError, TypeError) as error:
            raise ProtocolError("malformed", f"an ACT without a valid {error}") from error
        if type(group) is not str or type(actor) is not str or not (version is None or type(version) is int):
            raise ProtocolError("malformed", "an ACT whose group, actor or version is of another type")
        if type(num_rows) is not int or not 1 <= num_rows <= MAX_ROWS:
            raise ProtocolError("malformed", f"an ACT of {num_rows!r:.40} rows")
        if type(wait_ms) is not int or not 0 <= wait_ms <= MAX_WAIT_MS:
            raise ProtocolError("malformed", f"an ACT with wait_ms {wait_ms!r:.40}; at most {MAX_WAIT_MS}")
        arrays = unpacked(header.get("arrays"), message.payload, num_rows)
        return cls(group, version, actor, num_rows, choice, wait_ms / 1000, arrays)


_CHOICES = {choice.value: choice for choice in RemoteChoice}


def packed(arrays: Mapping[str, Array]) -> tuple[list[list[Any]], tuple[Bytes, ...]]:
    """What the header says of arrays, and their frame."""
    described, parts = [], []
    for name, array in arrays.items():
        described.append([name, _NAMES.get(array.dtype) or array.dtype.str, list(array.shape)])
        parts.append(array.tobytes())
        padding = -len(parts[-1]) % ALIGNMENT
        if padding:
            parts.append(bytes(padding))
    return described, (b"".join(parts),)


def unpacked(described: Any, frames: Sequence[Bytes], num_rows: int) -> dict[str, Array]:
    """Arrays by name, as views of their frame; `ProtocolError` if header and frame do not fit each other."""
    if type(described) is not list or len(described) > MAX_ARRAYS or len(frames) != 1:
        raise ProtocolError("malformed", f"arrays are a list of at most {MAX_ARRAYS}, and one frame")
    arrays: dict[str, Array] = {}
    frame, start = frames[0], 0
    for entry in described:
        if type(entry) is not list or len(entry) != 3:
            raise ProtocolError("malformed", f"an array is [name, dtype, shape], not {entry!r:.80}")
        name, kind, shape = entry
        dtype = DTYPES.get(kind) if type(kind) is str else None
        if type(name) is not str or name in arrays or dtype is None or type(shape) is not list:
            raise ProtocolError("malformed", f"no array: {entry!r:.80}; dtypes are {', '.join(DTYPES)}")
        if not 1 <= len(shape) <= MAX_AXES or not all(type(n) is int and n >= 0 for n in shape) or shape[0] != num_rows:
            raise ProtocolError("malformed", f"{name[:80]!r} has shape {shape!r:.80}, expected {num_rows} rows")
        count = math.prod(shape)
        end = start + count * dtype.itemsize
        if end > len(frame):
            raise ProtocolError("malformed", f"the frame has {len(frame)} bytes; {name[:80]!r} would end behind it")
        held = np.uint8 if dtype.kind == "b" else dtype
        array = np.frombuffer(frame, held, count, start).reshape(shape) if count else np.empty(shape, held)
        arrays[name] = array != 0 if dtype.kind == "b" else array
        start = end + -end % ALIGNMENT
    if start != len(frame):
        raise ProtocolError("malformed", f"the frame has {len(frame)} bytes, its arrays {start}")
    return arrays
