"""The record of a run: where it stands while it goes on, and how it ended."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from relayrl.errors import StoppedBySignal


class RunInterrupted(StoppedBySignal, KeyboardInterrupt):
    """Somebody asked the run to stop, and it did so between two updates, with its state saved."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, for whoever watches; `row` is the latest row of statistics."""

    num_env_steps: int
    max_steps: int
    seconds: float
    mean_return: float
    row: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended; `mean_return` is the final evaluation's, or the training episodes' where there was none.

    `seconds` and `env_steps_per_s` are of the session that ended it, without final evaluation and export; `computed_by` says
    whether MLPs on the CPU ran in compiled kernels. Of the final evaluation's episodes, some may have been cut:
    `stopped_by` names the setting of the bound that did it, and is empty where every episode was played to its end.

    With several agents, `scored_by` says whose return `mean_return` is; `agent_returns` and `group_returns` are means
    over the episodes that the policies played among themselves, `opponents` are matches of the final evaluation.
    """

    env: str
    algo: str
    seed: int
    num_env_steps: int
    seconds: float
    env_steps_per_s: float
    mean_return: float
    std_return: float
    train_return: float
    parameter_hash: str
    run_dir: str
    returns: tuple[float, ...] = ()
    best_return: float = math.nan
    reached_target: bool = False
    computed_by: str = ""
    episodes_asked: int = 0
    episodes_ended: int = 0
    episodes_cut: int = 0
    stopped_by: str = ""
    scored_by: str = ""
    group_returns: Mapping[str, float] = field(default_factory=dict)
    agent_returns: Mapping[str, float] = field(default_factory=dict)
    opponents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def judged_by(self) -> str:
        """The former name of `scored_by`, for one release."""
        warnings.warn(
            "judged_by is scored_by now; the old name goes with the next release", DeprecationWarning, stacklevel=2
        )
        return self.scored_by

    def to_json(self) -> str:
        """One line; numbers that do not exist are null. `judged_by` is there for readers of the former name."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}
        return json.dumps({**values, "judged_by": self.scored_by})

    @classmethod
    def from_json(cls, text: str) -> RunResult:
        """The reverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        values = {k: math.nan if v is None else v for k, v in values.items()}
        values.setdefault("scored_by", values.pop("judged_by", ""))
        return cls(**{**values, "returns": tuple(values["returns"])})
