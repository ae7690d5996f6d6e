"""`relayrl bench`: a table of rows, each beside its floor or peer; 1 where a target is missed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

import typer

from relayrl.bench.benchmark_registry import BENCHMARKS, benchmark
from relayrl.bench.rows import Row
from relayrl.errors import ConfigError


def run(name: str | None, *, as_json: bool, only: Sequence[str] = (), limit_s: float | None = None) -> int:
    """Measure and print; gives the exit code. `only` and `limit_s` choose and bound the rows of `gpu`."""
    rows: list[Row] = []
    begin = time.perf_counter()
    for row in _measured(name, only, limit_s):
        rows.append(row)
        typer.echo(describe(row))
    typer.echo(f"measured in {time.perf_counter() - begin:.0f} s")
    if as_json:
        typer.echo(json.dumps({**_first_figure(rows), "rows": [row.as_dict() for row in rows]}))
    return 0 if all(row.passed is not False for row in rows) else 1


def _measured(name: str | None, only: Sequence[str], limit_s: float | None) -> Iterator[Row]:
    if not only and limit_s is None:
        for chosen in [name] if name else list(BENCHMARKS):
            yield from benchmark(chosen)()
        return
    if name != "gpu":
        raise ConfigError("--only and --limit-s are for the rows of one benchmark; use: relayrl bench gpu --only ROW")
    from relayrl.bench.gpu.gpu_rows import LIMIT_S, gpu_rows

    yield from gpu_rows(only, LIMIT_S if limit_s is None else limit_s)


def _first_figure(rows: Sequence[Row]) -> dict[str, float | None]:
    if not rows:
        return {}
    name = "env_steps_per_s" if rows[0].unit == "env steps/s" else "figure"
    return {name: rows[0].figure, "ratio": rows[0].ratio}


def describe(row: Row) -> str:
    """One line of the table."""
    ours = f"{row.name}: {row.figure:,.1f} {row.unit}"
    if row.ratio is None or row.against_figure is None:
        return f"--   {ours} ({row.against})"
    verdict = "ok  " if row.passed else "MISS"
    return (
        f"{verdict} {ours} | {row.against}: {row.against_figure:,.1f} | ratio {row.ratio:.2f} (target {row.target:g})"
    )
