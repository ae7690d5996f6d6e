"""Settings as text: YAML, TOML and JSON from a file, and the YAML value of a `key=value`. Data only, and of bounded size.

A few lines of YAML can stand for billions of values, by aliases of aliases; brackets in brackets exhaust the stack of whoever
walks through them. Both are refused before anything is built.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from relayrl.errors import ConfigError

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Values that a text may stand for, aliases counted as often as they are used."""


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML, TOML or JSON file, by its suffix, as a dict; `ConfigError` with one line that says what is wrong with it."""
    readers: dict[str, Callable[[str], Any]] = {
        ".yaml": _load_yaml,
        ".yml": _load_yaml,
        ".json": json.loads,
        ".toml": tomllib.loads,
    }
    if path.suffix not in readers:
        raise ConfigError(f"config file {path} must end in .yaml, .yml, .json or .toml")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
        content = _parsed(readers[path.suffix], text)
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"config file {path} cannot be parsed: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} must hold a mapping of settings")
    for key in content:
        if not isinstance(key, str):
            raise ConfigError(f"config file {path} must hold a mapping of settings by name, not by {key!r:.40}")
    return content


def parse_assignment(assignment: str, flag: str) -> tuple[str, Any]:
    """Key and value of `key=value`, the value as YAML; `flag` names what the user wrote it behind."""
    key, separator, text = assignment.partition("=")
    if not separator:
        raise ConfigError(f"{flag} {assignment!r:.80} has no value; write it as {flag} key=value")
    try:
        return key.strip(), _parsed(_load_yaml, text)
    except ValueError as error:
        raise ConfigError(f"{flag} {key.strip():.80}: the value is no YAML: {_one_line(error)}") from error


def _parsed(reader: Callable[[str], Any], text: str) -> Any:
    """What `reader` makes of `text`; `ValueError` in all cases where it cannot."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_CHARACTERS:,} characters")
    try:
        content = reader(text)
        _require_shallow(content)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return content


def _load_yaml(text: str) -> Any:
    _require_bounded(text)
    return yaml.safe_load(text)


def _require_bounded(text: str) -> None:
    """Count what the text stands for from its events alone, before aliases are followed."""
    sizes: dict[str, int] = {}  # of values with an anchor
    open_values: list[tuple[str | None, int]] = [(None, 0)]  # anchor and size so far, from the document inwards
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_values.append((event.anchor, 1))
            if len(open_values) > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_values.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(str(event.anchor), 0)
            if any(event.anchor == outer for outer, _ in open_values):
                raise ValueError(f"the alias *{event.anchor} stands inside of what it refers to")
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, before = open_values.pop()
        open_values.append((outer, before + size))
        if before + size > MAX_VALUES:
            raise ValueError(f"it stands for more than {MAX_VALUES:,} values; its aliases are aliases of aliases")


def _require_shallow(content: Any) -> None:
    waiting = [(content, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | set | tuple) else ()
        waiting += [(part, depth + 1) for part in parts]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names, as `--set` takes them."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
