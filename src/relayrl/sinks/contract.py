"""What a sink and a source are, and how a URL opens one.

    with open_sink("arrow:runs/experience") as sink:
        sink.write(trajectories)
        sink.flush()                    # from here on they survive kill -9 and loss of power
    with open_source("arrow:runs/experience") as source:
        for trajectory in source: …

    arrow:DIR   parquet:DIR   csv:DIR   sqlite:FILE   postgresql://user@host/database   memory:NAME
    demo:PATH   what ML-Agents recorded, to be read only

Other schemes are plugins (`SinkPlugin`): entry points of `relayrl.sinks`, or what `relayrl.register_sink` named.

A sink keeps every field of a trajectory bit for bit. What it promises:

- `write` takes all of a call's trajectories or, when it raises, none of them. They are the sink's until the next flush:
  their arrays must not be changed.
- `flush` returns when everything taken is durable. When it raises, the sink still holds what is not, and the next flush
  tries again.
- A trajectory is stored once, however often it is written: its `trajectory_id` decides. So whatever failed may be retried.
- `abandon` marks trajectories as steps that their run took back: it was killed, and went on from before them. Sources report
  them and leave them out unless they are asked for.
- `close` flushes, may be called twice, and lets go of files and connections even when the flush fails.
- All methods may be called from any thread. Any number of sinks and sources, in any number of processes, may use one URL.

`relayrl.testing.check_sink` checks all this on any sink. Not here: how each kind stores (`arrow_files`, …), buffering
(`buffered`).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from uuid import UUID

from relayrl.config.passwords import without_password
from relayrl.config.plugin_registry import PluginKind, has_plugin, load_plugin, plugin_names
from relayrl.data.arrow.checked_streams import CheckedStream
from relayrl.data.arrow.schema import Layout
from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError, SinkError, UnknownNameError
from relayrl.sinks.sink_settings import SinkSettings


class TrajectorySink(ABC):
    """Takes trajectories and keeps them."""

    @property
    def appends(self) -> bool:
        """Whether a flush adds to what is there, so that it may come often; where it makes a file, it should not."""
        return True

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it writes, as it may be shown: without a password."""

    @abstractmethod
    def write(self, trajectories: Sequence[Trajectory]) -> None:
        """Take trajectories; durable after the next `flush`."""

    def write_stream(self, stream: CheckedStream) -> None:
        """Take the trajectories of a stream that was checked; a sink that stores such bytes need not decode them."""
        self.write(stream.block())

    @abstractmethod
    def flush(self) -> None:
        """Return when everything taken is durable; `SinkWriteError` if it cannot be made so."""

    def abandon(self, trajectory_ids: Collection[UUID]) -> None:
        """Mark trajectories as abandoned, durably; those that are marked already may be among them."""
        raise SinkError(f"{self.url} cannot mark {len(trajectory_ids)} trajectories as abandoned; record elsewhere")

    @abstractmethod
    def close(self) -> None:
        """Flush and let go of everything; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SourceCount:
    """How much a source holds, duplicates counted once."""

    num_trajectories: int
    num_steps: int


@dataclass(slots=True)
class ReadReport:
    """What the last pass over a source had to leave out, and why nothing else was."""

    num_duplicates: int = 0
    """Copies of trajectories, from retried writes."""
    num_abandoned: int = 0
    """Trajectories that their run took back."""
    torn: dict[str, int] = field(default_factory=dict)
    """Bytes at the end of part files that a writer did not finish (it was killed, or is still writing), by file."""
    unfinished: list[str] = field(default_factory=list)
    """Files that were never finished and hold no flushed data."""
    num_unchecked: int = 0
    """Trajectories in part files or rows without checksums, where a flipped bit may go unnoticed: an older RelayRL wrote them,
    or the machine lost power before their checksums were durable. Of PostgreSQL, whose server has its own, always 0."""


class TrajectorySource(ABC):
    """Gives back what sinks have made durable; each `trajectory_id` once.

    What one sink wrote of one group comes in the order in which it was written. Arrays are read-only and may share memory
    with their neighbours: copy what you keep for long. `report` is about the last pass, and complete when that has ended.
    """

    report: ReadReport
    with_abandoned: bool = False
    """Whether passes and counts include what was abandoned."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it reads, as it may be shown: without a password."""

    @abstractmethod
    def __iter__(self) -> Iterator[Trajectory]:
        """A pass over everything that is durable when it begins."""

    def of_envs(self, env_ids: Collection[UUID], first_episode: int) -> Iterator[Trajectory]:
        """A pass over what was recorded in these environments from an episode on, without the rest where the storage allows
        it."""
        return (each for each in self if each.env_id in env_ids and each.episode >= first_episode)

    def abandoned(self) -> frozenset[UUID]:
        """The ids of trajectories that are marked as abandoned."""
        return frozenset()

    @abstractmethod
    def count(self) -> SourceCount:
        """Trajectories and steps, without reading observations where the storage allows it."""

    @abstractmethod
    def layouts(self) -> tuple[Layout, ...]:
        """The groups and spaces that occur, each once; `Layout.schema` is the Arrow schema."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_MODULES = {
    "arrow": "files.arrow_files",
    "parquet": "files.parquet_files",
    "csv": "files.csv_files",
    "sqlite": "databases.sqlite_database",
    "postgresql": "databases.postgres_database",
    "memory": "memory",
    "demo": "demos.demo_files",
}
READ_ONLY = ("demo",)
SCHEMES = tuple(scheme for scheme in _MODULES if scheme not in READ_ONLY)


@dataclass(frozen=True, slots=True)
class SinkPlugin:
    """A kind of sink from outside. Both functions are given the whole URL."""

    open_sink: Callable[[str, SinkSettings], TrajectorySink]
    open_source: Callable[[str], TrajectorySource]


def open_sink(url: str, settings: SinkSettings | None = None) -> TrajectorySink:
    """The sink at a URL; what is there already is kept and added to."""
    return _opener(url).open_sink(url, settings or SinkSettings())


def open_source(url: str, *, with_abandoned: bool = False) -> TrajectorySource:
    """The source at a URL, without what runs took back unless it is asked for; `ConfigError` if nothing was recorded there."""
    source = _opener(url).open_source(url)
    source.with_abandoned = with_abandoned
    return source


def rest_of(url: str, what: str) -> str:
    """What stands behind the scheme; `what` names it where it is missing."""
    scheme, _, rest = url.partition(":")
    if not rest:
        raise ConfigError(f"the URL {without_password(url)!r} has no {what}; write {scheme}:{what}")
    return rest


def is_sink_url(text: str) -> bool:
    """Whether `text` begins with the scheme of a sink."""
    scheme, separator, _ = text.partition(":")
    return bool(separator) and (scheme in (*_MODULES, "postgres") or has_plugin(PluginKind.SINK, scheme))


def _opener(url: str) -> SinkPlugin:
    scheme, separator, _ = url.partition(":")
    if not separator:
        raise ConfigError(f"{url!r} is no URL of a sink; write for example arrow:{url or 'DIR'}")
    if "\0" in url:
        raise ConfigError(f"the URL {without_password(url)!r} holds a zero character")
    if scheme == "postgres":
        scheme = "postgresql"
    if scheme in _MODULES:
        module = importlib.import_module(f"relayrl.sinks.{_MODULES[scheme]}")
        return SinkPlugin(module.open_sink, module.open_source)
    if not has_plugin(PluginKind.SINK, scheme):
        raise UnknownNameError(PluginKind.SINK.noun, scheme, [*_MODULES, *plugin_names(PluginKind.SINK)])
    plugin = load_plugin(PluginKind.SINK, scheme)
    if not isinstance(plugin, SinkPlugin):
        raise ConfigError(f"plugin {scheme!r} of {PluginKind.SINK.value} must be a SinkPlugin, not {plugin!r}")
    return plugin
