"""`RelayRLAgent`: what a program with its own simulator talks to. Made by `AgentBuilder`; `aio` is its asyncio form.

    with AgentBuilder().actor_count(4).default_model("model.onnx").sink("arrow:runs/experience").build() as agent:
        ids = agent.get_actor_ids()
        record = agent.request_action(ids, obs)                    # obs [4, …]: one observation per actor
        record = agent.request_action(ids, obs, reward=rewards)    # rewards of the actions before
        agent.flag_last_action(ids, reward=rewards)                # the episodes have ended

Every method may be called from any thread. The work is done by `client_coordinator` and what it coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from relayrl.errors import ConfigError
from relayrl.observability.metrics import MetricRegistry
from relayrl.runtime.agents.client_config import ClientConfig
from relayrl.runtime.agents.client_coordinator import ClientCoordinator, ShutdownReport
from relayrl.runtime.agents.env_runner import EnvRunSummary
from relayrl.runtime.agents.lifecycle_manager import AgentState
from relayrl.runtime.agents.state_manager import Place
from relayrl.runtime.requests.action_record import ActionRecord
from relayrl.runtime.requests.action_service import ActionCall, EpisodeEnd
from relayrl.runtime.requests.policy_model import CPU, ModelSource
from relayrl.runtime.routing.learner_link import DEFAULT_MAX_POLICY_LAG, DEFAULT_QUEUE_SIZE, Learner

if TYPE_CHECKING:
    from relayrl.envs.environment_settings import EnvSettings
    from relayrl.runtime.agents.async_agent import AsyncRelayRLAgent


@dataclass(frozen=True, slots=True)
class AgentDefaults:
    """What new actors get when nobody says otherwise."""

    actor_count: int = 1
    device: str = CPU


class RelayRLAgent:
    """Many actors, their policies, and the way of their steps to sinks."""

    def __init__(self, coordinator: ClientCoordinator, defaults: AgentDefaults) -> None:
        self._coordinator, self._defaults = coordinator, defaults

    @cached_property
    def aio(self) -> AsyncRelayRLAgent:
        """The same agent for asyncio: every verb is a coroutine."""
        from relayrl.runtime.agents.async_agent import AsyncRelayRLAgent

        return AsyncRelayRLAgent(self, self._coordinator)

    @property
    def state(self) -> AgentState:
        """Whether the agent runs."""
        return self._coordinator.lifecycle.state

    @property
    def metrics(self) -> MetricRegistry:
        """The runtime's metrics, for an exporter."""
        return self._coordinator.metrics.registry

    def start(self) -> None:
        """Open sinks, start routers and, the first time, make `actor_count` actors."""
        self._coordinator.start(self._make_first_actors)

    def shutdown(self, deadline_s: float | None = None) -> ShutdownReport:
        """Stop taking calls and flush every sink within the deadline; the report says what could not be done.

        Episodes under way end here: their steps are recorded, with `truncated` and `failed` set.
        """
        return self._coordinator.shutdown(deadline_s)

    def restart(self, deadline_s: float | None = None) -> ShutdownReport:
        """Shut down and start again with the same actors and policies; gives the report of the shutdown."""
        with self._coordinator.lifecycle.transition:
            report = self.shutdown(deadline_s)
            self.start()
            return report

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def request_action(
        self, actor_ids: Sequence[UUID], obs: Any, mask: Any = None, reward: Any = None, *, step: int | None = None
    ) -> ActionRecord:
        """Actions of `actor_ids` [L] for `obs` [L, …], one observation each.

        `reward`, a number or [L], belongs to the **previous** action of each actor. `mask` [L, A] is True where an action
        is allowed. The step is recorded; the record says which version of the policy acted.

        Actors that share an environment (`new_actor(env_id=…)`) act at the same step of it. That is `step` where it is given,
        else the present one, or the next if one of them has acted at the present one. Actors of several policies may be in one
        request; where they observe different spaces, `obs` is a list with an observation for each actor.
        """
        return self._coordinator.service.request_action(actor_ids, obs, mask, reward, step)

    def request_actions(self, calls: Sequence[ActionCall]) -> list[ActionRecord | Exception]:
        """Several `request_action` calls at once, each with its record or its error; what shares a policy shares a pass."""
        return self._coordinator.service.request_actions(calls)

    def flag_last_action(
        self,
        actor_ids: Sequence[UUID],
        reward: Any = 0.0,
        *,
        terminated: Any = None,
        truncated: Any = False,
        final_obs: Any = None,
        final_mask: Any = None,
        step: int | None = None,
    ) -> None:
        """The episodes of `actor_ids` are over, and `reward` belongs to their last actions.

        They terminated unless `truncated` (a flag or [L]) says that they were cut off; then `final_obs` [L, …] is what the
        actors saw last, whose value is the bootstrap. Where both happened, give both flags. `final_mask` [L, A] is the action
        mask that came with `final_obs`; without it, everything counts as allowed then.

        Actors that share an environment ended on its `step`: the one at which it is, unless given. Its episode is over when
        every actor that acted in it has ended.
        """
        service = self._coordinator.service
        service.flag_last_action(actor_ids, EpisodeEnd(reward, terminated, truncated, final_obs, final_mask, step))

    def new_actor(
        self,
        actor_id: UUID | None = None,
        *,
        device: str | None = None,
        model: ModelSource | None = None,
        group: str | None = None,
        agent_id: str | None = None,
        env_id: UUID | None = None,
    ) -> UUID:
        """A new actor, with the default device and model unless given; gives its id.

        It acts for the agent `agent_id` (its own id, unless given) of the environment `env_id`. Actors with the same `env_id`
        share that environment: one count of episodes and steps, so that their trajectories can be put side by side. Without
        one, the actor has an environment of its own. Take a fresh UUID for every environment and run of the program.

        `group` names the group of agents whose policy a live `model` is; files say so themselves.
        """
        place = Place(agent_id, env_id)
        return self._coordinator.add_actors([actor_id], model, device or self._defaults.device, [place], group)[0]

    def new_actors(
        self,
        count: int,
        *,
        device: str | None = None,
        model: ModelSource | None = None,
        group: str | None = None,
        agent_ids: Sequence[str] | None = None,
        env_id: UUID | None = None,
    ) -> tuple[UUID, ...]:
        """`count` new actors, for `agent_ids` of the environment `env_id` where they are given; gives their ids."""
        if count < 1:
            raise ConfigError(f"new_actors({count}); give at least one")
        names: Sequence[str | None] = [None] * count if agent_ids is None else agent_ids
        if len(names) != count or len({name for name in names if name is not None}) < len(agent_ids or ()):
            raise ConfigError(f"new_actors({count}) with agent_ids {list(names)}; give {count} different ones")
        places = [Place(name, env_id) for name in names]
        return self._coordinator.add_actors([None] * count, model, device or self._defaults.device, places, group)

    def remove_actor(self, actor_id: UUID, timeout_s: float = 30.0) -> bool:
        """Take an actor out. Its open trajectory is recorded; True when everything of it is durable."""
        return self._coordinator.remove_actor(actor_id, timeout_s)

    def get_actor_ids(self) -> tuple[UUID, ...]:
        """The actors, oldest first."""
        return tuple(self._coordinator.state.handles)

    def set_actor_id(self, actor_id: UUID, new_id: UUID) -> None:
        """Rename an actor: requests, its open trajectory, policy, environment and route all go by the new id."""
        self._coordinator.state.rename(actor_id, new_id)

    def get_model_version(self, actor_ids: Sequence[UUID] | None = None) -> dict[UUID, int]:
        """The version of the policy that each actor's next action will come from."""
        handles = self._coordinator.state.handles
        wanted = handles if actor_ids is None else actor_ids
        return {actor_id: self._coordinator.state.handle(actor_id).slot.policy.version for actor_id in wanted}

    def update_model(
        self,
        model: ModelSource,
        actor_ids: Sequence[UUID] | None = None,
        *,
        version: int | None = None,
        group: str | None = None,
    ) -> int:
        """Publish a newer policy, to all actors that it fits or, with INDEPENDENT inference, to those named.

        Requests that begin after this returned act with it; those under way finish with the one they began with. Gives
        the version: the one given, else the file's own, else one more than the present. A live policy does not say whose it
        is: it goes to the actors of `group`, or to those of the only group that it fits.
        """
        published = self._coordinator.state.publish(model, actor_ids, version, group)
        self._coordinator.metrics.model_updates.inc()
        return published

    def train_with(
        self,
        trainer: Learner,
        *,
        max_policy_lag: int | None = DEFAULT_MAX_POLICY_LAG,
        queue_size: int = DEFAULT_QUEUE_SIZE,
    ) -> None:
        """Give every trajectory to `trainer`, one of `RelayRLTrainer`'s, and its new policies to the actors.

        It learns in the threads that ask for actions or, with `TrainerSettings(threaded=True)`, in a thread of its own, with
        at most `queue_size` trajectories waiting. Algorithms that learn from their own steps leave out steps whose policy is
        more than `max_policy_lag` versions old; None takes all.
        """
        self._coordinator.train_with(trainer, self._defaults.device, max_policy_lag, queue_size)

    def scale_throughput(self, change: int) -> int:
        """Add routers or, with a negative number, remove some; gives how many there are. At least one remains."""
        return self._coordinator.scale_by(change)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until every trajectory that has ended or was cut is durable; False if that took too long."""
        return self._coordinator.flush(timeout_s)

    def set_env(
        self,
        actor_id: UUID | Mapping[str, UUID],
        env: Any,
        count: int = 1,
        *,
        settings: EnvSettings | Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        """Give an actor `count` copies of `env` (a name as on the command line, or a factory) for `run_env`.

        `settings` are those of `environment`, such as `{"wrappers": ["atari"]}`.

        Where the environment has several groups of agents, give an actor for each, by the group's name: each acts with its own
        policy for all agents of its group.
        """
        from relayrl.config.settings import parse_settings
        from relayrl.envs.environment_settings import EnvSettings

        own = settings if isinstance(settings, EnvSettings) else parse_settings(EnvSettings, dict(settings or {}))
        chosen = own.model_copy(update={"num_envs": count})
        self._coordinator.set_env(actor_id, env, chosen, seed)

    def run_env(self, actor_id: UUID, num_steps: int) -> EnvRunSummary:
        """Step each of the actor's environments `num_steps` times and record every step, of all groups' agents."""
        return self._coordinator.run_env(actor_id, num_steps)

    def get_config(self) -> ClientConfig:
        """The configuration in force, changes at run time included."""
        return self._coordinator.config

    def set_config_path(self, path: str | Path) -> None:
        """Follow another configuration file; what it says differently applies now."""
        self._coordinator.set_config_path(Path(path))

    def check_config_now(self) -> bool:
        """Look at the configuration file now rather than at the next poll; gives whether a change was applied."""
        return self._coordinator.check_config_now()

    def _make_first_actors(self) -> None:
        missing = self._defaults.actor_count - len(self.get_actor_ids())
        if self._coordinator.lifecycle.state is AgentState.CREATED and missing > 0:
            self.new_actors(missing)
