"""`InferenceServer`: acts for clients that have no model of their own, with many models and versions side by side.

    with InferenceServer("tcp://127.0.0.1:7779", ["runs/a/model.onnx"]) as server:
        …                                                      # AgentBuilder().inference(server.address)

One thread receives requests, checks each, puts those of one version together (`request_batches`), runs the batch
(`served_models`) and replies. It holds nothing between two requests: what a recurrent policy remembers travels with the client.
So a server can be restarted, or another one asked, at any moment. A second thread keeps the models up to date (`model_keeper`).

Every request is answered or, when its client no longer waits, dropped; in both cases it is counted. An error goes to whoever
caused it, with a code: `malformed`, `observation`, `mask`, `unknown_group`, `unknown_version`, `busy`, `deadline`, `inference`.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from pydantic import Field

from relayrl.config.settings import Settings
from relayrl.errors import ConfigError, ProtocolError, RelayRLError
from relayrl.observability.metrics import MetricRegistry
from relayrl.runtime.remote.act_messages import ActRequest, packed
from relayrl.servers.inference.canary_watch import CanaryWatch
from relayrl.servers.inference.inference_metrics import InferenceMetrics
from relayrl.servers.inference.model_keeper import CanaryPlan, ModelKeeper
from relayrl.servers.inference.model_store import ModelStore
from relayrl.servers.inference.request_batches import BatchSettings, RequestBatches
from relayrl.servers.inference.served_models import ServedModel, ServedModels
from relayrl.servers.inference.upstream_models import UpstreamModels
from relayrl.transport.keys import Access
from relayrl.transport.limits import ClientLimits
from relayrl.transport.messages import PROTOCOL_VERSION, Kind, Message
from relayrl.transport.server_endpoint import Request, ServerEndpoint

_log = logging.getLogger("relayrl.servers.inference")
IDLE_S = 0.2
MAX_REPORTS = 4096
MAX_REPORTERS = 65_536
CANARY_FILE = "canary.json"


class InferenceSettings(Settings):
    """How a server batches requests and judges canaries."""

    batches: BatchSettings = BatchSettings()
    canary_alpha: float = Field(0.05, gt=0, lt=1, description="Probability of judging equal versions different, ever.")
    seed: int | None = Field(None, description="Seed of actions that the server draws.")


@dataclass(slots=True, eq=False)
class _Ask:
    request: Request
    asked: ActRequest
    model: ServedModel
    since_s: float
    deadline_s: float


class InferenceServer:
    """See the module's docstring. Made with models it is ready; it serves from `start` to `stop`."""

    def __init__(
        self,
        bind: str,
        models: Sequence[Path | str] = (),
        *,
        store: Path | str | None = None,
        canary: str | None = None,
        follow: str | None = None,
        settings: InferenceSettings | None = None,
        key: Path | str | None = None,
        authorised_keys: Path | str | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        """Serve `models` (files, or directories of them) and those of `store`; `follow` is another server's address.

        `canary` is `new@10%`, `VERSION@10%` or `FILE@10%`. Without a `store`, versions are kept in a temporary directory. Off
        loopback, `key` is the server's `.key` file, and `authorised_keys` lists who may come in (beside it unless given).
        """
        self._settings = settings or InferenceSettings()
        self._temporary = None if store is not None else Path(tempfile.mkdtemp(prefix="relayrl-models-"))
        self._endpoint: ServerEndpoint | None = None
        self._served = ServedModels()
        self._batches: RequestBatches[_Ask] = RequestBatches(self._settings.batches)
        self._reported: OrderedDict[str, int] = OrderedDict()
        self._server_id = str(uuid4())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relayrl-inference", daemon=True)
        try:
            opened = ModelStore(Path(store) if store is not None else self._temporary or Path(), create=True)
            self._store = ModelStore(opened.path)  # of the serving thread, which only reads files
            self._watch = CanaryWatch(opened.path / CANARY_FILE, self._settings.canary_alpha)
            self._keeper = ModelKeeper(
                opened,
                self._watch,
                self._publish,
                sources=_existing(models),
                canary=None if canary is None else CanaryPlan.parse(canary),
                upstream=None if follow is None else UpstreamModels(follow),
                seed=self._settings.seed,
            )
            self._keeper.prepare()
            if not self._served.deployments and follow is None:
                raise ConfigError("there is no model to serve; name .onnx files, a run directory, a --store or --from")
            access = None if key is None else Access.load(key, authorised_keys)
            self._endpoint = ServerEndpoint(bind, access=access, limits=limits)
        except BaseException:
            self._discard()
            raise
        self.metrics: MetricRegistry = self._endpoint.metrics
        self._counts = InferenceMetrics(self.metrics, lambda: self._batches.num_rows, lambda: len(self._served.models))

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self._open.address

    @property
    def deployments(self) -> dict[str, dict[str, Any]]:
        """Stable version, canary and share of every group."""
        return {group: each.as_header() for group, each in self._served.deployments.items()}

    @property
    def is_alive(self) -> bool:
        """Whether requests are served."""
        return self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether requests are served, and there is a model to serve them with."""
        return self.is_alive and bool(self._served.deployments)

    def status(self) -> dict[str, Any]:
        """What is deployed, how canaries compare, and all counters and gauges."""
        numbers = {each.name: each.value for each in self.metrics.snapshot() if isinstance(each.value, int | float)}
        canaries = {
            group: comparison.as_dict() | {"episodes": {str(v): each.count for v, each in trial.returns.items()}}
            for group, (trial, comparison) in self._watch.comparisons().items()
        }
        return {"address": self.address, "models": self.deployments, "canaries": canaries, "metrics": numbers}

    def start(self) -> None:
        """Serve, in a thread."""
        self._keeper.start()
        self._thread.start()

    def stop(self, drain_s: float = 5.0) -> None:
        """Answer what waits, tell nobody else, and close within about `drain_s` seconds. May be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(drain_s)
        self._keeper.stop()
        self._discard(drain_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _open(self) -> ServerEndpoint:
        assert self._endpoint is not None
        return self._endpoint

    def _discard(self, drain_s: float = 0.0) -> None:
        if self._endpoint is not None:
            self._endpoint.close(drain_s)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _publish(self, served: ServedModels) -> None:
        before, self._served = self._served, served
        if self._endpoint is not None:
            for group, deployment in served.deployments.items():
                if before.deployments.get(group) != deployment:
                    self._endpoint.announce("model", {"group": group, "version": deployment.stable})

    def _run(self) -> None:
        batches, endpoint = self._batches, self._open
        while not self._stop.is_set():
            now_s = time.monotonic()
            due_s = batches.next_due_s(now_s)
            for request in endpoint.poll(IDLE_S if due_s is None else max(0.0, due_s - now_s)):
                self._take(request)
            self._run_batches(batches.due(time.monotonic()))
        self._run_batches(batches.due(float("inf")))

    def _run_batches(self, due: list[list[_Ask]]) -> None:
        if due:
            for batch in due:
                self._answer(batch)
            self._batches.replied(time.monotonic())

    def _take(self, request: Request) -> None:
        """Answer a request, or let it wait for others."""
        try:
            message = request.message
            if message.kind is Kind.ACT:
                self._enqueue(request)
            elif message.kind is Kind.HELLO:
                self._welcome(request)
            elif message.kind is Kind.STATUS:
                self._note_returns(request)
                self._open.reply(request, Message(Kind.STATUS, {"models": self.deployments}))
            elif message.kind is Kind.MODEL_GET:
                self._give_model(request)
            elif message.kind is Kind.BYE:
                self._batches.forget(request.client)
                self._open.release(request)
            else:
                raise ProtocolError("malformed", f"an inference server does not answer {message.kind.name}")
        except RelayRLError as error:
            self._fail(request, error)
        except Exception as error:  # noqa: BLE001 - a full disk, for example; whatever it is, others are served
            _log.exception("a request failed", extra={"kind": request.message.kind.name})
            self._fail(request, RelayRLError(f"the server failed: {type(error).__name__}"))

    def _enqueue(self, request: Request) -> None:
        asked = ActRequest.from_message(request.message)
        model = self._served.find(asked.group, asked.version, asked.actor)
        model.check(asked)
        now_s = time.monotonic()
        key = model, asked.choice, "action_mask" in asked.arrays
        ask = _Ask(request, asked, model, now_s, now_s + asked.wait_s)
        if not self._batches.put(key, request.client, asked.num_rows, ask, now_s):
            raise ProtocolError("busy", f"{self._batches.num_rows} rows wait already; wait, and ask again")

    def _answer(self, batch: list[_Ask]) -> None:
        now_s = time.monotonic()
        late = [ask for ask in batch if now_s > ask.deadline_s]
        for ask in late:
            self._fail(ask.request, ProtocolError("deadline", "the request waited for longer than its client does"))
        asks = [ask for ask in batch if now_s <= ask.deadline_s] if late else batch
        if not asks:
            return
        model = asks[0].model
        outcomes = model.answer([ask.asked for ask in asks])
        number = self._served.deployments[model.group].number
        done = [ask.asked.num_rows for ask, outcome in zip(asks, outcomes, strict=True) if isinstance(outcome, dict)]
        self._counts.answered(asks[0].since_s, len(done), sum(done), time.monotonic())
        for ask, outcome in zip(asks, outcomes, strict=True):
            if isinstance(outcome, ProtocolError):
                self._fail(ask.request, outcome)
                continue
            arrays, payload = packed(outcome)
            header = {"group": model.group, "version": model.version, "number": number, "arrays": arrays}
            self._open.reply(ask.request, Message(Kind.ACTION, header, payload))

    def _fail(self, request: Request, error: RelayRLError) -> None:
        code = error.code if isinstance(error, ProtocolError) else "failed"
        self._counts.failed(code)
        self._open.reply(request, Message(Kind.ERROR, {"code": code, "message": str(error)[:1000]}))

    def _welcome(self, request: Request) -> None:
        header = request.message.header
        if header.get("protocol") != PROTOCOL_VERSION:
            reason = f"protocol {header.get('protocol')!r:.20}; this server speaks {PROTOCOL_VERSION}"
            self._open.reply(request, Message(Kind.REFUSED, {"code": "version", "message": reason}))
            return
        versions = {group: each.stable for group, each in self._served.deployments.items()}
        welcome = {
            "server_id": self._server_id,
            "models": self.deployments,
            "model_versions": versions,
            "announce": self._open.announce_address,
        }
        self._open.reply(request, Message(Kind.WELCOME, welcome))

    def _give_model(self, request: Request) -> None:
        """A version's file or, with `describe`, what it says of itself; nothing where the client has it."""
        header = request.message.header
        group, version = header.get("group"), header.get("version")
        if not isinstance(group, str) or not (version is None or type(version) is int):
            raise ProtocolError("malformed", "MODEL_GET names a group and, maybe, a version")
        model = self._served.find(group, version, "")
        if version is None:  # what all actors act with, whatever an actor without a name would
            model = self._served.find(group, self._served.deployments[group].stable, "")
        described = {"group": group, "version": model.version, "format": "onnx"}
        if header.get("describe") is True:
            described["has_value"] = model.policy.layout.has_value
            self._open.reply(request, Message(Kind.MODEL, described, (_described(model),)))
        elif header.get("have") == model.version:
            self._open.reply(request, Message(Kind.MODEL, described))
        else:
            self._store.refresh()
            content = self._store.read(group, model.version)
            described["sha256"] = self._store.groups[group].versions[model.version]
            self._open.reply(request, Message(Kind.MODEL, described, (content,)))

    def _note_returns(self, request: Request) -> None:
        """Returns of episodes that a client reports; a report that comes again does not count again."""
        header = request.message.header
        returns, reporter, sequence = header.get("returns", []), header.get("client_id"), header.get("sequence")
        if type(returns) is not list or len(returns) > MAX_REPORTS:
            raise ProtocolError("malformed", f"a STATUS holds at most {MAX_REPORTS} returns")
        if not returns:
            return
        if type(reporter) is not str or len(reporter) > 64 or type(sequence) is not int:
            raise ProtocolError("malformed", "a STATUS with returns names its client_id and sequence")
        for each in returns:
            if type(each) is not list or [type(part) for part in each[:2]] != [str, int] or len(each) != 3:
                raise ProtocolError("malformed", "a return is [group, version, number]")
            if type(each[2]) not in (int, float):
                raise ProtocolError("malformed", "a return is a number")
        if self._reported.get(reporter, -1) >= sequence:
            return
        self._reported[reporter] = sequence
        self._reported.move_to_end(reporter)
        if len(self._reported) > MAX_REPORTERS:
            self._reported.popitem(last=False)
        for group, version, value in returns:
            self._watch.report(group, version, float(value))
        self._counts.episodes.inc(len(returns))


def _described(model: ServedModel) -> bytes:
    strings = model.policy.metadata.as_strings()
    return json.dumps({key: value for key, value in strings.items() if not key.endswith((".mlp", ".probe"))}).encode()


def _existing(models: Sequence[Path | str]) -> list[Path]:
    paths = [Path(model) for model in models]
    for path in paths:
        if not path.exists():
            raise ConfigError(f"there is no model {path}")
        if path.is_file() and path.suffix != ".onnx":
            raise ConfigError(f"{path} is no .onnx file; write one with: relayrl export RUN_DIR --format onnx")
    return paths
