"""Health, readiness, metrics and status of a server over HTTP, for whoever supervises it. Read-only, without keys: on loopback
unless it is told otherwise.

    GET /health     200 while the process works, 503 when it has failed
    GET /ready      200 while clients are answered, 503 before and after
    GET /metrics    all metrics for Prometheus
    GET /status     the same as one JSON object
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from relayrl.errors import ConfigError, MissingExtraError
from relayrl.observability.metrics import MetricRegistry
from relayrl.observability.prometheus_exporter import prometheus_text

_log = logging.getLogger("relayrl.servers.status_http")
_REQUEST_TIMEOUT_S = 5.0
_JOIN_TIMEOUT_S = 10.0


class StatusServer:
    """Serves from when it is made until it is closed; `address` is `HOST:PORT`, with port 0 for any free one."""

    def __init__(
        self,
        address: str,
        metrics: MetricRegistry,
        *,
        is_healthy: Callable[[], bool],
        is_ready: Callable[[], bool],
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"the HTTP address {address!r:.100} is not HOST:PORT; write for example 127.0.0.1:9464")
        pages: Mapping[str, Callable[[], tuple[int, str, bytes]]] = {
            "/health": lambda: _word(is_healthy(), "healthy"),
            "/ready": lambda: _word(is_ready(), "ready"),
            "/metrics": lambda: _metrics(metrics),
            "/status": lambda: (200, "application/json", json.dumps(dict(status())).encode()),
        }
        try:
            self._server = ThreadingHTTPServer((host, int(port)), _handler(pages))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {address} for HTTP: {error}; choose another port") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="relayrl-http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers, with the real port."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stop serving; the port is free when this returns."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_JOIN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _word(is_so: bool, word: str) -> tuple[int, str, bytes]:
    return (200, "text/plain", f"{word}\n".encode()) if is_so else (503, "text/plain", f"not {word}\n".encode())


def _metrics(metrics: MetricRegistry) -> tuple[int, str, bytes]:
    try:
        return 200, "text/plain; version=0.0.4; charset=utf-8", prometheus_text(metrics)
    except MissingExtraError as error:
        return 501, "text/plain", f"{error}\n".encode()


def _handler(pages: Mapping[str, Callable[[], tuple[int, str, bytes]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            page = pages.get(self.path)
            code, kind, content = (404, "text/plain", b"not found\n") if page is None else page()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
            _log.debug(format, *args)

    return Handler
