"""Files that are whole or not there: written to a temporary file, fsynced, then renamed.

A kill at any moment leaves what was there before; so does a full disk, which raises `DiskError`. Not its job: what is in
the files, and appending to files that grow (`statistics_writers`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from relayrl.errors import DiskError

TEMPORARY_SUFFIX = ".tmp"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` when the block ends without an error."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(path.parent)
        except OSError as error:
            raise disk_error(path, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, or leave it as it is."""
    with replacing(path) as file:
        file.write(content)


def sync_directory(directory: Path) -> None:
    """Force a rename in `directory` to the disk; without this it may be undone by a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(path: Path, error: OSError) -> DiskError:
    """`error` as one line that says what to do."""
    reason = error.strerror or str(error)
    return DiskError(f"cannot write {path}: {reason}; what was there is intact. Make room, then continue with --resume")
