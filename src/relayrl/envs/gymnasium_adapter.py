"""Gymnasium environments by their id.

A `gymnasium.Env` needs no adapter: it has the methods of `ScalarEnvironment` already and is stepped directly. This file
makes them, turns Gymnasium's own complaints into ours, and finds an environment's own vector implementation where it
has one that can be used. Running vector environments is `gymnasium_vector` and `cartpole_vector`.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from relayrl.envs.cartpole_vector import CartPoleVector, is_cartpole
from relayrl.envs.contract import VectorEnvironment
from relayrl.envs.gymnasium_vector import GymnasiumVector
from relayrl.errors import ConfigError, UnknownNameError

_NEEDED_BY_FAMILY = {"box2d": "Box2D", "mujoco": "mujoco", "phys2d": "jax", "tabular": "jax"}
"""The package that each family of Gymnasium's optional environments imports."""


def known_ids() -> list[str]:
    """The registered environments whose dependencies are installed."""
    return sorted(env_id for env_id, spec in gymnasium.registry.items() if _can_be_made(spec))


def find(env_id: str) -> partial[Any]:
    """What makes the environment `env_id`; raises `UnknownNameError` when it is not registered."""
    if env_id not in gymnasium.registry:
        raise UnknownNameError("environment", env_id, gymnasium.registry)
    return partial(make, env_id)


def make(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """One environment, without the wrappers whose work RelayRL does itself: checks of observations, in batches, and that an
    episode is reset before it is stepped. Each wrapper costs every step a call."""
    try:
        return gymnasium.make(_plain_spec(env_id), disable_env_checker=True, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"{env_id} cannot be made: {' '.join(str(error).split())}") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"{env_id} does not accept the options {options}: {error}") from error


def own_vector(env_id: str, num_envs: int, options: Mapping[str, Any]) -> VectorEnvironment | None:
    """The environment's own vector implementation, not yet initialised; None where it has none that can be used."""
    spec = gymnasium.registry.get(env_id)
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers or "render_mode" in options:
        return None
    if _needs_jax(spec):
        return None
    try:
        env = gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
    except (gymnasium.error.Error, ImportError, TypeError):
        return None  # The scalar environment either works with these options or says what is wrong with them.
    return CartPoleVector(env) if is_cartpole(env) else GymnasiumVector(env)


def _plain_spec(env_id: str) -> str | EnvSpec:
    """The registered environment without its order-enforcing wrapper; ids that name a module are Gymnasium's to find."""
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        return env_id
    plain = copy.copy(spec)
    plain.order_enforce = False
    return plain


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
    needed = _NEEDED_BY_FAMILY.get(rest.partition(".")[0]) if library == "gymnasium" else None
    return needed is None or importlib.util.find_spec(needed) is not None
