"""Puts the runtime's parts together: starts and stops them, and carries out every verb that concerns more than one.

    ClientCoordinator ── LifecycleManager    may calls come in?
                      ├─ StateManager        who are the actors, which policies have they?
                      ├─ ActionService       requests and ended episodes
                      ├─ RouterDispatcher ── Router ── TrajectoryBuffer, sink
                      ├─ LearnerLink         is there a trainer to learn with?
                      ├─ ScaleManager        how many routers?
                      ├─ EnvRunner           actors with environments of their own
                      └─ ConfigWatcher       has the file changed?

Invariants: after `shutdown` every step is durable or named in the report; actors and policies outlive a restart, routers,
sinks and threads do not; a configuration is applied as a whole or refused as a whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from relayrl.compiled.loader import warn_if_missing
from relayrl.data.columns import Trajectory
from relayrl.errors import AgentStateError, ConfigError, RelayRLError
from relayrl.observability.logs import set_log_level
from relayrl.runtime.agents.client_config import LIVE_KEYS, ClientConfig, changed_keys, read_client_config
from relayrl.runtime.agents.config_watcher import ConfigWatcher
from relayrl.runtime.agents.env_runner import EnvRunner, EnvRunSummary
from relayrl.runtime.agents.lifecycle_manager import AgentState, LifecycleManager
from relayrl.runtime.agents.runtime_metrics import RuntimeMetrics
from relayrl.runtime.agents.scale_manager import ScaleManager
from relayrl.runtime.agents.state_manager import ActorHandle, Place, StateManager
from relayrl.runtime.requests.action_service import ActionService
from relayrl.runtime.requests.policy_model import ModelSource, PolicyModel
from relayrl.runtime.requests.published_policy import PublishedPolicy
from relayrl.runtime.routing.learner_link import Learner, LearnerLink
from relayrl.runtime.routing.router import RouterDispatcher
from relayrl.runtime.routing.sink_opener import SinkOpener
from relayrl.runtime.routing.trajectory_buffer import Priority

if TYPE_CHECKING:
    from relayrl.envs.environment_settings import EnvSettings
    from relayrl.runtime.remote.remote_inference import RemoteInference
    from relayrl.runtime.remote.server_connection import ServerConnection

_log = logging.getLogger("relayrl.runtime.agents.client_coordinator")


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """What shutdown could not do; everything else is durable."""

    undelivered: tuple[Trajectory, ...] = ()
    """Trajectories that no sink made durable before the deadline. They are all there is of their steps: keep them."""
    rejected: tuple[tuple[Trajectory, str], ...] = ()
    """Trajectories that a sink refused for good, with its reason."""
    unlearned: tuple[Trajectory, ...] = ()
    """Trajectories that the trainer did not take; they are in the sinks, where there are any."""
    learning_error: BaseException | None = None
    """What the trainer raised."""
    num_calls_cut_off: int = 0
    """Calls that were still under way at the deadline."""
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing is missing."""
        return not (
            self.undelivered or self.rejected or self.unlearned or self.learning_error or self.num_calls_cut_off
        )


class ClientCoordinator:
    """See the module's docstring. All methods may be called from any thread."""

    def __init__(
        self,
        state: StateManager,
        opener: SinkOpener,
        config: ClientConfig,
        path: Path | None,
        server: ServerConnection | None = None,
        inference: RemoteInference | None = None,
    ) -> None:
        self._server, self._inference = server, inference
        self.lifecycle, self.state, self.metrics = LifecycleManager(), state, RuntimeMetrics()
        self._opener, self._config, self._path = opener, config, path
        self._file_config = config if path is None else read_client_config(path)
        self._environments = EnvRunner()
        self._dispatcher = self._new_dispatcher()
        self._scale = ScaleManager(self._dispatcher)
        self.service = ActionService(state, self._dispatcher, self.lifecycle, self.metrics)
        self._watcher: ConfigWatcher | None = None
        self._link: LearnerLink | None = None

    @property
    def config(self) -> ClientConfig:
        return self._config

    def start(self, make_first_actors: Callable[[], None]) -> None:
        """Open routers and sinks, and let calls in."""
        with self.lifecycle.transition:
            if self.lifecycle.state is AgentState.RUNNING:
                raise AgentStateError("the agent is running already; use restart()")
            warn_if_missing()
            config = self._config
            if self._server is not None:
                self._server.start(self._publish_served)
            self._dispatcher = self._new_dispatcher()
            self._scale = ScaleManager(self._dispatcher)
            self.service = ActionService(self.state, self._dispatcher, self.lifecycle, self.metrics)
            try:
                self._scale.scale_to(config.router_scale)
                if self._inference is not None:
                    self._inference.start(self.state.reassign)
                    self.state.reassign(anew=True)
                make_first_actors()
            except RelayRLError:
                self._stop_inference()
                self._dispatcher.stop(time.monotonic() + config.shutdown_deadline_s)
                if self._server is not None:
                    self._server.stop(time.monotonic())
                raise
            for handle in self.state.handles.values():
                self._dispatcher.add_lane(handle.lane.key)
            if self._link is not None:
                self._learn_with(self._link)
            elif not config.sink.urls and not self._opener.is_given:
                _log.info("no sink is set: trajectories are not kept")
            if self._path is not None and "log_level" in self._file_config.model_fields_set:
                set_log_level(config.log_level)
            self._follow_gauges()
            self.lifecycle.become(AgentState.RUNNING)
            self._watch()

    def shutdown(self, deadline_s: float | None) -> ShutdownReport:
        """Let no more calls in, flush everything, end all threads. Does nothing on an agent that does not run."""
        with self.lifecycle.transition:
            if self.lifecycle.state is not AgentState.RUNNING:
                return ShutdownReport()
            start_s = time.monotonic()
            end_s = start_s + (self._config.shutdown_deadline_s if deadline_s is None else deadline_s)
            self.lifecycle.become(AgentState.STOPPING)
            self._stop_watching()
            num_left = self.lifecycle.wait_until_idle(end_s)
            self._put_last([*self.state.interrupt_all(), *self._environments.take_open_rows()])
            unlearned, error = ([], None) if self._link is None else self._link.stop(end_s)
            left, refused = self._dispatcher.stop(end_s)
            self._stop_inference()
            late = self._environments.close()
            if self._server is not None:
                self._server.stop(end_s)
            self.lifecycle.become(AgentState.STOPPED)
            report = ShutdownReport(
                undelivered=(*(entry.trajectory for entry in left), *(trajectory for _, trajectory in late)),
                rejected=tuple((entry.trajectory, why) for entry, why in refused),
                unlearned=tuple(unlearned),
                learning_error=error,
                num_calls_cut_off=num_left,
                seconds=time.monotonic() - start_s,
            )
        if not report.is_clean:
            _log.error(
                "shutdown left something behind",
                extra={
                    "undelivered": len(report.undelivered),
                    "rejected": len(refused),
                    "unlearned": len(unlearned),
                    "learning_error": None if error is None else repr(error),
                    "calls_cut_off": num_left,
                },
            )
        return report

    def train_with(self, learner: Learner, device: str, max_policy_lag: int | None, queue_size: int) -> None:
        """Hand every trajectory to `learner` from now on, and its policies to the actors."""
        with self.lifecycle.transition:
            if self._link is not None:
                raise ConfigError("the agent has a trainer already; build another agent for another trainer")
            timeout_s = self._config.router_buffer.push_back_timeout_s
            link = LearnerLink(
                learner,
                self.metrics,
                device=device,
                max_policy_lag=max_policy_lag,
                queue_size=queue_size,
                timeout_s=timeout_s,
            )
            for handle in self.state.handles.values():
                link.require_learnable(handle.named_agent_id, handle.actor_id, handle.pages.layout)
            for model in link.models:
                if self.state.acts_with(model):
                    self.state.publish(model, None, None, in_place_of_same=True)
            self._link = link
            if self.lifecycle.state is AgentState.RUNNING:
                self._learn_with(link)

    def require_policy_for_unnamed(self) -> None:
        """`ConfigError` where actors that name no agent could not act with the trainer's policies."""
        if self._link is not None:
            self._link.model_for(None, uuid4())

    def _learn_with(self, link: LearnerLink) -> None:
        link.start(self._publish)
        self._dispatcher.learner = self.service.learner = link
        self.state.on_episode_over = link.acted_in
        for handle in self.state.handles.values():
            _declare_alone(handle, link)

    def _publish(self, model: PolicyModel) -> None:
        if self.state.acts_with(model):
            self.state.publish(model, None, None)
            self.metrics.model_updates.inc()

    def add_actors(
        self,
        actor_ids: Sequence[UUID | None],
        model: ModelSource | None,
        device: str,
        places: Sequence[Place] | None = None,
        group: str | None = None,
    ) -> tuple[UUID, ...]:
        """New actors with routes; they share one loaded model: the default's, trainer's or server's unless one is given."""
        chosen = list(places) if places is not None else [Place()] * len(actor_ids)
        own_ids = [uuid4() if actor_id is None else actor_id for actor_id in actor_ids]
        policies: list[PublishedPolicy | None]
        if model is None and self._link is not None:
            models = [self._link.model_for(place.agent_id, own) for place, own in zip(chosen, own_ids, strict=True)]
            policies = [self.state.prepare(each, device) for each in models]
        else:
            shared = self._shared_policy(model, device, group)
            policies = [shared] * len(actor_ids)
            if self._link is not None and shared is not None:
                for place, own in zip(chosen, own_ids, strict=True):
                    self._link.require_learnable(place.agent_id, own, shared.model.layout)
        made = []
        for actor_id, policy, place in zip(own_ids, policies, chosen, strict=True):
            handle = self.state.add(actor_id, policy, device, place)
            if self.lifecycle.state is AgentState.RUNNING:
                self._dispatcher.add_lane(handle.lane.key)
                if self._link is not None:
                    _declare_alone(handle, self._link)
            made.append(handle.actor_id)
        return tuple(made)

    def _shared_policy(self, model: ModelSource | None, device: str, group: str | None) -> PublishedPolicy | None:
        """What new actors act with; None where an inference server assigns it."""
        if model is None and not self.state.is_assigned:
            if self._server is None:
                return self.state.default_policy(device)
            model = self._server.model_for(device)
        return None if model is None else self.state.prepare(model, device, group)

    def _publish_served(self, model: PolicyModel) -> None:
        """A newer policy of the server; actors that have it already, or get theirs elsewhere, keep what they have."""
        if self.state.is_assigned:
            return
        slots = {handle.slot for handle in self.state.handles.values()}
        own = [slot.policy for slot in slots if slot.policy.model.layout.key == model.layout.key]
        if own and model.policy_version is not None and model.policy_version > max(each.version for each in own):
            self.state.publish(model, None, model.policy_version)
            self.metrics.model_updates.inc()

    def remove_actor(self, actor_id: UUID, timeout_s: float) -> bool:
        """Take an actor out; gives whether its last trajectory became durable in time."""
        self.lifecycle.enter()
        try:
            handle, trajectory = self.state.remove(actor_id)
            self._put_last(self._environments.drop(handle))
            if trajectory is not None:
                self._put_last([(handle.lane.key, trajectory)])
            done = self._dispatcher.wait_until_durable(handle.lane.key, timeout_s)
            self._dispatcher.drop_lane(handle.lane.key)
            return done
        finally:
            self.lifecycle.leave()

    def flush(self, timeout_s: float) -> bool:
        """Make every finished trajectory durable; False if that took too long."""
        self.lifecycle.enter()
        try:
            return self._dispatcher.wait_until_durable(None, timeout_s)
        finally:
            self.lifecycle.leave()

    def scale_by(self, change: int) -> int:
        """More or fewer routers."""
        self.lifecycle.enter()
        try:
            num_routers = self._scale.scale_by(change)
            self._config = self._config.model_copy(update={"router_scale": num_routers})
            return num_routers
        finally:
            self.lifecycle.leave()

    def set_env(self, actor_id: UUID | Mapping[str, UUID], env: Any, settings: EnvSettings, seed: int) -> None:
        if isinstance(actor_id, Mapping):
            handles = {group: self.state.handle(each) for group, each in actor_id.items()}
            self._put_last(self._environments.set_env(handles, env, settings, seed))
        else:
            self._put_last(self._environments.set_env(self.state.handle(actor_id), env, settings, seed))

    def _put_last(self, trajectories: Iterable[tuple[UUID, Trajectory]]) -> None:
        """Hand over what nothing is added to any more."""
        for lane_key, trajectory in trajectories:
            self._dispatcher.put(lane_key, trajectory, Priority.FLUSH)

    def run_env(self, actor_id: UUID, num_steps: int) -> EnvRunSummary:
        """Step an actor's environments; ends early, with an error, when the agent shuts down."""
        environment = self._environments.of(self.state.handle(actor_id))

        def before_block(lane_keys: Sequence[UUID]) -> None:
            self.lifecycle.require_running()
            self._dispatcher.wait_for_room(lane_keys, self.lifecycle.require_running)
            if self._link is not None:
                self._link.before_request(self.lifecycle.require_running)

        self.lifecycle.enter()
        try:
            summary = environment.run(num_steps, self._dispatcher, before_block)
            if self._link is not None:
                self._link.learn_here()
            return summary
        finally:
            self.lifecycle.leave()

    def set_config_path(self, path: Path) -> None:
        """Follow another file, which is applied now."""
        with self.lifecycle.transition:
            new = read_client_config(path)
            self.apply(self._file_config, new)
            self._path, self._file_config = path, new
            if self.lifecycle.state is AgentState.RUNNING:
                self._stop_watching()
                self._watch()

    def check_config_now(self) -> bool:
        """Look at the configuration file without waiting for the next poll; gives whether a change was applied."""
        return self._watcher is not None and self._watcher.check_now()

    def apply(self, old: ClientConfig, new: ClientConfig) -> None:
        """Apply what differs between two contents of the file; `ConfigError`, and nothing changes, if it cannot be."""
        changes = changed_keys(old, new)
        is_running = self.lifecycle.state is AgentState.RUNNING
        if "sink" in changes and is_running:
            self._try_sinks(new)
        self._config = self._config.model_copy(update=changes)
        self._file_config = new
        if is_running:
            self._apply_live(changes)
        self.metrics.config_reloads.inc()
        _log.info("configuration applied", extra={"changed": sorted(changes)})

    def _apply_live(self, changes: dict[str, Any]) -> None:
        apply: dict[str, Callable[[Any], object]] = {
            "log_level": set_log_level,
            "router_scale": self._scale.scale_to,
            "router_buffer": self._dispatcher.resize,
            "sink": self._dispatcher.reconfigure,
            "max_traj_length": self.state.set_max_length,
            "batching": self.state.set_batching,
            "config_polling_s": self._set_polling,
        }
        for name, value in changes.items():
            if name in apply:
                apply[name](value)
            elif name not in LIVE_KEYS:
                _log.warning("this key applies when the agent starts again", extra={"key": name})

    def _try_sinks(self, config: ClientConfig) -> None:
        try:
            self._opener.open(config.sink).close()
        except RelayRLError as error:
            raise ConfigError(f"the new sinks cannot be opened: {error}") from error

    def _set_polling(self, interval_s: float) -> None:
        if self._watcher is not None:
            self._watcher.interval_s = interval_s

    def _watch(self) -> None:
        if self._path is not None:
            self._watcher = ConfigWatcher(self._path, self._file_config, self.apply, self._config.config_polling_s)
            self._watcher.start()

    def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()

    def _new_dispatcher(self) -> RouterDispatcher:
        observe = None if self._inference is None else self._inference.observe
        return RouterDispatcher(
            self._opener, self._config.sink, self._config.router_buffer, self.metrics, observe=observe
        )

    def _stop_inference(self) -> None:
        if self._inference is not None:
            self._inference.stop()

    def _follow_gauges(self) -> None:
        metrics, dispatcher = self.metrics, self._dispatcher
        metrics.actors.follow(lambda: len(self.state.handles))
        metrics.routers.follow(lambda: dispatcher.num_routers)
        metrics.buffered.follow(lambda: dispatcher.num_buffered)
        metrics.buffered_bytes.follow(lambda: dispatcher.num_buffered_bytes)


def _declare_alone(handle: ActorHandle, link: LearnerLink) -> None:
    """Nobody else plays where an actor has an environment of its own."""
    if handle.lane.clock is None and handle.named_agent_id is not None:
        link.acted_in(handle.lane.key, None, frozenset({handle.named_agent_id}))
