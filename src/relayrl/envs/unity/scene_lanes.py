"""Which lane of which area each agent of a Unity scene has.

In Unity an agent's episode is its own: it ends, and the same object goes on at once as an agent with a new id. A scene often
holds many copies of one task. So RelayRL takes a scene for several environments, its *areas*, each with its own episodes:

- agents of one group (`SimpleMultiAgentGroup`) belong together, an agent without a group stands alone: both are *units*;
- units are dealt out evenly: there are as many areas as the numbers of units of all behaviours have as their greatest
  common divisor. Twelve agents are twelve areas of one agent, eight groups of either team eight areas of two groups;
- a unit keeps its place until its last agent has ended; a new unit gets the place that has been free for longest.

An area's episode is over when its last agent has ended. An agent that comes back while others of its area go on takes a lane
that nobody has had in this episode, or else the area's episode is cut: the others are truncated, and all go on in a new one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from relayrl.errors import ConfigError, EnvError


class Lane(NamedTuple):
    """Agent `n` of a behaviour in an area."""

    area: int
    n: int


@dataclass(frozen=True, slots=True)
class LanePlan:
    """Lanes of one behaviour in every area: for `num_units` units of at most `unit_size` agents, some of them spare."""

    num_units: int
    unit_size: int
    num_spare: int = 0
    """Units that nobody had at first."""

    @property
    def num_lanes(self) -> int:
        return self.num_units * self.unit_size


@dataclass(slots=True)
class Census:
    """The most units of each behaviour, and agents of one unit, that were seen at once."""

    _alive: dict[str, dict[int, int]] = field(default_factory=dict)  # behaviour → agent → group
    _num_units: dict[str, int] = field(default_factory=dict)
    _unit_size: dict[str, int] = field(default_factory=dict)

    @property
    def behaviors(self) -> list[str]:
        """Those of which agents were seen, in the order of their names: in messages they have none."""
        return sorted(self._num_units)

    def leave(self, behavior: str, agent: int) -> None:
        """An agent has ended."""
        self._alive.setdefault(behavior, {}).pop(agent, None)

    def see(self, behavior: str, agent: int, group: int) -> None:
        """An agent asks for a decision."""
        own = self._alive.setdefault(behavior, {})
        own[agent] = group
        groups = [number for number in own.values() if number]
        units = len(set(groups)) + len(own) - len(groups)
        size = groups.count(group) if group else 1
        self._num_units[behavior] = max(self._num_units.get(behavior, 0), units)
        self._unit_size[behavior] = max(self._unit_size.get(behavior, 0), size)

    def plan(self, areas: int | None, agents_per_area: Mapping[str, int]) -> tuple[int, dict[str, LanePlan]]:
        """Number of areas and the lanes of each behaviour in them; `areas` and `agents_per_area` overrule what was seen."""
        count = math.gcd(*self._num_units.values()) if areas is None else areas
        plans = {}
        for behavior, units in self._num_units.items():
            if units % count:
                raise ConfigError(
                    f"areas is {count}; the {units} groups or agents of {behavior!r} cannot be dealt out to so many"
                )
            found = each = units // count
            size = self._unit_size[behavior]
            wanted = agents_per_area.get(behavior)
            if wanted is not None:
                if wanted < each * size:
                    raise ConfigError(
                        f"agents_per_area of {behavior!r} is {wanted}; {each * size} agents were seen in one of {count} areas"
                    )
                each, size = (wanted, 1) if size == 1 else (each, wanted // each)
            plans[behavior] = LanePlan(each, size, each - found)
        return count, plans


@dataclass(slots=True)
class _Places:
    """The lanes of one behaviour."""

    plan: LanePlan
    lane_of: dict[int, Lane] = field(default_factory=dict)  # agent → lane
    taken: set[Lane] = field(default_factory=set)  # those lanes
    slot_of: dict[int, tuple[int, int]] = field(default_factory=dict)  # group → area and number of its unit
    free: dict[tuple[int, int], None] = field(default_factory=dict)  # slots without an agent, longest free first
    spare: dict[tuple[int, int], None] = field(default_factory=dict)  # slots that never had one
    ended: set[Lane] = field(default_factory=set)  # in the episodes that run

    def lanes_of(self, slot: tuple[int, int]) -> list[Lane]:
        """The lanes of a unit."""
        area, first = slot[0], slot[1] * self.plan.unit_size
        return [Lane(area, n) for n in range(first, first + self.plan.unit_size)]

    def slot_at(self, lane: Lane) -> tuple[int, int]:
        """The area and the number of the unit that a lane is of."""
        return lane.area, lane.n // self.plan.unit_size

    def open_slot(self) -> tuple[int, int] | None:
        """Where a new unit goes: the slot that is free for longest and unused in its area's episode, else a spare one, of the
        same area if there is one, else one that was used; None where all are taken."""
        for slot in self.free:
            if not self.ended.issuperset(self.lanes_of(slot)):
                return slot
        used = next(iter(self.free), None)
        beside = [slot for slot in self.spare if used is not None and slot[0] == used[0]]
        return next(iter([*beside, *self.spare]), used)


class SceneLanes:
    """The agents of one simulator."""

    def __init__(self, num_areas: int, plans: Mapping[str, LanePlan]) -> None:
        self.num_areas, self._plans = num_areas, dict(plans)
        self.forget()

    def forget(self) -> None:
        """The scene was reset: all agents are new, and all areas before an episode."""
        self._places = {name: _Places(plan) for name, plan in self._plans.items()}
        for places in self._places.values():
            num_units, areas = places.plan.num_units, range(self.num_areas)
            num_used = num_units - places.plan.num_spare
            places.free = {(area, u): None for area in areas for u in range(num_used)}
            places.spare = {(area, u): None for area in areas for u in range(num_used, num_units)}
        self._is_running = [False] * self.num_areas

    def lane(self, behavior: str, agent: int) -> Lane | None:
        """Where an agent is; None for one that has no lane."""
        return self._places[behavior].lane_of.get(agent)

    def end(self, behavior: str, agent: int) -> None:
        """An agent has ended: its lane stays unused for the rest of the episode."""
        places = self._places[behavior]
        lane = places.lane_of.pop(agent)
        places.taken.remove(lane)
        places.ended.add(lane)
        slot = places.slot_at(lane)
        if places.taken.isdisjoint(places.lanes_of(slot)):
            places.free[slot] = None

    def find(self, behavior: str, group: int) -> tuple[Lane, bool]:
        """A lane for a new agent, and whether somebody has ended in it in the area's episode; `EnvError` where none is left."""
        places = self._places[behavior]
        slot = places.slot_of.get(group) if group else None
        if slot is None:
            slot = places.open_slot()
        if slot is not None:
            lanes = [lane for lane in places.lanes_of(slot) if lane not in places.taken]
            lanes.sort(key=lambda lane: lane in places.ended)
            if lanes:
                return lanes[0], lanes[0] in places.ended
        raise EnvError(
            f"more agents of {behavior!r} than the {places.plan.num_lanes} in each of {self.num_areas} areas that were seen at "
            f"first; set environment.options.agents_per_area to the most that one area ever has"
        )

    def take(self, behavior: str, agent: int, group: int, lane: Lane) -> None:
        """Give a lane that `find` gave to an agent."""
        places = self._places[behavior]
        slot = places.slot_at(lane)
        places.free.pop(slot, None)
        places.spare.pop(slot, None)
        if group:
            for other in [number for number, own in places.slot_of.items() if own == slot and number != group]:
                del places.slot_of[other]
            places.slot_of[group] = slot
        places.lane_of[agent] = lane
        places.taken.add(lane)
        self._is_running[lane.area] = True

    def alive(self, area: int) -> list[tuple[str, int, Lane]]:
        """Behaviour, agent and lane of everybody in an area."""
        return [
            (name, agent, lane)
            for name, places in self._places.items()
            for agent, lane in places.lane_of.items()
            if lane.area == area
        ]

    def over(self) -> list[int]:
        """Areas whose episode runs without anybody left in it."""
        busy = {lane.area for places in self._places.values() for lane in places.taken}
        return [area for area, is_running in enumerate(self._is_running) if is_running and area not in busy]

    def begin(self, area: int) -> None:
        """The area's episode is over; the next one has whoever is there."""
        self._is_running[area] = bool(self.alive(area))
        for places in self._places.values():
            places.ended = {lane for lane in places.ended if lane.area != area}
