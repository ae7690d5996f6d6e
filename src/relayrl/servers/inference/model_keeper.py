"""Keeps what is served up to date, in a thread of its own: files that changed, another server's models, commands on the store,
and canaries that turn out worse.

A model that cannot be taken is logged once and left alone; what is served stays. Serving never waits for any of this.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from relayrl.errors import ConfigError, RelayRLError
from relayrl.servers.inference.canary_watch import CanaryWatch
from relayrl.servers.inference.model_store import ModelStore
from relayrl.servers.inference.sequential_test import Judgement
from relayrl.servers.inference.served_models import ServedModels, load_served
from relayrl.servers.inference.upstream_models import UpstreamModels

_log = logging.getLogger("relayrl.servers.inference.model_keeper")
LOOK_EVERY_S = 0.25
NEW = "new"


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Which versions begin as canaries, and for which share of actors."""

    what: str
    """`new`: every version that comes later. A number: that version. Else: the model in that file."""
    share: float

    @classmethod
    def parse(cls, text: str) -> CanaryPlan:
        """`new@10%`, `7@10%` or `path/model.onnx@10%`."""
        what, at, share = text.rpartition("@")
        try:
            number = float(share.removesuffix("%")) / 100 if share.endswith("%") else float(share)
        except ValueError:
            number = -1.0
        if not at or not what or not 0.0 < number < 1.0:
            raise ConfigError(f"--canary {text!r:.80}; write new@10%, VERSION@10% or FILE@10%")
        return cls(what, number)


class ModelKeeper:
    """See the module's docstring. `prepare` and, after it, the thread change the store; nobody else in this process does."""

    def __init__(
        self,
        store: ModelStore,
        watch: CanaryWatch,
        publish: Callable[[ServedModels], None],
        *,
        sources: Sequence[Path] = (),
        canary: CanaryPlan | None = None,
        upstream: UpstreamModels | None = None,
        seed: int | None = None,
    ) -> None:
        self._store, self._watch, self._publish = store, watch, publish
        self._sources, self._canary, self._upstream = tuple(sources), canary, upstream
        self._rng = np.random.default_rng(seed)
        self._seen: dict[Path, tuple[int, ...]] = {}
        self._complained: set[str] = set()
        self._served = ServedModels()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relayrl-model-keeper", daemon=True)

    def prepare(self) -> None:
        """Take the models there are, and publish them; raises for those that cannot be taken."""
        for path in self._files():
            self._seen[path] = _stamp(path)
            self._take_file(path, is_first=True)
        if self._canary is not None and self._canary.what != NEW:
            self._begin_planned(self._canary)
        self._load()
        if self._served.failures:
            raise ConfigError(self._served.failures[0])

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._upstream is not None:
            self._upstream.close()

    def look(self) -> None:
        """Look once at everything that may have changed."""
        for path in self._files():
            stamp = _stamp(path)
            if stamp and stamp != self._seen.get(path):
                self._seen[path] = stamp
                self._try(partial(self._take_file, path))
        if self._upstream is not None:
            for content in self._upstream.fetch():
                self._try(partial(self._take, content, self._upstream.address, needs_probe=True))
        self._try(self._judge)
        self._try(self._store.refresh)
        self._try(self._load)
        self._try(self._watch.save)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - whatever it is: serving goes on, and the next look may succeed
                _log.exception("looking at the models failed")

    def _files(self) -> list[Path]:
        return [file for source in self._sources for file in model_files(source)]

    def _take_file(self, path: Path, *, is_first: bool = False) -> None:
        self._take(path.read_bytes(), str(path), is_first=is_first)

    def _take(self, content: bytes, source: str, *, is_first: bool = False, needs_probe: bool = False) -> None:
        group, version, is_new = self._store.add(content, source, needs_probe=needs_probe)
        stored = self._store.groups[group]
        if stored.stable is None:
            self._store.promote(group, version, by="the first model of its group")
        elif is_new and not is_first and self._canary is not None and self._canary.what == NEW:
            self._store.begin_canary(group, version, self._canary.share, by=f"--canary {NEW}")
        elif is_new:
            self._store.promote(group, version, by=f"a new model in {source}")
        if is_new:
            _log.info("model added", extra={"group": group, "version": version, "source": source})

    def _begin_planned(self, plan: CanaryPlan) -> None:
        if plan.what.isdigit():
            version = int(plan.what)
            found = [group for group, stored in self._store.groups.items() if version in stored.versions]
            if len(found) != 1:
                raise ConfigError(f"--canary {plan.what}: {len(found)} groups of the store have this version")
            group = found[0]
        else:
            try:
                content = Path(plan.what).read_bytes()
            except OSError as error:
                raise ConfigError(f"--canary: cannot read {plan.what}: {error.strerror}") from error
            group, version, _ = self._store.add(content, plan.what)
        stored = self._store.groups[group]
        if version in stored.withdrawn:
            _log.warning("this version was rolled back before and is no canary", extra={"version": version})
        elif version != stored.stable:
            self._store.begin_canary(group, version, plan.share, by=f"--canary {plan.what}")

    def _judge(self) -> None:
        for group, (trial, comparison) in self._watch.comparisons().items():
            if comparison.judgement is Judgement.WORSE:
                episodes = {str(version): returns.count for version, returns in trial.returns.items()}
                means = {str(version): returns.mean for version, returns in trial.returns.items()}
                why = comparison.as_dict() | {"episodes": episodes, "mean_returns": means}
                to = self._store.roll_back(group, "the comparison of returns", canary=trial.canary, why=why)
                _log.warning("canary rolled back", extra={"group": group, "canary": trial.canary, "to": to, **why})

    def _load(self) -> None:
        deployments = {group: stored.deployment for group, stored in self._store.groups.items()}
        if {group: each for group, each in deployments.items() if each is not None} == dict(self._served.deployments):
            return
        served = load_served(self._store, self._served, self._rng)
        for failure in served.failures:
            self._complain(failure)
        for group, deployment in served.deployments.items():
            self._watch.follow(group, deployment)
        self._served = served
        self._publish(served)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (RelayRLError, OSError) as error:
            self._complain(str(error))

    def _complain(self, why: str) -> None:
        if why not in self._complained and len(self._complained) < 1000:
            self._complained.add(why)
            _log.error("a model cannot be served", extra={"why": why[:500]})


def model_files(source: Path) -> list[Path]:
    """A model's file, or those of a directory, a run directory for example."""
    if source.is_dir():
        return sorted(source.glob("*.onnx"))
    return [source]


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file does; empty where there is none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
