"""The ladder: every snapshot of a run with its rating, as the newest checkpoint has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.errors import ConfigError
from relayrl.training.files.checkpoints import CheckpointStore


@dataclass(frozen=True, slots=True)
class LadderRow:
    """A snapshot: of which side, taken when, its rating with the standard error, and how it did against the learner."""

    side: str
    step: int
    elo: float
    elo_error: float
    games: int = 0
    score: float = 0.0  # games won against the learner, draws as halves

    def after_game(self, score: float, elo: float, elo_error: float) -> LadderRow:
        """The row with one more game."""
        return replace(self, elo=elo, elo_error=elo_error, games=self.games + 1, score=self.score + score)

    def to_list(self) -> list[Any]:
        """Plain values, which `LadderRow(*values)` takes."""
        return list(astuple(self))


@dataclass(frozen=True, slots=True)
class Ladder:
    """All snapshots of a run from the oldest on, and its learners, by side; a learner's `step` is the checkpoint's."""

    snapshots: tuple[LadderRow, ...]
    learners: tuple[LadderRow, ...]


def read_ladder(directory: RunDirectory) -> Ladder:
    """The ladder of a run, whether it goes on or not."""
    directory.require()
    loaded = CheckpointStore(directory.checkpoints, keep=1).load_newest()
    if loaded is None:
        raise ConfigError(f"{directory.path} has no checkpoint yet, which would hold the ratings")
    step, state = loaded
    found: Mapping[str, Any] | None = state.get("self_play")
    if found is None:
        raise ConfigError(f"{directory.path} is no run with self_play; train one with: --set self_play.window=10")
    snapshots = tuple(LadderRow(*found["ladder"][number]) for number in sorted(found["ladder"]))
    learners = tuple(LadderRow(side, step, *numbers) for side, numbers in found["learners"].items())
    return Ladder(snapshots, learners)
