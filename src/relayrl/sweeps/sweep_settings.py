"""Settings of a sweep: what is trained, what varies, what counts, and how much of it runs at once."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import Field, field_serializer, field_validator, model_validator

from relayrl.config.passwords import without_password
from relayrl.config.settings import Settings
from relayrl.errors import ConfigError
from relayrl.sweeps.planning.parameter_ranges import Range

SQLITE = "sqlite"
RESULT_METRICS = ("mean_return", "best_return", "train_return")
"""Fields of a run's result that may be the objective."""


class Sampler(Enum):
    """What proposes the settings of trials."""

    RANDOM = "random"
    TPE = "tpe"
    PBT = "pbt"


class PruningRule(Enum):
    """Which trials go on after an intermediate evaluation."""

    MEDIAN = "median"
    HALVING = "halving"


class Direction(Enum):
    """Which values of the objective are better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


class PopulationSettings(Settings):
    """Population-based training: members train in intervals; after each, the worst take over the best ones' networks."""

    size: int = Field(8, ge=2, le=10_000, description="members of the population")
    interval: int | None = Field(None, ge=1, description="environment steps of a generation; null: a tenth of the run")
    truncation: float = Field(
        0.25,
        gt=0.0,
        le=0.5,
        description="share of members that is replaced after a generation, by the same share of best ones",
    )
    factors: tuple[float, ...] = Field(
        (0.8, 1.25), min_length=1, description="a copied number is multiplied by one of these, inside its range"
    )
    resample: float = Field(0.25, ge=0.0, le=1.0, description="chance that a copied setting is drawn anew instead")


class SearchSettings(Settings):
    """A search: ranges of settings, and what draws from them."""

    sampler: Sampler = Field(
        Sampler.RANDOM,
        description="random; tpe: Optuna's, which learns from earlier batches; pbt: population-based training",
    )
    ranges: dict[str, dict[str, list[Any]]] = Field(
        description="settings that vary, by name: {float: [low, high]}, {log: [low, high]}, {int: [low, high]}, {choice: [...]}"
    )
    population: PopulationSettings = Field(default_factory=PopulationSettings, description="of the sampler pbt")

    @model_validator(mode="after")
    def _check_ranges(self) -> SearchSettings:
        if not self.ranges:
            raise ConfigError(
                "search.ranges is empty; name a setting and its range, as in {pi_lr: {log: [1.0e-4, 1.0e-2]}}"
            )
        self.parsed()
        return self

    def parsed(self) -> dict[str, Range]:
        """The ranges by the names of their settings."""
        return {name: Range.parse(name, given) for name, given in self.ranges.items()}


class ObjectiveSettings(Settings):
    """What trials are compared by: the mean over the sweep's seeds."""

    metric: str = Field(
        "mean_return",
        description="mean_return (of the final evaluation), best_return, train_return, or a column of progress.csv",
    )
    direction: Direction = Field(Direction.MAXIMIZE, description="maximize or minimize")

    @field_validator("metric")
    @classmethod
    def _check_metric(cls, metric: str) -> str:
        if metric not in RESULT_METRICS and "/" not in metric:
            raise ValueError(
                f"give {', '.join(RESULT_METRICS)} or a column of progress.csv such as evaluation/return_mean"
            )
        return metric

    @property
    def column(self) -> str:
        """The column of progress.csv that is compared before a run has ended."""
        return self.metric if "/" in self.metric else "evaluation/return_mean"

    def key(self, value: float) -> float:
        """A number that is larger where `value` is better."""
        return value if self.direction is Direction.MAXIMIZE else -value


class PruningSettings(Settings):
    """Ending trials early, by evaluations during their runs. All trials of a batch reach a rung before one goes on."""

    rule: PruningRule = Field(
        description="median: what is worse than the median of all trials at that rung ends; halving: all but the best 1/eta end"
    )
    interval: int = Field(ge=1, description="environment steps of the first rung, and between rungs of the median rule")
    eta: int = Field(3, ge=2, le=100, description="halving: one in so many goes on, to a rung so many times as far")


class BudgetSettings(Settings):
    """When no further trials begin."""

    env_steps: int | None = Field(None, ge=1, description="environment steps of all trials together; null: no bound")
    seconds: float | None = Field(
        None,
        gt=0.0,
        description="seconds since the sweep began, after which no run is started; depends on the machine; null: no bound",
    )


class SweepSettings(Settings):
    """One sweep. The same settings give the same trials and results, whatever the concurrency."""

    env: str = Field(description="environment, as `relayrl list envs` names them")
    algo: str = Field("ppo", description="algorithm, as `relayrl list algos` names them")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings that all runs share, as in a file of settings"
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="seeds that each trial is run with")
    seed: int = Field(0, ge=0, le=(1 << 63) - 1, description="seed of what the sweep itself draws")
    grid: dict[str, list[Any]] = Field(
        default_factory=dict,
        description="settings that vary, by name: lists of values, of which every combination is a trial",
    )
    search: SearchSettings | None = Field(None, description="a search instead of a grid")
    objective: ObjectiveSettings = Field(default_factory=ObjectiveSettings, description="what trials are compared by")
    pruning: PruningSettings | None = Field(None, description="end trials early; null: all runs have their full length")
    trials: int = Field(20, ge=1, le=1_000_000, description="trials of a search")
    batch: int = Field(
        4,
        ge=1,
        le=1_000_000,
        description="trials that tpe proposes, or that pruning compares, together: a batch ends before the next",
    )
    concurrency: int = Field(1, ge=1, le=100_000, description="runs at the same time, over all processes of the sweep")
    max_restarts: int = Field(
        3, ge=0, le=1_000, description="how often a run that was killed is started again before it counts as failed"
    )
    budget: BudgetSettings = Field(default_factory=BudgetSettings, description="when no further trials begin")
    runner: str = Field("process", description="where runs are placed: process, ray, or a plugin")
    state: str = Field(
        SQLITE,
        repr=False,
        description="sqlite: a file in the sweep's directory; or postgresql://…, with the sweep's name",
    )
    name: str | None = Field(
        None, description="the sweep's name in a database that several share; null: that of its directory"
    )

    @field_serializer("state", when_used="json")
    def _hide_password(self, url: str) -> str:
        return without_password(url)

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ValueError("give each seed once, none below 0")
        return seeds

    @field_validator("state")
    @classmethod
    def _check_state(cls, state: str) -> str:
        if state != SQLITE and not state.startswith(("postgresql://", "postgres://")):
            raise ValueError("give sqlite, or a URL postgresql://…")
        return state

    @model_validator(mode="after")
    def _check_variation(self) -> SweepSettings:
        if self.grid and self.search is not None:
            raise ConfigError(
                "a sweep has a grid or a search; leave one out (a choice range is a list of values in a search)"
            )
        for name, values in self.grid.items():
            if not values:
                raise ConfigError(f"grid.{name} has no values; give a list")
        varied = [*self.grid, *(self.search.ranges if self.search else ())]
        if "seed" in varied:
            raise ConfigError("the seed is no setting that varies by grid or search; list seeds under seeds")
        if self.is_population and self.pruning is not None:
            raise ConfigError("population-based training replaces its worst members; leave out pruning")
        if self.is_population and self.budget.env_steps is not None:
            raise ConfigError("a population takes its size times max_steps; set these instead of budget.env_steps")
        return self

    @property
    def learns_from_trials(self) -> bool:
        """Whether later trials depend on the results of earlier ones, or on each other's."""
        return self.pruning is not None or (self.search is not None and self.search.sampler is not Sampler.RANDOM)

    @property
    def is_population(self) -> bool:
        """Whether the sampler is population-based training."""
        return self.search is not None and self.search.sampler is Sampler.PBT
