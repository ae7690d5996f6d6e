"""What `mlagents-learn` is asked for, as a run of ours: options go over the file, the file over the defaults.

A run is `results/RUN_ID`. Keys of the file that say which run it is, where it begins and what it plays in are used here; all
others are `mlagents_settings`' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relayrl.config.settings_text import read_mapping
from relayrl.engines.settings.mlagents_settings import UNITY
from relayrl.errors import ConfigError

SECTIONS: dict[str, tuple[str, ...]] = {
    "checkpoint_settings": (
        *("run_id", "results_dir", "initialize_from", "resume", "load_model", "force", "inference", "train_model"),
    ),
    "env_settings": (
        *("env_path", "env_args", "base_port", "num_envs", "num_areas", "seed", "timeout_wait"),
        *("max_lifetime_restarts", "restarts_rate_limit_n", "restarts_rate_limit_period_s"),
    ),
    "engine_settings": (
        *("width", "height", "quality_level", "time_scale", "target_frame_rate", "capture_frame_rate"),
        *("no_graphics", "no_graphics_monitor"),
    ),
    "torch_settings": ("device",),
}
"""The sections of the file that options go over, by the options' names."""
_USED = SECTIONS["checkpoint_settings"]
_EXECUTABLES = ("", ".x86_64", ".x86", ".app", ".exe")


@dataclass(frozen=True, slots=True)
class LearnPlan:
    """One call of `relayrl learn`."""

    env: str
    is_named: bool
    """Whether the command line named the environment, not the file."""
    run_dir: Path
    overlay: Mapping[str, Any]
    """What goes over the file: options, and nulls in place of what was used here."""
    resume: bool
    force: bool
    init_from: Path | None
    inference: bool
    deterministic: bool
    debug: bool


def plan_of(file: Path | None, given: Mapping[str, Any]) -> LearnPlan:
    """What a file and the options of `mlagents-learn` that were given ask for; options have the names of their keys."""
    written = read_mapping(file) if file is not None else {}
    sections = {name: {**_mapping(written, name), **_picked(given, keys)} for name, keys in SECTIONS.items()}
    checkpoint, environment = sections["checkpoint_settings"], sections["env_settings"]
    if given.get("resume") and given.get("force"):
        raise ConfigError("--resume continues a run and --force replaces it; give one of them")
    results = Path(str(checkpoint.get("results_dir") or "results"))
    resume = bool(checkpoint.get("resume") or checkpoint.get("load_model"))
    source = checkpoint.get("initialize_from")
    if resume and source is not None:  # what the command line says decides, else the run is resumed
        resume = bool(given.get("resume")) or "initialize_from" not in given
    path = environment.get("env_path")
    if path is None:
        raise ConfigError(
            "no environment given; name one, as in --env CartPole-v1, or --env unity:editor for Unity's editor"
        )
    init_path = _init_path(written)
    inits = init_path if source is None else results / str(source)
    return LearnPlan(
        env=_environment(str(path)),
        is_named="env_path" in given,
        run_dir=results / str(checkpoint.get("run_id") or "ppo"),
        overlay=_overlay(written, sections),
        resume=resume,
        force=bool(checkpoint.get("force")),
        init_from=None if resume else inits,
        inference=bool(checkpoint.get("inference")),
        deterministic=bool(given.get("deterministic")) or _is_deterministic(written),
        debug=bool(given.get("debug") or written.get("debug")),
    )


def _environment(name: str) -> str:
    """A name as `relayrl train` takes it, or the path of a Unity executable."""
    is_executable = ":" not in name and any(Path(name + suffix).exists() for suffix in _EXECUTABLES)
    return UNITY + name if is_executable else name


def _overlay(written: Mapping[str, Any], sections: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    used: dict[str, Any] = {"init_path": None, "network_settings": {"deterministic": None}}
    sections = {
        **sections,
        "checkpoint_settings": dict.fromkeys(_USED),
        "env_settings": {**sections["env_settings"], "env_path": None},
    }
    behaviors = {name: used if isinstance(own, dict) else own for name, own in _mapping(written, "behaviors").items()}
    default = {"default_settings": used if _mapping(written, "default_settings") else {}}
    return {**sections, **default, **({"behaviors": behaviors} if behaviors else {}), "debug": None}


def _behaviors(written: Mapping[str, Any]) -> list[dict[str, Any]]:
    default = _mapping(written, "default_settings")
    own = [each for each in _mapping(written, "behaviors").values() if isinstance(each, dict)]
    return [{**default, **each} for each in own] or [default]


def _init_path(written: Mapping[str, Any]) -> Path | None:
    paths = {each.get("init_path") for each in _behaviors(written)}
    if len(paths) > 1:
        raise ConfigError(
            f"behaviours have different init_path {sorted(map(str, paths))}; a run begins from one: set one"
        )
    path = paths.pop()
    return None if path is None else Path(str(path))


def _is_deterministic(written: Mapping[str, Any]) -> bool:
    return any((each.get("network_settings") or {}).get("deterministic") for each in _behaviors(written))


def _mapping(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"ML-Agents setting {key}: give a mapping (got {found!r:.100})")
    return found


def _picked(given: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given}
