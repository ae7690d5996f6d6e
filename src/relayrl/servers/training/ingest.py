"""Answers actors: handshakes, trajectories, models, status. One thread, which owns the endpoint.

    HELLO        who is there, with which spaces      → WELCOME, or REFUSED with a reason
    TRAJECTORY   the client's next message            → ACK when it is durable, together with all that came with it
    MODEL_GET    a group's newest policy              → MODEL, at once or when there is a newer one
    STATUS       anything new?                        → STATUS
    BYE          good-bye

A client's messages have numbers without gaps. One that is here already is acknowledged again; one that comes too early is not
taken, and the answer says which is expected. So whatever a network loses, doubles or changes the order of, each is taken once.

Messages that were checked are made durable together, in another thread (`group_commits`), and acknowledged after that. What
cannot be learned from (other spaces, NaN, forbidden actions) is refused for good: the acknowledgement says so, and it is
counted. While the intake is full, nothing is taken: the answer asks to wait, the actor's spool fills, and then its environments
wait.

Not its job: bounds of clients and keys (`relayrl.transport`), or learning (`remote_experience`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from relayrl.data.arrow.checked_streams import CheckedStream, StreamPlans
from relayrl.data.arrow.codec import decode_block
from relayrl.data.arrow.layout_book import trajectory_name
from relayrl.data.arrow.schema import SCHEMA_VERSION
from relayrl.data.arrow.space_json import space_to_json
from relayrl.data.columns import Trajectory
from relayrl.data.raw_columns import decode_columns
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.data.trees import Space
from relayrl.errors import ConfigError, DecodeError, QueueClosedError
from relayrl.servers.training.awaited_models import MAX_WAIT_S, AwaitedModels
from relayrl.servers.training.group_commits import GroupCommits
from relayrl.servers.training.journal import Entry, Journal
from relayrl.servers.training.model_publisher import ModelPublisher, PublishedModel
from relayrl.servers.training.remote_experience import Intake, Received
from relayrl.servers.training.training_metrics import TrainingMetrics
from relayrl.sinks.buffered import checked_blocks
from relayrl.training.facade.received_trajectories import adopted, require_learnable, with_known_state
from relayrl.training.trainers.policy_groups import Groups
from relayrl.transport.messages import PROTOCOL_VERSION, Kind, Message
from relayrl.transport.server_endpoint import Request, ServerEndpoint

_log = logging.getLogger("relayrl.servers.training.ingest")
_POLL_S = 0.1
ACTOR_TIMEOUT_S = 15.0
"""An actor that was not heard of for so long is not counted any more."""


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What actors are told of the run."""

    server_id: UUID
    env: str
    algo: str
    groups: Groups
    state_space: Space | None
    """Where trajectories must hold global states."""
    needs_logp: bool
    block_steps: int
    """Environment steps of one update."""
    environment: Mapping[str, Any]
    """Settings of the environment that actors must have alike."""
    message_bytes: int

    @property
    def is_single_agent(self) -> bool:
        """Whether any actor acts for the only agent there is."""
        return sum(len(group.agent_ids) for group in self.groups.values()) == 1

    def adopted(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Trajectories of one layout as those of the run's groups and agents; `ConfigError` where one is none."""
        found: list[Trajectory] = []
        for trajectory in trajectories:
            group = self.groups.get(trajectory.group)
            if group is None:
                raise ConfigError(f"there is no group {trajectory.group!r}; the run has {sorted(self.groups)}")
            agent_id = group.agent_ids[0] if self.is_single_agent else trajectory.agent_id
            if agent_id not in group.agent_ids:
                raise ConfigError(f"there is no agent {agent_id!r} in group {group.name!r}; it has {group.agent_ids}")
            known = with_known_state(trajectory, self.state_space)
            if not found or group.masks_actions or found[-1].group != group.name:
                found.append(adopted(known, group, agent_id))
                continue
            # All of a layout have the same spaces and columns as the first, which was looked at.
            seen, done = group.observation_space, group.action_space
            found.append(replace(known, agent_id=agent_id, observation_space=seen, action_space=done))
        return found

    def trajectories(self, streams: Sequence[CheckedStream]) -> list[Trajectory]:
        """Streams of layouts that were adopted before, decoded."""
        return [each for stream in streams for each in self._adopted_again(stream.block())]

    def _adopted_again(self, block: TrajectoryBlock) -> Sequence[Trajectory]:
        """As `adopted`, of a block whose layout has passed it: only names are exchanged, for all trajectories at once."""
        layout, group = block.layout, self.groups[block.layout.group]
        if not self.is_single_agent or group.masks_actions or layout.state_space is not None:
            return self.adopted(block)
        seen, done = group.observation_space, group.action_space
        own = replace(layout, observation_space=seen, action_space=done)
        headers = replace(block.headers, agent_ids=[group.agent_ids[0]] * len(block))
        return replace(block, layout=own, headers=headers)

    def behaviors(self) -> dict[str, Any]:
        """The groups as a handshake names them."""
        return {
            name: {
                "observation_space": space_to_json(group.observation_space),
                "action_space": space_to_json(group.action_space),
                "masks_actions": group.masks_actions,
                "agent_ids": list(group.agent_ids),
            }
            for name, group in self.groups.items()
        }


@dataclass(slots=True)
class _Client:
    """One client that has said hello."""

    client_id: UUID
    name: str
    """The id as messages have it."""
    routing_id: bytes
    expected: int
    seen_s: float
    rejected: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Taken:
    """A message on its way into the journal."""

    client: _Client
    request: Request
    entry: Entry
    received: Received
    num_bytes: int
    refusal: str = ""

    def refuse(self, error: Exception) -> None:
        """Keep nothing but its number and the reason."""
        self.entry, self.received, self.refusal = replace(self.entry, blocks=()), Received(), str(error)


class Ingest:
    """See the module's docstring."""

    def __init__(
        self,
        endpoint: ServerEndpoint,
        journal: Journal,
        run: RunDescription,
        publisher: ModelPublisher,
        intake: Intake,
        metrics: TrainingMetrics,
    ) -> None:
        self._endpoint, self._journal, self._run = endpoint, journal, run
        self._publisher, self._intake, self._metrics = publisher, intake, metrics
        self._clients: dict[bytes, _Client] = {}
        self._taken_through: dict[UUID, int] = {}
        """The last number of each client that was taken, durable or not; those of earlier processes are the journal's."""
        self._early: dict[UUID, Request] = {}
        """HELLOs of clients of which something was taken that is not durable yet."""
        self._missing = journal.clients
        """Actors of earlier processes that have not come back."""
        self._is_single_agent = run.is_single_agent
        self._plans = StreamPlans(run.message_bytes)
        """Of layouts that the run can learn from."""
        self._awaited = AwaitedModels()
        self._commits = GroupCommits(journal, metrics, self._on_durable)
        self._handlers: Mapping[Kind, Callable[[Request], None]] = {
            Kind.HELLO: self._hello,
            Kind.MODEL_GET: self._model,
            Kind.STATUS: self._status,
            Kind.BYE: self._bye,
        }
        self._stopping = threading.Event()
        self.is_finished = False
        """Whether the run needs nothing more; actors are told."""
        self.error: Exception | None = None
        """What ended the thread, where it was not `stop`."""
        metrics.actors.follow(lambda: self.num_actors)
        metrics.queue_steps.follow(lambda: intake.num_steps)
        self._thread = threading.Thread(target=self._run_thread, name="relayrl-ingest", daemon=True)

    @property
    def num_actors(self) -> int:
        """Clients that were heard of lately."""
        since_s = time.monotonic() - ACTOR_TIMEOUT_S
        return len({client.client_id for client in list(self._clients.values()) if client.seen_s >= since_s})

    def start(self) -> None:
        self._commits.start()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Answer what has come, and end; nothing that was taken is left unanswered."""
        self._stopping.set()
        self._commits.give_up()
        self._thread.join(timeout_s)

    def wait_until_alone(self, timeout_s: float) -> bool:
        """Wait until no client is connected, and those of earlier processes have come back too; False if that took too long.

        An actor whose server was killed notices late: it would look for a server that has ended."""
        end_s = time.monotonic() + timeout_s
        while (self.num_actors or self._missing) and self._thread.is_alive() and time.monotonic() < end_s:
            time.sleep(0.01)
        return not (self.num_actors or self._missing)

    def who_is_left(self) -> str:
        """What `wait_until_alone` has waited for in vain."""
        return f"{self.num_actors} actors are still connected; {len(self._missing)} of before have not come back"

    def _run_thread(self) -> None:
        try:
            while not self._stopping.is_set():
                self._answer(self._endpoint.poll(_POLL_S))
                self._send_awaited()
            self._answer(self._endpoint.poll(0.0))
            self._commits.close()
            for request in self._endpoint.poll(0.0):  # sends the last acknowledgements
                self._endpoint.release(request)
        except QueueClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the learning thread raises it
            _log.exception("the server's receiving thread ended")
            self.error = error
        finally:
            self._commits.give_up()
            self._commits.close()

    def _answer(self, requests: list[Request]) -> None:
        taken: list[_Taken] = []
        for request in requests:
            kind = request.message.kind
            if kind is Kind.TRAJECTORY:
                one = self._trajectory(request)
                if one is not None:
                    taken.append(one)
            elif kind in self._handlers:
                self._handlers[kind](request)
            else:
                self._refuse(request, "kind", f"a training server does not answer {kind.name}")
        if taken:
            self._commits.put(taken)

    # ---- trajectories

    def _trajectory(self, request: Request) -> _Taken | None:
        """A message that has to become durable; None where it was answered."""
        client = self._clients.get(request.client)
        if client is None:
            self._refuse(request, "hello", "say HELLO first: this server does not know the connection")
            return None
        client.seen_s = time.monotonic()
        number = request.message.header.get("sequence")
        if type(number) is not int or request.message.header.get("client_id") != client.name:
            self._refuse(request, "malformed", "TRAJECTORY needs the client_id of HELLO and a sequence")
            return None
        if number != client.expected:
            if number > client.expected:
                self._metrics.out_of_order.inc()
                self._ack(client, request)
            else:
                self._metrics.duplicates.inc()
                if number <= self._journal.mark(client.client_id):
                    self._ack(client, request)
                else:
                    self._endpoint.release(request)  # its first copy is about to be acknowledged
            return None
        if self._intake.is_full:
            self._metrics.busy.inc()
            self._ack(client, request)
            return None
        client.expected += 1
        self._taken_through[client.client_id] = number
        return self._checked(client, request, number)

    def _checked(self, client: _Client, request: Request, number: int) -> _Taken:
        message, client_id, num_bytes = request.message, client.client_id, sum(map(len, request.message.payload))
        streams = self._streams(message)
        if streams is not None:
            num_steps = sum(each.num_rows for each in streams)
            received = Received(lambda: self._run.trajectories(streams), num_steps, num_bytes)
            return _Taken(client, request, Entry(client_id, number, streams), received, num_bytes)
        taken = _Taken(client, request, Entry(client_id, number, ()), Received(), num_bytes)
        try:
            blocks, taken.received = self._decoded(message)
            # From now on its layout is known, so that it is stored as it came as well.
            taken.entry = Entry(client_id, number, self._streams(message) or blocks)
        except (ConfigError, DecodeError) as error:
            taken.refuse(error)
        return taken

    def _streams(self, message: Message) -> list[CheckedStream] | None:
        """The payload, checked without being decoded; None where it has to be. Steps of several agents are counted together,
        which takes decoding."""
        if not self._is_single_agent or message.header.get("encoding", "arrow") != "arrow" or not message.payload:
            return None
        streams: list[CheckedStream] = []
        for frame in message.payload:
            stream = self._plans.check(frame)
            if stream is None or stream.newest_version > self._publisher.versions.get(stream.layout.group, 0):
                return None
            streams.append(stream)
        return streams

    def _decoded(self, message: Message) -> tuple[list[TrajectoryBlock], Received]:
        """The payload, decoded and checked; `ConfigError` or `DecodeError` says what is wrong with it."""
        blocks = self._blocks(message)
        for block in blocks:
            require_learnable(block)
        trajectories = [each for block in blocks for each in self._run.adopted(block)]
        for trajectory in trajectories:
            self._require_acted_here(trajectory)
        for block in blocks:
            checked_blocks(block)
            self._plans.add(block)
        return blocks, Received.of(trajectories, is_single_agent=self._run.is_single_agent)

    def _require_acted_here(self, trajectory: Trajectory) -> None:
        """`ConfigError` where no policy of this run can have acted so."""
        if trajectory.logp is None and self._run.needs_logp:
            raise ConfigError(f"{trajectory_name(trajectory)} has no logp, which {self._run.algo} needs")
        newest = self._publisher.versions.get(trajectory.group, 0)
        if int(trajectory.policy_version.max()) > newest:
            raise ConfigError(f"{trajectory_name(trajectory)} is of a policy newer than version {newest}, the newest")

    def _blocks(self, message: Message) -> list[TrajectoryBlock]:
        """The trajectories of a message: Arrow streams, or one of raw columns."""
        if message.header.get("encoding", "arrow") == "arrow":
            return [decode_block(frame, max_bytes=self._run.message_bytes) for frame in message.payload]
        name = message.header.get("behavior")
        group = self._run.groups.get(name) if isinstance(name, str) else None
        if message.header["encoding"] != "columns" or group is None:
            raise DecodeError(f"encoding must be 'arrow' or 'columns', and behavior one of {sorted(self._run.groups)}")
        spaces = group.observation_space, group.action_space
        return [decode_columns(message.header, message.payload, group.name, *spaces)]

    def _on_durable(self, taken: Sequence[_Taken]) -> None:
        """In the commits' thread."""
        self._endpoint.run_in_poll(lambda: self._acknowledge(taken))

    def _acknowledge(self, taken: Sequence[_Taken]) -> None:
        for each in taken:
            if each.refusal:
                number, client_id = each.entry.number, each.client.client_id
                self._metrics.invalid.inc()
                each.client.rejected.append((number, each.refusal[:300]))
                _log.warning("message %d of %s was refused: %s", number, client_id, each.refusal)
        self._intake.put([each.received for each in taken])
        self._metrics.received.inc(sum(each.entry.num_trajectories for each in taken))
        self._metrics.steps.inc(sum(each.received.num_env_steps for each in taken))
        self._metrics.bytes.inc(sum(each.num_bytes for each in taken))
        newest = {each.client.routing_id: each for each in taken}
        for each in taken:
            if newest[each.client.routing_id] is each:
                self._ack(each.client, each.request)
            else:
                self._endpoint.release(each.request)
        early, self._early = self._early, {}
        for request in early.values():
            self._hello(request)

    def _ack(self, client: _Client, request: Request) -> None:
        header = {
            "client_id": client.name,
            "durable_through": self._journal.mark(client.client_id),
            "expected": client.expected,
            **self.news(),
        }
        if client.rejected:
            header["rejected"], client.rejected = client.rejected[:64], client.rejected[64:]
        self._endpoint.reply(request, Message(Kind.ACK, header))

    def news(self) -> dict[str, Any]:
        """What every answer to an actor says: newest versions, whether to wait, and how much the next update needs of it."""
        return {
            "model_versions": self._publisher.versions,
            **self._intake.flow(),
            "steps_wanted": max(1, self._run.block_steps // max(1, self.num_actors)),
            "finished": self.is_finished,
        }

    def announce_models(self, versions: Mapping[str, int]) -> None:
        """Send policies that were published to those who wait for them, and tell the others; from any thread."""
        self._endpoint.run_in_poll(self._send_awaited)
        for group, version in versions.items():
            self._endpoint.announce("model", {**self.news(), "group": group, "version": version})

    # ---- everything else

    def _hello(self, request: Request) -> None:
        header = request.message.header
        refusal = self._refusal_of(header)
        if refusal is not None:
            code, message = refusal
            _log.warning("a client was refused: %s", message)
            self._endpoint.reply(request, Message(Kind.REFUSED, {"code": code, "message": message}))
            return
        if header["role"] == "inference":  # follows the models and sends nothing
            self._endpoint.reply(request, Message(Kind.WELCOME, self._welcome(0)))
            return
        client_id, oldest = UUID(header["client_id"]), header.get("oldest_sequence", 0)
        known = next((c for c in self._clients.values() if c.client_id == client_id), None)
        taken_through = self._taken_through.get(client_id, self._journal.mark(client_id))
        if taken_through > self._journal.mark(client_id):
            # A client lets go of all that comes before its next number: it hears of it when that is durable.
            self._put_off(client_id, request)
            return
        expected = max(taken_through + 1, oldest, 0 if known is None else known.expected)
        if known is not None:
            self._clients.pop(known.routing_id, None)
        self._missing.discard(client_id)
        self._clients[request.client] = _Client(client_id, str(client_id), request.client, expected, time.monotonic())
        self._forget_silent()
        _log.info("actor %s is here; its next message is %d", client_id, expected)
        self._endpoint.reply(request, Message(Kind.WELCOME, self._welcome(expected)))

    def _put_off(self, client_id: UUID, request: Request) -> None:
        """Answer a HELLO after the next commit; of one client the last one."""
        earlier = self._early.pop(client_id, None)
        if earlier is not None:
            self._endpoint.release(earlier)
        self._early[client_id] = request

    def _welcome(self, next_sequence: int) -> dict[str, Any]:
        run = self._run
        return {
            "protocol": PROTOCOL_VERSION,
            "server_id": str(run.server_id),
            "algorithm": run.algo,
            "env": run.env,
            "behaviors": run.behaviors(),
            "environment": dict(run.environment),
            "announce": self._endpoint.announce_address,
            "limits": {"message_bytes": run.message_bytes},
            "next_sequence": next_sequence,
            "needs_logp": run.needs_logp,
            "needs_states": run.state_space is not None,
            "awaits_models": True,
            **self.news(),
        }

    def _refusal_of(self, header: Mapping[str, Any]) -> tuple[str, str] | None:
        """Why a client may not come in."""
        if header.get("protocol") != PROTOCOL_VERSION:
            return "protocol", (
                f"the client speaks protocol {header.get('protocol')!r:.50}, this server protocol {PROTOCOL_VERSION}; "
                "install the same version of relayrl on both sides"
            )
        if header.get("role") not in ("actor", "inference"):
            return "role", f"role {header.get('role')!r:.50} is not served here; a training server serves actors"
        if header.get("schema_version") != SCHEMA_VERSION:
            return "schema", (
                f"the client writes trajectories of schema {header.get('schema_version')!r:.50}, this server reads "
                f"{SCHEMA_VERSION}; install the same version of relayrl on both sides"
            )
        try:
            UUID(header.get("client_id", ""))
        except (AttributeError, TypeError, ValueError):
            return "client_id", "client_id must be a UUID"
        oldest = header.get("oldest_sequence", 0)
        if type(oldest) is not int or oldest < 0:
            return "malformed", "oldest_sequence must be a number from 0 on"
        return self._misfit(header.get("behaviors"))

    def _misfit(self, behaviors: Any) -> tuple[str, str] | None:
        if behaviors is None:
            return None
        if not isinstance(behaviors, dict):
            return "malformed", "behaviors must be an object, or null"
        own = self._run.behaviors()
        for name, given in behaviors.items():
            if name not in own or not isinstance(given, dict):
                return "spaces", f"the run trains {sorted(own)}, not {name!r:.100}"
            for key in ("observation_space", "action_space"):
                if given.get(key) != own[name][key]:
                    return "spaces", (
                        f"group {name!r}: the client's {key} is {given.get(key)!r:.200}, the run's {own[name][key]!r:.200}; "
                        f"play {self._run.env}"
                    )
        return None

    def _model(self, request: Request) -> None:
        header = request.message.header
        group, have, wait_s = header.get("group"), header.get("have", -1), header.get("wait_s", 0.0)
        model = self._publisher.current(group) if isinstance(group, str) else None
        if model is None:
            self._refuse(request, "group", f"there is no policy {group!r:.100}; the run has {sorted(self._run.groups)}")
            return
        may_wait = self._see(request) and type(wait_s) in (int, float) and wait_s > 0.0
        if may_wait and type(have) is int and have >= model.version:
            before = self._awaited.put(request, model.group, have, time.monotonic() + min(wait_s, MAX_WAIT_S))
            if before is not None:
                self._endpoint.release(before)
        else:
            self._send_model(request, model)

    def _send_model(self, request: Request, model: PublishedModel) -> None:
        have = request.message.header.get("have", -1)
        header = {"group": model.group, "version": model.version, "sha256": model.sha256, "format": "onnx"}
        is_newer = type(have) is not int or have < model.version
        if is_newer:
            self._metrics.models_sent.inc()
        self._endpoint.reply(request, Message(Kind.MODEL, header | self.news(), (model.content,) if is_newer else ()))

    def _send_awaited(self) -> None:
        for request in self._awaited.take_due(self._publisher.versions, time.monotonic()):
            model = self._publisher.current(request.message.header["group"])
            assert model is not None  # groups stay
            self._send_model(request, model)

    def _status(self, request: Request) -> None:
        if not self._see(request):
            self._refuse(request, "hello", "say HELLO first: this server does not know the connection")
            return
        client = self._clients[request.client]
        mark = self._journal.mark(client.client_id)
        self._endpoint.reply(request, Message(Kind.STATUS, {"durable_through": mark, **self.news()}))

    def _bye(self, request: Request) -> None:
        for each in self._awaited.take_of(request.client):
            self._endpoint.release(each)
        client = self._clients.pop(request.client, None)
        if client is not None:
            _log.info("actor %s has left", client.client_id)
        self._endpoint.release(request)

    def _see(self, request: Request) -> bool:
        client = self._clients.get(request.client)
        if client is not None:
            client.seen_s = time.monotonic()
        return client is not None

    def _forget_silent(self) -> None:
        """Connections that nobody has used for long: their clients say HELLO again where they come back."""
        since_s = time.monotonic() - 4 * ACTOR_TIMEOUT_S
        for routing_id in [key for key, client in self._clients.items() if client.seen_s < since_s]:
            del self._clients[routing_id]

    def _refuse(self, request: Request, code: str, message: str) -> None:
        self._endpoint.reply(request, Message(Kind.ERROR, {"code": code, "message": message}))
