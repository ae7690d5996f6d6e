"""`relayrl train`: settings, run directory, engine, what a person sees, and what to try next."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from relayrl.cli.terminal.invocation import command
from relayrl.engines.process.interrupts import EXIT_CODE, Interrupt, LeaveAtOnce, StartInterrupted
from relayrl.engines.process.progress_display import progress_display
from relayrl.engines.sessions import TrainRequest, open_session, print_note, run_session

if TYPE_CHECKING:
    from relayrl.engines.runs.run_record import RunResult


def run(request: TrainRequest, *, print_config: bool, as_json: bool, quiet: bool) -> int:
    """Train; gives the exit code."""
    try:
        with Interrupt() as interrupt:
            session = open_session(request, create=not print_config)
            settings = session.settings
            if print_config:
                for note in session.notes:
                    print_note(note)
                typer.echo(settings.to_yaml(), nl=False)
                return 0
            try:
                with progress_display(settings.env, settings.algo, enabled=not quiet) as display:
                    result = run_session(session, display.update, interrupt, None if quiet else print_note)
            except StartInterrupted:
                session.discard()
                raise
    except LeaveAtOnce:
        # Everything is closed; threads of the run or of an environment that still work would be waited for.
        sys.stderr.flush()
        os._exit(EXIT_CODE)
    except StartInterrupted:
        print("interrupted before the first update; nothing was changed", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt:
        go_on = command("relayrl", "train", *_named(settings.env), "--resume", "--run-dir", session.directory.path)
        print(f"interrupted; continue with: {go_on}", file=sys.stderr)
        return EXIT_CODE
    if not quiet:
        if result.reached_target:
            typer.echo(f"target return {settings.evaluation.target_return:g} reached at step {result.num_env_steps:,}")
        _advise(result)
    if as_json:
        typer.echo(result.to_json())
    return 0


def _advise(result: RunResult) -> None:
    if result.returns:
        from relayrl.runtime.scored_agents import describe_returns

        scored_by = f" ({result.scored_by})" if result.scored_by else ""
        numbers = f"return {result.mean_return:.1f} ± {result.std_return:.1f}"
        typer.echo(f"evaluated over {len(result.returns)} episodes: {numbers}{scored_by}")
        for line in describe_returns(result.group_returns, result.agent_returns, result.opponents):
            typer.echo(line)
    if result.stopped_by:
        from relayrl.runtime.evaluation import describe_bound

        counts = (result.episodes_asked, result.episodes_ended, result.episodes_cut)
        typer.echo(describe_bound(*counts, result.stopped_by))
    typer.echo(f"run directory: {result.run_dir}")
    typer.echo("next:")
    for line in next_commands(result):
        typer.echo(f"  {line}")


def next_commands(result: RunResult) -> list[str]:
    """What to try after a run; each line works as it is printed."""
    flags = [argument for env in _named(result.env) for argument in ("--env", env)]
    lines = [
        command("relayrl", "evaluate", result.run_dir, *flags),
        command("relayrl", "plot", result.run_dir),
        command("relayrl", "watch", result.run_dir),
    ]
    has_events = any(Path(result.run_dir).glob("events.out.tfevents.*"))
    return [*lines, command("tensorboard", "--logdir", result.run_dir)] if has_events else lines


def _named(env: str) -> list[str]:
    """What a command needs besides the run directory: the name of an environment that is code of the user's."""
    from relayrl.engines.runs.trust import is_installed_environment

    return [] if is_installed_environment(env) else [env]
