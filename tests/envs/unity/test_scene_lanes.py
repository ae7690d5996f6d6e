"""Which agent is in which lane: a scene's areas, groups, ends and returns, without any simulator."""

from __future__ import annotations

import pytest

from relayrl.envs.unity.scene_lanes import Census, Lane, LanePlan, SceneLanes
from relayrl.errors import ConfigError, EnvError


def census(*agents: tuple[str, int, int]) -> Census:
    seen = Census()
    for agent in agents:
        seen.see(*agent)
    return seen


def test_agents_without_groups_are_areas_of_their_own() -> None:
    assert census(*(("A", n, 0) for n in range(12))).plan(None, {}) == (12, {"A": LanePlan(1, 1)})


def test_groups_of_two_teams_meet_in_areas() -> None:
    agents = [
        (team, 100 * g + n, g)
        for team, first in (("Blue", 1), ("Red", 9))
        for g in range(first, first + 8)
        for n in (0, 1)
    ]
    assert census(*agents).plan(None, {}) == (8, {"Blue": LanePlan(1, 2), "Red": LanePlan(1, 2)})


def test_numbers_of_agents_decide_how_many_share_an_area() -> None:
    agents = [("Wolf", n, 0) for n in range(6)] + [("Sheep", n, 0) for n in range(2)]
    assert census(*agents).plan(None, {}) == (2, {"Wolf": LanePlan(3, 1), "Sheep": LanePlan(1, 1)})
    assert census(*agents).plan(1, {}) == (1, {"Wolf": LanePlan(6, 1), "Sheep": LanePlan(2, 1)})
    assert census(*agents).plan(None, {"Wolf": 5})[1]["Wolf"] == LanePlan(5, 1, num_spare=2)
    with pytest.raises(
        ConfigError, match="areas is 4; the 6 groups or agents of 'Wolf' cannot be dealt out to so many"
    ):
        census(*agents).plan(4, {})
    with pytest.raises(ConfigError, match="3 agents were seen in one of 2 areas"):
        census(*agents).plan(None, {"Wolf": 2})


def test_a_census_counts_who_is_there_at_once() -> None:
    seen = census(("A", 1, 0), ("A", 2, 0))
    seen.leave("A", 1)
    seen.see("A", 3, 0)
    assert seen.plan(None, {}) == (2, {"A": LanePlan(1, 1)})


def placed(lanes: SceneLanes, behavior: str, agent: int, group: int = 0) -> tuple[Lane, bool]:
    lane, is_used = lanes.find(behavior, group)
    lanes.take(behavior, agent, group, lane)
    return lane, is_used


def test_an_agent_that_comes_back_gets_its_place_and_a_new_episode() -> None:
    lanes = SceneLanes(3, {"A": LanePlan(1, 1)})
    assert [placed(lanes, "A", agent)[0].area for agent in (10, 11, 12)] == [0, 1, 2]
    lanes.end("A", 11)
    assert lanes.over() == [1]
    lanes.begin(1)
    assert placed(lanes, "A", 13) == (Lane(1, 0), False)
    assert lanes.over() == []


def test_a_group_keeps_its_area_and_dead_lanes_wait_for_the_next_episode() -> None:
    lanes = SceneLanes(2, {"A": LanePlan(1, 2)})
    for agent, group in ((1, 7), (2, 7), (3, 8), (4, 8)):
        placed(lanes, "A", agent, group)
    lanes.end("A", 3)
    lanes.end("A", 1)
    assert lanes.over() == []
    assert lanes.find("A", 8) == (Lane(1, 0), True)  # its episode goes on without agent 3
    lanes.end("A", 4)
    assert lanes.over() == [1]
    lanes.begin(1)
    assert placed(lanes, "A", 5, 8) == (Lane(1, 0), False)
    assert placed(lanes, "A", 6, 8) == (Lane(1, 1), False)


def test_a_new_group_takes_the_place_that_is_free_for_longest() -> None:
    lanes = SceneLanes(2, {"A": LanePlan(1, 1)})
    placed(lanes, "A", 1, 7)
    placed(lanes, "A", 2, 8)
    lanes.end("A", 2)
    lanes.end("A", 1)
    for area in lanes.over():
        lanes.begin(area)
    assert placed(lanes, "A", 3, 9)[0].area == 1
    assert placed(lanes, "A", 4, 8)[0].area == 0  # its own was given away


def test_spare_lanes_are_for_those_who_come_on_top() -> None:
    lanes = SceneLanes(2, {"A": LanePlan(2, 1, num_spare=1)})
    assert [placed(lanes, "A", agent)[0] for agent in (1, 2)] == [Lane(0, 0), Lane(1, 0)]
    lanes.end("A", 2)
    assert placed(lanes, "A", 3) == (Lane(1, 1), False)  # agent 2 has ended in an episode that its area has not
    lanes.end("A", 3)
    for area in lanes.over():
        lanes.begin(area)
    assert placed(lanes, "A", 4) == (Lane(1, 0), False)  # not beside agent 1
    assert [placed(lanes, "A", agent)[0] for agent in (5, 6)] == [Lane(1, 1), Lane(0, 1)]


def test_too_many_agents_are_an_error_that_says_what_to_set() -> None:
    lanes = SceneLanes(1, {"A": LanePlan(1, 1)})
    placed(lanes, "A", 1)
    with pytest.raises(EnvError, match="agents_per_area"):
        lanes.find("A", 0)
