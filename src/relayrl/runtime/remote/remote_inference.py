"""Inference of one agent by a server: which version each actor acts with, and where its network is passed (`inference_place`).

A request acts with exactly the version that its actor was assigned when it began; the server has several side by side. A thread
reports the returns of episodes and asks what is deployed, at once after a reply that names a newer deployment and otherwise
every `POLL_S`. While the server is away, the last deployment stands.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from uuid import UUID, uuid4

from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError, DecodeError, RelayRLError
from relayrl.models.acting.actor import ForwardActor
from relayrl.runtime.remote.deployment import Deployment
from relayrl.runtime.remote.inference_actor import FallbackActor, RemoteActor
from relayrl.runtime.remote.inference_link import InferenceLink
from relayrl.runtime.remote.inference_place import InferencePlace, InferenceServerSettings
from relayrl.runtime.requests.policy_model import PolicyModel, file_model

_log = logging.getLogger("relayrl.runtime.remote.remote_inference")
POLL_S = 1.0
MAX_OPEN_EPISODES = 65_536
MAX_WAITING_RETURNS = 16_384
MAX_SENT_RETURNS = 512


class RemoteInference:
    """Connected from `start` to `stop`; `version_for` and `model` may be called from any thread in between."""

    def __init__(self, settings: InferenceServerSettings) -> None:
        self._settings = settings
        self._client_id = uuid4()
        self._link: InferenceLink | None = None
        self._reports: InferenceLink | None = None
        self._models: dict[int, PolicyModel] = {}
        self._deployment = Deployment(-1, 0)
        self._group = settings.group or ""
        self._returns = EpisodeReturns()
        self._sequence = 0
        self._unsent: list[tuple[str, int, float]] = []
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def deployment(self) -> Deployment:
        """What is deployed, as far as this client knows."""
        return self._deployment

    def start(self, changed: Callable[[], None]) -> None:
        """Connect, and learn what is deployed; `changed` is called by a thread whenever that changes."""
        settings = self._settings
        self._stopping.clear()
        self._link = InferenceLink(settings, self._client_id)
        self._reports = InferenceLink(settings, self._client_id)
        try:
            self._group, self._deployment = self._chosen(self._link.greet())
            self._link.on_deployment = self._heard
            self._load(self._deployment)
        except BaseException:
            self.stop()
            raise
        self._thread = threading.Thread(
            target=self._follow, args=(changed,), name="relayrl-inference-follower", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Report what is left, and disconnect. May be called again."""
        self._stopping.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(2.0 * self._settings.timeout_s + 5.0)
        for link in (self._link, self._reports):
            if link is not None:
                link.close()
        self._models.clear()

    def version_for(self, actor_id: UUID) -> int:
        """The version that an actor is assigned."""
        return self._deployment.version_for(self._group, str(actor_id))

    def model(self, version: int) -> PolicyModel:
        """A version's policy, acting where the settings say."""
        model = self._models.get(version)
        if model is None:
            model = self._models[version] = self._made(version)
        return model

    def observe(self, _: UUID, trajectory: Trajectory) -> None:
        """Steps that were recorded: the returns of their episodes are reported."""
        self._returns.add(trajectory)

    def _made(self, version: int) -> PolicyModel:
        link, place = self._link, self._settings.place
        assert link is not None
        metadata, has_value = link.describe(self._group, version)
        remote = RemoteActor(link, metadata, has_value=has_value)
        actor: ForwardActor = remote
        if place is not InferencePlace.SERVER:
            try:
                local = link.fetch(self._group, version, metadata.observation_space, metadata.action_space)
                has_value = local.layout.has_value
                actor = _placed(place, local.actor, remote)
            except DecodeError as error:
                if place is not InferencePlace.SERVER_FALLBACK:
                    raise
                _log.error("the server acts: its model cannot be loaded here", extra={"why": str(error)[:300]})
        return file_model(actor, metadata, has_value=has_value)

    def _chosen(self, deployments: dict[str, Deployment]) -> tuple[str, Deployment]:
        group = self._settings.group
        if group is None and len(deployments) != 1:
            known = ", ".join(sorted(deployments)) or "(none yet)"
            raise ConfigError(
                f"{self._settings.address} serves the groups {known}; name one with inference(…, group=…)"
            )
        group = next(iter(deployments)) if group is None else group
        if group not in deployments:
            raise ConfigError(f"{self._settings.address} serves no group {group!r}; it serves {sorted(deployments)}")
        return group, deployments[group]

    def _heard(self, group: str, number: int) -> None:
        if number != self._deployment.number:
            self._wake.set()

    def _follow(self, changed: Callable[[], None]) -> None:
        while True:
            self._wake.wait(POLL_S)
            self._wake.clear()
            is_last = self._stopping.is_set()
            try:
                self._report(changed)
            except RelayRLError as error:
                _log.warning("the inference server is away", extra={"why": str(error)[:300]})
            if is_last:
                return

    def _report(self, changed: Callable[[], None]) -> None:
        assert self._reports is not None
        while True:
            if not self._unsent:  # what was sent and not answered is sent again, with the same number
                self._unsent, self._sequence = self._returns.take(self._group, MAX_SENT_RETURNS), self._sequence + 1
            _, deployment = self._chosen(self._reports.status(self._unsent, self._sequence))
            self._unsent = []
            if deployment.number != self._deployment.number and not self._stopping.is_set():
                self._take(deployment, changed)
            if not self._returns.is_waiting:
                return

    def _load(self, deployment: Deployment) -> None:
        """Have all models that actors may be assigned, so that nobody waits for them later."""
        for version in (deployment.stable, deployment.canary):
            if version is not None:
                self.model(version)

    def _take(self, deployment: Deployment, changed: Callable[[], None]) -> None:
        self._load(deployment)
        self._deployment = deployment
        changed()
        kept = {deployment.stable, deployment.canary}
        self._models = {version: model for version, model in self._models.items() if version in kept}
        _log.info("deployment changed", extra={"group": self._group, **deployment.as_header()})


def _placed(place: InferencePlace, local: ForwardActor, remote: ForwardActor) -> ForwardActor:
    if place is InferencePlace.CLIENT:
        return local
    if place is InferencePlace.CLIENT_FALLBACK:
        return FallbackActor(remote, local, ("the server", "this process"))
    return FallbackActor(local, remote, ("this process", "the server"))


class EpisodeReturns:
    """Sums of rewards by episode, fragments of it put together; those that one version played from first to last step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[UUID, str, int], tuple[float, int]] = {}
        self._ended: deque[tuple[int, float]] = deque(maxlen=MAX_WAITING_RETURNS)

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._ended)

    def add(self, trajectory: Trajectory) -> None:
        key = trajectory.env_id, trajectory.agent_id, trajectory.episode
        versions = trajectory.policy_version
        version = int(versions[0]) if (versions == versions[0]).all() else -1
        with self._lock:
            total, before = self._open.pop(key, (0.0, version if trajectory.first_step == 0 else -1))
            total += float(trajectory.reward.sum())
            version = version if version == before else -1
            if not (trajectory.terminated or trajectory.truncated):
                if len(self._open) < MAX_OPEN_EPISODES:
                    self._open[key] = total, version
            elif version >= 0 and not trajectory.failed:
                self._ended.append((version, total))

    def take(self, group: str, max_returns: int) -> list[tuple[str, int, float]]:
        """The oldest returns that were not taken yet."""
        with self._lock:
            count = min(max_returns, len(self._ended))
            return [(group, *self._ended.popleft()) for _ in range(count)]
