"""The rows of sinks run: their floors write into tables as today's sinks make them."""

import pytest

from relayrl.bench import sink_rows


@pytest.mark.slow
def test_rows_of_sinks_run(monkeypatch):
    monkeypatch.setattr(sink_rows, "REPETITIONS", 1)
    monkeypatch.setattr(sink_rows, "NUM_STEPS", 5)
    rows = sink_rows.sink_rows()
    assert [row.name.split()[0] for row in rows] == ["arrow", "arrow", "sqlite", "postgresql"]
    assert all(row.figure > 0 and row.ratio for row in rows)
