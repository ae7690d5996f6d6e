"""Environments on a device for callers that speak NumPy: tensors come home on the way out, arrays go over on the way in.

Responsible for the conversion alone; every rule of the contract is kept by the environment inside. Each result is copied
once, so training on the device itself should use the environment directly.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from relayrl.data.trees import Array, map_tree
from relayrl.envs.environment_contract import (
    Relabelled,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
)
from relayrl.envs.rendering import RenderMode


def on_host(env: VectorEnvironment) -> VectorEnvironment:
    """`env` itself when it gives NumPy arrays already, otherwise `env` with NumPy arrays in and out."""
    if env.device == "cpu":
        return env
    return _StatefulOnHost(env, env) if isinstance(env, StatefulEnvironment) else _OnHost(env)


def _to_numpy(value: Any) -> Any:
    """`value` with every tensor in it as a NumPy array; containers are rebuilt, everything else is left as it is."""
    if isinstance(value, Mapping):
        return {key: _to_numpy(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_to_numpy(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: _to_numpy(getattr(value, part.name)) for part in fields(value)})
    return value.detach().cpu().numpy() if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    import torch  # Imported late: whoever has a tensor has torch, and nobody else needs it.

    return isinstance(value, torch.Tensor)


class _OnHost(VectorEnvironment):
    """NumPy in front, a device behind."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._env = env
        self.groups = env.groups
        self.state_space = env.state_space
        self.state_repeats_observations, self.has_goals = env.state_repeats_observations, env.has_goals
        self.independent_streams = env.independent_streams
        self.env_ids, self.drawing = env.env_ids, env.drawing

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        self.env_ids = self._env.init_num_envs(num_envs)
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        result: VectorReset = _to_numpy(self._env.reset(seed=seed, env_ids=env_ids))
        return result

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result: VectorStep = _to_numpy(self._env.step({name: self._to_device(tree) for name, tree in actions.items()}))
        return result

    def build_observation(self) -> Any:
        return _to_numpy(self._env.build_observation())

    def give_states(self, wanted: bool) -> None:
        self._env.give_states(wanted)

    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        return self._env.relabel(achieved, desired)

    @property
    def rates_episodes(self) -> bool:
        return self._env.rates_episodes

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        return self._env.performance_return(rewards)

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        return self._env.frames(envs, mode)

    def final_frames(self) -> Mapping[int, Array]:
        return self._env.final_frames()

    def close(self) -> None:
        self._env.close()

    def _to_device(self, tree: Any) -> Any:
        import torch

        # torch.tensor copies, as a view of a read-only NumPy array would make torch warn.
        return map_tree(lambda leaf: torch.tensor(np.asarray(leaf), device=self._env.device), tree)


class _StatefulOnHost(_OnHost, StatefulEnvironment):
    """The same for an environment whose state can be saved; states are NumPy arrays on either side."""

    def __init__(self, env: VectorEnvironment, saved: StatefulEnvironment) -> None:
        super().__init__(env)
        self._saved = saved

    def get_state(self) -> dict[str, Array]:
        return self._saved.get_state()

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._saved.set_state(state)
