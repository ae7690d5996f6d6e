"""Puts wrappers around one environment, whatever kind it is.

Gymnasium's wrappers take a `gymnasium.Env`; an environment written against `ScalarEnvironment` is shown to them as one.
PettingZoo's take its environments before RelayRL adapts them. A callable of a user's takes whatever the factory made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

from relayrl.envs.environment_contract import MultiAgentEnvironment, ScalarEnvironment, VectorEnvironment
from relayrl.envs.wrappers.agents_wrapper import AgentsKeysDropped, AgentsTimeLimit
from relayrl.envs.wrappers.dropped_keys import KeysDropped
from relayrl.envs.wrappers.wrapper_names import GYMNASIUM, WrapperSpec
from relayrl.errors import ConfigError, RelayRLError

FindCallable = Callable[[str], Callable[..., Any]]


class GymnasiumView(gymnasium.Env[Any, Any]):
    """A `ScalarEnvironment` as a `gymnasium.Env`, for wrappers that insist on one."""

    def __init__(self, env: ScalarEnvironment) -> None:
        self.scalar = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render_mode, self.metadata = getattr(env, "render_mode", None), getattr(env, "metadata", {})

    def render(self) -> Any:
        drawn: Any = self.scalar  # the contract leaves pictures to whoever makes them
        return drawn.render()

    @property
    def unwrapped(self) -> Any:
        return self.scalar

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        del options
        return self.scalar.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.scalar.step(action)

    def close(self) -> None:
        self.scalar.close()


def with_wrappers(built: Any, specs: Iterable[WrapperSpec], find: FindCallable) -> Any:
    """What a factory made, behind the wrappers; `find` gives the callable of a `module:name`."""
    for spec in specs:
        if isinstance(built, VectorEnvironment | gymnasium.vector.VectorEnv):
            raise _only_batched(spec)
        make = find(spec.name)
        if isinstance(built, ScalarEnvironment) and _is_gymnasium_wrapper(make):
            built = GymnasiumView(built)
        # Settings have lists where Gymnasium's signatures say tuples.
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in spec.options.items()}
        try:
            built = make(built, **(options if spec.name.startswith(GYMNASIUM) else spec.options))
        except RelayRLError:
            raise
        except Exception as error:
            raise ConfigError(f"wrapper {spec.name} cannot be applied: {_one_line(error)}") from error
        if not hasattr(built, "step"):
            raise ConfigError(f"wrapper {spec.name} gave a {type(built).__name__}, not an environment")
    return built


def _is_gymnasium_wrapper(make: Any) -> bool:
    return isinstance(make, type) and issubclass(make, gymnasium.Wrapper)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _only_batched(spec: WrapperSpec) -> ConfigError:
    from relayrl.envs.wrappers.wrapped_vector import BATCHED

    names = ", ".join(name.removeprefix(f"{GYMNASIUM}:") for name in BATCHED if name.startswith(GYMNASIUM))
    return ConfigError(
        f"wrapper {spec.name} takes one environment, and this one steps all environments in one call; of Gymnasium's "
        f"wrappers it takes {names}, with nothing else around them"
    )


def without_keys(env: Any, keys: Sequence[str]) -> Any:
    """An adapted environment whose observations lack `keys`."""
    try:
        if isinstance(env, MultiAgentEnvironment):
            return AgentsKeysDropped(env, keys)
        return KeysDropped(_as_gymnasium(env), keys)
    except ValueError as error:
        raise ConfigError(f"environment.ignore_keys: {error}") from error


def with_time_limit(env: Any, max_episode_steps: int) -> Any:
    """An adapted environment whose episodes are truncated."""
    if isinstance(env, MultiAgentEnvironment):
        return AgentsTimeLimit(env, max_episode_steps)
    return TimeLimit(_as_gymnasium(env), max_episode_steps)


def _as_gymnasium(env: Any) -> gymnasium.Env[Any, Any]:
    return GymnasiumView(env) if isinstance(env, ScalarEnvironment) else env
