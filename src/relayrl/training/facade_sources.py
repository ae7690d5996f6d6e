"""Where the facade gets trajectories from: memory, Arrow bytes, and whatever `relayrl.sinks` has written.

a Trajectory                       itself
bytes of `relayrl.data.codec`      an Arrow IPC stream
"csv:DIR", "sqlite:FILE", …        a sink's URL
DIR                                a directory of a file sink: Arrow, Parquet or CSV by what is in it
FILE                               a file that holds the bytes of one trajectory
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from relayrl.data.codec import decode_trajectory
from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError
from relayrl.sinks.contract import SCHEMES, is_sink_url, open_source
from relayrl.sinks.parts_source import SUFFIXES

TrajectorySource: TypeAlias = "Trajectory | bytes | bytearray | memoryview | Path | str"


def read_trajectories(source: TrajectorySource) -> Iterator[Trajectory]:
    """The trajectories in `source`, in its order."""
    if isinstance(source, Trajectory):
        yield source
    elif isinstance(source, bytes | bytearray | memoryview):
        yield decode_trajectory(source)
    elif isinstance(source, str) and is_sink_url(source):
        yield from _from_url(source)
    elif Path(source).is_dir():
        yield from _from_url(f"{_kind_of_folder(Path(source))}:{source}")
    elif Path(source).is_file():
        yield from _from_file(Path(source))
    else:
        raise ConfigError(f"there is no file or folder {source}; a sink's URL begins with {', '.join(SCHEMES)}")


def _from_url(url: str) -> Iterator[Trajectory]:
    with open_source(url) as source:
        yield from source


def _kind_of_folder(folder: Path) -> str:
    kinds = {SUFFIXES[path.suffix] for path in folder.iterdir() if path.suffix in SUFFIXES}
    if len(kinds) != 1:
        found = f"files of {', '.join(sorted(kinds))}" if kinds else "no trajectories"
        raise ConfigError(f"{folder} holds {found}; name what to read, for example csv:{folder}")
    return kinds.pop()


def _from_file(path: Path) -> Iterator[Trajectory]:
    if path.suffix in SUFFIXES:
        raise ConfigError(f"{path.name} is one part of a sink; give its folder, {SUFFIXES[path.suffix]}:{path.parent}")
    yield decode_trajectory(path.read_bytes())
