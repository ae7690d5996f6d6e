"""Two learners beside one: the same updates of an image policy, one thread each. Only learning is timed."""

from __future__ import annotations

import statistics
import time

from relayrl.bench.rows import Row
from relayrl.bench.workloads.image_rows import Film, ppo_settings
from relayrl.bench.workloads.ppo_rows import UNIT
from relayrl.engines.local.run_parts import build_parts

NUM_UPDATES = 4
TARGET = 1.3


def learner_rows() -> list[Row]:
    """PPO on random frames."""
    one, two = (_learned_steps_per_s(num_learners) for num_learners in (1, 2))
    return [Row("two learners, PPO from pixels, film", two, UNIT, "one learner", one, two / one, TARGET)]


def _learned_steps_per_s(num_learners: int) -> float:
    """The median over updates after the first, in which learners are started."""
    settings = ppo_settings(Film, 1, NUM_UPDATES).model_copy(update={"learners": num_learners})
    parts = build_parts(settings)
    try:
        rates = []
        for version in range(NUM_UPDATES):
            parts.trainer.receive(parts.collect(version))
            started_s = time.perf_counter()
            parts.trainer.advance()
            rates.append(parts.block_steps / (time.perf_counter() - started_s))
        return statistics.median(rates[1:])
    finally:
        parts.close()
