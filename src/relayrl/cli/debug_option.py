"""`--debug`, which every command takes: the traceback behind an error, besides its one line."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Annotated

import typer

shows_traceback: ContextVar[bool] = ContextVar("shows_traceback", default=False)


def _remember(value: bool) -> bool:
    if value:
        shows_traceback.set(True)
    return value


DebugFlag = Annotated[
    bool, typer.Option("--debug", is_eager=True, callback=_remember, help="Show the traceback of an error.")
]
