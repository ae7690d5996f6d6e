"""`AsyncRelayRLAgent`: the agent's verbs as coroutines, for simulators that run in an event loop.

    record = await agent.aio.request_action([actor_id], obs)

Requests that tasks make before the loop comes round again share one hand-over to a thread and, where they share a policy, one
forward pass. The loop itself never waits: not for a forward pass, not for room in a buffer, not for a sink.

A thread draws actions and waits for room; the step, or the episode's end, is recorded by the coroutine itself, in the same turn
of the loop in which it returns. So a `request_action` or `flag_last_action` that was cancelled, whenever that was, has recorded
nothing: the actor may be asked again with the same reward. One that returned has recorded its step.

Threads are those of the loop's own executor; nothing is left behind when the loop ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from relayrl.runtime.agents.client_config import ClientConfig
from relayrl.runtime.agents.client_coordinator import ClientCoordinator, ShutdownReport
from relayrl.runtime.agents.env_runner import EnvRunSummary
from relayrl.runtime.requests.action_record import ActionRecord
from relayrl.runtime.requests.action_service import ActionCall, DrawnCall, EpisodeEnd
from relayrl.runtime.requests.policy_model import ModelSource

if TYPE_CHECKING:
    from relayrl.envs.environment_settings import EnvSettings
    from relayrl.runtime.agents.agent import RelayRLAgent

_Waiting = tuple[ActionCall, "asyncio.Future[DrawnCall]"]


class AsyncRelayRLAgent:
    """A view of a `RelayRLAgent`; both may be used at once. Every verb means what it means there."""

    def __init__(self, agent: RelayRLAgent, coordinator: ClientCoordinator) -> None:
        self._agent, self._coordinator = agent, coordinator
        self._waiting: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def start(self) -> None:
        await asyncio.to_thread(self._agent.start)

    async def shutdown(self, deadline_s: float | None = None) -> ShutdownReport:
        return await asyncio.to_thread(self._agent.shutdown, deadline_s)

    async def restart(self, deadline_s: float | None = None) -> ShutdownReport:
        return await asyncio.to_thread(self._agent.restart, deadline_s)

    async def request_action(
        self, actor_ids: Sequence[UUID], obs: Any, mask: Any = None, reward: Any = None, *, step: int | None = None
    ) -> ActionRecord:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[DrawnCall] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        if not waiting:
            loop.call_soon(self._serve, loop)
        waiting.append((ActionCall(actor_ids, obs, mask, reward, step), future))
        drawn = await future
        return self._coordinator.service.record_action(drawn)  # no await after it: who is not cancelled by now returns

    async def flag_last_action(
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
        service = self._coordinator.service
        if service.is_pressed():
            await asyncio.to_thread(service.wait_for_room, actor_ids)
        # No await after it, as above.
        service.end_episodes(actor_ids, EpisodeEnd(reward, terminated, truncated, final_obs, final_mask, step))

    async def new_actor(
        self,
        actor_id: UUID | None = None,
        *,
        device: str | None = None,
        model: ModelSource | None = None,
        group: str | None = None,
        agent_id: str | None = None,
        env_id: UUID | None = None,
    ) -> UUID:
        given: dict[str, Any] = {
            "device": device,
            "model": model,
            "group": group,
            "agent_id": agent_id,
            "env_id": env_id,
        }
        return await asyncio.to_thread(partial(self._agent.new_actor, actor_id, **given))

    async def new_actors(
        self,
        count: int,
        *,
        device: str | None = None,
        model: ModelSource | None = None,
        group: str | None = None,
        agent_ids: Sequence[str] | None = None,
        env_id: UUID | None = None,
    ) -> tuple[UUID, ...]:
        given: dict[str, Any] = {
            "device": device,
            "model": model,
            "group": group,
            "agent_ids": agent_ids,
            "env_id": env_id,
        }
        return await asyncio.to_thread(partial(self._agent.new_actors, count, **given))

    async def remove_actor(self, actor_id: UUID, timeout_s: float = 30.0) -> bool:
        return await asyncio.to_thread(self._agent.remove_actor, actor_id, timeout_s)

    async def update_model(
        self,
        model: ModelSource,
        actor_ids: Sequence[UUID] | None = None,
        *,
        version: int | None = None,
        group: str | None = None,
    ) -> int:
        return await asyncio.to_thread(self._agent.update_model, model, actor_ids, version=version, group=group)

    async def scale_throughput(self, change: int) -> int:
        return await asyncio.to_thread(self._agent.scale_throughput, change)

    async def flush(self, timeout_s: float = 30.0) -> bool:
        return await asyncio.to_thread(self._agent.flush, timeout_s)

    async def set_env(
        self,
        actor_id: UUID | Mapping[str, UUID],
        env: Any,
        count: int = 1,
        *,
        settings: EnvSettings | Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        await asyncio.to_thread(self._agent.set_env, actor_id, env, count, settings=settings, seed=seed)

    async def run_env(self, actor_id: UUID, num_steps: int) -> EnvRunSummary:
        return await asyncio.to_thread(self._agent.run_env, actor_id, num_steps)

    async def set_config_path(self, path: str | Path) -> None:
        await asyncio.to_thread(self._agent.set_config_path, path)

    async def set_actor_id(self, actor_id: UUID, new_id: UUID) -> None:
        self._agent.set_actor_id(actor_id, new_id)

    async def get_actor_ids(self) -> tuple[UUID, ...]:
        return self._agent.get_actor_ids()

    async def get_model_version(self, actor_ids: Sequence[UUID] | None = None) -> dict[UUID, int]:
        return self._agent.get_model_version(actor_ids)

    async def get_config(self) -> ClientConfig:
        return self._agent.get_config()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = [each for each in self._waiting.pop(loop) if not each[1].done()]  # others were cancelled
        if waiting:
            calls = [call for call, _ in waiting]
            done = loop.run_in_executor(None, self._coordinator.service.draw_actions, calls)
            done.add_done_callback(lambda finished: _deliver(waiting, finished))


def _deliver(waiting: list[_Waiting], finished: asyncio.Future[list[DrawnCall]]) -> None:
    failure = finished.exception()
    for i, (_, future) in enumerate(waiting):
        if future.done():  # its task was cancelled
            continue
        if failure is None:
            future.set_result(finished.result()[i])
        else:
            future.set_exception(failure)
