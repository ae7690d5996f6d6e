"""Names of agents and groups where not every character may stand: percent signs and what is forbidden become `%XX`."""

from __future__ import annotations

import re
from urllib.parse import unquote

_FORBIDDEN_IN_CSV = re.compile(r'[%,"\x00-\x1f\x7f]')
_FORBIDDEN_IN_DATABASES = re.compile(r"[%\x00]")


def escape_for_csv(text: str) -> str:
    """Text without commas, quotes or control characters, so that a cell needs no quotes and a row is a line."""
    return _FORBIDDEN_IN_CSV.sub(_percent, text)


def escape_for_database(text: str) -> str:
    """Text without the zero character, which databases refuse or cut at."""
    return _FORBIDDEN_IN_DATABASES.sub(_percent, text)


def unescape(text: str) -> str:
    """What either escape was made from."""
    return unquote(text) if "%" in text else text


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
