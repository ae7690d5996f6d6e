"""What the contract suite found: one line per check, and whether all of them hold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from relayrl.errors import EnvError


class Outcome(Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One fact about an environment: the fact itself where it holds, otherwise what was seen instead or why nobody looked."""

    name: str
    outcome: Outcome
    explanation: str

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the fact; true of skipped checks as well."""
        return self.outcome is not Outcome.FAILED

    def __str__(self) -> str:
        return f"{self.outcome.value:7} {self.name}: {self.explanation}"


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

    def of(self, name: str) -> CheckResult:
        """The check called `name`."""
        return next(check for check in self.checks if check.name == name)

    def raise_if_failed(self) -> None:
        """Raise `EnvError` with all failures in its message."""
        if self.failures:
            raise EnvError("outside the environment contract:\n" + "\n".join(map(str, self.failures)))

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))
