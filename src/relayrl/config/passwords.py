"""Passwords in URLs: what may be shown, logged and stored has none."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
"""What stands in place of a password."""

_START = r"(?:://|\bpostgres(?:ql)?:)"
_PORT = r"\d+(?:/[^@?\s]*)?(?:[?\s]|$)"
_AFTER_USER = re.compile(rf"({_START}[^:@/?#\s]*:)(?!{_PORT})((?:(?!{_START}).)*)@", re.IGNORECASE)
"""Up to the last @ before the next URL or the end of the line: a password may hold an @, a slash or a space that should have
been encoded. Rather too much is hidden than too little."""
_OPTION = re.compile(r"\b([\w%]+=)([^&\s'\"]*)")


def without_password(text: str) -> str:
    """`text` with `***` for the passwords of all URLs in it: `postgresql://user:***@host/database`."""
    return _OPTION.sub(_without_option, _AFTER_USER.sub(rf"\1{HIDDEN}@", text))


def _without_option(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}" if _is_password(found) else found[0]


def _is_password(option: re.Match[str]) -> bool:
    return unquote(option[1]).lower() in ("password=", "sslpassword=")


def hide_password_of(url: str, text: str) -> str:
    """`text`, which a driver made of `url`, with `***` for the password wherever it stands by itself."""
    options = [found for found in _OPTION.finditer(url) if _is_password(found)]
    for found in (*_AFTER_USER.finditer(url), *options):
        for spelling in {found[2], unquote(found[2])} - {"", HIDDEN}:
            text = re.sub(rf"(?<!\w){re.escape(spelling)}(?!\w)", HIDDEN, text)
    return without_password(text)


def without_hidden(url: str) -> str:
    """A URL whose password was hidden as one that has none, so that the driver looks for it where it does by itself."""
    url = url.replace(f":{HIDDEN}@", "@")
    return re.sub(rf"(?<=[?&])[\w%]+={re.escape(HIDDEN)}&?", "", url).rstrip("?&")
