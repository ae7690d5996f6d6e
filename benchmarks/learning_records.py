"""Finished seeds of learning rows, one JSON line each.

A line holds the preset it was trained with. Lines whose preset is no longer the shipped one are not shown anywhere: their
row is to be run again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learning_rows import ROWS, Target
from relayrl.engines.settings.run_settings import preset

RECORDS = Path(__file__).with_name("learning_records.jsonl")

Point = tuple[int, float]
"""Environment steps, and the mean return of an evaluation after them."""


@dataclass(frozen=True)
class SeedRecord:
    """One finished seed."""

    row: str
    seed: int
    num_env_steps: int
    played_in: str
    episodes: int
    mean_return: float
    std_return: float
    random_return: float
    seconds: float
    curve: tuple[Point, ...]
    preset: dict[str, Any]

    @property
    def env(self) -> str:
        """What it was trained on."""
        return self.row.rpartition("/")[0]

    @property
    def algo(self) -> str:
        """What trained it."""
        return self.row.rpartition("/")[2]

    @property
    def is_current(self) -> bool:
        """Whether it was trained with the preset that is shipped now; how often rows are written changes nothing of it."""
        return _learning_part(self.preset) == _learning_part(preset(self.env, self.algo))

    def at(self, target: Target, is_last: bool) -> Point:
        """Steps and mean return at a target: the end, or the last evaluation on the way not after it."""
        if is_last:
            return self.num_env_steps, self.mean_return
        return [point for point in self.curve if point[0] <= target.num_steps][-1]


def _learning_part(settings: dict[str, Any]) -> dict[str, Any]:
    trainer = {key: value for key, value in settings.get("trainer", {}).items() if key != "summary_freq"}
    return {**settings, "trainer": trainer}


def read_records(path: Path = RECORDS) -> list[SeedRecord]:
    """Seeds trained with the shipped presets, in order of rows and seeds; of one that was run twice, the newest."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    order = {row.name: number for number, row in enumerate(ROWS)}
    found = [
        SeedRecord(**{**line, "curve": tuple(map(tuple, line["curve"]))}) for line in lines if line["row"] in order
    ]
    current = {(one.row, one.seed): one for one in found if one.is_current}
    return sorted(current.values(), key=lambda one: (order[one.row], one.seed))


def append_record(record: SeedRecord, path: Path = RECORDS) -> None:
    """Add a line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")
