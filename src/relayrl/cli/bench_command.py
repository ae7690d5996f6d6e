"""`relayrl bench`: a table of rows, each beside its floor or peer; 1 where a target is missed."""

from __future__ import annotations

import json
import time

import typer

from relayrl.bench.benchmark_registry import BENCHMARKS, benchmark
from relayrl.bench.rows import Row


def run(name: str | None, *, as_json: bool) -> int:
    """Measure and print; gives the exit code."""
    rows: list[Row] = []
    begin = time.perf_counter()
    for chosen in [name] if name else list(BENCHMARKS):
        for row in benchmark(chosen)():
            rows.append(row)
            typer.echo(describe(row))
    typer.echo(f"measured in {time.perf_counter() - begin:.0f} s")
    if as_json:
        figures = {"env_steps_per_s": rows[0].figure} if rows[0].unit == "env steps/s" else {"figure": rows[0].figure}
        typer.echo(json.dumps({**figures, "ratio": rows[0].ratio, "rows": [row.as_dict() for row in rows]}))
    return 0 if all(row.passed is not False for row in rows) else 1


def describe(row: Row) -> str:
    """One line of the table."""
    ours = f"{row.name}: {row.figure:,.1f} {row.unit}"
    if row.ratio is None or row.against_figure is None:
        return f"--   {ours} ({row.against})"
    verdict = "ok  " if row.passed else "MISS"
    return (
        f"{verdict} {ours} | {row.against}: {row.against_figure:,.1f} | ratio {row.ratio:.2f} (target {row.target:g})"
    )
