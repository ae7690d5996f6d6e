"""The base of every settings object: frozen, validated, and strict about names.

A component owns its settings class (for example `EnvSettings` of `relayrl.envs.environment_settings`) and is given the whole
object. A key that does not exist is an error that names the nearest one.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from relayrl.config.passwords import without_password
from relayrl.errors import ConfigError, UnknownNameError

S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """A frozen group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def parse_settings(cls: type[S], values: dict[str, Any]) -> S:
    """Validate `values` as `cls`; raises `ConfigError` with one line that says what to change."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise _readable(cls, error) from error


def _readable(cls: type[Settings], error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        owner = _owner(cls, path[:-1])
        known = owner.model_fields if owner is not None else cls.model_fields
        return UnknownNameError("setting", ".".join(path), [".".join([*path[:-1], name]) for name in known])
    got, why = without_password(repr(first["input"])), first["msg"]
    return ConfigError(f"setting {'.'.join(path)!r:.200}: {why[:1].lower()}{why[1:]} (got {got:.200})")


def _owner(cls: type[Settings], path: list[str]) -> type[Settings] | None:
    """The settings class that holds the field at `path`, when the path leads through settings classes only."""
    for name in path:
        field = cls.model_fields.get(name)
        owner = None if field is None else settings_class(field.annotation)
        if owner is None:
            return None
        cls = owner
    return cls


def settings_class(annotation: Any) -> type[Settings] | None:
    """The settings class that a field holds, perhaps optionally; None for plain values."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind
    return None
