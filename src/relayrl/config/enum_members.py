"""Members of enums by their values, so that programs may write `"greedy"` for `ActionChoice.GREEDY`."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from relayrl.errors import UnknownNameError

E = TypeVar("E", bound=Enum)


def member_of(cls: type[E], value: E | str, what: str) -> E:
    """`value` itself, or the member with that value; an unknown one raises with the nearest."""
    if isinstance(value, cls):
        return value
    known = {str(member.value): member for member in cls}
    if value not in known:
        raise UnknownNameError(what, str(value), known)
    return known[str(value)]
