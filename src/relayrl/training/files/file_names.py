"""Names of groups, agents and environments as parts of file names: whatever they hold, a file stays in its directory."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

MAX_CHARACTERS = 120
"""File systems take 255 bytes for a whole name; prefixes, versions and suffixes come besides."""


def file_name_part(name: str) -> str:
    """`name` itself where it consists of letters, digits, `_`, `-`, `.` and `~`; other characters are percent-encoded.

    Different names give different parts. Long ones are cut and end in `%-` and a digest, which no encoding contains.
    """
    encoded = quote(name, safe="", errors="surrogatepass")
    if len(encoded) <= MAX_CHARACTERS:
        return encoded
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{encoded[: MAX_CHARACTERS - 66]}%-{digest}"
