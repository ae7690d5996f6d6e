"""Which lesson each environment parameter of a run is in, and when the next one begins.

Looked at after every rollout. A lesson's measure is of the lesson alone: episodes that began before it, under other values, are
not counted, and smoothing begins with the first measure. Parameters have lessons of their own and move independently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.parameters.parameter_settings import CompletionCriteria, LessonSettings, Measure
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.runtime.collector import EndedEpisodes

OLD_WEIGHT = 0.25
"""Share of the measure before, where a signal is smoothed."""


@dataclass(frozen=True, slots=True)
class NewLesson:
    """A lesson that has begun."""

    parameter: str
    number: int
    lesson: LessonSettings
    needs_reset: bool

    def __str__(self) -> str:
        return f"{self.parameter}: lesson {self.number + 1}, {self.lesson.name!r}, value {self.lesson.value}"


@dataclass(slots=True)
class _Course:
    """One parameter on its way through its lessons."""

    name: str
    lessons: tuple[LessonSettings, ...]
    number: int = 0
    began_at: int = 0
    """Step of the collector before which no episode counts."""
    returns: deque[float] = field(default_factory=deque)
    smoothed: float | None = None

    @property
    def lesson(self) -> LessonSettings:
        return self.lessons[self.number]

    @property
    def criteria(self) -> CompletionCriteria | None:
        """What ends the lesson; None in the last one."""
        return self.lesson.completion_criteria if self.number < len(self.lessons) - 1 else None

    def add(self, criteria: CompletionCriteria, returns: Iterable[float]) -> None:
        self.returns = deque((*self.returns, *returns), maxlen=max(1, criteria.min_lesson_length))

    def is_over(self, criteria: CompletionCriteria, measure: float | None) -> bool:
        if measure is None or len(self.returns) < criteria.min_lesson_length:
            return False
        if criteria.signal_smoothing and criteria.measure is not Measure.PROGRESS:
            before = measure if self.smoothed is None else self.smoothed
            measure = self.smoothed = OLD_WEIGHT * before + (1 - OLD_WEIGHT) * measure
        return measure > criteria.threshold

    def move_on(self, now: int) -> None:
        self.number, self.began_at, self.smoothed = self.number + 1, now, None
        self.returns.clear()


class Curriculum:
    """The lessons of all parameters; `groups` are the run's policy groups."""

    def __init__(self, settings: RunSettings, groups: Iterable[str]) -> None:
        parameters = settings.environment.parameters
        self._courses = [_Course(name, own.curriculum) for name, own in parameters.items()]
        self._groups = list(groups)
        for course in self._courses:
            for lesson in course.lessons[:-1]:
                if lesson.completion_criteria is not None:
                    self._check(settings, course.name, lesson.completion_criteria)

    def _check(self, settings: RunSettings, name: str, criteria: CompletionCriteria) -> None:
        if settings.learn_from is not None:
            raise ConfigError("recorded trajectories are learned from as they are; leave out the curriculum of " + name)
        if criteria.behavior not in self._groups and len(self._groups) > 1:
            raise UnknownNameError(f"behavior in the curriculum of {name!r}", criteria.behavior, self._groups)
        if criteria.measure is Measure.ELO and settings.self_play is None:
            raise ConfigError(
                f"the curriculum of {name!r} measures Elo, which only self-play gives; set self_play, or measure reward or "
                "progress"
            )

    @property
    def numbers(self) -> list[int]:
        """The lesson of each parameter, counted from 0."""
        return [course.number for course in self._courses]

    @property
    def is_final(self) -> bool:
        """Whether all parameters are in their last lesson."""
        return all(course.criteria is None for course in self._courses)

    def metrics(self) -> dict[str, float]:
        """For the rows of statistics."""
        return {
            f"curriculum/{course.name}/lesson": float(course.number)
            for course in self._courses
            if len(course.lessons) > 1
        }

    def advance(self, ended: EndedEpisodes, now: int, progress: float, metrics: Mapping[str, float]) -> list[NewLesson]:
        """Look at the episodes that ended up to the collector's step `now`; gives the lessons that begin."""
        begun = []
        for course in self._courses:
            criteria = course.criteria
            if criteria is None:
                continue
            group = criteria.behavior if criteria.behavior in self._groups else self._groups[0]
            returns = ended.group_returns.get(group, [])
            course.add(
                criteria,
                (own for own, began in zip(returns, ended.began_at, strict=False) if began >= course.began_at),
            )
            if course.is_over(criteria, self._measure(criteria, group, course, progress, metrics)):
                course.move_on(now)
                begun.append(NewLesson(course.name, course.number, course.lesson, criteria.require_reset))
        return begun

    @staticmethod
    def _measure(
        criteria: CompletionCriteria, group: str, course: _Course, progress: float, metrics: Mapping[str, float]
    ) -> float | None:
        if criteria.measure is Measure.PROGRESS:
            return progress
        if criteria.measure is Measure.ELO:
            return metrics.get(f"{group}/self_play/elo", metrics.get("self_play/elo"))
        return sum(course.returns) / len(course.returns) if course.returns else None

    def state_dict(self, now: int) -> dict[str, Any]:
        """Where the lessons stand at the collector's step `now`."""
        return {
            course.name: {
                "number": course.number,
                "age": now - course.began_at,
                "returns": list(course.returns),
                "smoothed": course.smoothed,
            }
            for course in self._courses
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; a collector that was restored counts its steps from 0."""
        for course in self._courses:
            if course.name in state:
                own = state[course.name]
                course.number, course.began_at = own["number"], -own["age"]
                course.smoothed = own["smoothed"]
                if course.criteria is not None:
                    course.add(course.criteria, own["returns"])
