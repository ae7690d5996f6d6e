"""EnvPool: environments stepped by threads in C++, as one vector environment (`envpool:CartPole-v1`).

EnvPool is a `gymnasium.vector.VectorEnv` that takes its seeds when it is made, so a seeded `reset` makes a new pool. It resets
an ended environment in the step after (`NEXT_STEP`). Its environments are implementations of their own: the same id need not be
the same environment as Gymnasium's.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from relayrl.data.trees import Array, allocate, map_tree
from relayrl.envs.adapters.gymnasium_vector import GymnasiumVector
from relayrl.envs.environment_contract import SINGLE_AGENT, VectorStep, env_seeds
from relayrl.envs.vector.env_buffers import copy_exactly
from relayrl.errors import ConfigError, EnvError, UnknownNameError


def make(name: str, num_envs: int, **options: Any) -> EnvPoolVector:
    """`num_envs` environments of EnvPool's task `name`, with its own keyword `options`."""
    envpool = _import_envpool()
    known = envpool.list_all_envs()
    if name not in known:
        raise UnknownNameError("EnvPool environment", name, known)

    def make_pool(seeds: list[int | None] | None) -> Any:
        chosen = {} if seeds is None else {"seed": seeds}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bounds that it casts to float32
            return envpool.make(name, env_type="gymnasium", num_envs=num_envs, **chosen, **options)

    try:
        return EnvPoolVector(make_pool)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"envpool:{name} does not accept the options {options}: {error}") from error


class EnvPoolVector(GymnasiumVector):
    """A pool, made anew where a seed is given."""

    def __init__(self, make_pool: Callable[[list[int | None] | None], Any]) -> None:
        super().__init__(make_pool(None))
        self._make_pool = make_pool
        self._taken = allocate(self.groups[SINGLE_AGENT].action_space, (self.built_num_envs, 1))

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        if SINGLE_AGENT not in actions:
            raise EnvError(f"no actions for group {SINGLE_AGENT!r}")
        map_tree(copy_exactly, self._taken, actions[SINGLE_AGENT])  # an array of another shape would end the process
        return super().step({SINGLE_AGENT: self._taken})

    def _reset_envs(self, seed: int | None, chosen: Array | None) -> tuple[Any, Mapping[str, Any]]:
        if seed is not None:
            self._env.close()
            self._env = self._make_pool(env_seeds(seed, self.num_envs))
        result: tuple[Any, Mapping[str, Any]] = self._env.reset()
        return result


def _import_envpool() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("envpool")
    except ImportError as error:
        raise ConfigError(f"envpool environments need EnvPool ({error}); pip install envpool") from error
