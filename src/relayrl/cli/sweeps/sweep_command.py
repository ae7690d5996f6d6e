"""`relayrl sweep CONFIG` and `relayrl sweep show DIR`: many runs as one piece of work, and what came of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from relayrl.cli.debug_option import DebugFlag
from relayrl.cli.terminal.invocation import command
from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from relayrl.sweeps.results.sweep_table import SweepReport

_WIDTH_ELSEWHERE = 160


class _RunsByDefault(TyperGroup):
    """`relayrl sweep FILE` is `relayrl sweep run FILE`."""

    default_command = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


sweep_app = typer.Typer(
    cls=_RunsByDefault,
    help="Run seeds, grids and searches: relayrl sweep CONFIG.yaml. The same command goes on after a kill.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


@sweep_app.command()
def run(
    config: Annotated[Path, typer.Argument(help="YAML, TOML or JSON file of the sweep.")],
    sweep_dir: Annotated[
        Path | None, typer.Option(help="Folder of the sweep. [default: sweeps/NAME of the file]")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time, over all processes. [default: the file's]")
    ] = None,
    most_here: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time of this process. [default: all]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Only go on with a sweep that is there.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run again what has failed.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that a file names as its environment.")] = False,
    as_json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no table.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Run a sweep, or go on with it.

    Any number of processes may do so at once, on the same directory or database.
    """
    from relayrl.engines.process.interrupts import EXIT_CODE
    from relayrl.sweeps.sweep_api import sweep

    try:
        report = sweep(
            config,
            sweep_dir=sweep_dir,
            concurrency=concurrency,
            most_here=most_here,
            resume=resume,
            retry_failed=retry_failed,
            progress=not quiet,
            trust=trust,
        )
    except KeyboardInterrupt:
        again = [] if sweep_dir is None else ["--sweep-dir", sweep_dir]
        print(f"interrupted; continue with: {command('relayrl', 'sweep', config, *again)}", file=sys.stderr)
        raise typer.Exit(EXIT_CODE) from None
    if not quiet:
        _print(report)
    if as_json:
        typer.echo(report.to_json())
    if report.best is None:
        raise typer.Exit(1)


@sweep_app.command()
def show(
    sweep_dir: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    output: Annotated[Path | None, typer.Option("-o", help="Picture to write (.png or .svg).")] = None,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Show the trials of a sweep, also while it goes on."""
    from relayrl.sweeps.results.sweep_picture import draw
    from relayrl.sweeps.results.sweep_table import read_report, sweep_in

    if output is not None and output.suffix not in (".png", ".svg"):
        raise ConfigError(f"-o {output} must end in .png or .svg")
    sweep, directory = sweep_in(sweep_dir)
    report = read_report(sweep, directory)
    _print(report)
    if output is not None:
        draw(sweep, report.trials, output)
        typer.echo(output)
    if as_json:
        typer.echo(report.to_json())


def _print(report: SweepReport) -> None:
    from rich.console import Console

    from relayrl.sweeps.results.sweep_table import advice, table

    console = Console(width=None if sys.stdout.isatty() else _WIDTH_ELSEWHERE)
    console.print(table(report))
    if report.best is None:
        typer.echo("no trial is done yet" if not report.is_over else "no trial has a value")
        return
    typer.echo(f"best: trial {report.best.trial}, {report.metric} {report.best.value:g}")
    if report.best_settings is not None:
        seeds = ", ".join(map(str, report.seeds))
        typer.echo(f"best settings: {report.best_settings}")
        typer.echo(f"chosen on seeds {seeds}; {advice(report.seeds, report.best_settings)}")
    if report.picture is not None:
        typer.echo(f"picture: {report.picture}")
