"""What is learned jointly from a sink's trajectories is what is learned from the rollouts that were recorded, in every sink."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from shifting_teams import HEADERS, Moods, ShiftingTeams, advantages, collect, trajectories_of

from relayrl.data.columns import Trajectory
from relayrl.data.stacking import stack_jointly
from relayrl.sinks.contract import open_sink, open_source
from relayrl.sinks.summary import summarise
from relayrl.testing.trajectory_examples import difference

MOODS = Moods(appear=0.4, wait=0.3, terminate=0.1, truncate=0.1, fail=0.05)


@pytest.mark.parametrize("kind", ["memory", "arrow", "parquet", "csv", "sqlite", "postgresql"])
def test_joint_advantages_survive_a_sink(kind: str, place: Callable[[str], str]) -> None:
    (block,) = collect(ShiftingTeams(3, 4, MOODS), [24])
    url = place(kind)
    with open_sink(url) as sink:
        for rollout in block.values():
            sink.write(rollout.trajectories())
    with open_source(url) as source:
        found = {t.trajectory_id: t for t in source}
    recorded = trajectories_of(block)
    assert len(found) == len(recorded)
    assert not any(difference(found[t.trajectory_id], t) for t in recorded)
    assert any(t.step is not None for t in found.values())
    assert any(t.failed for t in found.values())
    assert advantages(stack_jointly(found.values(), HEADERS)) == advantages(block)


def test_views_and_summaries_follow_the_environments_steps(place: Callable[[str], str]) -> None:
    """Episodes of agents that come late or wait are whole, and end on the row that has their last action."""
    url = place("sqlite")
    recorded = [t for block in collect(ShiftingTeams(5, 3, MOODS), [5] * 6) for t in trajectories_of(block)]
    with open_sink(url) as sink:
        sink.write(recorded)
    episodes: dict[tuple[object, ...], list[Trajectory]] = {}
    for t in recorded:
        episodes.setdefault((t.env_id, t.agent_id, t.episode), []).append(t)
    whole = [parts for parts in episodes.values() if parts[-1].terminated or parts[-1].truncated]
    whole = [parts for parts in whole if not parts[-1].failed]
    assert any(len(parts) > 1 for parts in whole)
    assert any(t.step is not None for parts in whole for t in parts)
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as database:
        (num_whole,) = database.execute("SELECT count(*) FROM episodes WHERE is_whole").fetchone()
        ends = set(database.execute("SELECT trajectory_id, step FROM experience WHERE terminated OR truncated"))
    assert num_whole == len(whole)
    assert sum(len(group.returns) for group in summarise(recorded).values()) == len(whole)
    assert ends == {(str(t.trajectory_id), int(t.steps[-1])) for t in recorded if t.terminated or t.truncated}
