"""`csv:DIR`: part files that every program and every person can read, and that lose nothing all the same.

    DIR/part-….csv     a line of column names, then a line per step
    DIR/part-….json    group and spaces: what the numbers mean
    DIR/part-….sums    checksums of both (`parts_source`)

Columns are those of `relayrl.data.arrow.schema` with one cell per leaf (`csv_cells`). `successor` is 1 on a trajectory's
last row, where `successor.obs…` hold the observation after it, and 0 elsewhere. Nothing is quoted: commas, quotes, percent
signs and
control characters in names are written `%2C`, `%22`, …, so that a row is a line and a cut-off end is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from relayrl.data.arrow.arrow_reading import from_arrow
from relayrl.data.arrow.arrow_writing import successors_to_arrow, to_arrow
from relayrl.data.arrow.schema import EPISODE, FAILED, STEP, TERMINATED, TRUNCATED, VALID, Layout, Leaf
from relayrl.data.trees import Array
from relayrl.errors import DecodeError
from relayrl.sinks.contract import TrajectorySink, TrajectorySource
from relayrl.sinks.databases.layout_json import layout_from_json, layout_to_json
from relayrl.sinks.files.csv_cells import from_cells, to_cells
from relayrl.sinks.files.parts_sink import BatchPart, OpenPartsSink, SummedFile, sync_path
from relayrl.sinks.files.parts_source import PartsSource, check_sums
from relayrl.sinks.sink_settings import SinkSettings
from relayrl.sinks.text_escapes import escape_for_csv, unescape

SUFFIX = ".csv"
_NAMES = ("trajectory_id", "env_id", "agent_id", "group")
_CHUNK_BYTES = 16 << 20


def open_sink(url: str, settings: SinkSettings) -> TrajectorySink:
    """A sink that begins new parts in the directory of `url`."""
    return CsvSink(url, settings, SUFFIX)


def open_source(url: str) -> TrajectorySource:
    """All parts in the directory of `url`."""
    return CsvSource(url, SUFFIX)


class CsvSink(OpenPartsSink):
    """One table per layout."""

    def _begin_part(self, path: Path, layout: Layout) -> BatchPart:
        return _Table(path, layout)


class _Table(BatchPart):
    """What its numbers mean is durable before the first of them."""

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(layout)
        spaces = SummedFile(path.with_suffix(".json"), path.with_suffix(".json"))
        spaces.write(layout_to_json(layout).encode())
        spaces.close()
        sync_path(path.parent)
        self._file = SummedFile(path, path)
        names = [name for _, name, _ in _cell_columns(layout)]
        self._file.write(",".join(map(escape_for_csv, names)).encode() + b"\n")

    def _append(self, batch: pa.RecordBatch) -> None:
        self._file.write(_lines(self.layout, batch))

    def _num_bytes(self) -> int:
        return self._file.tell()

    def sync(self) -> None:
        if not self.is_closed:
            self._file.sync()

    def close(self) -> None:
        self._file.close()
        self.is_closed = True

    def abandon(self) -> None:
        self.is_closed = True
        self._file.abandon()


def _cell_columns(layout: Layout) -> Iterator[tuple[str, str, Leaf | None]]:
    """Every column of cells: the kind of column, its name in the file, and the leaf where it holds numbers."""
    leaves = {leaf.name: leaf for leaf in (EPISODE, STEP, TERMINATED, TRUNCATED, FAILED, VALID)}
    leaves |= {leaf.name: leaf for leaf in layout.stored}
    for name in layout.schema.names:
        if name in _NAMES:
            yield "name", name, None
        elif name == "successor":
            yield "successor", name, None
            for leaf in layout.successor:
                yield "final", f"successor.{leaf.name}", leaf
        else:
            yield "step", name, leaves[name]


def _lines(layout: Layout, batch: pa.RecordBatch) -> pa.Buffer:
    """The bytes of the batch's rows."""
    num_rows, column = batch.num_rows, batch.column("successor")
    has_successor = np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False)).astype(bool)
    finals = column.flatten()
    cells: list[pa.Array] = []
    for kind, name, leaf in _cell_columns(layout):
        if kind == "name":
            names = batch.column(name)
            escaped = pa.array([escape_for_csv(text) for text in names.dictionary.to_pylist()], pa.large_string())
            cells.append(escaped.take(names.indices))
        elif kind == "successor":
            cells.append(pa.array(has_successor.view(np.uint8)).cast(pa.large_string()))
        elif leaf is not None and kind == "final":
            written = to_cells(leaf, from_arrow(leaf, finals.field(leaf.name), (len(finals),)))
            which = pa.array(np.cumsum(has_successor) - 1, mask=~has_successor)
            cells.append(pc.fill_null(written.take(which), pa.scalar("", pa.large_string())))
        elif leaf is not None:
            cells.append(to_cells(leaf, from_arrow(leaf, batch.column(name), (num_rows,))))
    comma, newline, nothing = (pa.scalar(text, pa.large_string()) for text in (",", "\n", ""))
    lines = pc.binary_join_element_wise(pc.binary_join_element_wise(*cells, comma), newline, nothing)
    first, last = np.frombuffer(lines.buffers()[1], np.int64)[[lines.offset, lines.offset + num_rows]].tolist()
    return lines.buffers()[2].slice(first, last - first)


class CsvSource(PartsSource):
    """Reads a part in chunks of whole trajectories."""

    def _read(self, path: Path) -> Iterator[tuple[Layout, pa.RecordBatch]]:
        layout = self._read_layout(path)
        if layout is None:
            return
        rest, is_header_read = b"", False
        with path.open("rb") as file:
            while chunk := file.read(max(_CHUNK_BYTES, len(rest))):
                rest += chunk
                if not is_header_read:
                    line, newline, rest_after = rest.partition(b"\n")
                    if not newline:
                        continue
                    _check_header(path, layout, line)
                    rest, is_header_read = rest_after, True
                batch, num_bytes = _batch_of(path, layout, rest[: rest.rfind(b"\n") + 1])
                rest = rest[num_bytes:]
                if batch is not None:
                    yield layout, batch
        if rest:
            self._note_torn(path, len(rest))

    def _read_layout(self, path: Path) -> Layout | None:
        try:
            check_sums(path.with_suffix(".json"))
            return layout_from_json(path.with_suffix(".json").read_text())
        except FileNotFoundError as error:
            raise DecodeError(f"{path} cannot be understood without {path.with_suffix('.json').name}") from error
        except (DecodeError, UnicodeDecodeError) as error:
            raise DecodeError(f"{path.with_suffix('.json')} is damaged: {error}") from error


def _check_header(path: Path, layout: Layout, line: bytes) -> None:
    expected = ",".join(escape_for_csv(name) for _, name, _ in _cell_columns(layout))
    if line.decode(errors="replace") != expected:
        raise DecodeError(f"{path} has other columns than its spaces say")


def _batch_of(path: Path, layout: Layout, text: bytes) -> tuple[pa.RecordBatch | None, int]:
    """The whole trajectories in whole lines, and how many bytes they take."""
    if not text:
        return None, 0
    columns = list(_cell_columns(layout))
    names = [name for _, name, _ in columns]
    try:
        cells = pa_csv.read_csv(
            pa.BufferReader(text),
            read_options=pa_csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
            parse_options=pa_csv.ParseOptions(quote_char=False, double_quote=False, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        ).combine_chunks()
        marks = cells["successor"].combine_chunks().to_numpy(zero_copy_only=False)
        ends = np.flatnonzero(marks == "1")
        if not len(ends):
            return None, 0
        num_rows = int(ends[-1]) + 1
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        return _from_cells(layout, cells.slice(0, num_rows), ends), int(newlines[num_rows - 1]) + 1
    except (pa.ArrowException, DecodeError) as error:
        raise DecodeError(f"{path} is damaged: {error}") from error


def _from_cells(layout: Layout, table: pa.Table, ends: Array) -> pa.RecordBatch:
    num_rows = table.num_rows
    cells = {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}
    columns: dict[str, Any] = {}
    finals = []
    for kind, name, leaf in _cell_columns(layout):
        if name == "trajectory_id":
            columns[name] = _one_entry_each(cells[name], ends)
        elif kind == "name":
            encoded = cells[name].dictionary_encode()
            texts = pa.array([unescape(text) for text in encoded.dictionary.to_pylist()], pa.string())
            index_type = layout.schema.field(name).type.index_type
            columns[name] = pa.DictionaryArray.from_arrays(encoded.indices.cast(index_type), texts)
        elif leaf is not None and kind == "final":
            field = replace(leaf, name=name)
            finals.append(to_arrow(leaf, from_cells(field, cells[name].take(pa.array(ends))), (len(ends),)))
        elif leaf is not None:
            columns[name] = to_arrow(leaf, from_cells(leaf, cells[name]), (num_rows,))
    columns["successor"] = successors_to_arrow(layout.schema.field("successor").type, ends, num_rows, finals)
    return pa.RecordBatch.from_arrays([columns[name] for name in layout.schema.names], schema=layout.schema)


def _one_entry_each(ids: pa.Array, ends: Array) -> pa.DictionaryArray:
    """The column `trajectory_id` of trajectories that end on the rows `ends`; a part may hold one of them twice."""
    texts = ids.take(pa.array(ends))
    indices = pa.array(np.repeat(np.arange(len(ends), dtype=np.int32), np.diff(ends, prepend=-1)))
    if not pc.all(pc.equal(texts.take(indices), ids)).as_py():
        raise DecodeError("a trajectory has no last row, or rows of another one")
    return pa.DictionaryArray.from_arrays(indices, texts)
