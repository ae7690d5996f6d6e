"""`relayrl serve inference`: actions for clients that have no model of their own."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from relayrl.cli.debug_option import DebugFlag
from relayrl.errors import RelayRLError

DEFAULT_BIND = "tcp://127.0.0.1:7779"


def inference(
    models: Annotated[
        list[Path] | None, typer.Argument(help="Models: .onnx files or run directories; followed while they change.")
    ] = None,
    bind: Annotated[str, typer.Option(help="Where clients connect: tcp://HOST:PORT.")] = DEFAULT_BIND,
    store: Annotated[Path | None, typer.Option(help="Directory that keeps versions and what is deployed.")] = None,
    canary: Annotated[
        str | None, typer.Option(help="new@10%, VERSION@10% or FILE@10%: that share of actors tries the version.")
    ] = None,
    follow: Annotated[str | None, typer.Option("--from", help="Follow the models of this training server.")] = None,
    max_latency_ms: Annotated[float, typer.Option(help="Longest time a request waits for others, in ms.")] = 5.0,
    max_batch: Annotated[int, typer.Option(help="Rows at which a batch is not waited for any longer.")] = 4096,
    seed: Annotated[int | None, typer.Option(help="Seed of actions that the server draws.")] = None,
    key: Annotated[Path | None, typer.Option(help="The server's .key file; needed off loopback.")] = None,
    authorised_keys: Annotated[
        Path | None, typer.Option(help="Keys that are let in; default: authorised_keys beside --key.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT of /health, /ready, /metrics and /status; default: none.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but the address.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Act for remote clients.

    With many models and versions side by side.
    """
    from relayrl.config.settings import parse_settings
    from relayrl.observability.logs import configure_logging
    from relayrl.servers.inference.inference_server import InferenceServer, InferenceSettings
    from relayrl.servers.status_http import StatusServer

    batches = {"max_latency_ms": max_latency_ms, "max_batch": max_batch}
    settings = parse_settings(InferenceSettings, {"batches": batches, "seed": seed})
    configure_logging("warning" if quiet else "info", "text", stream=sys.stderr)
    stop = threading.Event()
    former = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server = InferenceServer(
            bind,
            models or [],
            store=store,
            canary=canary,
            follow=follow,
            settings=settings,
            key=key,
            authorised_keys=authorised_keys,
        )
        with server, contextlib.ExitStack() as stack:
            pages = ""
            if http is not None:
                asked = {"is_healthy": lambda: server.is_alive, "is_ready": lambda: server.is_ready}
                status = StatusServer(http, server.metrics, status=server.status, **asked)
                pages = f"; {stack.enter_context(status).url}/status"
            print(f"listening on {server.address}{pages}", file=sys.stderr, flush=True)
            while not stop.wait(0.5):
                if not server.is_alive:
                    raise RelayRLError("the serving thread ended; see the log above")
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
