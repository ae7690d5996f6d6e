"""`relayrl serve training`: a run that remote actors collect for."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayrl.cli.debug_option import DebugFlag
from relayrl.cli.environment_options import EnvOptions, Wraps, environment_flags

if TYPE_CHECKING:
    from relayrl.engines.runs.run_record import RunResult
    from relayrl.servers.training.training_server import TrainingServer

serve_app = typer.Typer(name="serve", help="Servers for remote actors.", no_args_is_help=True, rich_markup_mode=None)


@serve_app.callback()
def _serve() -> None:
    """Servers for remote actors."""


@serve_app.command()
def training(
    env: Annotated[str | None, typer.Argument(help="Environment, e.g. CartPole-v1; see `relayrl list envs`.")] = None,
    env_option: Annotated[str | None, typer.Option("--env", help="The same, as an option.")] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm; see `relayrl list algos`.")] = None,
    steps: Annotated[int | None, typer.Option(help="Environment steps of the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the networks and of learning.")] = None,
    bind: Annotated[str | None, typer.Option(help="Where actors connect: tcp://HOST:PORT.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML, TOML or JSON file of the run's settings.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="key=value, any number of times.")] = None,
    env_options: EnvOptions = None,
    wraps: Wraps = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --run-dir; begin it where there is none.")
    ] = False,
    journal: Annotated[
        str | None, typer.Option(help="Sink that keeps every trajectory; default: arrow:RUN_DIR/journal.")
    ] = None,
    server_config: Annotated[
        Path | None, typer.Option(help="JSON file of addresses and server settings, which agents can read as well.")
    ] = None,
    server_assignments: Annotated[
        list[str] | None,
        typer.Option("--server-set", help="key=value of the server's own settings, any number of times."),
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT of /health, /ready, /metrics and /status; default: none.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The server's .key file; see `relayrl keys`.")] = None,
    authorised_keys: Annotated[
        Path | None, typer.Option(help="Who may come in; default: authorised_keys beside --key.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print a line of status every second.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that a file names as its environment.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Train from what remote actors send."""
    from relayrl.engines.torch_preload import preload_torch

    preload_torch()
    from relayrl.config.settings_text import parse_assignment
    from relayrl.engines.sessions import TrainRequest
    from relayrl.servers.training.training_server import TrainingServer

    flags = {"algo": algo, "trainer.max_steps": steps, "seed": seed, "record": journal}
    given = {path: value for path, value in flags.items() if value is not None}
    given |= environment_flags(env_options, wraps)
    request = TrainRequest(env or env_option, run_dir, config, given, assignments or [], resume=resume, trust=trust)
    from relayrl.servers.training.server_file import server_of_file
    from relayrl.transport.keys import Access

    own = dict(parse_assignment(each, "--server-set") for each in server_assignments or [])
    if http is not None:
        own["http"] = http
    address, settings = server_of_file(server_config, own)
    access = None if key is None else Access.load(key, authorised_keys)
    make = partial(TrainingServer.of_request, request, bind or address, settings, access)
    raise typer.Exit(_run(make, as_json=as_json, quiet=quiet, watch=watch))


def _run(make: Callable[[], TrainingServer], *, as_json: bool, quiet: bool, watch: bool) -> int:
    from relayrl.engines.process.interrupts import EXIT_CODE, Interrupt, LeaveAtOnce, StartInterrupted
    from relayrl.engines.process.progress_display import progress_display
    from relayrl.engines.sessions import print_note
    from relayrl.servers.training.status_line import Watch

    try:
        with Interrupt() as interrupt, make() as server, contextlib.ExitStack() as stack:
            http = "" if server.http_url is None else f"; {server.http_url}/status"
            print(f"listening on {server.address}; run directory {server.run_dir}{http}", file=sys.stderr, flush=True)
            if watch:
                stack.callback(Watch(server.status).close)
            display = stack.enter_context(progress_display(server.env, server.algo, enabled=not (quiet or watch)))
            result = server.run(display.update, interrupt, None if quiet else print_note)
    except LeaveAtOnce:
        sys.stderr.flush()
        os._exit(EXIT_CODE)
    except StartInterrupted:
        print("interrupted before the first update", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt:
        print(
            "stopped, with everything saved; go on with the same command and --resume",
            file=sys.stderr,
        )
        return EXIT_CODE
    _tell(result, as_json=as_json, quiet=quiet)
    return 0


def _tell(result: RunResult, *, as_json: bool, quiet: bool) -> None:
    if not quiet:
        typer.echo(f"mean return {result.mean_return:.2f} after {result.num_env_steps:,} steps; {result.run_dir}")
    if as_json:
        typer.echo(result.to_json())
