"""Settings of sinks: one object for all of them, so that a sink is chosen by its URL alone."""

from __future__ import annotations

from pydantic import Field

from relayrl.config.settings import Settings
from relayrl.data.arrow.codec import Compression


class FileSettings(Settings):
    """Sinks that write part files into a directory."""

    max_part_bytes: int = Field(default=256 << 20, ge=1, description="A part file this long is closed; another begins.")
    max_part_rows: int = Field(default=10_000_000, ge=1, description="A part file of so many steps is closed.")
    max_batch_rows: int = Field(
        default=65_536,
        ge=1,
        description="Most steps in one record batch or row group; a longer trajectory has its own.",
    )
    arrow_compression: Compression = Field(default=Compression.NONE, description="none, lz4 or zstd.")
    parquet_compression: Compression = Field(default=Compression.ZSTD, description="none, lz4 or zstd.")


class DatabaseSettings(Settings):
    """Sinks that write into a database."""

    connect_timeout_s: float = Field(default=10.0, gt=0, description="Longest wait for a connection when a sink opens.")
    statement_timeout_s: float = Field(
        default=120.0, gt=0, description="Longest time of one transaction; the connection is cut after it."
    )
    retry_deadline_s: float = Field(
        default=60.0, ge=0, description="How long a flush reconnects and tries again before it raises."
    )
    first_delay_s: float = Field(default=0.05, gt=0, description="Wait before the first retry; doubles with each.")
    max_delay_s: float = Field(default=5.0, gt=0, description="Longest wait between two retries.")


class SinkSettings(Settings):
    """How much a sink may hold back before it writes, and how each kind writes."""

    max_buffered_bytes: int = Field(
        default=32 << 20, ge=0, description="write() flushes first when so much is held already."
    )
    max_buffered_s: float = Field(
        default=10.0, ge=0, description="write() flushes first when the oldest trajectory was held for so long."
    )
    files: FileSettings = FileSettings()
    database: DatabaseSettings = DatabaseSettings()
