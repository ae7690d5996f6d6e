"""Passwords in URLs: what may be shown, logged and stored has none."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
"""What stands in place of a password."""

_AFTER_USER = re.compile(r"(://[^:@/?#\s]*:)(?!\d+[/?])(?:[^/\s]*|[^@\s]*)@")
"""Up to the last @ before a slash: a password with an @ that should have been written %40 is hidden whole. One with a
slash, which should have been %2F, is told from a port by not being a number."""
_OPTION = re.compile(r"((?:ssl)?password=)[^&\s'\"]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """`text` with `***` for the passwords of all URLs in it: `postgresql://user:***@host/database`."""
    return _OPTION.sub(rf"\1{HIDDEN}", _AFTER_USER.sub(rf"\1{HIDDEN}@", text))


def hide_password_of(url: str, text: str) -> str:
    """`text`, which a driver made of `url`, with `***` for the password wherever it stands by itself."""
    for found in (*_AFTER_USER.finditer(url), *_OPTION.finditer(url)):
        password = found.group().removeprefix(found.group(1)).removesuffix("@")
        for spelling in {password, unquote(password)} - {"", HIDDEN}:
            text = re.sub(rf"(?<!\w){re.escape(spelling)}(?!\w)", HIDDEN, text)
    return without_password(text)


def without_hidden(url: str) -> str:
    """A URL whose password was hidden as one that has none, so that the driver looks for it where it does by itself."""
    url = url.replace(f":{HIDDEN}@", "@")
    return re.sub(rf"(?<=[?&])(?:ssl)?password={re.escape(HIDDEN)}&?", "", url, flags=re.IGNORECASE).rstrip("?&")
