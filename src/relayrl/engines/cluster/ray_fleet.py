"""Collectors as Ray actors: started, called, lost and replaced.

Every call gives three objects: the columns of a rollout, which are read where the object store has them, the episodes that
ended, and the collector's state behind it, which stays where it is until somebody needs it: a checkpoint, or the replacement of
a collector that was lost. The replacement goes on from there, and takes the lost rollout again with the same weights and the
same draws. Where the state was lost as well, or the environment has none, its environments begin new episodes.

An environment that raises ends the run as it does locally. A process or node that is lost does not, until that happens more
often than `max_replacements_per_minute`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relayrl.compiled.loader import set_num_threads
from relayrl.compiled.usable_cores import num_cores
from relayrl.engines.cluster.cluster_collector import LOOK_S, Fleet, PartResult
from relayrl.engines.cluster.part_collector import (
    HEAVY,
    CollectCall,
    PartCollector,
    PartPlan,
    PartReport,
    State,
)
from relayrl.engines.cluster.ray_placement import PlacedParts, collector_need
from relayrl.engines.cluster.ray_runtime import RayRuntime, import_ray
from relayrl.engines.settings.cluster_settings import ReplayPlace
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import env_seeds
from relayrl.envs.failures import RestartBudget
from relayrl.errors import ConfigError, EnvironmentFailedError, RelayRLError
from relayrl.models.policy_arrays import Weights
from relayrl.runtime.collector import EndedEpisodes
from relayrl.training.trainers.seeding import Stream, stream_seed

_log = logging.getLogger("relayrl.engines.cluster")
_CLOSE_GRACE_S = 2.0


class CollectorProcess:
    """What runs in a Ray actor. Errors of ours are answers, so that they arrive as they are."""

    def __init__(self) -> None:
        self._collector: PartCollector | None = None
        self._error: RelayRLError | None = None

    def start(self, plan: PartPlan, state: State | None, seed: int) -> bool | RelayRLError:
        """Build the environments, and continue from `state` where there is one; gives whether episodes go on."""
        cpus = int(plan.settings.cluster.placement.collector_cpus)
        set_num_threads(max(1, min(cpus, num_cores())))
        try:
            self._collector = PartCollector(plan)
        except RelayRLError as error:
            self._error = error
            return error
        return True if state is None else self.go_on(state, seed)

    def go_on(self, state: State, seed: int) -> bool | RelayRLError:
        """Continue from `state`; gives whether episodes go on."""
        if self._collector is None or self._error is not None:
            return self._error or False
        try:
            return self._collector.go_on(state, seed)
        except RelayRLError as error:
            self._error = error
            return error

    def collect(self, call: CollectCall, weights: Weights) -> tuple[Any, Any, Any]:
        """Columns, ended episodes, and the state behind them; or an error three times."""
        if self._collector is None or self._error is not None:
            return self._error, self._error, self._error
        try:
            return self._collector.collect(_with_players(call, self._collector.players), weights)
        except RelayRLError as error:
            self._error = error
            return error, error, error

    def begin(self) -> tuple[Any, Any]:
        """The state before the first rollout, in two parts; or an error twice."""
        return (self._error, self._error) if self._collector is None else self._collector.begin()

    def close(self) -> None:
        """Close the environments."""
        if self._collector is not None:
            self._collector.close()


@dataclass(slots=True)
class _Flight:
    """A call on its way."""

    call: CollectCall
    weights: Any
    columns: Any
    report: Any
    heavy: Any
    since_s: float


@dataclass(slots=True)
class _Member:
    """One collector: its process, what it was asked for, and from where another one would go on."""

    number: int
    plan: PartPlan
    actor: Any = None
    started: Any = None
    """The answer to `start`; None when it is known."""
    started_s: float = 0.0
    report: PartReport | None = None
    """Of the last rollout that was taken; None: there was none, and it would begin as the run did."""
    heavy: Any = None
    """The heavy part of the state behind it: a value, or Ray's reference to it."""
    flights: deque[_Flight] = field(default_factory=deque)


class RayFleet(Fleet):
    """Collectors on a Ray cluster."""

    def __init__(self, runtime: RayRuntime, settings: RunSettings, plans: Sequence[PartPlan]) -> None:
        super().__init__(len(plans))
        self._ray, self._settings = runtime.ray, settings
        self._members = [_Member(number, plan) for number, plan in enumerate(plans)]
        self._budget = RestartBudget(settings.cluster.max_replacements_per_minute)
        self._weights: Any = None
        self._players: dict[int, Any] = {}
        """Ray's references to the frozen players of self-play; each is put once, however many rollouts it plays in."""
        self._seed = stream_seed(settings.seed, Stream.ENVIRONMENT)
        placement = settings.cluster.placement
        self._places = PlacedParts(self._ray, collector_need(placement), len(plans), placement.strategy)
        self._kind = self._ray.remote(CollectorProcess)
        self.num_replaced = 0

    def publish(self, weights: Weights) -> None:
        self._weights = self._ray.put(weights)

    def go_on(self, states: Sequence[State], seed: int) -> bool:
        self._seed = seed
        for member, state in zip(self._members, states, strict=True):
            heavy = {name: state[name] for name in HEAVY}
            numbers = {name: own for name, own in state.items() if name not in HEAVY}
            member.report, member.heavy = PartReport(EndedEpisodes(), numbers), heavy
            if member.actor is None:
                self._start(member)
            else:
                member.started, member.started_s = member.actor.go_on.remote(dict(state), seed), time.monotonic()
        goes_on = [self._await_start(member) for member in self._members]
        return all(goes_on)

    def start(self) -> None:
        for member in self._members:
            self._start(member)

    def await_start(self) -> None:
        for member in self._members:
            if member.started is not None:
                self._await_start(member)

    def _start(self, member: _Member) -> None:
        """Have a process for it; it begins when the cluster has room."""
        runtime_env = dict(self._settings.cluster.runtime_env) or None
        options = self._places.options(member.number)
        member.actor = self._kind.options(**options, runtime_env=runtime_env).remote()
        state = None if member.report is None else member.report.state(member.heavy)
        member.started = member.actor.start.remote(member.plan, state, self._seed)
        member.started_s = time.monotonic()

    def _await_start(self, member: _Member) -> bool:
        """Whether its episodes go on; raises what keeps it from starting."""
        while True:
            try:
                if self._ray.wait([member.started], timeout=LOOK_S)[0]:
                    return self._note_start(member)
            except self._lost_kinds() as error:
                self._replace(member, error)
            if time.monotonic() > member.started_s + self._settings.environment.start_timeout_s:
                raise self._late(member)

    def _note_start(self, member: _Member) -> bool:
        try:
            answer = self._ray.get(member.started)
        except self._ray.exceptions.RaySystemError as error:  # what it is built from could not be unpickled there
            missing = re.search(r"No module named '[^']+'", str(error))
            if missing is None:
                raise
            raise ConfigError(
                f"collectors cannot begin: {missing[0]} on their nodes; install it there, or send it along with "
                "cluster.runtime_env"
            ) from error
        if isinstance(answer, RelayRLError):
            raise answer
        member.started = None
        return bool(answer)

    def _note_late(self, member: _Member) -> None:
        """Where others go on at their own pace, the run does not end because there is no room for one of them."""
        late = self._late(member)
        others = (each for each in self._members if each is not member)
        if not (self._settings.cluster.asynchronous and any(each.started is None for each in others)):
            raise late
        _log.warning("the run goes on without it meanwhile: %s", late)
        member.started_s = time.monotonic()

    def _late(self, member: _Member) -> RelayRLError:
        timeout_s, plan = self._settings.environment.start_timeout_s, member.plan
        return ConfigError(
            f"the collector of environments {plan.first} to {plan.last - 1} has not begun within {timeout_s:g} s; "
            f"{self._places.describe()}: lower --workers or cluster.placement, or raise environment.start_timeout_s"
        )

    def send(self, part: int, call: CollectCall) -> None:
        self._send(self._members[part], self._with_references(call), self._weights)

    def _with_references(self, call: CollectCall) -> CollectCall:
        """The call with players by reference; those of earlier calls that play no more are let go."""
        if call.table is None:
            return call
        players = call.table.players
        self._players = {
            number: self._players[number] if number in self._players else self._ray.put(players[number])
            for number in players
        }
        return replace(call, table=replace(call.table, players=dict(self._players)))

    def _send(self, member: _Member, call: CollectCall, weights: Any) -> None:
        columns, report, heavy = member.actor.collect.options(num_returns=3).remote(call, weights)
        member.flights.append(_Flight(call, weights, columns, report, heavy, time.monotonic()))

    def num_flights(self, part: int) -> int:
        return len(self._members[part].flights)

    def take_ready(self, timeout_s: float) -> list[PartResult]:
        waiting = {member.flights[0].columns: part for part, member in enumerate(self._members) if member.flights}
        if not waiting:
            return []
        ready = self._ray.wait(list(waiting), num_returns=1, timeout=timeout_s)[0]
        if ready and len(waiting) > 1:
            ready = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)[0]
        parts = sorted(waiting[reference] for reference in ready)
        taken = [result for part in parts if (result := self._take(part)) is not None]
        for part in set(waiting.values()) - set(parts):
            self._check_deadline(self._members[part])
        return taken

    def _take(self, part: int) -> PartResult | None:
        member = self._members[part]
        try:
            if member.started is not None and not self._note_start(member):
                self._note_break(part)
            flight = member.flights[0]
            columns, report = self._ray.get([flight.columns, flight.report])
        except self._lost_kinds() as error:
            self._replace(member, error)
            return None
        if isinstance(columns, RelayRLError):
            raise columns
        member.flights.popleft()
        member.report, member.heavy = report, flight.heavy
        return PartResult(part, flight.call.version, columns, report.ended)

    def _note_break(self, part: int) -> None:
        plan = self._members[part].plan
        _log.warning(
            "environments %d to %d begin new episodes: their collector was lost with their state",
            plan.first,
            plan.last - 1,
        )
        self.on_break(part)

    def _check_deadline(self, member: _Member) -> None:
        cluster, now = self._settings.cluster, time.monotonic()
        if member.started is not None and not self._ray.wait([member.started], timeout=0)[0]:
            if now > member.started_s + self._settings.environment.start_timeout_s:
                self._note_late(member)
            return
        began_s = max(member.flights[0].since_s, member.started_s)
        if now > began_s + cluster.rollout_timeout_s:
            self._replace(member, TimeoutError(f"no rollout within {cluster.rollout_timeout_s:g} s"))

    def _lost_kinds(self) -> tuple[type[BaseException], ...]:
        kinds = self._ray.exceptions
        return (kinds.RayActorError, kinds.ObjectLostError, kinds.WorkerCrashedError, kinds.NodeDiedError)

    def _replace(self, member: _Member, error: BaseException) -> None:
        """Begin again where the last rollout that was taken ended, and ask for what was on its way."""
        plan, reason = member.plan, _reason(error)
        if not self._budget.spend():
            raise EnvironmentFailedError(
                f"the collector of environments {plan.first} to {plan.last - 1} was lost, and "
                f"{self._settings.cluster.max_replacements_per_minute} replacements in the last minute are the limit: {reason}",
                env_id=plan.env_ids[plan.first],
                seed=env_seeds(self._seed, plan.first + 1)[plan.first],
                step=0,
            )
        _log.warning("the collector of environments %d to %d is replaced: %s", plan.first, plan.last - 1, reason)
        if self._settings.cluster.replay is ReplayPlace.SHARDED:
            _log.warning("its shard of the replay is lost, and begins empty")
        self.num_replaced += 1
        flights = list(member.flights)
        self._end(member)
        member.heavy = self._rescued(member.heavy)
        if flights:
            self._seed = stream_seed(self._settings.seed, Stream.ENVIRONMENT, flights[0].call.num_env_steps)
        self._start(member)
        for flight in flights:
            self._send(member, flight.call, flight.weights)

    def _rescued(self, heavy: Any) -> Any:
        """A state that can still be had, or none."""
        if not isinstance(heavy, self._ray.ObjectRef):
            return heavy
        try:
            return self._ray.get(heavy, timeout=_CLOSE_GRACE_S)
        except (*self._lost_kinds(), self._ray.exceptions.GetTimeoutError):
            return None

    def states(self) -> list[State]:
        return [self._state(member) for member in self._members]

    def _state(self, member: _Member) -> State:
        if member.report is None:
            report, heavy = self._ray.get(list(member.actor.begin.options(num_returns=2).remote()))
            member.report, member.heavy = report, heavy
        else:
            member.heavy = self._rescued(member.heavy)
        return member.report.state(member.heavy)

    def _end(self, member: _Member) -> None:
        if member.actor is not None:
            with contextlib.suppress(Exception):  # it may be gone already
                self._ray.kill(member.actor)
        member.actor, member.started = None, None
        member.flights.clear()

    def close(self) -> None:
        asked = []
        for member in self._members:
            if member.actor is not None and member.started is None:
                with contextlib.suppress(Exception):  # Ray itself may be gone
                    asked.append(member.actor.close.remote())
        if asked:
            with contextlib.suppress(Exception):
                self._ray.wait(asked, num_returns=len(asked), timeout=_CLOSE_GRACE_S)
        for member in self._members:
            self._end(member)
        with contextlib.suppress(Exception):
            self._places.close()


def _with_players(call: CollectCall, known: frozenset[int]) -> CollectCall:
    """The call with the weights of players that a collector does not know yet, read where the object store has them."""
    if call.table is None:
        return call
    players = {number: None if number in known else import_ray().get(own) for number, own in call.table.players.items()}
    return replace(call, table=replace(call.table, players=players))


def _reason(error: BaseException) -> str:
    """Why a collector was lost, in a line; Ray's numbers of actors and workers before it help nobody."""
    text = " ".join(str(error).split())
    for beginning in ("The actor is dead because", "The actor died because"):
        if beginning in text:
            text = text[text.index(beginning) :]
    return text[:400]
