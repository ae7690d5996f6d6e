"""What the wrappers of `environment.wrappers` and `--wrap` stand for.

    FrameStackObservation                          a wrapper of `gymnasium.wrappers`, also with its module in front
    pettingzoo.utils.wrappers:BaseParallelWrapper  any wrapper by its module, PettingZoo's for PettingZoo's environments
    package.module:callable                        yours: takes the environment and keyword arguments, gives an environment
    atari, minigrid, carracing                     a stack: several wrappers and what they need of the environment

Order is from the environment outwards. Not its job: applying them (`wrapping`, `wrapped_vector`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from typing import Any

from relayrl.config.settings_text import parse_assignment
from relayrl.errors import ConfigError, UnknownNameError

GYMNASIUM = "gymnasium.wrappers"
INSTALLED = (GYMNASIUM, "minigrid.wrappers", "pettingzoo.utils.wrappers", "supersuit")
"""Modules whose wrappers a file may name without the user's word."""
_WRITES_FILES = ("RecordVideo",)
_GAME = "relayrl.envs.wrappers.atari_game:AtariGame"

Entry = Mapping[str, Mapping[str, Any]]
"""One wrapper as settings hold it: its name, with its keyword arguments."""


@dataclass(frozen=True, slots=True)
class WrapperSpec:
    """One wrapper: `module:name`, and keyword arguments for it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrapperPlan:
    """Wrappers without stacks, from the environment outwards, and options that the environment needs under them."""

    specs: tuple[WrapperSpec, ...] = ()
    env_options: Mapping[str, Any] = field(default_factory=dict)


def _atari(
    *,
    noop_max: int = 30,
    frame_skip: int = 4,
    screen_size: int = 84,
    life_loss: bool = True,
    fire: bool = True,
    stack: int = 4,
    clip_reward: bool = True,
) -> WrapperPlan:
    own = {"noop_max": noop_max, "frame_skip": frame_skip, "screen_size": screen_size}
    specs = [WrapperSpec(_GAME, {**own, "life_loss": life_loss, "fire": fire})]
    specs += _stacked(stack)
    if clip_reward:
        specs.append(WrapperSpec(f"{GYMNASIUM}:ClipReward", {"min_reward": -1.0, "max_reward": 1.0}))
    # The game limits its own frames; a limit on steps between it and the frame skip would count frames.
    return WrapperPlan(tuple(specs), {"frameskip": 1, "obs_type": "grayscale", "max_episode_steps": -1})


def _minigrid(*, fully_observable: bool = False, one_hot: bool = False) -> WrapperPlan:
    if fully_observable and one_hot:
        raise ConfigError(
            "stack 'minigrid' of wrappers: one_hot is of the agent's own view; leave it or fully_observable out"
        )
    names = ["FullyObsWrapper"] * fully_observable + ["OneHotPartialObsWrapper"] * one_hot + ["ImgObsWrapper"]
    return WrapperPlan(tuple(WrapperSpec(f"minigrid.wrappers:{name}") for name in names))


def _carracing(*, skip: int = 2, size: int = 64, stack: int = 2) -> WrapperPlan:
    if skip < 1:
        raise ConfigError(f"stack 'carracing' of wrappers: skip is {skip}; give 1, which repeats nothing, or more")
    specs = [WrapperSpec(f"{GYMNASIUM}:RepeatAction", {"num_repeats": skip})] * (skip > 1)
    specs += [WrapperSpec(f"{GYMNASIUM}:ResizeObservation", {"shape": (size, size)})]
    specs += [WrapperSpec(f"{GYMNASIUM}:GrayscaleObservation"), *_stacked(stack)]
    return WrapperPlan(tuple(specs))


def _stacked(count: int) -> list[WrapperSpec]:
    if count < 1:
        raise ConfigError(f"stack of {count} frames: give 1, which is the newest alone, or more")
    return [WrapperSpec(f"{GYMNASIUM}:FrameStackObservation", {"stack_size": count})] * (count > 1)


STACKS: dict[str, Callable[..., WrapperPlan]] = {"atari": _atari, "minigrid": _minigrid, "carracing": _carracing}


def parse_wrap(text: str) -> dict[str, dict[str, Any]]:
    """One `--wrap`: `NAME`, `NAME={"key": value}` or `NAME=key=value,key=value`, as settings hold it."""
    name, has_options, rest = text.partition("=")
    if not has_options:
        return {name.strip(): {}}
    if rest.lstrip().startswith("{"):
        _, options = parse_assignment(text, "--wrap")
        if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
            raise ConfigError(f"--wrap {name}: its arguments are no mapping of names to values")
        return {name.strip(): options}
    return {name.strip(): dict(parse_assignment(part, "--wrap") for part in _parts(rest))}


def _parts(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def plan_of(entries: Iterable[Entry]) -> WrapperPlan:
    """The wrappers that settings name, stacks replaced by what they stand for; `ConfigError` for an unknown name."""
    specs: list[WrapperSpec] = []
    env_options: dict[str, Any] = {}
    for entry in entries:
        name, options = next(iter(entry.items()))
        if name in STACKS:
            try:
                part = STACKS[name](**options)
            except TypeError as error:
                raise ConfigError(f"stack {name!r} of wrappers: {' '.join(str(error).split())}") from error
            specs += part.specs
            env_options |= part.env_options
        else:
            specs.append(WrapperSpec(_full_name(name), options))
    return WrapperPlan(tuple(specs), env_options)


def _full_name(name: str) -> str:
    if ":" in name:
        return name
    import gymnasium.wrappers

    known = gymnasium.wrappers.__all__
    if name not in known or name == "vector":
        raise UnknownNameError("wrapper", name, [*STACKS, *known])
    return f"{GYMNASIUM}:{name}"


def is_installed_wrapper(name: str) -> bool:
    """Whether a file may name this wrapper without the user's word: it is a wrapper of a known, installed package."""
    module, colon, what = name.partition(":")
    if not colon:
        return name not in _WRITES_FILES
    return module in INSTALLED and what.isidentifier() and what not in _WRITES_FILES and not comes_from_here(module)


def comes_from_here(module: str) -> bool:
    """Whether importing `module` could run a file of the current directory, which `module:name` is searched in first."""
    package = module.partition(".")[0]
    here = PathFinder.find_spec(package, [os.getcwd()])
    if here is None:
        return False
    if here.origin is not None:
        return True
    # A plain directory of that name gives way to an installed package.
    installed = importlib.util.find_spec(package)
    return installed is None or installed.origin is None
