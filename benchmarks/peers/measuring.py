"""What every worker does the same way: the clock, the greedy evaluation, and the one line that the harness reads.

Free of third parties at import. The clock ticks after every update; what was done before its first tick past
`steps_before_clock` (the first rollout and update, compiling, random steps before learning) is not timed.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from work import EVALUATION_EPISODES, Task

RESULT_PREFIX = "RESULT "


def process_start() -> float:
    """When this process began, in `time.time()`'s seconds, the interpreter's own start included (Linux)."""
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        started_ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
        age_s = float(uptime.read().split()[0]) - started_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def peak_mib() -> float:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Clock:
    """Environment steps per second between the first tick past the warm-up and the last tick."""

    def __init__(self, task: Task) -> None:
        self._steps_before = task.work.steps_before_clock
        self._process_start = process_start()
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        self.seconds_to_first_update: float | None = None

    def tick(self, num_env_steps: int) -> None:
        """An update has ended, after so many environment steps in all."""
        now = time.perf_counter()
        if self.seconds_to_first_update is None:
            self.seconds_to_first_update = self.seconds_since_start()
        if self._first is None and num_env_steps >= self._steps_before:
            self._first = (num_env_steps, now)
        self._last = (num_env_steps, now)

    def seconds_since_start(self) -> float:
        """Wall clock since the process began."""
        return time.time() - self._process_start

    def figures(self) -> dict[str, float]:
        """What was timed."""
        if self._first is None or self._last is None or self._last[0] == self._first[0]:
            raise RuntimeError(f"too few updates to time: first {self._first}, last {self._last}")
        steps, seconds = self._last[0] - self._first[0], self._last[1] - self._first[1]
        return {
            "env_steps_per_s": steps / seconds,
            "timed_steps": steps,
            "timed_seconds": seconds,
            "seconds_to_first_update": self.seconds_to_first_update or 0.0,
            "training_peak_mib": peak_mib(),
        }


def set_torch_threads(task: Task) -> None:
    """Threads of torch's operations."""
    import torch

    torch.set_num_threads(task.threads)


def greedy_return(env_id: str, act: Callable[[Any], Any], episodes: int = EVALUATION_EPISODES) -> float:
    """Mean return of `act(observation) -> action` over episodes of a single Gymnasium environment."""
    import gymnasium

    env, total = gymnasium.make(env_id), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 + episode)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def report(version: str, figures: dict[str, Any], *, mean_return: float | None, **details: Any) -> None:
    """Tell the harness, on a line of its own whatever a progress bar has left; `mean_return` is the learning check."""
    line = json.dumps({"version": version, **figures, "mean_return": mean_return, **details})
    print(f"\n{RESULT_PREFIX}{line}", flush=True)
