"""Environment parameters as settings: a number, a sampler, or a curriculum of lessons, with the keys of Unity ML-Agents.

    gravity: 9.8                                          the same in every episode
    length: {sampler_type: uniform, sampler_parameters: {min_value: 0.3, max_value: 0.7}}    drawn for every episode
    num_rooms: {curriculum: [{name: two, completion_criteria: {…}, value: 2}, {name: four, value: 4}]}    lesson by lesson

Numbers and samplers are kept as curricula of one lesson.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from pydantic import Field, SerializeAsAny, field_validator, model_validator

from relayrl.config.settings import Settings, parse_settings
from relayrl.errors import ConfigError

Number: TypeAlias = int | float
Values: TypeAlias = dict[str, Number]
"""What each parameter is in one episode."""


class Delivery(Enum):
    """How parameters reach an environment."""

    AUTO = "auto"
    SET_PARAMETERS = "set_parameters"
    RESET_OPTIONS = "reset_options"
    CONSTRUCTOR = "constructor"


class SamplerType(Enum):
    """How a parameter is drawn."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    GAUSSIAN = "gaussian"
    MULTIRANGEUNIFORM = "multirangeuniform"


class SamplerParameters(Settings):
    """Parameters of one kind of sampler."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Number:
        """The value of one episode."""


class ConstantParameters(SamplerParameters):
    """The same in every episode."""

    value: Number = Field(0.0, description="the value")

    def draw(self, rng: np.random.Generator) -> Number:
        return self.value


class UniformParameters(SamplerParameters):
    """Evenly between two numbers."""

    min_value: float = Field(0.0, description="least value")
    max_value: float = Field(1.0, description="greatest value")

    @model_validator(mode="after")
    def _in_order(self) -> UniformParameters:
        if self.min_value > self.max_value:
            raise ValueError(f"min_value {self.min_value:g} is above max_value {self.max_value:g}")
        return self

    def draw(self, rng: np.random.Generator) -> Number:
        return float(rng.uniform(self.min_value, self.max_value))


class GaussianParameters(SamplerParameters):
    """Normally distributed."""

    mean: float = Field(1.0, description="mean")
    st_dev: float = Field(1.0, ge=0, description="standard deviation")

    def draw(self, rng: np.random.Generator) -> Number:
        return float(rng.normal(self.mean, self.st_dev))


class MultiRangeUniformParameters(SamplerParameters):
    """Evenly over several intervals, each as likely as it is long."""

    intervals: tuple[tuple[float, float], ...] = Field(((0.0, 1.0),), min_length=1, description="pairs [low, high]")

    @field_validator("intervals")
    @classmethod
    def _in_order(cls, intervals: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        for low, high in intervals:
            if low > high:
                raise ValueError(f"interval [{low:g}, {high:g}] ends below its beginning")
        return intervals

    def draw(self, rng: np.random.Generator) -> Number:
        lengths = np.array([high - low for low, high in self.intervals])
        total = lengths.sum()
        low, high = self.intervals[rng.choice(len(lengths), p=lengths / total if total else None)]
        return float(rng.uniform(low, high))


_PARAMETERS: dict[SamplerType, type[SamplerParameters]] = {
    SamplerType.CONSTANT: ConstantParameters,
    SamplerType.UNIFORM: UniformParameters,
    SamplerType.GAUSSIAN: GaussianParameters,
    SamplerType.MULTIRANGEUNIFORM: MultiRangeUniformParameters,
}


class SamplerSettings(Settings):
    """A distribution of which every episode of every environment gets a value."""

    sampler_type: SamplerType = Field(description="uniform, gaussian, multirangeuniform or constant")
    sampler_parameters: SerializeAsAny[SamplerParameters] = Field(
        description="min_value and max_value; mean and st_dev; intervals; or value"
    )

    @field_validator("sampler_parameters", mode="before")
    @classmethod
    def _of_their_type(cls, given: Any, info: Any) -> Any:
        kind = info.data.get("sampler_type")
        if kind is None:
            return ConstantParameters()  # which sampler it is meant to be is wrong, and reported
        return parse_settings(_PARAMETERS[kind], given or {}) if isinstance(given, dict | None) else given

    def __str__(self) -> str:
        own = ", ".join(f"{name} {value}" for name, value in self.sampler_parameters.model_dump().items())
        return f"{self.sampler_type.value} ({own})"


class Measure(Enum):
    """What decides that a lesson is over."""

    REWARD = "reward"
    PROGRESS = "progress"
    ELO = "Elo"


class CompletionCriteria(Settings):
    """When the next lesson begins: the measure is above `threshold`."""

    measure: Measure = Field(
        Measure.REWARD,
        description="reward: mean return of the lesson's latest episodes; progress: the share of the run that is over; Elo: "
        "the rating of self-play",
    )
    behavior: str = Field(description="policy group whose returns count; of an environment with one group, any name")
    min_lesson_length: int = Field(
        0, ge=0, description="episodes of the lesson that must have ended; as many of the latest are averaged"
    )
    signal_smoothing: bool = Field(
        True, description="reward and Elo: three quarters of the measure and one quarter of what it was before"
    )
    threshold: float = Field(0.0, description="the lesson is over when the measure is above it")
    require_reset: bool = Field(False, description="give up the running episodes when the next lesson begins")

    @model_validator(mode="after")
    def _share(self) -> CompletionCriteria:
        if self.measure is Measure.PROGRESS and not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"a threshold of progress is between 0 and 1, not {self.threshold:g}")
        return self


class LessonSettings(Settings):
    """One lesson: what the parameter is, and when the next one begins."""

    name: str = Field(description="what logs call it")
    completion_criteria: CompletionCriteria | None = Field(None, description="needed by all lessons but the last")
    value: Number | SamplerSettings = Field(description="a number, or a sampler")

    @field_validator("value", mode="before")
    @classmethod
    def _number_or_sampler(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return parse_settings(SamplerSettings, given)
        if isinstance(given, SamplerSettings | int | float):
            return given
        raise ValueError("give a number, or a sampler with sampler_type and sampler_parameters")

    def draw(self, rng: np.random.Generator) -> Number:
        """The parameter in one episode."""
        return self.value.sampler_parameters.draw(rng) if isinstance(self.value, SamplerSettings) else self.value


class ParameterSettings(Settings):
    """One parameter, lesson by lesson."""

    curriculum: tuple[LessonSettings, ...] = Field(min_length=1, description="lessons, in order")

    @model_validator(mode="after")
    def _chained(self) -> ParameterSettings:
        for lesson in self.curriculum[:-1]:
            if lesson.completion_criteria is None:
                raise ValueError(f"lesson {lesson.name!r} is not the last one and needs completion_criteria")
        return self


PARAMETER_SCHEMA: dict[str, Any] = {
    "description": "a number, a sampler, or a curriculum",
    "anyOf": [{"type": "number"}, {"type": "object"}],
}
"""What a file may write for a `ParameterSettings`."""


def parameter_of(name: str, given: Any) -> Any:
    """What a file says of a parameter, as a curriculum."""
    if isinstance(given, dict) and "curriculum" not in given and "sampler_type" not in given:
        raise ValueError(f"{name}: give a number, sampler_type and sampler_parameters, or curriculum")
    is_whole = isinstance(given, ParameterSettings) or (isinstance(given, dict) and "curriculum" in given)
    return given if is_whole else {"curriculum": [{"name": name, "value": given}]}


def values_of(parameters: Mapping[str, ParameterSettings], lessons: Sequence[int], stream: int, episode: int) -> Values:
    """What the parameters are in an episode: a function of its lessons, of the environment's stream and of its number alone."""
    return {
        name: own.curriculum[lesson].draw(np.random.default_rng([stream, zlib.crc32(name.encode()), episode]))
        for (name, own), lesson in zip(parameters.items(), lessons, strict=True)
    }


def last_lessons(parameters: Mapping[str, ParameterSettings]) -> list[int]:
    """What the curricula lead to."""
    return [len(own.curriculum) - 1 for own in parameters.values()]


def require_no_lessons(parameters: Mapping[str, ParameterSettings]) -> None:
    """Raise where nobody leads environments from lesson to lesson: a curriculum would stay at its first."""
    for name, own in parameters.items():
        if len(own.curriculum) > 1:
            raise ConfigError(
                f"the curriculum of {name!r} needs a run that follows it (relayrl train); give actors a number or a sampler"
            )
