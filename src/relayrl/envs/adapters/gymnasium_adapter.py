"""Gymnasium environments by their id.

A `gymnasium.Env` needs no adapter: it has the methods of `ScalarEnvironment` already and is stepped directly. This file
makes them, turns Gymnasium's own complaints into ours, and finds an environment's own vector implementation where it
is known to be the same environment, or was asked for. Running vector environments is `gymnasium_vector` and `cartpole_vector`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from relayrl.envs.adapters.cartpole_vector import CartPoleVector, is_cartpole
from relayrl.envs.adapters.gymnasium_packages import import_installed, require_registered
from relayrl.envs.adapters.gymnasium_vector import GymnasiumVector
from relayrl.envs.conversions.foreign_hints import id_hint, register_for
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.errors import ConfigError

_NEEDED_BY_FAMILY = {"box2d": "Box2D", "mujoco": "mujoco", "phys2d": "jax", "tabular": "jax"}
"""The package that each family of Gymnasium's optional environments imports."""

MAKES_ANY_OTHER = ("GymV21Environment-v0", "GymV26Environment-v0")
"""Registered ids whose options name the environment, or a module to import."""

_CARTPOLE = "gymnasium.envs.classic_control.cartpole"
_CARTPOLE_POINTS = (f"{_CARTPOLE}:CartPoleEnv", f"{_CARTPOLE}:CartPoleVectorEnv")
EQUAL_VECTORS = {"CartPole-v0": _CARTPOLE_POINTS, "CartPole-v1": _CARTPOLE_POINTS}
"""Ids whose own vector implementation is the same environment, by entry points: a test compares each, step by step.

Gymnasium does not promise that: `ALE/Pong-v5` is 210×160 with scores by itself, and 84×84 with clipped rewards as a vector.
"""
_EQUAL_OPTIONS = {"max_episode_steps", "sutton_barto_reward"}
"""Options under which they were compared."""


def known_ids() -> list[str]:
    """The registered environments whose dependencies are installed."""
    return sorted(
        env_id for env_id, spec in gymnasium.registry.items() if _can_be_made(spec) and env_id not in MAKES_ANY_OTHER
    )


def ids_by_package() -> dict[str, list[str]]:
    """The environments of every installed package that registers any, by its name."""
    import_installed()
    found: dict[str, list[str]] = {}
    for env_id in known_ids():
        entry = gymnasium.registry[env_id].entry_point
        while isinstance(entry, partial):
            entry = entry.func
        module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
        found.setdefault(module.partition(".")[0], []).append(env_id)
    return dict(sorted(found.items(), key=lambda item: (item[0] != "gymnasium", item[0])))


def find(env_id: str) -> partial[Any]:
    """What makes the environment `env_id`, with the package imported that registers it; `ConfigError` where none does."""
    if env_id not in gymnasium.registry:
        register_for(env_id)
    if env_id not in gymnasium.registry and (hint := id_hint(env_id)) is not None:
        raise ConfigError(hint)
    require_registered(env_id)
    return partial(make, env_id)


def make(env_id: str, /, **options: Any) -> gymnasium.Env[Any, Any]:
    """One environment, without the wrappers whose work RelayRL does itself: checks of observations, in batches, and that an
    episode is reset before it is stepped. Each wrapper costs every step a call."""
    with _translated(env_id, options):
        spec = _plain_spec(env_id)
        if "render_mode" in options and not _draws(spec, options["render_mode"]):
            options.pop(
                "render_mode"
            )  # Gymnasium would warn, or fail; who wants pictures asks the environment for its modes.
        return gymnasium.make(spec, disable_env_checker=True, **options)


def equal_vector(env_id: str, num_envs: int, options: Mapping[str, Any]) -> VectorEnvironment | None:
    """The environment's own vector implementation where it is known to be the same environment; None elsewhere."""
    spec = gymnasium.registry.get(env_id)
    if spec is None or (spec.entry_point, spec.vector_entry_point) != EQUAL_VECTORS.get(env_id):
        return None
    if spec.additional_wrappers or not options.keys() <= _EQUAL_OPTIONS or options.get("max_episode_steps", 1) < 1:
        return None  # The scalar environment either works with these options or says what is wrong with them.
    return own_vector(env_id, num_envs, options)


def own_vector(env_id: str, num_envs: int, options: Mapping[str, Any]) -> VectorEnvironment:
    """The environment's own vector implementation, not yet initialised; `ConfigError` where none can be used."""
    spec = gymnasium.registry.get(env_id)
    if spec is None or spec.vector_entry_point is None:
        raise ConfigError(f"{env_id} has no vector implementation of its own; set environment.vector to 'auto'")
    if _needs_jax(spec):
        raise ConfigError(f"the vector implementation of {env_id} needs jax; set environment.vector to 'auto'")
    with _translated(f"the vector implementation of {env_id}", options):
        env = gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
    return CartPoleVector(env) if is_cartpole(env) else GymnasiumVector(env)


@contextlib.contextmanager
def _translated(what: str, options: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"{what} cannot be made: {' '.join(str(error).split())}") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"{what} does not accept the options {dict(options)}: {error}") from error


def _plain_spec(env_id: str) -> str | EnvSpec:
    """The registered environment without its order-enforcing wrapper; ids that name a module are Gymnasium's to find."""
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        return env_id
    plain = copy.copy(spec)
    plain.order_enforce = False
    return plain


def _draws(spec: str | EnvSpec, mode: Any) -> bool:
    """Whether an environment names the mode, or gives arrays for which Gymnasium opens a window; True where it names none."""
    entry = None if isinstance(spec, str) else spec.entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    metadata = getattr(creator, "metadata", None)
    if metadata is None:
        return True
    modes = metadata.get("render_modes", [])
    return mode in modes or (mode == "human" and "rgb_array" in modes)


def _needs_jax(spec: EnvSpec) -> bool:
    entry = spec.vector_entry_point
    try:
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
    except (gymnasium.error.Error, ImportError):
        return True
    return any("jax" in base.__module__ for base in getattr(creator, "__mro__", ()))


def _can_be_made(spec: EnvSpec) -> bool:
    if not isinstance(spec.entry_point, str):
        # Gymnasium registers removed environments with a function that only raises.
        return getattr(spec.entry_point, "__module__", "") != "gymnasium.envs"
    library, _, rest = spec.entry_point.partition(".envs.")
    own = spec.entry_point.partition(":")[0].partition(".")[0]
    needed = _NEEDED_BY_FAMILY.get(rest.partition(".")[0]) if library == "gymnasium" else own
    return needed is None or importlib.util.find_spec(needed) is not None
