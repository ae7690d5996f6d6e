"""From the name of an environment to one built environment.

`EnvRecipe` is what travels to worker processes: a name (or a factory), its options, and what is put around it. Libraries are
imported only when a name asks for them. How many environments there are and where they run is `environment_registry`'s
business.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import PathFinder
from types import MappingProxyType, ModuleType
from typing import Any

import gymnasium

from relayrl.envs.adapters import gymnasium_adapter
from relayrl.envs.adapters.gymnasium_vector import GymnasiumVector
from relayrl.envs.conversions.foreign_hints import object_hint
from relayrl.envs.conversions.text_tokens import TextTokens, has_text
from relayrl.envs.conversions.tuple_agents import TupleAgents, has_tuple_agents
from relayrl.envs.conversions.vector_rewards import with_plain_rewards
from relayrl.envs.environment_contract import MultiAgentEnvironment, ScalarEnvironment, VectorEnvironment
from relayrl.envs.failures import failure_set_aside
from relayrl.envs.parameters.episode_parameters import ParameterPlan
from relayrl.envs.wrappers.wrapper_names import WrapperSpec
from relayrl.envs.wrappers.wrapping import with_time_limit, with_wrappers, without_keys
from relayrl.errors import ConfigError, MissingExtraError, UnknownNameError

Factory = Callable[..., Any]

PETTINGZOO_LIBRARIES = ("mpe2", "pettingzoo")
UNITY = "unity"
VECTOR_LIBRARIES = ("vmas", "native", "envpool", UNITY)
LIBRARIES = (*PETTINGZOO_LIBRARIES, *VECTOR_LIBRARIES)


@dataclass(frozen=True, slots=True)
class EnvRecipe:
    """How to build one environment: an ENV string or a factory, and keyword arguments for it.

    `num_envs` is handed to factories of users that take an argument of this name: those make a vector environment. So is
    `render_mode`, where pictures are asked for.
    """

    env: str | Factory
    options: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int | None = None
    render_mode: str | None = None
    wrappers: tuple[WrapperSpec, ...] = ()
    ignore_keys: tuple[str, ...] = ()
    max_episode_steps: int | None = None
    reward_weights: tuple[float, ...] | None = None
    """Of the numbers of a reward, where it is a vector."""
    parameters: ParameterPlan | None = None
    """What environments are given when their episodes begin."""

    @property
    def name(self) -> str:
        """What to call the environment in messages."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__qualname__", repr(self.env))

    @property
    def library(self) -> str | None:
        """The library whose adapter in RelayRL makes the environment; None for Gymnasium's and users' own."""
        prefix = self.env.partition(":")[0] if isinstance(self.env, str) else None
        return prefix if prefix in LIBRARIES else None

    def build(self, parameters: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """A new environment: scalar (ours or `gymnasium.Env`), multi-agent or vector. `parameters` go over its options."""
        factory = find_factory(self.env)
        options = {**self.limited_options(), **parameters}
        if self.render_mode is not None and self._takes_render_mode(factory):
            options["render_mode"] = self.render_mode
        if self.num_envs is not None and self.library in (None, "envpool") and _takes(factory, "num_envs"):
            options = {"num_envs": self.num_envs, **options}
        built = factory(**options)
        try:
            return self._wrapped(built)
        except BaseException:
            with failure_set_aside():
                built.close()
            raise

    def _takes_render_mode(self, factory: Factory) -> bool:
        """What steps in batches is drawn on request; Gymnasium and PettingZoo want to know it when they make one."""
        if self.library is not None:
            return self.library in PETTINGZOO_LIBRARIES
        return gymnasium_id(self.env) is not None or _takes(factory, "render_mode")

    def limited_options(self) -> dict[str, Any]:
        """The options, with the limit on steps where Gymnasium makes the environment: its own limit gives way."""
        if self.max_episode_steps is None or gymnasium_id(self.env) is None:
            return dict(self.options)
        return {**self.options, "max_episode_steps": -1 if self.wrappers else self.max_episode_steps}

    def _wrapped(self, built: Any) -> Any:
        """What a factory made, adapted and in its wrappers; keys are dropped first, where the environment has one agent."""
        has_one_agent = isinstance(built, gymnasium.Env | ScalarEnvironment)
        if self.ignore_keys and has_one_agent:
            built = without_keys(built, self.ignore_keys)
        env = self.adapt(with_wrappers(built, self.wrappers, find_wrapper))
        if isinstance(env, VectorEnvironment):
            if self.max_episode_steps is not None:
                raise ConfigError(
                    f"{self.name} steps all environments in one call and limits their episodes itself; leave out "
                    "environment.max_episode_steps and look for an option of its own (environment.options)"
                )
            return env
        if self.ignore_keys and not has_one_agent:
            env = without_keys(env, self.ignore_keys)
        if self.max_episode_steps is None or (gymnasium_id(self.env) is not None and not self.wrappers):
            return env
        return with_time_limit(env, self.max_episode_steps)

    def adapt(self, built: Any) -> Any:
        """`built` itself where it is of a kind that RelayRL runs, or wrapped so that it is."""
        if isinstance(built, gymnasium.Env):
            return self._adapt_gymnasium(built)
        if isinstance(built, ScalarEnvironment | MultiAgentEnvironment | VectorEnvironment):
            return built
        if isinstance(built, gymnasium.vector.VectorEnv):
            return GymnasiumVector(built)
        if _is_pettingzoo(built):
            from relayrl.envs.adapters import pettingzoo_adapter

            return pettingzoo_adapter.wrap(built)
        hint = object_hint(built)
        if hint is not None:
            raise ConfigError(f"{self.name} made a {type(built).__name__}; {hint}")
        raise ConfigError(
            f"{self.name} made a {type(built).__name__}; it must make a gymnasium.Env, a gymnasium VectorEnv, a PettingZoo "
            "environment, or one of ScalarEnvironment, MultiAgentEnvironment, VectorEnvironment"
        )

    def _adapt_gymnasium(self, built: gymnasium.Env[Any, Any]) -> Any:
        if has_tuple_agents(built):
            return TupleAgents(built)
        env = with_plain_rewards(built, self.reward_weights, self.name)
        return TextTokens(env) if has_text(getattr(env, "observation_space", None)) else env


def find_factory(env: str | Factory) -> Factory:
    """What makes the environment that `env` names; raises `ConfigError` where there is no such name."""
    if not isinstance(env, str):
        return env
    library, colon, name = env.partition(":")
    if not colon:
        return gymnasium_adapter.find(env)
    with _missing_library(library):
        if library in PETTINGZOO_LIBRARIES:
            from relayrl.envs.adapters import pettingzoo_adapter

            return partial(pettingzoo_adapter.make_plain, library, name)
        if library == "vmas":
            from relayrl.envs.adapters import vmas_adapter

            return partial(vmas_adapter.make, name)
        if library == "native":
            from relayrl.envs import native

            return partial(native.make, name)
        if library == "envpool":
            from relayrl.envs.adapters import envpool_adapter

            return partial(envpool_adapter.make, name)
    return _find_in_module(env, library, name)


def gymnasium_id(env: str | Factory) -> str | None:
    """The Gymnasium id that `env` names, with its module imported, or None where it names something else."""
    if not isinstance(env, str):
        return None
    module_name, colon, name = env.rpartition(":")
    if not colon:
        return name
    module = None if module_name in LIBRARIES else _import(f"environment {env!r}", module_name)
    if module is None or hasattr(module, name) or name not in gymnasium.registry:
        return None
    return name


def _takes(factory: Factory, name: str) -> bool:
    try:
        return name in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False  # Some callables that are not written in Python have no signature.


@contextlib.contextmanager
def _missing_library(library: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("relayrl"):
            raise
        raise MissingExtraError(f"{library!r} environments", "vmas" if library == "vmas" else "pettingzoo") from error


def _find_in_module(env: str, module_name: str, name: str) -> Factory:
    module = _import(f"environment {env!r}", module_name)
    factory = getattr(module, name, None)
    if callable(factory):
        return factory  # type: ignore[no-any-return]
    if factory is not None:
        hint = _module_hint(module_name, name, factory)
        raise ConfigError(
            f"{env}: {name!r} is a {type(factory).__name__}, not a function or class that makes one{hint}"
        )
    if name in gymnasium.registry:
        return gymnasium_adapter.find(name)
    raise UnknownNameError(f"factory in module {module_name!r}", name, _callables(module))


def _module_hint(module_name: str, name: str, found: Any) -> str:
    """PettingZoo's environments are modules, which its users import from a family: how such a one is written here."""
    library, _, family = module_name.partition(".")
    if library in PETTINGZOO_LIBRARIES:
        return f"; write {library}:{family}.{name}"
    maker = next((maker for maker in ("parallel_env", "env") if callable(getattr(found, maker, None))), None)
    return "" if maker is None else f"; write {module_name}.{name}:{maker}"


def find_wrapper(name: str) -> Factory:
    """What `module:callable` names, to be called with an environment; `ConfigError` where there is no such thing."""
    module_name, _, attribute = name.partition(":")
    module = _import(f"wrapper {name!r}", module_name)
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UnknownNameError(f"wrapper in module {module_name!r}", attribute, _callables(module))
    return found  # type: ignore[no-any-return]


def _callables(module: ModuleType) -> list[str]:
    return [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]


def _import(what: str, module_name: str) -> ModuleType:
    """Import a user's module; the current directory is searched for it first.

    Where the module does not lie there, the directory stays off the path: an installed package imports nothing from it.
    """
    try:
        search_here_first(module_name)
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
            near = difflib.get_close_matches(module_name, LIBRARIES, n=1)
            place = f"it is searched in {os.getcwd()} and in the installed packages"
            hint = f"did you mean {near[0]!r}?" if near else place
            raise ConfigError(f"{what}: there is no module {error.name!r}; {hint}") from error
        raise ConfigError(f"{what}: importing {module_name!r} raised {type(error).__name__}: {error}") from error


def search_here_first(module_name: str) -> None:
    """Have a module that lies in the current directory found there; it stays on the path, for what the module imports later."""
    here = os.getcwd()
    is_here = PathFinder.find_spec(module_name.partition(".")[0], [here]) is not None
    if is_here and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _is_pettingzoo(built: Any) -> bool:
    """Whether `built` comes from PettingZoo, without importing it: an object of its classes has done so already."""
    return any(base.__module__.partition(".")[0] == "pettingzoo" for base in type(built).__mro__)
