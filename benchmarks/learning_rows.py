"""The learning results that are promised: environment, algorithm, steps, seeds, and the mean return to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Target:
    """What the mean over seeds must reach at a number of environment steps; None: the curve alone is wanted."""

    num_steps: int
    threshold: float | None


@dataclass(frozen=True)
class Playground:
    """Another environment than the one trained on, in which the policies are evaluated."""

    env: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """What `relayrl evaluate` is told."""
        options = [f"{key}={str(value).lower()}" for key, value in self.options.items()]
        return ["--env", self.env, *(word for option in options for word in ("--option", option))]


@dataclass(frozen=True)
class LearningRow:
    """One environment and algorithm. The last target is the end of the run; earlier ones lie on its way.

    `interval` has the run evaluated on its way, which a curve and earlier targets need.
    """

    env: str
    algo: str
    targets: tuple[Target, ...]
    num_seeds: int = 5
    interval: int | None = None
    playground: Playground | None = None

    @property
    def name(self) -> str:
        return f"{self.env}/{self.algo}"

    @property
    def num_steps(self) -> int:
        """Environment steps of each run."""
        return self.targets[-1].num_steps

    @property
    def played_in(self) -> str:
        """The environment of the evaluation."""
        return self.env if self.playground is None else self.playground.env

    @property
    def command(self) -> str:
        """What reproduces a seed, without the seed."""
        interval = "" if self.interval is None else f" --set evaluation.interval={self.interval}"
        return f"relayrl train {self.env} --algo {self.algo}{interval}"


SPREAD = Playground("mpe2:simple_spread_v3", {"continuous_actions": True})
SPEAKER = Playground("mpe2:simple_speaker_listener_v4", {"continuous_actions": True})


def _at(num_steps: int, threshold: float | None) -> tuple[Target, ...]:
    return (Target(num_steps, threshold),)


ROWS = (
    LearningRow("CartPole-v1", "ppo", _at(50_000, 490.0)),
    LearningRow("CartPole-v1", "reinforce", _at(200_000, 450.0)),
    LearningRow("CartPole-v1", "impala", _at(100_000, 475.0)),
    LearningRow("CartPole-v1", "appo", _at(50_000, 475.0)),
    LearningRow("Pendulum-v1", "ddpg", _at(20_000, -170.0)),
    LearningRow("Pendulum-v1", "td3", _at(20_000, -160.0)),
    LearningRow("Pendulum-v1", "sac", _at(20_000, -160.0)),
    LearningRow("Pendulum-v1", "ppo", _at(200_000, -200.0)),
    LearningRow("Acrobot-v1", "ppo", _at(200_000, -90.0)),
    # 61 rollouts of 16 × 1,024 steps: evaluated just before one, two and three million.
    LearningRow(
        "LunarLander-v3",
        "ppo",
        (Target(1_000_000, 230.0), Target(3_000_000, 230.0)),
        num_seeds=3,
        interval=999_424,
    ),
    LearningRow("MountainCarContinuous-v0", "ppo", _at(300_000, 90.0), num_seeds=3),
    LearningRow("LunarLanderContinuous-v3", "sac", _at(200_000, 220.0), num_seeds=2),
    LearningRow("LunarLanderContinuous-v3", "td3", _at(200_000, 220.0), num_seeds=2),
    LearningRow("HalfCheetah-v5", "sac", _at(100_000, 3_800.0), num_seeds=2),
    LearningRow("HalfCheetah-v5", "td3", _at(100_000, 3_500.0), num_seeds=2),
    *(
        LearningRow("native:simple_spread", algo, _at(2_000_000, -17.0), num_seeds=2, playground=SPREAD)
        for algo in ("mappo", "maddpg", "matd3")
    ),
    *(
        LearningRow(
            "native:simple_speaker_listener",
            algo,
            _at(1_000_000, None),
            num_seeds=2,
            interval=100_000,
            playground=SPEAKER,
        )
        for algo in ("mappo", "maddpg", "matd3")
    ),
)
