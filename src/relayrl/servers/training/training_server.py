"""`TrainingServer`: a training run that remote actors collect for. `relayrl serve training` is its command line.

    with TrainingServer("CartPole-v1", algo="ppo", bind="tcp://127.0.0.1:7776", run_dir="runs/x") as server:
        print(server.address)
        result = server.run()

The run is one of `relayrl train`: the same settings, run directory, checkpoints, evaluation, statistics and result. Only the
steps come from elsewhere: as many as a local rollout has make an update. Everything that was acknowledged lies in the journal,
a sink of the run (`record`, or `arrow:RUN_DIR/journal`); killed at any moment and started again with `resume=True`, the server
goes on from its newest checkpoint and takes data at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import Field

from relayrl.config.settings import Settings, parse_settings
from relayrl.engines.callbacks.callback import Callback, callback_of
from relayrl.engines.callbacks.live_run import LiveRun
from relayrl.engines.given_parts import with_addresses
from relayrl.engines.local.overlap import Pace
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.local.run_parts import RunParts
from relayrl.engines.process.interrupts import Interrupt
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import Progress, RunInterrupted, RunResult
from relayrl.engines.sessions import Session, TrainRequest, open_session, run_session
from relayrl.envs.environment_settings import SHOWN
from relayrl.errors import AgentStateError, ConfigError, RelayRLError
from relayrl.servers.status_http import StatusServer
from relayrl.servers.training.ingest import Ingest, RunDescription
from relayrl.servers.training.journal import Journal
from relayrl.servers.training.model_publisher import ModelPublisher, ServerState
from relayrl.servers.training.remote_experience import Intake, LearningFromActors, Received, learned_before
from relayrl.servers.training.training_metrics import TrainingMetrics
from relayrl.training.files.checkpoints import CheckpointStore
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.policy_groups import PolicyGroup
from relayrl.transport.keys import Access
from relayrl.transport.limits import ClientLimits
from relayrl.transport.server_endpoint import ServerEndpoint

_log = logging.getLogger("relayrl.servers.training.training_server")
DEFAULT_BIND = "tcp://127.0.0.1:7776"
_JOIN_TIMEOUT_S = 30.0


class TrainingServerSettings(Settings):
    """How a training server treats its actors."""

    default_policy_lag: int = Field(
        8,
        ge=0,
        description="largest policy lag of algorithms that do not correct for it, unless params.max_policy_lag is set",
    )
    ahead_blocks: int = Field(
        1, ge=1, description="updates' worth of steps that may wait before actors are asked to wait"
    )
    max_intake_bytes: int = Field(
        1 << 30, ge=1, description="bytes that may wait for an update before nothing is taken"
    )
    save_interval_s: float = Field(10.0, gt=0, description="a checkpoint is taken at least so often while it learns")
    announce_bind: str | None = Field(
        None, description="where announcements are heard: tcp://HOST:PORT; null: any free port beside the other"
    )
    drain_s: float = Field(10.0, ge=0, description="how long a finished or stopped server waits for its actors")
    http: str | None = Field(None, description="HOST:PORT of /health, /ready, /metrics and /status; null: none")
    limits: ClientLimits = ClientLimits()


class TrainingServer:
    """See the module's docstring. Bound when it is made; it answers when `run` has built the run."""

    _callbacks: Sequence[Callback] = ()

    def __init__(
        self,
        env: str | None = None,
        *,
        bind: str = DEFAULT_BIND,
        algo: str | None = None,
        steps: int | None = None,
        seed: int | None = None,
        run_dir: str | Path | None = None,
        config: str | Path | None = None,
        resume: bool = False,
        settings: Mapping[str, Any] | None = None,
        server: TrainingServerSettings | Mapping[str, Any] | None = None,
        key: str | Path | None = None,
        authorised_keys: str | Path | None = None,
        callbacks: Sequence[Callback | Callable[[LiveRun], Any]] = (),
        trust: bool = False,
    ) -> None:
        """Arguments are those of `relayrl.train`; callbacks see updates, not rollouts. With `resume`, a run that lies in
        `run_dir` is continued, and begun where there is none. Off loopback, `key` is the server's `.key` file, and
        `authorised_keys` lists who may come in (beside it unless given). `server` are the server's own settings, such
        as `{"http": "127.0.0.1:9464"}`."""
        given = {"algo": algo, "trainer.max_steps": steps, "seed": seed}
        request = TrainRequest(
            env=env,
            run_dir=None if run_dir is None else Path(run_dir),
            config=None if config is None else Path(config),
            flags={path: value for path, value in given.items() if value is not None},
            assignments=list(with_addresses(settings or {}).items()),
            resume=resume,
            trust=trust,
        )
        access = None if key is None else Access.load(key, authorised_keys)
        if not isinstance(server, TrainingServerSettings):
            server = parse_settings(TrainingServerSettings, dict(server or {}))
        called = [callback_of(each) for each in callbacks]
        self._open(request, bind, server, access)
        self._callbacks = called

    @classmethod
    def of_request(
        cls,
        request: TrainRequest,
        bind: str,
        server: TrainingServerSettings | None = None,
        access: Access | None = None,
    ) -> TrainingServer:
        """The server of what a command line asked for."""
        made = cls.__new__(cls)
        made._open(request, bind, server, access)
        return made

    def _open(
        self, request: TrainRequest, bind: str, server: TrainingServerSettings | None, access: Access | None
    ) -> None:
        self.settings = server or TrainingServerSettings()
        self.metrics = TrainingMetrics()
        self._endpoint = ServerEndpoint(
            bind,
            limits=self.settings.limits,
            access=access,
            announce_bind=self.settings.announce_bind,
            metrics=self.metrics.registry,
        )
        self._ingest: Ingest | None = None
        self._journal: Journal | None = None
        self._thread: threading.Thread | None = None
        self._outcome: RunResult | BaseException | None = None
        self._stop_requested = threading.Event()
        self._has_run = False
        self._http: StatusServer | None = None
        try:
            if self.settings.http is not None:
                self._http = StatusServer(
                    self.settings.http,
                    self.metrics.registry,
                    is_healthy=lambda: self._ingest is None or self._ingest.error is None,
                    is_ready=lambda: self.is_ready,
                    status=self.status,
                )
            self._session: Session = open_session(_resumable(request))
            if self._session.settings.learn_from is not None:
                raise ConfigError("a training server learns from its actors; leave out learn_from")
            if self._session.settings.reward_signals:
                raise ConfigError("a training server takes rewards as actors send them; leave out reward_signals")
        except BaseException:
            self._endpoint.close()
            if self._http is not None:
                self._http.close()
            raise

    @property
    def http_url(self) -> str | None:
        """Where health, readiness, metrics and status are, where they were asked for."""
        return None if self._http is None else self._http.url

    @property
    def address(self) -> str:
        """Where actors connect, with the real port."""
        return self._endpoint.address

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self._session.directory.path

    @property
    def env(self) -> str:
        """The run's environment."""
        return self._session.settings.env

    @property
    def algo(self) -> str:
        """The run's algorithm."""
        return self._session.settings.algo

    @property
    def is_ready(self) -> bool:
        """Whether actors are answered."""
        return self._ingest is not None and self._ingest.error is None and not self._stop_requested.is_set()

    def status(self) -> dict[str, float]:
        """The metrics by name; of histograms, how many values they hold."""
        return {
            each.name: each.value if isinstance(each.value, int | float) else each.value.count
            for each in self.metrics.registry.snapshot()
        }

    def run(
        self,
        on_progress: Callable[[Progress], None] = lambda _: None,
        interrupt: Interrupt | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> RunResult:
        """Serve until the run has all its steps, and give its result; `RunInterrupted` where it was stopped before, with its
        state saved. Whatever happens, everything is closed."""
        if self._has_run:
            raise AgentStateError("a training server runs once; make another one to go on")
        self._has_run = True
        stopper = _Stopper(interrupt or Interrupt(), self._stop_requested)
        is_done = False
        try:
            result = run_session(
                self._session, on_progress, stopper, on_note, self._make_pace, callbacks=self._callbacks
            )
            is_done = True
            return result
        finally:
            self._close(self.settings.drain_s if is_done else 0.0)

    def start(self) -> None:
        """`run` in a thread; `wait` gives its result."""
        self._thread = threading.Thread(target=self._run_in_thread, name="relayrl-training-server", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> RunResult | None:
        """The result of a run that was started; None if it takes longer. What ended it otherwise is raised."""
        if self._thread is None:
            raise AgentStateError("wait() before start()")
        self._thread.join(timeout_s)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def stop(self) -> None:
        """Have a run that goes on save its state and end."""
        self._stop_requested.set()

    def close(self) -> None:
        """Stop, wait for the end, and let go of everything; may be called again."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)
        self._close(0.0)
        self._session.directory.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_in_thread(self) -> None:
        try:
            self._outcome = self.run()
        except (Exception, RunInterrupted) as error:  # noqa: BLE001 - `wait` raises it
            self._outcome = error

    def _make_pace(self, parts: RunParts, statistics: Statistics, clock: PhaseClock, state: Mapping[str, Any]) -> Pace:
        settings, directory, own = self._session.settings, self._session.directory, self.settings
        groups = {
            name: PolicyGroup(name, g.observation_space, g.action_space, g.masks_actions, g.agent_ids)
            for name, g in parts.env.groups.items()
        }
        server_state = ServerState(directory.path / "server.json")
        learned_version = parts.trainer.policy_version
        parts.trainer.policy_version = max(learned_version, server_state.versions_below)
        journal = Journal(settings.record or f"arrow:{directory.path / 'journal'}", directory.path / "journal.index")
        self._journal = journal
        is_on_policy = parts.trainer.uses_logp
        block_steps = parts.block_steps if is_on_policy else max(parts.block_steps, _OFF_POLICY_STEPS)
        intake = Intake(block_steps * own.ahead_blocks, own.max_intake_bytes)
        run = RunDescription(
            server_state.server_id,
            settings.env,
            settings.algo,
            groups,
            parts.env.state_space if parts.trainer.needs_states else None,
            parts.trainer.uses_logp,
            block_steps,
            settings.environment.model_dump(mode="json", include=set(SHOWN)),
            self._endpoint.limits.message_bytes,
        )
        publisher = ModelPublisher(parts, settings, server_state, self.metrics, self._announce_models)
        publisher.publish()
        num_learned = self._feed_unlearned(journal, intake, run, state)
        ingest = self._ingest = Ingest(self._endpoint, journal, run, publisher, intake, self.metrics)
        pace = _ServedPace(
            parts,
            groups,
            statistics,
            clock,
            intake,
            self.metrics,
            max_policy_lag=_lag_bound(settings.params, own.default_policy_lag),
            publish=publisher.publish,
            on_room=lambda: self._endpoint.announce("flow", ingest.news()),
            save_interval_s=own.save_interval_s,
            num_learned=num_learned,
            learned_version=learned_version,
        )
        pace.ingest = ingest
        ingest.start()
        _log.info("listening on %s; journal %s", self.address, journal.url)
        return pace

    def _feed_unlearned(self, journal: Journal, intake: Intake, run: RunDescription, state: Mapping[str, Any]) -> int:
        """Hand over what is in the journal and was not learned from when the checkpoint was taken."""
        position = min(learned_before(state), journal.num_entries)
        entries = journal.after(position)
        for trajectories in entries:
            intake.put([Received.of(run.adopted(trajectories), is_single_agent=run.is_single_agent)])
        if entries:
            _log.info("%d messages of the journal come after the checkpoint", len(entries))
        return position

    def _announce_models(self, versions: Mapping[str, int]) -> None:
        if self._ingest is not None:  # nobody was answered before
            self._ingest.announce_models(versions)

    def _close(self, drain_s: float) -> None:
        ingest, self._ingest = self._ingest, None
        try:
            if ingest is not None:
                if drain_s > 0.0 and not ingest.wait_until_alone(drain_s):
                    _log.warning("%s", ingest.who_is_left())
                ingest.stop(_JOIN_TIMEOUT_S)
        finally:
            self._endpoint.close()
            journal, self._journal = self._journal, None
            if journal is not None:
                journal.close()
            http, self._http = self._http, None
            if http is not None:
                http.close()


_OFF_POLICY_STEPS = 256
"""Of environments that actors send together for an algorithm with replay, whose own blocks are a few steps."""


class _ServedPace(LearningFromActors):
    """Also raises what ended the receiving thread, and tells the actors when the run has all its steps."""

    ingest: Ingest

    def advance(self, num_steps: int) -> None:
        if self.ingest.error is not None:
            raise RelayRLError(f"the server's receiving thread ended: {self.ingest.error}") from self.ingest.error
        super().advance(num_steps)

    def conclude(self) -> None:
        self.ingest.is_finished = True
        self._on_room()


class _Stopper(Interrupt):
    """An interrupt that `stop()` requests as well."""

    def __init__(self, interrupt: Interrupt, stop: threading.Event) -> None:
        super().__init__()
        self._inner, self._stop = interrupt, stop

    def begin(self) -> None:
        self._inner.begin()

    def is_requested(self) -> bool:
        return self._stop.is_set() or self._inner.is_requested()


def _lag_bound(params: Settings, default: int) -> int | None:
    """The largest policy lag of an algorithm's data; None where it learns from data of any age."""
    bound: int | None = getattr(params, "max_policy_lag", None)
    if bound is None and hasattr(params, "max_policy_lag") and not getattr(params, "corrects_policy_lag", False):
        return default
    return bound


def _resumable(request: TrainRequest) -> TrainRequest:
    """`resume` begins a run where there is none, or none with a checkpoint: the same command can be repeated."""
    if not request.resume or request.run_dir is None:
        return request
    directory = RunDirectory(request.run_dir)
    if directory.config.exists() and CheckpointStore(directory.checkpoints, keep=1).paths():
        return request
    directory.config.unlink(missing_ok=True)
    return TrainRequest(
        request.env, request.run_dir, request.config, request.flags, request.assignments, trust=request.trust
    )
