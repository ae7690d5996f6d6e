"""`relayrl actor`: plays environments for a training server. torch is never loaded."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from relayrl.cli.debug_option import DebugFlag
from relayrl.cli.environment_options import EnvAssignments, EnvOptionsByOldName, Wraps, given_environment


def actor(
    env: Annotated[str, typer.Argument(help="Environment, as the server trains it.")],
    server: Annotated[str | None, typer.Option(help="The training server: tcp://HOST:PORT.")] = None,
    client_config: Annotated[
        Path | None, typer.Option(help="JSON file of addresses; its trajectories address is the server, unless given.")
    ] = None,
    num_envs: Annotated[int, typer.Option(min=1, help="Environments stepped together.")] = 8,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes for the environments; 0: this process.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of environments and actions; default: a fresh one.")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after so many environment steps.")] = None,
    block_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each environment in one message; default: as the server asks.")
    ] = None,
    spool_dir: Annotated[
        Path | None,
        typer.Option(help="Where unacknowledged trajectories wait; default: below the user's state folder."),
    ] = None,
    spool_mib: Annotated[
        int, typer.Option(min=1, help="Most MiB that may wait there; then the environments wait.")
    ] = 256,
    options: EnvOptionsByOldName = None,
    wraps: Wraps = None,
    assignments: EnvAssignments = None,
    key: Annotated[Path | None, typer.Option(help="This client's .key file; see `relayrl keys`.")] = None,
    server_key: Annotated[str | None, typer.Option(help="The server's public key, or its .pub file.")] = None,
    connect_timeout: Annotated[float, typer.Option(help="Seconds to wait for the server's first answer.")] = 60.0,
    give_up_after: Annotated[
        float, typer.Option(help="Seconds without any answer after which the actor ends; its spool stays.")
    ] = 600.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Play environments for a training server."""
    from relayrl.config.settings import parse_settings
    from relayrl.envs.environment_settings import EnvSettings
    from relayrl.runtime.agents.client_config import ClientConfig, read_client_config
    from relayrl.runtime.remote.remote_actor import RemoteActorSettings, run_remote_actor
    from relayrl.runtime.remote.spool import SpoolSettings

    if server is None:
        server = (ClientConfig() if client_config is None else read_client_config(client_config)).addresses.trajectories
    given = given_environment(options, wraps, assignments)
    settings = RemoteActorSettings(
        environment=parse_settings(EnvSettings, {"num_envs": num_envs, "workers": workers, **given}),
        spool=SpoolSettings(max_bytes=spool_mib << 20),
    )
    stopped = _stop_on_signals()
    report = run_remote_actor(
        env,
        server,
        spool_base=spool_dir,
        key=key,
        server_key=server_key,
        settings=settings,
        seed=seed,
        max_steps=steps,
        block_steps=block_steps,
        connect_timeout_s=connect_timeout,
        give_up_s=give_up_after,
        should_stop=lambda: bool(stopped),
    )
    if not quiet:
        left = f"; {report.num_left} messages wait in the spool" if report.num_left else ""
        print(f"{report.num_env_steps:,} steps in {report.num_messages} messages{left}", file=sys.stderr)


def _stop_on_signals() -> list[int]:
    """Holds what was caught, once something was; a second signal ends the process."""
    caught: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        del frame
        if caught:
            os._exit(130)
        caught.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, take)
    return caught
