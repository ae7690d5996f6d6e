"""Ray, for as long as a run needs it: imported here alone, quiet, and ended only where the run started it.

address null      a cluster of this machine for this run, on loopback, without dashboard; it ends with the run
auto, HOST:PORT   an existing cluster, to which the run connects and which stays as it was
(connected)       a program that has called `ray.init()` already keeps what it has
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from relayrl.engines.cluster.ray_placement import total_needs
from relayrl.engines.settings.cluster_settings import ClusterSettings
from relayrl.errors import ConfigError, MissingExtraError, ServerUnreachableError

_log = logging.getLogger("relayrl.engines.cluster")
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody unless the user asks for it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
}
_TOO_SLOW = "timed out during startup"
"""Ray's words for a node whose processes did not answer: on a busy machine, or because one hung between fork and exec."""
_LOOPBACK = "127.0.0.1"
_CLUSTERS_ALLOWED = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's name for whether processes bind an address that other machines reach; off, they bind loopback on every system."""


def import_ray() -> Any:
    """Ray's module; one line where it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("the engine ray", "ray") from error
    return ray


class RayRuntime:
    """A connection to a cluster, which it ends where it made it."""

    def __init__(self, settings: ClusterSettings, num_collectors: int, num_learners: int = 0) -> None:
        """`num_learners` are those beside the first, which is this process."""
        self.ray = import_ray()
        self._is_connected_here = False
        if self.ray.is_initialized():
            return
        address = settings.address
        if address is not None and address.startswith("ray://"):
            raise ConfigError(
                f"Ray's address {address} is a client's, through which all data would be copied twice; run on a "
                "node of the cluster, with address auto, or HOST:PORT of its head"
            )
        with _signals_kept():
            if address is None:
                with _on_loopback():
                    self._start(settings, total_needs(settings.placement, num_collectors, num_learners))
            else:
                self._connect(address)
        self._is_connected_here = True

    def _start(self, settings: ClusterSettings, needs: dict[str, float]) -> None:
        # CPUs are counted, not measured: as many parts as were asked for must find room on one machine.
        num_cpus = max(os.cpu_count() or 1, math.ceil(needs.pop("CPU", 0.0)))
        needs.pop("GPU", None)  # Ray finds those itself
        begin = partial(
            self.ray.init,
            address="local",
            num_cpus=num_cpus,
            resources=needs or None,
            object_store_memory=settings.object_store_mb * 1_000_000,
            include_dashboard=False,
            dashboard_host=_LOOPBACK,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        for is_last in (False, True):
            try:
                begin()
                return
            except Exception as error:  # Ray has no type of its own for it
                if _TOO_SLOW not in str(error):
                    raise
                if is_last:
                    raise ServerUnreachableError(
                        "Ray did not start within its 30 seconds, twice; see /tmp/ray/session_latest/logs, or try again when "
                        "the machine has less to do"
                    ) from error
                _log.warning("Ray did not start within its 30 seconds; it is started once more")

    def _connect(self, address: str) -> None:
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"no Ray cluster at {address}: {reason:.300}; begin one with `ray start --head`, or leave the "
                "address out"
            ) from error

    def close(self) -> None:
        """Disconnect; a cluster that was started here ends."""
        if self._is_connected_here:
            self._is_connected_here = False
            with _signals_kept():
                self.ray.shutdown()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """A cluster that begins inside binds loopback alone. Processes inherit it by their environment, this one knows it from
    Ray's constant, which is read when Ray is imported; a later connection to a real cluster must find both as they were."""
    from ray._private import ray_constants

    asked = os.environ.get(_CLUSTERS_ALLOWED)
    if asked is not None:  # the user has decided
        yield
        return
    before = ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_CLUSTERS_ALLOWED], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        del os.environ[_CLUSTERS_ALLOWED]
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; a run answers it by saving its state."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
