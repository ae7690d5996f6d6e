"""`parquet:DIR`: part files in Parquet, for DuckDB, Spark, pandas and small storage.

Parquet is readable only with its footer, so every flush makes whole files: written under a temporary name, fsynced, renamed.
A killed writer leaves at most a `.tmp` file, which readers leave out and report. Flush seldom, or convert afterwards: many
flushes make many small files. Row groups are whole trajectories. Pages have Parquet's own checksums, and `parts_sink` sums the
footer as well.

Columns are those of `relayrl.data.arrow.schema`. Leaves without elements, and the successor of an observation without any,
carry nothing and cannot be written; they are left out and come back from the layout, which stands as JSON in the metadata
`relayrl.layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from relayrl.data.arrow.arrow_reading import names_from_arrow
from relayrl.data.arrow.arrow_writing import successors_to_arrow, to_arrow, to_batches
from relayrl.data.arrow.schema import Layout, Leaf
from relayrl.data.trajectory_block import TrajectoryBlock, num_trajectories
from relayrl.errors import DecodeError, SinkWriteError
from relayrl.sinks.contract import TrajectorySink, TrajectorySource
from relayrl.sinks.databases.layout_json import layout_from_json, layout_to_json
from relayrl.sinks.files.parts_sink import PartsSink, SummedFile, sync_path
from relayrl.sinks.files.parts_source import PartsSource, check_sums
from relayrl.sinks.sink_settings import FileSettings, SinkSettings

SUFFIX = ".parquet"
_LAYOUT = b"relayrl.layout"


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """A sink that adds parts to the directory of `url`."""
    return ParquetSink(url, settings, SUFFIX)


def open_source(url: str) -> TrajectorySource:
    """All parts in the directory of `url`."""
    return ParquetSource(url, SUFFIX)


class ParquetSink(PartsSink):
    """Every flush makes a part per layout, or several where they would be too long."""

    @property
    def appends(self) -> bool:
        return False

    def _persist(self, blocks: Sequence[TrajectoryBlock]) -> None:
        limits, part = self._settings.files, None
        try:
            for layout, batch in to_batches(blocks, limits.max_batch_rows):
                if part is not None and (part.layout is not layout or part.is_full(limits)):
                    part.finish()
                    part = None
                part = part or _NewPart(self._names.next(), layout, limits.parquet_compression.value)
                part.write(batch)
            if part is not None:
                part.finish()
            sync_path(self._directory)
        except (OSError, pa.ArrowException) as error:
            raise SinkWriteError(f"cannot write to {self._url}: {error}", num_trajectories(blocks)) from error
        finally:
            if part is not None:
                part.let_go()

    def _release(self) -> None:
        """Nothing is open between flushes."""


class _NewPart:
    """A Parquet file that gets its name when it is whole."""

    def __init__(self, path: Path, layout: Layout, compression: str) -> None:
        self.layout = layout
        self._path = path
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._num_rows = 0
        self._file = SummedFile(self._temporary, path)
        self._writer = pq.ParquetWriter(
            self._file, _stored_schema(layout), compression=compression, write_page_checksum=True
        )

    def write(self, batch: pa.RecordBatch) -> None:
        stored = _without_empty_leaves(batch, self._writer.schema)
        self._writer.write_batch(stored, row_group_size=batch.num_rows)
        self._num_rows += batch.num_rows

    def is_full(self, limits: FileSettings) -> bool:
        return self._num_rows >= limits.max_part_rows or self._file.tell() >= limits.max_part_bytes

    def finish(self) -> None:
        self._writer.close()
        self._file.close()
        self._temporary.rename(self._path)

    def let_go(self) -> None:
        """Close the file as it is; a finished part is closed already."""
        self._file.abandon()


def _stored_schema(layout: Layout) -> pa.Schema:
    empty = {leaf.name for leaf in (*layout.stored, *layout.observation) if leaf.width == 0}
    metadata = {**layout.schema.metadata, _LAYOUT: layout_to_json(layout).encode()}
    fields = []
    for column in layout.schema:
        if column.name == "successor":
            kept = [field for field in column.type.value_type if field.name not in empty]
            if kept:
                record = pa.field("item", pa.struct(kept), nullable=False)
                fields.append(pa.field("successor", pa.list_(record), nullable=False))
        elif column.name not in empty:
            fields.append(column)
    return pa.schema(fields, metadata=metadata)


def _without_empty_leaves(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, which has all of the batch or fewer, and fewer fields inside of `successor`."""
    if schema.names == batch.schema.names and schema.equals(batch.schema):
        return batch.replace_schema_metadata(schema.metadata)
    columns = {name: batch.column(name) for name in schema.names}
    if "successor" in columns:
        kind, column = schema.field("successor").type, columns["successor"]
        children = [column.values.field(field.name) for field in kind.value_type]
        struct = pa.Array.from_buffers(kind.value_type, len(column.values), [None], children=children)
        columns["successor"] = pa.Array.from_buffers(kind, len(column), column.buffers()[:2], children=[struct])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def _with_empty_leaves(table: pa.Table, layout: Layout) -> pa.RecordBatch:
    """The whole batch of a row group, with what was left out put back."""
    batch = table.combine_chunks().to_batches()[0]
    schema, num_rows = layout.schema, batch.num_rows
    if batch.schema.equals(schema):
        return batch.replace_schema_metadata(schema.metadata)
    leaves = {leaf.name: leaf for leaf in layout.stored}
    columns = {}
    for name in schema.names:
        if name in batch.schema.names:
            columns[name] = batch.column(name)
        elif name in leaves and leaves[name].width == 0:
            columns[name] = _empty(leaves[name], num_rows)
        elif name != "successor":
            raise DecodeError(f"column {name!r} is missing")
    columns["successor"] = _successors(batch, layout)
    try:
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DecodeError(f"columns do not fit the layout: {error}") from error


def _successors(batch: pa.RecordBatch, layout: Layout) -> pa.Array:
    indices, _ = names_from_arrow(batch.column("trajectory_id"), "trajectory_id")
    last = np.append(np.flatnonzero(indices[1:] != indices[:-1]), len(indices) - 1)
    stored = batch.column("successor").flatten() if "successor" in batch.schema.names else None
    records = [
        _empty(leaf, len(last)) if leaf.width == 0 or stored is None else stored.field(leaf.name)
        for leaf in layout.successor
    ]
    if any(len(record) != len(last) for record in records):
        raise DecodeError("column 'successor' does not have one observation for each trajectory")
    return successors_to_arrow(layout.schema.field("successor").type, last, batch.num_rows, records)


def _empty(leaf: Leaf, num_rows: int) -> pa.Array:
    return to_arrow(leaf, np.empty((num_rows, *leaf.shape), leaf.dtype), (num_rows,))


class ParquetSource(PartsSource):
    """Reads a row group at a time."""

    def _read(self, path: Path) -> Iterator[tuple[Layout, pa.RecordBatch]]:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                layout = _layout_in(file)
                for i in range(file.num_row_groups):
                    yield layout, _with_empty_leaves(file.read_row_group(i), layout)
        except (pa.ArrowException, OSError, DecodeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"{path} is damaged: {error}") from error

    def _read_ids(self, path: Path) -> Iterator[pa.Array]:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for i in range(file.num_row_groups):
                    yield file.read_row_group(i, columns=["trajectory_id"]).combine_chunks().to_batches()[0].column(0)
        except (pa.ArrowException, OSError, IndexError, KeyError, ValueError) as error:
            raise DecodeError(f"{path} is damaged: {error}") from error

    def _read_layout(self, path: Path) -> Layout | None:
        check_sums(path)
        try:
            with pq.ParquetFile(path) as file:
                return _layout_in(file)
        except (pa.ArrowException, OSError, DecodeError) as error:
            raise DecodeError(f"{path} is damaged: {error}") from error


def _layout_in(file: pq.ParquetFile) -> Layout:
    metadata = file.schema_arrow.metadata or {}
    if _LAYOUT not in metadata:
        raise DecodeError("this is Parquet, but no RelayRL data: its metadata has no 'relayrl.layout'")
    return layout_from_json(metadata[_LAYOUT].decode(errors="replace"))
