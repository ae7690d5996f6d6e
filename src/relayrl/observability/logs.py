"""Structured logs: one line per event, a short message and named fields, as text or as JSON.

    log = logging.getLogger("relayrl.runtime.routing.router")
    log.warning("sink failed", extra={"router": 2, "retry_in_s": 0.4})

    text   2026-11-15 13:21:07,120 WARNING relayrl.runtime.routing.router: sink failed router=2 retry_in_s=0.4
    json   {"time": "2026-11-15T13:21:07.120Z", "level": "warning", "logger": "relayrl.…", "event": …, "router": 2, …}

The standard library's `logging` does the work; `configure_logging` is for programs that have not set it up themselves.
"""

from __future__ import annotations

import json
import logging
import time
from enum import Enum
from pathlib import Path
from typing import IO, Any

from relayrl.config.enum_members import member_of

ROOT_LOGGER = "relayrl"
_OWN_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LogLevel(Enum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The same level in `logging`."""
        return int(getattr(logging, self.name))


class LogFormat(Enum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`. Names that begin with an underscore are other libraries': Ray, once imported, stamps every
    record."""
    return {key: value for key, value in record.__dict__.items() if key not in _OWN_FIELDS and key[0] != "_"}


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message key=value …`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        pairs = [f"{key}={value}" for key, value in fields_of(record).items()]
        return " ".join([super().formatMessage(record), *pairs])


class JsonFormatter(logging.Formatter):
    """One JSON object per line; values that JSON has no type for become strings."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(
    level: LogLevel | str = LogLevel.INFO,
    line_format: LogFormat | str = LogFormat.TEXT,
    *,
    path: Path | str | None = None,
    stream: IO[str] | None = None,
) -> logging.Handler:
    """Log everything of RelayRL to `path`, `stream`, or standard error; gives the handler, for `stop_logging`.

    Levels are `debug`, `info`, `warning` and `error`, formats `text` and `json`.
    """
    level, line_format = member_of(LogLevel, level, "log level"), member_of(LogFormat, line_format, "log format")
    handler = logging.FileHandler(path, delay=True) if path is not None else logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if line_format is LogFormat.JSON else TextFormatter())
    logger = logging.getLogger(ROOT_LOGGER)
    logger.addHandler(handler)
    logger.setLevel(level.number)
    return handler


def stop_logging(handler: logging.Handler) -> None:
    """Undo `configure_logging`."""
    logging.getLogger(ROOT_LOGGER).removeHandler(handler)
    handler.close()


def set_log_level(level: LogLevel) -> None:
    """Change how much RelayRL logs, whoever set logging up."""
    logging.getLogger(ROOT_LOGGER).setLevel(level.number)
