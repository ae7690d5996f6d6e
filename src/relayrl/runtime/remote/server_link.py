"""A client's side of a training server: one thread that says hello, sends what the spool holds, and fetches new policies.

    link = ServerLink("tcp://127.0.0.1:7776", spool)
    welcome = link.connect(timeout_s=30)         # what the run is about; `ServerRefusedError` where it does not want us
    spool.append(frames); link.wake()
    link.newest("agent")                         # the newest policy, or None; older ones are not kept
    link.wait_for_turn(5.0)                      # while the server has enough

Whatever happens to the server or the network, the thread goes on: a reply that does not come is a reason to say hello again, on
a new connection and after a growing, jittered delay. The answer to HELLO says what the server holds durably; all that follows
is sent again. The server takes each number once.

Every wait here ends: on a reply, on its deadline, or when the link is closed. A refusal is final, and raised by the next call.

Not its job: what is sent (`remote_actor`, `spool_sink`), or loading policies (`model_follower`).
"""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Self

from pydantic import Field

from relayrl.config.settings import Settings
from relayrl.data.arrow.schema import SCHEMA_VERSION
from relayrl.errors import ProtocolError, RelayRLError, ServerRefusedError, ServerUnreachableError
from relayrl.runtime.remote.spool import Spool
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.keys import ClientKeys
from relayrl.transport.messages import PROTOCOL_VERSION, Kind, Message

_log = logging.getLogger("relayrl.runtime.remote.server_link")
MODEL_TOPIC, FLOW_TOPIC = "model", "flow"
_STOP_LOOK_S = 0.2
_LONGEST_WAIT_S = 1.0
_MAX_UNANSWERED = 1
"""Messages that an actor whose server answers plays ahead: what it plays later has a newer policy."""


class LinkSettings(Settings):
    """How a client talks to its server."""

    reply_timeout_s: float = Field(5.0, gt=0, description="without an answer for so long, the connection is made anew")
    retry_s: float = Field(0.1, gt=0, description="wait after the first failure; doubles with each, jittered")
    max_retry_s: float = Field(5.0, gt=0, description="longest such wait")
    window: int = Field(64, ge=1, description="messages that may wait for their acknowledgement")
    status_interval_s: float = Field(
        2.0, gt=0, description="the server is asked for news so often when nothing else is sent"
    )


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a server says of its run."""

    server_id: str
    algorithm: str
    env: str
    behaviors: Mapping[str, Mapping[str, Any]]
    message_bytes: int
    needs_logp: bool
    needs_states: bool
    environment: Mapping[str, Any]
    """Settings of the environment that decide what it shows, by their names in `EnvSettings`."""

    @staticmethod
    def of(header: Mapping[str, Any]) -> Welcome:
        """`ProtocolError` where the header is not that of a training server's WELCOME."""
        try:
            return Welcome(
                str(header["server_id"]),
                str(header["algorithm"]),
                str(header["env"]),
                {str(name): dict(each) for name, each in header["behaviors"].items()},
                int(header["limits"]["message_bytes"]),
                bool(header.get("needs_logp", True)),
                bool(header.get("needs_states", False)),
                dict(header.get("environment") or {}),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError("malformed", f"the server's WELCOME lacks {error}") from error


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """A policy as it came."""

    group: str
    version: int
    content: bytes


@dataclass(slots=True)
class _News:
    """What the server said last of itself."""

    wait: bool = False
    turn: int = -1
    steps_wanted: int = 0
    is_finished: bool = False
    versions: dict[str, int] = field(default_factory=dict)

    def hear(self, header: Mapping[str, Any]) -> None:
        """Take over what a reply or an announcement says; what is older than what was heard before says nothing."""
        versions = header.get("model_versions")
        if isinstance(versions, dict):
            for group, version in versions.items():
                if type(version) is int:
                    self.versions[group] = max(version, self.versions.get(group, -1))
        turn = header.get("turn")
        if type(turn) is int and turn >= self.turn:
            self.turn, self.wait = turn, header.get("wait") is True
        if type(header.get("steps_wanted")) is int:
            self.steps_wanted = header["steps_wanted"]
        self.is_finished = self.is_finished or header.get("finished") is True


class ServerLink:
    """See the module's docstring. All public methods may be called from any thread."""

    def __init__(
        self,
        address: str,
        spool: Spool,
        *,
        behaviors: Mapping[str, Mapping[str, str]] | None = None,
        settings: LinkSettings | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        """`behaviors` are the spaces that this client has, by group, for the server to compare; None takes what comes."""
        self.address, self.spool = address, spool
        self._behaviors, self._settings = behaviors, settings or LinkSettings()
        self._endpoint = ClientEndpoint(address, client_id=spool.client_id, keys=keys)
        self._changed = threading.Condition()
        self._news = _News()
        self._welcome: Welcome | None = None
        self._is_connected = False
        self._error: RelayRLError | None = None
        self._models: dict[str, ModelBytes] = {}
        self._is_stopping = False
        self.num_rejected = 0
        """Messages that the server refused for good."""
        self.num_connections = 0
        """How often the server was greeted with success."""
        # What follows belongs to the thread.
        self._next = 0
        self._window = 1
        self._sent: dict[int, int] = {}  # request number → message number
        self._heard_s = self._asked_s = self._status_s = self._well_s = self._progress_s = time.monotonic()
        self._hello_at_s, self._num_failures, self._waits_for_welcome = 0.0, 0, False
        self._pause_until_s = 0.0
        self._fetching: dict[str, float] = {}  # group → when it was asked for
        self._awaits_models = False
        """Whether the server keeps a request for a policy until there is a newer one."""
        self._subscribed: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="relayrl-server-link", daemon=True)
        self._thread.start()

    # ---- for others

    def connect(self, timeout_s: float, should_stop: Callable[[], bool] = lambda: False) -> Welcome | None:
        """Wait for the server's welcome; `ServerUnreachableError` after `timeout_s`, None where `should_stop()` came first."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while self._welcome is None and self._error is None and (left_s := end_s - time.monotonic()) > 0.0:
                if should_stop():
                    return None
                self._changed.wait(min(left_s, _STOP_LOOK_S))
            self._require_well()
            if self._welcome is None:
                raise ServerUnreachableError(
                    f"{self.address} did not answer within {timeout_s:g} s; is a training server running there, "
                    "and does it know this client's key?"
                )
            return self._welcome

    @property
    def is_connected(self) -> bool:
        """Whether the server has answered lately."""
        return self._is_connected

    @property
    def unreachable_s(self) -> float:
        """For how long the server has not answered; 0 while it is connected."""
        return 0.0 if self._is_connected else time.monotonic() - self._well_s

    @property
    def is_finished(self) -> bool:
        """Whether the run needs nothing more."""
        return self._news.is_finished

    @property
    def steps_wanted(self) -> int:
        """Environment steps that the next update needs of this client, roughly; 0 where nobody knows."""
        return self._news.steps_wanted

    def wake(self) -> None:
        """Something can be sent."""
        self._endpoint.wake()

    def newest(self, group: str) -> ModelBytes | None:
        """The newest policy of a group that has come."""
        self._require_well()
        return self._models.get(group)

    def wait_for_model(self, group: str, timeout_s: float) -> ModelBytes:
        """The newest policy of a group; `ServerUnreachableError` where none comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: group in self._models or self._error is not None, timeout_s)
            self._require_well()
            if group not in self._models:
                raise ServerUnreachableError(f"{self.address} sent no policy {group!r} within {timeout_s:g} s")
            return self._models[group]

    def wait_for_newer(self, versions: Mapping[str, int], timeout_s: float) -> list[ModelBytes]:
        """Policies that are newer than `versions`; empty where none comes in time, or where the link has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._newer(versions) or self._is_stopping or self._error is not None, timeout_s
            )
            return self._newer(versions)

    def _newer(self, versions: Mapping[str, int]) -> list[ModelBytes]:
        return [each for name, each in self._models.items() if each.version > versions.get(name, -1)]

    def wait_for_turn(self, timeout_s: float) -> bool:
        """Wait while the server has enough, has not answered the message before the last, or a newer policy is on its way.

        False if that took too long.

        Does not wait for a server that cannot be reached: whoever records goes on until the spool is full.
        """
        with self._changed:
            return self._changed.wait_for(self._may_go_on, timeout_s)

    def _may_go_on(self) -> bool:
        if self._is_stopping or self._error is not None or self._news.is_finished or not self._is_connected:
            return True
        is_behind = any(
            group in self._models and self._models[group].version < version
            for group, version in self._news.versions.items()
        )
        return not self._news.wait and not is_behind and self.spool.num_waiting <= _MAX_UNANSWERED

    def close(self, drain_s: float = 0.0) -> bool:
        """Send what the spool holds for at most `drain_s` seconds, say good-bye and end; gives whether the spool is empty.
        What is left stays on disk. A second call does nothing."""
        if self._thread.is_alive() and drain_s > 0.0 and self._error is None:
            self.wake()
            self.spool.wait_until_empty(drain_s)
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._endpoint.wake()
        self._thread.join(self._settings.reply_timeout_s + 5.0)
        return not self.spool.num_waiting

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_well(self) -> None:
        if self._error is not None:
            raise self._error

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._is_stopping and self._error is None:
                try:
                    self._turn()
                except ServerUnreachableError as error:
                    self._lose(str(error))
            if self._is_connected:
                self._endpoint.send(Message(Kind.BYE, {"client_id": str(self.spool.client_id)}), 0.5)
        except ServerUnreachableError:
            _log.info("the server went before a good-bye")
        except RelayRLError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next call of the owner raises it
            _log.exception("the link to %s ended", self.address)
            self._fail(RelayRLError(f"the link to {self.address} ended: {error}"))
        finally:
            self._endpoint.close(drain_s=0.2)
            with self._changed:
                self._is_connected = False
                self._changed.notify_all()

    def _turn(self) -> None:
        if self.spool.sync_due_s() == 0.0:
            self.spool.sync()
        now_s = time.monotonic()
        if not self._is_connected:
            if self._waits_for_welcome and now_s - self._asked_s > self._settings.reply_timeout_s:
                self._lose("no answer to HELLO")
            elif not self._waits_for_welcome and now_s >= self._hello_at_s:
                self._say_hello(now_s)
        elif self._is_overdue(now_s):
            self._lose(f"no answer for {self._settings.reply_timeout_s:g} s")
        else:
            self._send_again(now_s)
            self._send_waiting(now_s)
            self._fetch(now_s)
            self._ask_for_news(now_s)
        self._endpoint.wait(self._next_look_s(time.monotonic()))
        while (reply := self._endpoint.receive(0.0)) is not None:
            self._take(reply)
        for header in self._endpoint.announcements():
            self._hear(header)

    def _next_look_s(self, now_s: float) -> float:
        """How long nothing has to be done by itself."""
        sync_s = self.spool.sync_due_s()
        return self._next_talk_s(now_s) if sync_s is None else min(sync_s, self._next_talk_s(now_s))

    def _next_talk_s(self, now_s: float) -> float:
        if not self._is_connected and not self._waits_for_welcome:
            return min(_LONGEST_WAIT_S, max(0.0, self._hello_at_s - now_s))
        if self._pause_until_s > now_s:
            return min(_LONGEST_WAIT_S, self._pause_until_s - now_s)
        return 0.1 if self._news.wait else min(_LONGEST_WAIT_S, self._settings.status_interval_s)

    def _is_overdue(self, now_s: float) -> bool:
        """Whether something was asked and nothing came for too long."""
        return self._asked_s > self._heard_s and now_s - self._asked_s > self._settings.reply_timeout_s

    def _say_hello(self, now_s: float) -> None:
        self._endpoint.renew()
        header = {
            "protocol": PROTOCOL_VERSION,
            "client_id": str(self.spool.client_id),
            "role": "actor",
            "schema_version": SCHEMA_VERSION,
            "package_version": metadata.version("relayrl"),
            "behaviors": None if self._behaviors is None else {k: dict(v) for k, v in self._behaviors.items()},
            "oldest_sequence": self.spool.first_unacknowledged,
        }
        self._endpoint.send(Message(Kind.HELLO, header), 0.5)
        self._asked_s, self._waits_for_welcome = now_s, True

    def _lose(self, why: str) -> None:
        """The connection is of no use any more; another hello after a while."""
        delay_s = min(self._settings.max_retry_s, self._settings.retry_s * 2.0 ** min(self._num_failures, 16))
        delay_s *= random.uniform(0.5, 1.5)
        log = _log.warning if self._num_failures == 0 else _log.debug
        log("lost %s (%s); another try in %.1f s", self.address, why, delay_s)
        self._num_failures += 1
        self._hello_at_s, self._waits_for_welcome = time.monotonic() + delay_s, False
        self._sent.clear()
        self._fetching.clear()
        with self._changed:
            if self._is_connected:
                self._well_s = self._heard_s
            self._is_connected = False
            self._changed.notify_all()

    def _fail(self, error: RelayRLError) -> None:
        with self._changed:
            self._error = error
            self._is_connected = False
            self._changed.notify_all()

    # ---- sending

    def _send_waiting(self, now_s: float) -> None:
        if now_s < self._pause_until_s:
            return
        first = self.spool.first_unacknowledged
        self._next = max(self._next, first)
        while self._next < self.spool.next_number and self._next - first < self._window:
            frames = self.spool.read(self._next)
            if frames is not None:
                self._send_one(self._next, frames)
            self._next += 1

    def _send_again(self, now_s: float) -> None:
        """Messages that nobody has acknowledged for too long, while the server answers other questions, were lost on their way,
        or their acknowledgement was."""
        first = self.spool.first_unacknowledged
        if self._next > first and now_s - self._progress_s > self._settings.reply_timeout_s:
            _log.debug("message %d is sent to %s again", first, self.address)
            self._next, self._window = first, 1
            self._sent.clear()

    def _send_one(self, number: int, frames: list[bytes]) -> None:
        header = {"client_id": str(self.spool.client_id), "sequence": number}
        limit = self._welcome.message_bytes if self._welcome is not None else None
        if limit is not None and sum(map(len, frames)) + 512 > limit:
            _log.error("message %d has more than the %d bytes that the server takes; it is given up", number, limit)
            self.num_rejected += 1
            header["given_up"] = "too_large"
            frames = []
        if number == self.spool.first_unacknowledged:
            self._progress_s = time.monotonic()
        self._sent[self._endpoint.send(Message(Kind.TRAJECTORY, header, tuple(frames)))] = number
        self._asked()

    def _asked(self) -> None:
        """Something was sent that will be answered; the clock runs from the first of several."""
        if self._asked_s <= self._heard_s:
            self._asked_s = time.monotonic()

    def _fetch(self, now_s: float) -> None:
        for group, version in self._news.versions.items():
            have = self._models[group].version if group in self._models else -1
            asked_s = self._fetching.get(group)
            is_asked = asked_s is not None and now_s - asked_s <= self._settings.reply_timeout_s
            if not is_asked and (self._awaits_models or have < version):
                wait_s = min(self._settings.status_interval_s, self._settings.reply_timeout_s / 2)
                self._endpoint.send(Message(Kind.MODEL_GET, {"group": group, "have": have, "wait_s": wait_s}))
                self._fetching[group] = now_s
                self._asked()

    def _ask_for_news(self, now_s: float) -> None:
        """Announcements may be lost, and a silent client is forgotten."""
        interval_s = 0.25 if self._news.wait else self._settings.status_interval_s
        if now_s - max(self._heard_s, self._status_s) > interval_s:
            self._endpoint.send(Message(Kind.STATUS, {}))
            self._status_s = now_s
            self._asked()

    # ---- receiving

    def _take(self, reply: Message) -> None:
        self._heard_s = time.monotonic()
        if reply.kind is Kind.WELCOME:
            self._enter(reply.header)
        elif reply.kind is Kind.REFUSED:
            code, message = str(reply.header.get("code")), str(reply.header.get("message"))
            self._fail(ServerRefusedError(code, f"{self.address} refused this client: {message}"))
        elif not self._is_connected:
            return  # of a connection that was given up
        elif reply.kind is Kind.ACK:
            self._take_ack(reply)
        elif reply.kind is Kind.MODEL:
            self._take_model(reply)
        elif reply.kind is Kind.STATUS:
            self._take_durable(reply.header)
            self._hear(reply.header)
        elif reply.kind is Kind.ERROR:
            self._take_error(reply)

    def _enter(self, header: Mapping[str, Any]) -> None:
        welcome = Welcome.of(header)
        first = header.get("next_sequence")
        if type(first) is not int or first < 0:
            raise ProtocolError("malformed", "the server's WELCOME lacks next_sequence")
        self._awaits_models = header.get("awaits_models") is True
        announce = header.get("announce")
        if isinstance(announce, str):
            heard_at = seen_from_here(announce, self.address)
            for topic in (FLOW_TOPIC,) if self._awaits_models else (MODEL_TOPIC, FLOW_TOPIC):
                if (heard_at, topic) not in self._subscribed:
                    self._subscribed.add((heard_at, topic))
                    self._endpoint.subscribe(heard_at, topic)
        self.spool.acknowledge(first - 1)
        self._next, self._window = self.spool.first_unacknowledged, self._settings.window
        self._num_failures, self._waits_for_welcome = 0, False
        self.num_connections += 1
        if self._welcome is not None and welcome.server_id != self._welcome.server_id:
            _log.warning("%s is another run than before", self.address)
        self._news.turn = -1  # a server that was started again counts from the beginning
        with self._changed:
            self._welcome, self._is_connected = welcome, True
            self._changed.notify_all()
        self._hear(header)
        _log.info("connected to %s: %s of %s", self.address, welcome.algorithm, welcome.env)

    def _take_ack(self, reply: Message) -> None:
        header, number = reply.header, self._sent.pop(reply.number, None)
        expected = header.get("expected")
        self._take_durable(header)
        if type(expected) is int and number is not None and expected <= number:
            # It was not taken: something before it is missing, or the server has no room.
            self._next = min(self._next, max(expected, self.spool.first_unacknowledged))
            self._window = 1
            self._pause_until_s = time.monotonic() + random.uniform(0.05, 0.15)
        for each in header.get("rejected") or ():
            self.num_rejected += 1
            _log.error("the server refused message %s for good: %s", *each)
        self._hear(header)

    def _take_durable(self, header: Mapping[str, Any]) -> None:
        """Let go of what the server holds."""
        through = header.get("durable_through")
        if type(through) is int and self.spool.acknowledge(through):
            self._progress_s = time.monotonic()
            self._window = min(self._settings.window, 2 * self._window)
            self._sent = {request: each for request, each in self._sent.items() if each > through}

    def _take_model(self, reply: Message) -> None:
        group, version = reply.header.get("group"), reply.header.get("version")
        if not isinstance(group, str) or type(version) is not int:
            raise ProtocolError("malformed", "the server's MODEL lacks group or version")
        self._fetching.pop(group, None)
        self._hear(reply.header)
        if not reply.payload:
            return
        content = bytes(reply.payload[0])
        if hashlib.sha256(content).hexdigest() != reply.header.get("sha256"):
            _log.error("policy %s version %d does not have its checksum; it is fetched again", group, version)
            return
        with self._changed:
            if group not in self._models or self._models[group].version < version:
                self._models[group] = ModelBytes(group, version, content)
            self._changed.notify_all()

    def _take_error(self, reply: Message) -> None:
        code, message = str(reply.header.get("code")), str(reply.header.get("message"))
        number = self._sent.pop(reply.number, None)
        if code == "hello":
            self._lose("the server was started anew")
            self._hello_at_s = time.monotonic()
        elif code in ("rate", "memory"):
            if number is not None:
                self._next = min(self._next, number)
            self._window, self._pause_until_s = 1, time.monotonic() + random.uniform(0.1, 0.3)
        else:
            self._lose(f"{code}: {message}")

    def _hear(self, header: Mapping[str, Any]) -> None:
        group, version = header.get("group"), header.get("version")
        if isinstance(group, str) and type(version) is int:  # an announcement of one policy
            header = {**header, "model_versions": {group: version}}
        with self._changed:
            self._news.hear(header)
            if self._may_go_on():  # a thread that wakes up in vain costs as much as hearing the news
                self._changed.notify_all()


def seen_from_here(announce: str, address: str) -> str:
    """Where a server's announcements are heard: a server that listens on all interfaces does not know its name."""
    for everywhere in ("tcp://0.0.0.0:", "tcp://*:", "tcp://[::]:"):
        if announce.startswith(everywhere):
            return f"{address.rpartition(':')[0]}:{announce.removeprefix(everywhere)}"
    return announce
