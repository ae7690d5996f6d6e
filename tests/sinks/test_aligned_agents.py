"""What is learned jointly from a sink's trajectories is what is learned from the rollouts that were recorded, in every sink."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shifting_teams import HEADERS, Moods, Worlds, advantages, collect, trajectories_of

from relayrl.data.stacking import stack_jointly
from relayrl.sinks.contract import open_sink, open_source
from relayrl.testing.trajectory_examples import difference

MOODS = Moods(appear=0.4, wait=0.3, terminate=0.1, truncate=0.1, fail=0.05)


@pytest.mark.parametrize("kind", ["memory", "arrow", "parquet", "csv", "sqlite", "postgresql"])
def test_joint_advantages_survive_a_sink(kind: str, place: Callable[[str], str]) -> None:
    (block,) = collect(Worlds(3, 4, MOODS), [24])
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
