"""From ids and observations to actions, and from ended episodes to trajectories on their way to a sink.

Invariants:

- One observation per actor; an actor occurs once in a request. A request that raises has recorded nothing.
- A request waits for room in its actors' buffers before anything happens, so that push-back never loses a step.
- Rows of one request that share a policy are one forward pass.

Not its job: who the actors are (`state_manager`), drawing actions (`published_policy`), carrying trajectories
(`router`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.steps.env_clock import EnvClock
from relayrl.data.steps.step_pages import Lane
from relayrl.data.steps.step_rows import checked_flags, checked_reward, checked_rewards
from relayrl.data.trees import Array, Tree, index, leaves, map_tree
from relayrl.errors import ConfigError, RelayRLError
from relayrl.runtime.agents.lifecycle_manager import LifecycleManager
from relayrl.runtime.agents.runtime_metrics import RuntimeMetrics
from relayrl.runtime.agents.state_manager import ActorHandle, PolicySlot, StateManager
from relayrl.runtime.requests.action_record import ActionRecord
from relayrl.runtime.requests.published_policy import ActionRequest, PublishedPolicy
from relayrl.runtime.routing.learner_link import LearnerLink
from relayrl.runtime.routing.router import RouterDispatcher
from relayrl.runtime.routing.trajectory_buffer import Priority

MAX_PLANS = 64


@dataclass(frozen=True, slots=True)
class ActionCall:
    """The arguments of one `request_action`."""

    actor_ids: Sequence[UUID]
    obs: Any
    mask: Any = None
    reward: Any = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """What `flag_last_action` is given of the episodes that are over; `reward` belongs to their last actions."""

    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    final_mask: Any = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RequestPart:
    """The rows [K] (None: all) of a call that one policy acts for."""

    rows: Array | None
    policy: PublishedPolicy
    request: ActionRequest


@dataclass(frozen=True, slots=True)
class DrawnCall:
    """A call whose actions were drawn and not recorded, or what was wrong with it."""

    call: ActionCall
    parts: list[RequestPart] | RelayRLError


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What is known of a tuple of ids until the table of actors changes."""

    actor_ids: tuple[UUID, ...]
    table: dict[UUID, ActorHandle]
    handles: tuple[ActorHandle, ...]
    lanes: tuple[Lane, ...]
    lane_keys: tuple[UUID, ...]
    slot: PolicySlot | None
    numbers: Array
    num_closed: int
    clocks: tuple[tuple[EnvClock, tuple[Lane, ...]], ...]
    """Environments that actors of the request share with others, and their lanes."""


class ActionService:
    """Serves `request_action` and `flag_last_action` for one run of the agent."""

    def __init__(
        self,
        state: StateManager,
        dispatcher: RouterDispatcher,
        lifecycle: LifecycleManager,
        metrics: RuntimeMetrics,
    ) -> None:
        self._state, self._dispatcher, self._lifecycle, self._metrics = state, dispatcher, lifecycle, metrics
        self._plans: dict[int, RequestPlan] = {}
        self.learner: LearnerLink | None = None
        """Learns before requests and after episodes, or makes them wait."""

    def request_action(
        self, actor_ids: Sequence[UUID], obs: Any, mask: Any, reward: Any, step: int | None = None
    ) -> ActionRecord:
        """Actions of the actors for one observation each; `reward` belongs to their previous actions."""
        start_s = time.perf_counter()
        self._lifecycle.enter()
        metrics = self._metrics
        try:
            if self.learner is not None:
                self.learner.before_request(self._lifecycle.require_running)
            if len(actor_ids) == 1:
                record = self._act_alone(actor_ids[0], obs, mask, reward, step)
            else:
                record = self._act(self._plan(actor_ids), obs, mask, reward, step)
        except BaseException:
            metrics.request_failures.inc()
            raise
        finally:
            self._lifecycle.leave()
        metrics.requests.inc()
        metrics.actions.inc(len(record.actor_ids))
        metrics.request_seconds.observe(time.perf_counter() - start_s)
        return record

    def flag_last_action(self, actor_ids: Sequence[UUID], end: EpisodeEnd) -> None:
        """The episodes of the actors are over."""
        self._lifecycle.enter()
        try:
            plan = self._plan(actor_ids)
            self._wait_for_room(plan.lane_keys)
            if self.learner is not None:
                self.learner.before_request(self._lifecycle.require_running)
            self._end(plan, end)
            if self.learner is not None:
                self.learner.learn_here()
        finally:
            self._lifecycle.leave()

    def end_episodes(self, actor_ids: Sequence[UUID], end: EpisodeEnd) -> None:
        """The same, without waiting for room."""
        self._lifecycle.enter()
        try:
            self._end(self._plan(actor_ids), end)
        finally:
            self._lifecycle.leave()

    def is_pressed(self) -> bool:
        """Whether `wait_for_room` may have to wait."""
        return self._dispatcher.is_pressed() or (self.learner is not None and self.learner.is_pressed())

    def wait_for_room(self, actor_ids: Sequence[UUID]) -> None:
        """Wait until the buffers of all these actors have room."""
        self._lifecycle.enter()
        try:
            self._wait_for_room(self._plan(actor_ids).lane_keys)
            if self.learner is not None:
                self.learner.before_request(self._lifecycle.require_running)
        finally:
            self._lifecycle.leave()

    def route(self, cut: Sequence[tuple[UUID, Trajectory]]) -> None:
        """Hand over fragments that were cut because of their length."""
        for lane_key, trajectory in cut:
            self._dispatcher.put(lane_key, trajectory, Priority.FRAGMENT)

    def _act_alone(self, actor_id: UUID, obs: Any, mask: Any, reward: Any, step: int | None) -> ActionRecord:
        handle = self._state.handles.get(actor_id) or self._state.handle(actor_id)  # which says that there is none
        if self._dispatcher.is_pressed():
            self._wait_for_room((handle.lane.key,))
        lane = handle.lane
        if lane.clock is not None or step is not None:
            _stamp(() if lane.clock is None else ((lane.clock, (lane,)),), step)
        policy = handle.slot.policy
        layout = policy.model.layout
        record, cut = policy.act_alone(
            (actor_id,),
            lane,
            layout.observations(obs, 1),
            None if mask is None and not layout.needs_mask else layout.mask(mask, 1, lambda _: _who(handle)),
            None if reward is None else checked_reward(reward),
        )
        if cut:
            self.route(cut)
        return record

    def request_actions(self, calls: Sequence[ActionCall]) -> list[ActionRecord | Exception]:
        """Several calls at once: those with one policy share a forward pass. Each gives its record or its error.

        Actors that share an environment act at the same step, in whichever of the calls they are.
        """
        self._lifecycle.enter()
        try:
            drawn = self._drawn(calls)
            together: dict[EnvClock, list[Lane]] = {}
            for each in drawn:
                for part in each.parts if isinstance(each.parts, list) and each.call.step is None else ():
                    for lane in part.request.lanes:
                        if lane.clock is not None:
                            together.setdefault(lane.clock, []).append(lane)
            for clock, lanes in together.items():
                clock.stamp(lanes, None)
            return [self._outcome(each) for each in drawn]
        finally:
            self._lifecycle.leave()

    def draw_actions(self, calls: Sequence[ActionCall]) -> list[DrawnCall]:
        """The actions of several calls, of which nothing is recorded before `record_action`."""
        self._lifecycle.enter()
        try:
            return self._drawn(calls)
        finally:
            self._lifecycle.leave()

    def record_action(self, drawn: DrawnCall) -> ActionRecord:
        """Record the step of a call that was drawn; waits neither for a policy nor for room."""
        self._lifecycle.enter()
        try:
            outcome = self._outcome(drawn)
        finally:
            self._lifecycle.leave()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _drawn(self, calls: Sequence[ActionCall]) -> list[DrawnCall]:
        start_s = time.perf_counter()
        if self.learner is not None:
            self.learner.before_request(self._lifecycle.require_running)
        drawn = [DrawnCall(call, self._prepared(call)) for call in calls]
        asked: dict[PublishedPolicy, list[ActionRequest]] = {}
        for each in drawn:
            for part in each.parts if isinstance(each.parts, list) else ():
                part.request.is_deferred = True
                asked.setdefault(part.policy, []).append(part.request)
        for policy, requests in asked.items():
            policy.act_for(requests)
        self._metrics.request_seconds.observe(time.perf_counter() - start_s)
        return drawn

    def _outcome(self, drawn: DrawnCall) -> ActionRecord | Exception:
        try:
            if isinstance(drawn.parts, RelayRLError):
                raise drawn.parts
            if all(part.request.error is None for part in drawn.parts):
                for part in drawn.parts:
                    part.policy.record_drawn(part.request)
            record = self._finished(tuple(drawn.call.actor_ids), drawn.parts)
        except RelayRLError as error:
            self._metrics.request_failures.inc()
            return error
        self._metrics.requests.inc()
        self._metrics.actions.inc(len(record.actor_ids))
        return record

    def _prepared(self, call: ActionCall) -> list[RequestPart] | RelayRLError:
        try:
            return self._parts(self._plan(call.actor_ids), call.obs, call.mask, call.reward, call.step)
        except RelayRLError as error:
            return error

    def _act(self, plan: RequestPlan, obs: Any, mask: Any, reward: Any, step: int | None) -> ActionRecord:
        parts = self._parts(plan, obs, mask, reward, step)
        for part in parts:
            part.policy.act_for((part.request,))
        return self._finished(plan.actor_ids, parts)

    def _parts(self, plan: RequestPlan, obs: Any, mask: Any, reward: Any, step: int | None) -> list[RequestPart]:
        """What each policy is asked; waits for room first."""
        if self._dispatcher.is_pressed():
            self._wait_for_room(plan.lane_keys)
        if plan.clocks or step is not None:
            _stamp(plan.clocks, step)
        L = len(plan.handles)
        rewards = None if reward is None else checked_rewards(reward, L)
        policies = _by_policy(plan.handles) if plan.slot is None else [(None, plan.slot.policy)]
        parts = []
        for rows, policy in policies:
            layout = policy.model.layout
            if rows is None:
                seen, allowed = layout.observations(obs, L), layout.mask(mask, L, lambda i: _who(plan.handles[i]))
                request = ActionRequest(
                    plan.actor_ids, plan.lanes, plan.numbers, plan.num_closed, seen, allowed, rewards
                )
            else:
                whose = [plan.handles[i] for i in rows]
                request = ActionRequest(
                    tuple(plan.actor_ids[i] for i in rows),
                    tuple(plan.lanes[i] for i in rows),
                    plan.numbers[rows],
                    -1,
                    layout.observations(_rows_of_all(obs, rows, L), len(rows)),
                    layout.mask(_rows_of_all(mask, rows, L), len(rows), lambda i, whose=whose: _who(whose[i])),  # type: ignore[misc]
                    None if rewards is None else rewards[rows],
                )
            parts.append(RequestPart(rows, policy, request))
        return parts

    def _finished(self, actor_ids: tuple[UUID, ...], parts: list[RequestPart]) -> ActionRecord:
        """The record of a call whose parts were served; its first error otherwise."""
        records = []
        for part in parts:
            self.route(part.request.cut)
            records.append(part.request.record)
        for part in parts:
            if part.request.error is not None:
                raise part.request.error
        whole = [(part.rows, record) for part, record in zip(parts, records, strict=True) if record is not None]
        if len(whole) == 1:
            return whole[0][1]
        return ActionRecord.merged(actor_ids, [(rows, record) for rows, record in whole if rows is not None])

    def _end(self, plan: RequestPlan, end: EpisodeEnd) -> None:
        L, final_obs, final_mask = len(plan.handles), end.final_obs, end.final_mask
        rewards = np.zeros(L, np.float32) if end.reward is None else checked_rewards(end.reward, L)
        cut_off = checked_flags("truncated", end.truncated, L)
        over = ~cut_off if end.terminated is None else checked_flags("terminated", end.terminated, L)
        if not (over | cut_off).all():
            raise ConfigError("flag_last_action() needs terminated or truncated for every actor it names")
        if final_obs is None and (cut_off & ~over).any():
            raise ConfigError(
                "a truncated episode needs final_obs, what the actor saw last: its value is the bootstrap of the last step"
            )
        final: list[Tree | None] = [None] * L
        masks: list[Array | None] = [None] * L
        for i, handle in enumerate(plan.handles):
            if final_obs is not None:
                final[i] = index(handle.pages.layout.observations(_rows_of_all(final_obs, [i], L), 1), 0)
            if final_mask is not None and (allowed := _rows_of_all(final_mask, [i], L)) is not None:
                masks[i] = handle.pages.layout.mask_array(allowed, 1)[0]
            handle.pages.require_steps(handle.lane)
        if end.step is not None:
            _require_clocks(plan.clocks)
            for clock, _ in plan.clocks:
                clock.move_to(end.step)
        for i, handle in enumerate(plan.handles):
            flags = bool(over[i]), bool(cut_off[i])
            ended = handle.pages.end(handle.lane, float(rewards[i]), *flags, final[i], masks[i])
            self._dispatcher.put(handle.lane.key, ended, Priority.EPISODE)

    def _wait_for_room(self, lane_keys: Sequence[UUID]) -> None:
        if all(self._dispatcher.has_room(key) for key in lane_keys):
            return
        self._metrics.push_backs.inc()
        self._dispatcher.wait_for_room(lane_keys, self._lifecycle.require_running)

    def _plan(self, actor_ids: Sequence[UUID]) -> RequestPlan:
        table = self._state.handles
        plan = self._plans.get(id(actor_ids))
        if plan is not None and plan.actor_ids is actor_ids and plan.table is table:
            return plan
        plan = _make_plan(actor_ids, table, self._state)
        if isinstance(actor_ids, tuple):  # a tuple cannot change, so that the plan holds until the table does
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[id(actor_ids)] = plan
        return plan


def _rows_of_all(given: Any, rows: Sequence[int] | Array, num_rows: int) -> Any:
    """Some rows of what is given for `num_rows` actors: arrays, or a list with what each of them sees or may do.

    None for actors that are given nothing, where all of `rows` are.
    """
    if given is None:
        return None
    if isinstance(given, list):
        if len(given) != num_rows:
            raise ConfigError(f"a list of {len(given)} for {num_rows} actors; give one observation, or mask, per actor")
        own = [given[i] for i in rows]
        if all(each is None for each in own):
            return None
        return map_tree(lambda *leaf: np.stack([np.asarray(each) for each in leaf]), *own)
    for _, leaf in leaves(given):
        if np.ndim(leaf) == 0 or len(leaf) != num_rows:
            raise ConfigError(f"rows of shape {np.shape(leaf)} for {num_rows} actors: one observation per actor")
    return map_tree(lambda leaf: np.asarray(leaf)[rows], given)


def _stamp(clocks: Sequence[tuple[EnvClock, Sequence[Lane]]], step: int | None) -> None:
    """The lanes of a request are about to act, at the same step of their environment."""
    if step is not None:
        _require_clocks(clocks)
    for clock, lanes in clocks:
        clock.stamp(lanes, step)


def _require_clocks(clocks: Sequence[object]) -> None:
    if not clocks:
        raise ConfigError("step= is for actors that share an environment; make them with new_actor(env_id=…)")


def _who(handle: ActorHandle) -> str:
    lane = handle.lane
    step = lane.first_step + handle.pages.num_open_steps(lane)
    return f"actor {handle.actor_id} at step {step} of its episode"


def _by_policy(handles: Sequence[ActorHandle]) -> list[tuple[Array | None, PublishedPolicy]]:
    """Policies with the rows that they act for; None where one acts for all."""
    rows_of: dict[PublishedPolicy, list[int]] = {}
    for i, handle in enumerate(handles):
        rows_of.setdefault(handle.slot.policy, []).append(i)
    if len(rows_of) == 1:
        return [(None, policy) for policy in rows_of]
    return [(np.array(rows), policy) for policy, rows in rows_of.items()]


def _make_plan(actor_ids: Sequence[UUID], table: dict[UUID, ActorHandle], state: StateManager) -> RequestPlan:
    if not actor_ids:
        raise ConfigError("a request names at least one actor")
    handles = tuple(state.handle(actor_id) for actor_id in actor_ids)
    if len(set(handles)) != len(handles):
        raise ConfigError("an actor occurs twice in one request; one observation per actor")
    pages, slot = handles[0].pages, handles[0].slot
    clocks: dict[EnvClock, list[Lane]] = {}
    for handle in handles:
        if handle.lane.clock is not None:
            clocks.setdefault(handle.lane.clock, []).append(handle.lane)
    with pages.lock:
        num_closed = pages.num_closed
        is_open = all(handle.pages is not pages or pages.is_open(handle.lane) for handle in handles)
    return RequestPlan(
        actor_ids=actor_ids if isinstance(actor_ids, tuple) else tuple(actor_ids),
        table=table,
        handles=handles,
        lanes=tuple(handle.lane for handle in handles),
        lane_keys=tuple(handle.lane.key for handle in handles),
        slot=slot if all(handle.slot is slot for handle in handles) else None,
        numbers=np.array([handle.lane.number for handle in handles]),
        num_closed=num_closed if is_open and all(handle.pages is pages for handle in handles) else -1,
        clocks=tuple((clock, tuple(lanes)) for clock, lanes in clocks.items()),
    )
