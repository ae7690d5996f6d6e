"""ML-Agents' side channels: numbers that travel beside observations and actions.

    out   environment parameters (floats by name), engine configuration (time scale, size of the window, frame rates)
    in    statistics of the scene (a name, a number, how numbers of one name are combined)

A block of messages is, for each, the channel's 16 bytes, the length as int32 and the payload; all of it little endian.
"""

from __future__ import annotations

import logging
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pydantic import Field, model_validator

from relayrl.config.settings import Settings
from relayrl.envs.environment_contract import Combination, Recorded
from relayrl.errors import ConfigError, EnvError

ENVIRONMENT_PARAMETERS = UUID("534c891e-810f-11ea-a9d0-822485860400")
ENGINE_CONFIGURATION = UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
STATISTICS = UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
_FLOAT_PARAMETER = 0
_MAX_NAMES, _MAX_LENGTH, _MAX_WAITING = 1000, 100, 100_000
"""Of statistics: different names, characters of a name, numbers that wait for the end of a step. All come from the scene."""
_ODD = re.compile(r"[^\w/ .-]")

logger = logging.getLogger(__name__)


class EngineSettings(Settings):
    """Configuration sent to Unity's engine before the first episode; null leaves the scene's own."""

    width: int | None = Field(84, ge=1, le=1 << 14, description="of the window, in pixels; with height")
    height: int | None = Field(84, ge=1, le=1 << 14, description="of the window, in pixels; with width")
    quality_level: int | None = Field(5, ge=0, description="of the graphics")
    time_scale: float | None = Field(20.0, gt=0, description="how many times faster than real time the scene runs")
    target_frame_rate: int | None = Field(-1, ge=-1, description="frames a second; -1: as many as there can be")
    capture_frame_rate: int | None = Field(60, ge=0, description="frames in a second of the scene's time; 0: not fixed")

    @model_validator(mode="after")
    def _both_sides(self) -> EngineSettings:
        if (self.width is None) != (self.height is None):
            raise ValueError("width and height go together; give both or neither")
        return self

    def messages(self) -> Iterator[bytes]:
        """One message for each setting."""
        if self.width is not None and self.height is not None:
            yield _framed(ENGINE_CONFIGURATION, struct.pack("<iii", 0, self.width, self.height))
        if self.quality_level is not None:
            yield _framed(ENGINE_CONFIGURATION, struct.pack("<ii", 1, self.quality_level))
        if self.time_scale is not None:
            yield _framed(ENGINE_CONFIGURATION, struct.pack("<if", 2, self.time_scale))
        for number, value in ((3, self.target_frame_rate), (4, self.capture_frame_rate)):
            if value is not None:
                yield _framed(ENGINE_CONFIGURATION, struct.pack("<ii", number, value))


def parameter_messages(parameters: Mapping[str, float]) -> Iterator[bytes]:
    """One message for each environment parameter; `ConfigError` where one is no finite number."""
    for name, value in parameters.items():
        try:
            number = float(value)
            encoded = name.encode("ascii")
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"environment parameter {name!r}: Unity takes ASCII names and numbers ({error})"
            ) from error
        if not math.isfinite(number) or abs(number) > 3.4e38:
            raise ConfigError(f"environment parameter {name!r} is {number}; Unity takes finite 32-bit numbers")
        yield _framed(
            ENVIRONMENT_PARAMETERS,
            struct.pack("<i", len(encoded)) + encoded + struct.pack("<if", _FLOAT_PARAMETER, number),
        )


@dataclass(slots=True)
class SceneStatistics:
    """What the scene reports through `StatsRecorder`, until somebody takes it."""

    _recorded: list[Recorded] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def add(self, payload: bytes) -> None:
        """Take in one message; `EnvError` where it is none."""
        try:
            (length,) = struct.unpack_from("<i", payload)
            if not 0 <= length <= len(payload) - 12:
                raise ValueError(f"a name of {length} bytes in a message of {len(payload)}")
            name = payload[4 : 4 + length].decode("utf-8")
            value, number = struct.unpack_from("<fi", payload, 4 + length)
            kind = Combination(number)
        except (struct.error, ValueError) as error:
            raise EnvError(f"the simulator sent a damaged statistic: {error}") from error
        known = _ODD.sub("_", name)[:_MAX_LENGTH]
        is_new = known not in self._names
        if (
            not math.isfinite(value)
            or (is_new and len(self._names) >= _MAX_NAMES)
            or len(self._recorded) >= _MAX_WAITING
        ):
            return
        self._names.add(known)
        self._recorded.append(Recorded(known, value, kind))

    def take(self) -> list[Recorded]:
        """What was recorded since the last call."""
        taken, self._recorded = self._recorded, []
        return taken


@dataclass(slots=True)
class SideChannels:
    """Both directions of one simulator's side channels."""

    statistics: SceneStatistics
    _outgoing: list[bytes] = field(default_factory=list)
    _unknown: set[UUID] = field(default_factory=set)

    def send(self, messages: Iterator[bytes]) -> None:
        """Keep messages for the next exchange."""
        self._outgoing.extend(messages)

    def take_outgoing(self) -> bytes:
        """The block for the next exchange."""
        block = b"".join(self._outgoing)
        self._outgoing.clear()
        return block

    def receive(self, block: bytes) -> None:
        """Read what the simulator sent; messages of unknown channels are skipped, with one line for each channel."""
        for channel, payload in read_block(block):
            if channel == STATISTICS:
                self.statistics.add(payload)
            elif channel not in self._unknown and len(self._unknown) < _MAX_NAMES:
                self._unknown.add(channel)
                logger.info("side channel skipped: RelayRL does not know it", extra={"channel": str(channel)})


def read_block(block: bytes) -> Iterator[tuple[UUID, bytes]]:
    """The messages of a block, each with its channel; `EnvError` where it is cut off."""
    at = 0
    while at < len(block):
        length = struct.unpack_from("<i", block, at + 16)[0] if len(block) - at >= 20 else -1
        if not 0 <= length <= len(block) - at - 20:
            raise EnvError(f"the simulator sent a damaged side channel message, at byte {at} of {len(block)}")
        yield UUID(bytes_le=block[at : at + 16]), block[at + 20 : at + 20 + length]
        at += 20 + length


def _framed(channel: UUID, payload: bytes) -> bytes:
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload
