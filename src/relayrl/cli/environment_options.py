"""Options of all commands that make environments: `--env-option`, `--wrap` and, of settings, `--set environment.…`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from relayrl.envs.environment_settings import EnvSettings

_OPTION_HELP = "key=value for the environment itself, any number of times."
EnvOptions = Annotated[list[str] | None, typer.Option("--env-option", help=_OPTION_HELP)]
EnvOptionsByOldName = Annotated[list[str] | None, typer.Option("--env-option", "--option", help=_OPTION_HELP)]
Wraps = Annotated[
    list[str] | None,
    typer.Option(
        "--wrap",
        help="Wrapper around the environment, from the inside outwards: NAME, NAME=key=value,… or NAME={JSON}.",
    ),
]
EnvAssignments = Annotated[
    list[str] | None, typer.Option("--set", help="environment.key=value of the settings, any number of times.")
]
_PREFIX = "environment."


def given_environment(
    options: Sequence[str] | None, wraps: Sequence[str] | None, assignments: Sequence[str] | None = None
) -> dict[str, Any]:
    """What was said of the environment, as values of `EnvSettings`: nothing that was not."""
    from relayrl.config.settings_text import parse_assignment
    from relayrl.envs.environment_settings import EnvSettings
    from relayrl.envs.wrappers.wrapper_names import parse_wrap
    from relayrl.errors import UnknownNameError

    given: dict[str, Any] = {}
    own = {"options": dict(parse_assignment(each, "--env-option") for each in options or []), "parameters": {}}
    for each in assignments or []:
        key, value = parse_assignment(each, "--set")
        name, _, option = key.replace("environment_parameters", "parameters", 1).removeprefix(_PREFIX).partition(".")
        if name in own and option:
            own[name][option] = value
        elif name in EnvSettings.model_fields and not option:
            given[name] = value
        else:
            raise UnknownNameError("setting", key, [_PREFIX + field for field in EnvSettings.model_fields])
    given |= {name: {**given.get(name, {}), **values} for name, values in own.items() if values}
    if wraps:
        given["wrappers"] = [parse_wrap(each) for each in wraps]
    return given


def environment_flags(options: Sequence[str] | None, wraps: Sequence[str] | None) -> dict[str, Any]:
    """The same as dotted paths of a run's settings."""
    given = given_environment(options, wraps)
    flags = {f"environment.options.{key}": value for key, value in given.pop("options", {}).items()}
    return flags | {_PREFIX + key: value for key, value in given.items()}


def with_given(settings: EnvSettings, given: dict[str, Any]) -> EnvSettings:
    """Settings with what was given in place of theirs; options and parameters are added to theirs."""
    from relayrl.config.settings import parse_settings
    from relayrl.envs.environment_settings import EnvSettings

    before = settings.model_dump(exclude_unset=True)
    added = {name: {**before.get(name, {}), **given.get(name, {})} for name in ("options", "parameters")}
    return parse_settings(EnvSettings, {**before, **given, **{name: own for name, own in added.items() if own}})
