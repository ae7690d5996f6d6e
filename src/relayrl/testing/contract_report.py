"""Checks of a contract, and what they found: one line per check, and whether all of them hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from relayrl.errors import EnvError

Bench = TypeVar("Bench")
"""What checks look at: whatever makes and plays the thing under test."""


class Outcome(Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """There was nothing to look at, or it does not apply."""
    NOT_RUN = "not run"
    """A check that it builds on does not hold, or the time was up."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One fact about an environment: the fact itself where it holds, otherwise what was seen instead or why nobody looked."""

    name: str
    outcome: Outcome
    explanation: str
    is_optional: bool = False
    """Whether training does without the fact."""

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the fact; true of skipped checks, and of those that were not run, as well."""
        return self.outcome is not Outcome.FAILED

    def __str__(self) -> str:
        return f"{self.outcome.value:7} {self.name}: {self.explanation}"


@dataclass(frozen=True, slots=True)
class Check(Generic[Bench]):
    """One fact, the function that looks whether it holds, and the facts that it takes for granted."""

    run: Callable[[Bench], str | None]
    needs: tuple[str, ...] = ()
    is_optional: bool = False
    """Whether training does without the fact."""

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def fact(self) -> str:
        return self.run.__doc__ or self.name

    def found(self, broken: str | None) -> CheckResult:
        """The result where the function gave `broken`."""
        if broken:
            return self._ended(Outcome.FAILED, broken)
        return self._ended(Outcome.PASSED, self.fact)

    def skipped(self, reason: str) -> CheckResult:
        """The result where there was nothing to look at."""
        return self._ended(Outcome.SKIPPED, reason)

    def not_run(self, reason: str) -> CheckResult:
        """The result where nobody looked."""
        return self._ended(Outcome.NOT_RUN, reason)

    def _ended(self, outcome: Outcome, explanation: str) -> CheckResult:
        return CheckResult(self.name, outcome, explanation, self.is_optional)


def run_in_order(
    checks: Iterable[Check[Bench]],
    run: Callable[[Check[Bench]], CheckResult],
    on_result: Callable[[CheckResult], None] | None = None,
) -> tuple[CheckResult, ...]:
    """Run every check whose needs hold; what a check needs comes before it. `on_result` gets each result at once."""
    results: dict[str, CheckResult] = {}
    untrusted: set[str] = set()
    for check in checks:
        missing = next((name for name in check.needs if name in untrusted), None)
        if missing is None:
            results[check.name] = run(check)
        else:
            why = "was not run" if results[missing].outcome is Outcome.NOT_RUN else "does not hold"
            results[check.name] = check.not_run(f"it builds on {missing}, which {why}")
        if on_result is not None:
            on_result(results[check.name])
        if missing is not None or not results[check.name].passed:
            untrusted.add(check.name)
    return tuple(results.values())


@dataclass(frozen=True, slots=True)
class ContractReport:
    """All checks of one environment, in the order in which they ran."""

    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.outcome is Outcome.FAILED)

    @property
    def can_train(self) -> bool:
        """Whether every check that training needs holds, or had nothing to look at."""
        return not any(
            check.outcome in (Outcome.FAILED, Outcome.NOT_RUN) for check in self.checks if not check.is_optional
        )

    def of(self, name: str) -> CheckResult:
        """The check called `name`."""
        return next(check for check in self.checks if check.name == name)

    def raise_if_failed(self) -> None:
        """Raise `EnvError` with all failures in its message."""
        if self.failures:
            raise EnvError("outside the environment contract:\n" + "\n".join(map(str, self.failures)))

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))
