"""Which settings of a run may differ when it is resumed, and which may not.

What decides the shape of what was saved, or what the run is about, cannot change. What only decides how long it runs or what
it reports can. Hyper-parameters can change as well, but then its settings no longer describe the run from the first step on,
which is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import ConfigError

FIXED = (
    "env",
    "algo",
    "seed",
    "network",
    "behaviors",
    "environment.num_envs",
    "environment.options",
    "environment.parameters",
    "environment.parameters_through",
    "environment.vector",
    "environment.wrappers",
    "environment.max_episode_steps",
    "environment.ignore_keys",
    "environment.flatten",
    "params.buffer_size",
    "cluster.replay",
    "learn_from",
    "self_play",
)
"""Settings, or whole groups of them, that a resumed run must keep."""

HARMLESS = (
    "record",
    "engine",
    "cluster",
    "trainer.max_steps",
    "trainer.summary_freq",
    "trainer.checkpoint_interval",
    "trainer.keep_checkpoints",
    "evaluation",
    "statistics",
    "environment.workers",
    "environment.exclusive",
    "environment.observation_check",
    "environment.step_timeout_s",
    "environment.start_timeout_s",
    "environment.max_restarts_per_minute",
)
"""Settings that do not change what is learned up to a given step, schedules over `max_steps` aside."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path} ({self.before} → {self.after})"


def check_changes(before: RunSettings, after: RunSettings) -> list[str]:
    """One line for each changed setting that is allowed; raises `ConfigError` where one is not."""
    changes = list(_changes(before.model_dump(mode="json"), after.model_dump(mode="json")))
    refused = [change for change in changes if _is_under(change.path, FIXED)]
    if refused:
        names = ", ".join(str(change) for change in refused)
        raise ConfigError(
            f"cannot resume with a changed {names}: it decides what was saved; "
            "leave it as it was, or begin a new run (with --init-from, from these networks)"
        )
    _require_same_form(before, after)
    lines = []
    for change in changes:
        kept = _is_under(change.path, HARMLESS)
        lines.append(f"resuming with {change}: allowed" + ("" if kept else ", but the steps before had the old value"))
    return lines


def _require_same_form(before: RunSettings, after: RunSettings) -> None:
    """An environment that steps by its own vector implementation without workers is saved in another form than with them, and
    replay of environments that step together in another form than of those that each keep their own pace."""
    from relayrl.envs.adapters.gymnasium_adapter import EQUAL_VECTORS

    if hasattr(after.params, "buffer_size") and before.keeps_own_pace != after.keeps_own_pace:
        raise ConfigError(
            "cannot resume a run with replay with a changed cluster.asynchronous: it decides what was saved; leave it as it "
            "was, or begin a new run (with --init-from, from these networks)"
        )
    workers = before.environment_here.workers, after.environment_here.workers
    if bool(workers[0]) != bool(workers[1]) and before.env in EQUAL_VECTORS:
        raise ConfigError(
            f"cannot resume {before.env} with a changed environment.workers ({workers[0]} → {workers[1]}): without workers its "
            "environments are saved together; keep workers, or begin a new run (with --init-from, from these networks)"
        )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[Change]:
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changes(old, new, f"{prefix}{key}.")
        elif old != new:
            yield Change(prefix + key, old, new)


def _is_under(path: str, names: tuple[str, ...]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)
