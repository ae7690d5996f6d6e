"""An agent's training server: the spool and link behind its sink, and the policies that it acts with.

`AgentBuilder.server` makes one; the coordinator starts and stops it with the agent. It is the agent's sink for what goes to the
server, and gives newer policies to the actors as they come.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from relayrl.data.columns import Trajectory
from relayrl.errors import AgentStateError, ConfigError, RelayRLError
from relayrl.runtime.remote.model_follower import ModelFollower, spaces_of
from relayrl.runtime.remote.server_link import LinkSettings, ServerLink, Welcome
from relayrl.runtime.remote.spool import Spool, SpoolSettings, default_spool_base, take_spool
from relayrl.runtime.remote.spool_sink import SpoolSink
from relayrl.runtime.requests.policy_model import CPU, PolicyModel
from relayrl.transport.keys import load_client_keys

_log = logging.getLogger("relayrl.runtime.remote.server_connection")
_LOOK_S = 0.5
_JOIN_TIMEOUT_S = 10.0


class ServerConnection:
    """See the module's docstring. It may be started again after it was stopped."""

    def __init__(
        self,
        address: str,
        *,
        spool: str | Path | None = None,
        key: str | Path | None = None,
        server_key: str | Path | None = None,
        group: str | None = None,
        timeout_s: float = 30.0,
        spool_settings: SpoolSettings | None = None,
        link_settings: LinkSettings | None = None,
    ) -> None:
        self.address, self._group, self._timeout_s = address, group, timeout_s
        self._directory = None if spool is None else Path(spool)
        self._spool_settings, self._link_settings = spool_settings, link_settings
        self._keys = load_client_keys(key, server_key)
        self._spool: Spool | None = None
        self._link: ServerLink | None = None
        self._sink: SpoolSink | None = None
        self._follower: ModelFollower | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def link(self) -> ServerLink:
        """The link, while the agent runs."""
        if self._link is None:
            raise AgentStateError(f"there is no connection to {self.address}; start the agent")
        return self._link

    def start(self, publish: Callable[[PolicyModel], None]) -> None:
        """Connect and fetch the first policy; `publish` is given every newer one. Raises where the server does not answer."""
        self._stopping.clear()
        if self._directory is None:
            self._spool = take_spool(default_spool_base(self.address), self._spool_settings)
        else:
            self._spool = Spool(self._directory, self._spool_settings)
        try:
            self._link = ServerLink(self.address, self._spool, settings=self._link_settings, keys=self._keys)
            welcome = self._link.connect(self._timeout_s)
            assert welcome is not None  # nobody stops it
            group = self._chosen(welcome)
            self._follower = ModelFollower(self._link, group, *spaces_of(welcome.behaviors[group]))
            self._follower.wait(self._timeout_s)
        except RelayRLError:
            self.stop(time.monotonic())
            raise
        self._sink = SpoolSink(self._spool, self._link.wake, self.address)
        self._thread = threading.Thread(target=self._follow, args=(publish,), name="relayrl-policies", daemon=True)
        self._thread.start()

    def _chosen(self, welcome: Welcome) -> str:
        if self._group is None and len(welcome.behaviors) > 1:
            raise ConfigError(f"the run has policies {sorted(welcome.behaviors)}; name one with server(…, group=…)")
        group = next(iter(welcome.behaviors)) if self._group is None else self._group
        if group not in welcome.behaviors:
            raise ConfigError(f"the run has policies {sorted(welcome.behaviors)}, not {group!r}")
        return group

    def model_for(self, device: str) -> PolicyModel:
        """What new actors act with."""
        if device != CPU:
            raise ConfigError(f"policies of a server act on {CPU!r}, not on {device!r}")
        if self._follower is None:
            raise AgentStateError("actors act with the server's policy; start the agent first")
        return self._follower.model

    def _follow(self, publish: Callable[[PolicyModel], None]) -> None:
        follower, link = self._follower, self._link
        assert follower is not None
        assert link is not None
        while not self._stopping.is_set():
            if not link.wait_for_newer({follower.group: follower.seen}, _LOOK_S):
                continue
            try:
                version = follower.version
                if follower.take_newest() > version:
                    publish(follower.model)
            except RelayRLError as error:
                _log.error("a policy of %s was not taken over: %s", self.address, error)

    def stop(self, deadline_s: float) -> None:
        """Wait for acknowledgements until `time.monotonic()` is `deadline_s`, and let go; what is left stays in the spool."""
        self._stopping.set()
        link, spool, thread = self._link, self._spool, self._thread
        self._link = self._spool = self._sink = self._thread = None
        if link is not None and not link.close(max(0.0, deadline_s - time.monotonic())):
            left = spool.num_waiting if spool is not None else 0
            _log.warning("%d messages to %s wait in the spool for the next start", left, self.address)
        if thread is not None:
            thread.join(_JOIN_TIMEOUT_S)
        if spool is not None:
            spool.close()

    # ---- the sink of the agent's routers

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        """Spool trajectories; `SpoolFullError` while there is no room."""
        self._opened().write(trajectories)

    def flush(self) -> None:
        """Return when they are on disk."""
        self._opened().flush()

    def close(self) -> None:
        """Routers come and go; the connection ends with the agent."""
        self._opened().flush()

    def _opened(self) -> SpoolSink:
        if self._sink is None:
            raise AgentStateError(f"the connection to {self.address} is closed")
        return self._sink
