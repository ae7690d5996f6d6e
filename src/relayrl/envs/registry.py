"""From the name of an environment and `EnvSettings` to worlds that are ready to reset.

    CartPole-v1                            a Gymnasium id, also as module:Id-v0
    mpe2:simple_spread_v3                  mpe2
    pettingzoo:classic.connect_four_v3     PettingZoo
    vmas:simple_spread                     VMAS
    native:simple_spread                   RelayRL's own batched worlds
    package.module:factory                 a function or class of yours; the current directory is searched

Where there is a choice, the fastest way that keeps the contract is taken: an environment's own vector implementation, else
one loop in this process, or worker processes when `workers` says so.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from typing import Any

from relayrl.envs import gymnasium_adapter
from relayrl.envs.contract import VectorEnvironment
from relayrl.envs.failures import WorldFailure
from relayrl.envs.guarded_vector import guard
from relayrl.envs.recipes import PETTINGZOO_LIBRARIES, VECTOR_LIBRARIES, EnvRecipe, Factory, find_factory, gymnasium_id
from relayrl.envs.regrouped import regrouped
from relayrl.envs.settings import EnvSettings, FailurePolicy
from relayrl.envs.vectorise import run_in_process, vectorise
from relayrl.errors import ConfigError, MissingExtraError, RelayRLError


def make_vector(env: str | Factory, settings: EnvSettings) -> VectorEnvironment:
    """`settings.num_envs` worlds of `env`, an ENV string or a factory, ready to reset."""
    return regrouped(_make_worlds(env, settings), settings.sharing)


def _make_worlds(env: str | Factory, settings: EnvSettings) -> VectorEnvironment:
    find_factory(env)
    recipe = EnvRecipe(env, settings.options)
    if settings.workers > 0:
        if recipe.library in VECTOR_LIBRARIES:
            raise ConfigError(f"{env} steps all worlds in one call; set workers to 0")
        from relayrl.envs.worker_pool import WorkerPool

        return vectorise(lambda: WorkerPool(recipe, settings), settings)
    return _own_vector(recipe, settings) or _in_process(recipe, settings)


def list_environments() -> list[str]:
    """Every ENV string that can be run with what is installed; factories of yours are not listed."""
    names = gymnasium_adapter.known_ids()
    for library in PETTINGZOO_LIBRARIES:
        names += [f"{library}:{name}" for name in _pettingzoo_names(library)]
    names += [f"vmas:{name}" for name in _vmas_names()]
    names += [f"native:{name}" for name in _native_names()]
    return names


def _own_vector(recipe: EnvRecipe, settings: EnvSettings) -> VectorEnvironment | None:
    """The vector implementation that a Gymnasium id comes with; it cannot restart single worlds."""
    env_id = gymnasium_id(recipe.env)
    if env_id is None or settings.on_failure is FailurePolicy.RESTART:
        return None
    env = gymnasium_adapter.own_vector(env_id, settings.num_envs, recipe.options)
    return None if env is None else _ready(guard(env, settings.observation_check), settings)


def _in_process(recipe: EnvRecipe, settings: EnvSettings) -> VectorEnvironment:
    first = _build_first(recipe)
    if not isinstance(first, VectorEnvironment):
        return vectorise(
            lambda: run_in_process(recipe.build, first, settings.num_envs, settings.observation_check), settings
        )
    if settings.on_failure is FailurePolicy.RESTART:
        raise ConfigError(
            f"{recipe.name} steps all worlds in one call and cannot restart one; set on_failure to 'raise'"
        )
    return _ready(first if recipe.library is not None else guard(first, settings.observation_check), settings)


def _build_first(recipe: EnvRecipe) -> Any:
    try:
        return recipe.build()
    except RelayRLError:
        raise
    except Exception as error:
        raise WorldFailure.of_exception(0, error, "building it").as_error(uuid.uuid4(), None, 0) from error


def _ready(env: VectorEnvironment, settings: EnvSettings) -> VectorEnvironment:
    env.init_num_envs(settings.num_envs)
    return env


def _pettingzoo_names(library: str) -> Iterable[str]:
    from relayrl.envs import pettingzoo_modules

    with contextlib.suppress(MissingExtraError):
        return pettingzoo_modules.known_names(library)
    return ()


def _vmas_names() -> Iterable[str]:
    from relayrl.envs import vmas_scenarios

    with contextlib.suppress(MissingExtraError):
        return vmas_scenarios.known_names()
    return ()


def _native_names() -> Iterable[str]:
    from relayrl.envs import native

    return native.names()
