"""Builds only the command that a command line names.

Typer makes every option of every command before it parses anything: a tenth of a second that each start of `relayrl` would pay.
Other commands keep their names and docstrings, which the help shows, and have no options.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence

import typer
from typer.models import CommandInfo, TyperInfo


def with_named_command(app: typer.Typer, arguments: Sequence[str]) -> typer.Typer:
    """`app` for these arguments; options before the command take no values. A shell that completes a line gets all of it."""
    if "_RELAYRL_COMPLETE" in os.environ:
        return app
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    view = copy.copy(app)
    view.registered_commands = [info if _name_of(info) == named else _outline(info) for info in app.registered_commands]
    view.registered_groups = [info if info.name == named else _outline_group(info) for info in app.registered_groups]
    return view


def _name_of(info: CommandInfo) -> str:
    return info.name or getattr(info.callback, "__name__", "").replace("_", "-")


def _outline(info: CommandInfo) -> CommandInfo:
    outlined = copy.copy(info)
    outlined.callback = _without_parameters(info.callback)
    return outlined


def _outline_group(info: TyperInfo) -> TyperInfo:
    """A group of no commands: the help of `relayrl` shows its own line only."""
    outlined = copy.copy(info)
    if info.typer_instance is not None:
        outlined.typer_instance = copy.copy(info.typer_instance)
        outlined.typer_instance.registered_commands = []
    return outlined


def _without_parameters(callback: Callable[..., object] | None) -> Callable[..., object]:
    def outlined() -> None:
        raise RuntimeError("an outlined command was called")

    outlined.__name__ = getattr(callback, "__name__", "")
    outlined.__doc__ = getattr(callback, "__doc__", None)
    return outlined
