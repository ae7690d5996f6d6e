"""From the name of an environment and `EnvSettings` to environments that are ready to reset.

    CartPole-v1                            a Gymnasium id, also as module:Id-v0
    mpe2:simple_spread_v3                  mpe2
    pettingzoo:classic.connect_four_v3     PettingZoo
    vmas:simple_spread                     VMAS
    native:simple_spread                   RelayRL's own batched environments
    envpool:CartPole-v1                    EnvPool
    unity:PATH, unity:PORT, unity:editor   a Unity scene: an executable, or a simulator that connects
    corridor                               a plugin: an entry point, or what `relayrl.register_environment` named
    package.module:factory                 a function or class of yours; the current directory is searched

Where there is a choice, the fastest way that gives the same numbers is taken: an environment's own vector implementation where
it is known to be the same environment (`vector: own` takes it wherever there is one), else one loop in this process, or worker
processes when `workers` says so.

With `workers`, nothing of a user's is imported or run in this process: what an environment does to its process, it does to a
worker.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from relayrl.config.plugin_registry import plugin_environment
from relayrl.config.settings import parse_settings
from relayrl.envs.adapters import gymnasium_adapter
from relayrl.envs.adapters.gymnasium_vector import GymnasiumVector
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy, VectorChoice
from relayrl.envs.failures import EnvFailure
from relayrl.envs.parameters.episode_parameters import ParameterPlan
from relayrl.envs.parameters.parameterised_vector import with_parameters
from relayrl.envs.recipes import (
    PETTINGZOO_LIBRARIES,
    UNITY,
    VECTOR_LIBRARIES,
    EnvRecipe,
    Factory,
    find_factory,
    gymnasium_id,
)
from relayrl.envs.rendering import RenderMode
from relayrl.envs.vector.guarded_vector import guard
from relayrl.envs.vector.regrouped import regrouped
from relayrl.envs.vector.vectorise import VectorisedEnvironments, run_in_process, vectorise
from relayrl.envs.wrappers.wrapped_vector import DROP_KEYS, FLATTEN, split, wrapped
from relayrl.envs.wrappers.wrapper_names import WrapperSpec, plan_of
from relayrl.errors import ConfigError, MissingExtraError, RelayRLError

Built = TypeVar("Built")


def make_vector(
    env: str | Factory, settings: EnvSettings, *, own_number: bool = False, render: RenderMode | None = None
) -> VectorEnvironment:
    """`settings.num_envs` environments of `env`, an ENV string or a factory, ready to reset; to be drawn in the mode
    `render`, where they can: `VectorEnvironment.drawing` has the answer.

    A factory may make a vector environment of a number of its own. That is an error where `settings` were given another number
    explicitly, unless the caller takes any (`own_number`).
    """
    made_by = plugin_environment(env) if isinstance(env, str) else env
    plan = plan_of(settings.wrappers)
    alone, together = split(plan.specs)
    recipe = EnvRecipe(
        made_by,
        {**plan.env_options, **settings.options},
        settings.num_envs,
        None if render is None else render.value,
        alone,
        tuple(settings.ignore_keys),
        settings.max_episode_steps,
        settings.reward_weights,
        ParameterPlan(settings.parameters, settings.parameters_through) if settings.parameters else None,
    )
    made = _make_envs(recipe, settings, own_number=own_number, render=render)
    outer = [*together, *([WrapperSpec(FLATTEN)] if settings.flatten else [])]
    if settings.ignore_keys and not isinstance(made, VectorisedEnvironments):
        outer.insert(0, WrapperSpec(DROP_KEYS, {"keys": settings.ignore_keys}))
    if settings.parameters:
        made.begin_lessons([0] * len(settings.parameters))  # raises where an environment was made without parameters
    return regrouped(wrapped(made, outer), settings.sharing)


def make_env(
    env: str | Factory, *, num_envs: int | None = None, wrappers: Sequence[Any] = (), **options: Any
) -> VectorEnvironment:
    """A vector environment of `env`, an ENV string or a factory with its options, ready to reset. Without `num_envs` it has 8
    environments, or as many as a factory of vector environments makes. `wrappers` are as in `environment.wrappers`."""
    chosen = {} if num_envs is None else {"num_envs": num_envs}
    return make_vector(env, parse_settings(EnvSettings, {**chosen, "options": options, "wrappers": list(wrappers)}))


def _make_envs(
    recipe: EnvRecipe, settings: EnvSettings, *, own_number: bool, render: RenderMode | None
) -> VectorEnvironment:
    env = recipe.env
    if settings.workers > 0:
        if recipe.library in VECTOR_LIBRARIES or settings.vector is VectorChoice.OWN:
            raise ConfigError(f"{recipe.name} steps all environments in one call; set workers to 0")
        if isinstance(env, str) and ":" not in env:
            find_factory(env)  # a Gymnasium id or nothing; looking it up here runs nothing of a user's
        from relayrl.envs.workers.worker_pool import WorkerPool

        return vectorise(lambda: WorkerPool(recipe, settings), settings)
    if recipe.library == UNITY:
        return _unity_scenes(recipe, settings, own_number=own_number)
    find_factory(env)
    own = _own_vector(recipe, settings)
    if own is not None:
        return _ready(guard(own, settings.observation_check), settings.num_envs)
    return _in_process(recipe, settings, own_number=own_number)


def list_environments() -> list[str]:
    """Every ENV string that can be run with what is installed; factories of yours are not listed."""
    return [name for names in environments_by_package().values() for name in names]


def environments_by_package() -> dict[str, list[str]]:
    """The same by the package that they come from."""
    found = gymnasium_adapter.ids_by_package()
    for library in PETTINGZOO_LIBRARIES:
        found[library] = [f"{library}:{name}" for name in _pettingzoo_names(library)]
    found["vmas"] = [f"vmas:{name}" for name in _vmas_names()]
    found["native"] = [f"native:{name}" for name in _native_names()]
    return {package: names for package, names in found.items() if names}


def _own_vector(recipe: EnvRecipe, settings: EnvSettings) -> VectorEnvironment | None:
    """The vector implementation that a Gymnasium id comes with, where it is to be used; it cannot restart single
    environments."""
    env_id = gymnasium_id(recipe.env)
    if env_id is None:
        return None
    if recipe.parameters is not None:
        if settings.vector is VectorChoice.OWN:
            raise ConfigError(
                f"the vector implementation of {recipe.name} steps all environments in one call and takes no environment "
                "parameters; set environment.vector to 'auto'"
            )
        return None
    if recipe.wrappers:
        if settings.vector is VectorChoice.OWN:
            names = ", ".join(spec.name for spec in recipe.wrappers)
            raise ConfigError(
                f"the vector implementation of {recipe.name} steps all environments in one call, and {names} takes one; set "
                "environment.wrappers=[] or environment.vector to 'auto'"
            )
        return None
    if settings.vector is VectorChoice.OWN:
        if settings.on_failure is FailurePolicy.RESTART:
            raise _cannot_restart(recipe)
        drawn = {} if recipe.render_mode is None else {"render_mode": recipe.render_mode}
        own = {**recipe.limited_options(), **drawn}
        return _built(lambda: gymnasium_adapter.own_vector(env_id, settings.num_envs, own))
    if settings.on_failure is FailurePolicy.RESTART or recipe.render_mode is not None:
        return None
    return gymnasium_adapter.equal_vector(env_id, settings.num_envs, recipe.limited_options())


def _unity_scenes(recipe: EnvRecipe, settings: EnvSettings, *, own_number: bool) -> VectorEnvironment:
    """The areas of a Unity scene. `num_envs` counts simulators, which are heavy: one, unless more were asked for; and one
    where the caller takes any number."""
    from relayrl.envs.unity import unity_environment

    if recipe.wrappers or recipe.max_episode_steps is not None:
        raise ConfigError(
            f"{recipe.name} steps all environments in one call and limits their episodes itself; leave out "
            "environment.max_episode_steps and wrappers of single environments"
        )
    is_asked = "num_envs" in settings.model_fields_set and not own_number
    number = settings.num_envs if is_asked else 1
    scene = recipe.name.partition(":")[2]
    envs = _built(lambda: unity_environment.make(scene, settings, recipe.options, num_simulators=number))
    offered = envs if recipe.parameters is None else with_parameters(envs, recipe.parameters.parameters)
    return _ready(guard(offered, settings.observation_check), envs.built_num_envs)


def _in_process(recipe: EnvRecipe, settings: EnvSettings, *, own_number: bool) -> VectorEnvironment:
    first = _built(recipe.build)
    if not isinstance(first, VectorEnvironment):
        if settings.vector is VectorChoice.OWN:
            first.close()
            raise ConfigError(
                f"{recipe.name} has no vector implementation of its own; set environment.vector to 'auto'"
            )
        return vectorise(lambda: run_in_process(recipe, first, settings.num_envs, settings.observation_check), settings)
    if settings.on_failure is FailurePolicy.RESTART:
        first.close()
        raise _cannot_restart(recipe)
    is_ours = recipe.library is not None and not isinstance(first, GymnasiumVector)
    offered = first if recipe.parameters is None else with_parameters(first, recipe.parameters.parameters)
    envs = offered if is_ours else guard(offered, settings.observation_check)
    if isinstance(first, GymnasiumVector) and first.built_num_envs != settings.num_envs:
        if "num_envs" in settings.model_fields_set and not own_number:
            first.close()
            raise ConfigError(
                f"{recipe.name} makes a vector environment of {first.built_num_envs} environments, num_envs says "
                f"{settings.num_envs}; leave num_envs out, or give the factory an argument num_envs"
            )
        return _ready(envs, first.built_num_envs)
    return _ready(envs, settings.num_envs)


def _cannot_restart(recipe: EnvRecipe) -> ConfigError:
    return ConfigError(
        f"{recipe.name} steps all environments in one call and cannot restart one; set on_failure to 'raise'"
    )


def _built(build: Callable[[], Built]) -> Built:
    try:
        return build()
    except RelayRLError:
        raise
    except BaseException as error:
        raise EnvFailure.of_exception(0, error, "building it").as_error(uuid.uuid4(), None, 0) from error


def _ready(env: VectorEnvironment, num_envs: int) -> VectorEnvironment:
    env.init_num_envs(num_envs)
    return env


def _pettingzoo_names(library: str) -> Iterable[str]:
    from relayrl.envs.adapters import pettingzoo_modules

    with contextlib.suppress(MissingExtraError):
        return pettingzoo_modules.usable_names(library)
    return ()


def _vmas_names() -> Iterable[str]:
    from relayrl.envs.adapters import vmas_scenarios

    with contextlib.suppress(MissingExtraError):
        return vmas_scenarios.known_names()
    return ()


def _native_names() -> Iterable[str]:
    from relayrl.envs import native

    return native.names()
