"""Finding and building VMAS scenarios; the only file that imports `vmas`.

Responsible for names, options and spaces, and for what importing VMAS does besides. Not responsible for stepping.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Space
from relayrl.errors import ConfigError, EnvError, MissingExtraError


def known_names() -> list[str]:
    """The scenarios of the installed VMAS."""
    vmas = _import_vmas()
    return sorted([*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios])


def _import_vmas() -> Any:
    """Import VMAS without the notice that the old `gym`, which it takes its spaces from, prints about itself."""
    with contextlib.suppress(ImportError):
        notices = importlib.import_module("gym_notices.notices")
        notices.notices.pop(importlib.metadata.version("gym"), None)
    try:
        return importlib.import_module("vmas")
    except ImportError as error:
        raise MissingExtraError("a VMAS scenario", "vmas") from error


def shared_random_state() -> list[Any]:
    """VMAS's class-wide list of torch, NumPy and Python generator states, which it puts in place around each call."""
    _import_vmas()
    state: list[Any] = importlib.import_module("vmas.simulator.environment").Environment.vmas_random_state
    return state


def build(name: str, num_envs: int, device: str, options: Mapping[str, Any]) -> Any:
    """A `vmas.Environment` of `num_envs` environments whose step gives termination and truncation apart."""
    with warnings.catch_warnings():
        # VMAS only warns of an option that the scenario does not have.
        warnings.filterwarnings("error", message="Scenario kwargs")
        try:
            return _import_vmas().make_env(name, num_envs, device, terminated_truncated=True, **options)
        except (AssertionError, RuntimeError, TypeError, UserWarning, ValueError) as error:
            raise ConfigError(
                f"vmas:{name} does not accept the options {dict(options)} on {device}: {error}"
            ) from error


def step(env: Any, actions: Sequence[Any]) -> Any:
    """`env.step(actions)`, without the random state that VMAS, in the versions that do, puts in place around it."""
    plain = type(env).step
    return getattr(plain, "__wrapped__", plain)(env, actions)


def render(env: Any, *, mode: str, env_index: int) -> Any:
    """`env.render`, which draws with pyglet and OpenGL; `ConfigError` where this machine has none of them."""
    try:
        return env.render(mode=mode, env_index=env_index, visualize_when_rgb=False)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"VMAS draws with pyglet, which needs a display and OpenGL; `xvfb-run relayrl …` gives one ({reason:.200})"
        ) from error


def gymnasium_space(space: Any) -> Space:
    """VMAS's spaces are those of the old `gym`; only these four kinds occur."""
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(space.low, space.high, dtype=np.float32)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    if kind == "Dict":
        return spaces.Dict({key: gymnasium_space(part) for key, part in space.spaces.items()})
    raise EnvError(f"VMAS gave a {kind} space, which RelayRL does not know")
