"""A cluster's engine without processes: the same collectors and the same joining, called one after the other."""

import pickle
from collections import deque
from collections.abc import Sequence

from relayrl.engines.cluster.cluster_collector import Fleet, PartResult
from relayrl.engines.cluster.cluster_parts import ClusterParts, build_cluster_parts
from relayrl.engines.cluster.part_collector import CollectCall, PartCollector, PartPlan, State
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.models.policy_arrays import Weights


class InProcess(Fleet):
    """Members take turns; `slow` ones answer every third time only."""

    def __init__(self, plans: Sequence[PartPlan], slow: frozenset[int] = frozenset()) -> None:
        super().__init__(len(plans))
        self._plans, self._slow, self._turn = plans, slow, 0
        self._queues: list[deque[tuple[CollectCall, Weights]]] = [deque() for _ in plans]
        self._weights: Weights = {}
        self._states: list[State | None] = [None for _ in plans]
        self.most_flights = 0

    def start(self) -> None:
        self.members = [PartCollector(plan) for plan in self._plans]

    def await_start(self) -> None:
        pass

    def publish(self, weights: Weights) -> None:
        self._weights = pickle.loads(pickle.dumps(weights))

    def send(self, part: int, call: CollectCall) -> None:
        self._queues[part].append((call, self._weights))
        self.most_flights = max(self.most_flights, len(self._queues[part]))

    def num_flights(self, part: int) -> int:
        return len(self._queues[part])

    def take_ready(self, timeout_s: float) -> list[PartResult]:
        self._turn += 1
        return [
            self._answer(part)
            for part, queue in enumerate(self._queues)
            if queue and (part not in self._slow or not self._turn % 3)
        ]

    def _answer(self, part: int) -> PartResult:
        call, weights = self._queues[part].popleft()
        rollouts, report, heavy = pickle.loads(pickle.dumps(self.members[part].collect(call, weights)))
        self._states[part] = report.state(heavy)
        return PartResult(part, call.version, rollouts, report.ended)

    def states(self) -> list[State]:
        return [state or self._first(part) for part, state in enumerate(self._states)]

    def _first(self, part: int) -> State:
        report, heavy = self.members[part].begin()
        return report.state(heavy)

    def go_on(self, states: Sequence[State], seed: int) -> bool:
        self._states = [dict(state) for state in states]
        goes_on = [member.go_on(dict(state), seed) for member, state in zip(self.members, states, strict=True)]
        return all(goes_on)

    def close(self) -> None:
        for member in self.members:
            member.close()


def build(settings: RunSettings) -> ClusterParts:
    """An engine to register."""
    return build_cluster_parts(settings, InProcess)
