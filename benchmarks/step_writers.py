"""What it would cost to write lanes that step together with the pages of lanes that step alone: the numbers of ADR 0014.

    python benchmarks/step_writers.py             a table; some 5 s
    python benchmarks/step_writers.py --only W2   works whose names begin so

Both write the steps of a rollout, log-probability and value included, by turns, and both give its columns `[T, L, …]`; the
fastest round counts. Pages are let off what they do not have: rows without a decision, flags of each row, failed rows and
final observations. The share is of the work's whole iteration, collecting and learning, as `phases.py` has written it to
docs/speed.md.
"""

from __future__ import annotations

import argparse
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from phases import BEGIN, END, PAGE
from relayrl.data.columns import LaneHeader
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.data.steps.step_pages import PAGE_ROWS, StepPages
from relayrl.data.steps.step_rows import ActingLayout

ROUNDS = 25


@dataclass(frozen=True)
class Shape:
    """The lanes of a work, and a rollout's steps."""

    name: str
    variant: str
    num_lanes: int
    num_steps: int
    observation: spaces.Box
    action: spaces.Space[Any]


def _numbers(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


SHAPES = (
    Shape("W1", "native:CartPole", 8, 128, _numbers(4), spaces.Discrete(2)),
    Shape("W2", "native:CartPole", 64, 128, _numbers(4), spaces.Discrete(2)),
    Shape("W2k", "native:CartPole", 1024, 32, _numbers(4), spaces.Discrete(2)),
    Shape("W4c", "mappo", 192, 128, _numbers(18), spaces.Box(-1, 1, (2,), np.float32)),
    Shape("images", "", 8, 128, spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(4)),
)


class Lanes:
    """Steps of lanes, the same in every round, and both writers of them."""

    def __init__(self, shape: Shape) -> None:
        self.shape, L = shape, shape.num_lanes
        rng = np.random.default_rng(0)
        draws = [(shape.observation.sample(), shape.action.sample()) for _ in range(min(L, 16))]
        of = rng.integers(len(draws), size=L)
        self.obs, self.action = (np.stack([draws[i][part] for i in of]) for part in (0, 1))
        self.numbers, self.flags = rng.random(L, np.float32), np.zeros(L, bool)
        ids = tuple(uuid.UUID(int=i) for i in range(L))
        header = LaneHeader("agent", ids, ("agent",), shape.observation, shape.action)
        self.builder = RolloutBuilder(header, shape.num_steps, with_logp=True, with_value=True)
        layout = ActingLayout("agent", shape.observation, shape.action, None, False, True, True)
        pages_a_lane = -(-shape.num_steps // PAGE_ROWS)
        self.pages = StepPages(layout, 10**9, L * (pages_a_lane + 1) + 1)
        self.lanes = [self.pages.open_lane(key, "agent") for key in ids]
        self.places = np.array([lane.number for lane in self.lanes])

    def together(self) -> Any:
        """A rollout by `RolloutBuilder`."""
        for _ in range(self.shape.num_steps):
            self.builder.add(self.obs, self.action, ~self.flags, None, self.numbers, self.numbers)
            self.builder.finish_row(self.numbers, self.flags, self.flags)
        return self.builder.build(self.obs, 0)

    def by_pages(self) -> Any:
        """The same columns by `StepPages`: rows, and then a block of them."""
        step, reward = (self.obs, self.action, self.numbers, self.numbers, 0, None, None), None
        for _ in range(self.shape.num_steps):
            self.pages.append(self.places, step, reward)
            reward = self.numbers
        starts = np.array([lane.pages for lane in self.lanes]) * PAGE_ROWS  # [L, pages]
        t = np.arange(self.shape.num_steps)
        rows = starts[:, t // PAGE_ROWS].T + t[:, None] % PAGE_ROWS  # [T, L]
        store = self.pages._rows._store
        block = {name: store.columns[name][rows] for name in ("obs", "action", "reward", "logp", "value")}
        for lane in self.lanes:
            self.pages._drop_pages(lane)
        return block


def compared(shape: Shape) -> tuple[float, float]:
    """Milliseconds of the fastest rollout, together and by pages."""
    lanes = Lanes(shape)
    rollout, block = lanes.together(), lanes.by_pages()
    np.testing.assert_array_equal(rollout.obs, block["obs"])
    np.testing.assert_array_equal(rollout.reward[:-1], block["reward"][:-1])
    times: dict[str, list[float]] = {"together": [], "by_pages": []}
    for _ in range(ROUNDS):
        for name, own in times.items():
            begin = time.perf_counter()
            getattr(lanes, name)()
            own.append(1e3 * (time.perf_counter() - begin))
    return min(times["together"]), min(times["by_pages"])


def iterations() -> dict[str, float]:
    """Milliseconds of an iteration with kernels, collecting and learning, by work."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| ([^|]+) \| [\d,]+ \| [^|]+ \| ([\d.]+) \+ ([\d.]+) \|", table, re.MULTILINE)
    return {work: float(collect) + float(learn) for work, collect, learn in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="works whose names begin so")
    only, known = parser.parse_args().only, iterations()
    print(
        "| work | lanes × steps | together, ms | pages, ms | an iteration, ms | slower by |\n|---|---|--:|--:|--:|--:|"
    )
    for shape in SHAPES:
        if not shape.name.startswith(only):
            continue
        together, pages = compared(shape)
        name = f"{shape.name} {shape.variant}".strip()
        cells = [name, f"{shape.num_lanes} × {shape.num_steps}", f"{together:.2f}", f"{pages:.2f}", "", ""]
        if (iteration := known.get(name)) is not None:
            cells[-2:] = [f"{iteration:.1f}", f"{(pages - together) / iteration:.1%}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
