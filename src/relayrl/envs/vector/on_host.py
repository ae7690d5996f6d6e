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

from relayrl.data.trees import map_tree
from relayrl.envs.environment_contract import (
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
)
from relayrl.envs.vector.vector_proxy import StatefulProxy, VectorProxy


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


class _OnHost(VectorProxy):
    """NumPy in front, a device behind."""

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        self.device = "cpu"

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        result: VectorReset = _to_numpy(self._env.reset(seed=seed, env_ids=env_ids))
        return result

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result: VectorStep = _to_numpy(self._env.step({name: self._to_device(tree) for name, tree in actions.items()}))
        return result

    def build_observation(self) -> Any:
        return _to_numpy(self._env.build_observation())

    def _to_device(self, tree: Any) -> Any:
        import torch

        # torch.tensor copies, as a view of a read-only NumPy array would make torch warn.
        return map_tree(lambda leaf: torch.tensor(np.asarray(leaf), device=self._env.device), tree)


class _StatefulOnHost(_OnHost, StatefulProxy):
    """The same for an environment whose state can be saved; states are NumPy arrays on either side."""

    def __init__(self, env: VectorEnvironment, saved: StatefulEnvironment) -> None:
        super().__init__(env)
        self._saved = saved
