"""Is a new version worse? A test that may be looked at after every episode.

Returns of two versions are compared by the difference of their means, d. The variance of d is estimated twice, as v₀/n₀ + v₁/n₁
(Welch) and from the pooled variance v as v/n₀ + v/n₁ (Student), and s² is the larger one: the first is far too small while the
few episodes of a canary happen to miss a rare failure, the second where the canary's returns vary more. Looked at once,
|d| / s > 1.96 errs in 5% of cases; looked at again and again it errs sooner or later in all. The normal mixture of Robbins
(1970) gives a bound that holds at all times together,

    |d| / s  >  √( (1 + ρ/t) · log( (t + ρ) / (ρ α²) ) )

with t = v / s² the information that was gathered, in episodes. Variances are estimated, so the
guarantee is asymptotic: an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024, "Time-uniform
central limit theory and asymptotic confidence sequences"; the mixture SPRT of Johari, Koomen, Pekelis and Walsh, 2022, "Always
valid inference", is the same bound). `MIN_EPISODES` keep it from being used where the estimates mean nothing.

Pure functions of counts and moments. Not its job: whose returns they are (`canary_watch`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

MIN_EPISODES = 30
"""Of each version, before anything is decided."""
TIGHTEST_AT_EPISODES = 50.0
"""The information t at which the bound is about as tight as it can be."""


@dataclass(slots=True)
class Returns:
    """Count, mean and sum of squared deviations of episode returns (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        change = value - self.mean
        self.mean += change / self.count
        self.squares += change * (value - self.mean)

    @property
    def variance(self) -> float:
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


class Judgement(Enum):
    """What is known of the new version."""

    UNDECIDED = "undecided"
    WORSE = "worse"
    BETTER = "better"


@dataclass(frozen=True, slots=True)
class Comparison:
    """New minus old, with an interval that holds at all times together."""

    judgement: Judgement
    difference: float
    low: float
    high: float

    def as_dict(self) -> dict[str, Any]:
        numbers = {"difference": self.difference, "low": self.low, "high": self.high}
        return {"judgement": self.judgement.value} | {
            key: value if math.isfinite(value) else None for key, value in numbers.items()
        }


def compare(old: Returns, new: Returns, alpha: float = 0.05) -> Comparison:
    """The difference of mean returns; its interval misses the truth, at any time, with a probability of about `alpha`."""
    difference = new.mean - old.mean
    if min(old.count, new.count) < MIN_EPISODES:
        return Comparison(Judgement.UNDECIDED, difference, -math.inf, math.inf)
    pooled = (old.squares + new.squares) / (old.count + new.count - 2)
    shares = 1.0 / old.count + 1.0 / new.count
    squared_error = max(old.variance / old.count + new.variance / new.count, pooled * shares)
    information = pooled / squared_error if squared_error > 0.0 else 1.0 / shares
    radius = math.sqrt(squared_error) * bound(information, alpha)
    low, high = difference - radius, difference + radius
    judgement = Judgement.WORSE if high < 0.0 else Judgement.BETTER if low > 0.0 else Judgement.UNDECIDED
    return Comparison(judgement, difference, low, high)


def bound(information: float, alpha: float) -> float:
    """√((1 + ρ/t) log((t + ρ) / (ρ α²))): what |d|/s exceeds, at any time, with probability `alpha` at most."""
    rho = TIGHTEST_AT_EPISODES / (2.0 * math.log(1.0 / alpha) + math.log(1.0 + 2.0 * math.log(1.0 / alpha)))
    return math.sqrt((1.0 + rho / information) * math.log((information + rho) / (rho * alpha * alpha)))
