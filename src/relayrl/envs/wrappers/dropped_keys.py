"""Observations without some of their keys (`environment.ignore_keys`), whatever kind of environment they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from relayrl.data.trees import Space, Tree
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.wrappers.group_wrappers import GroupWrapper


def space_without(space: Space, keys: Sequence[str]) -> Space:
    """A Dict space without `keys`; `a.b` is key b within a. `ValueError` where there is no such key, or nothing else."""
    for key in keys:
        space = _without(space, key.split("."), key)
    return space


def _without(space: Space, path: list[str], key: str) -> Space:
    if not isinstance(space, spaces.Dict) or path[0] not in space.spaces:
        known = f"its keys are {', '.join(space.spaces)}" if isinstance(space, spaces.Dict) else "it is no Dict"
        raise ValueError(f"observations have no key {key!r} to ignore; {known}")
    parts = dict(space.spaces)
    if len(path) > 1:
        parts[path[0]] = _without(parts[path[0]], path[1:], key)
    else:
        del parts[path[0]]
    if not parts:
        raise ValueError(f"nothing would be left of the observations without {key!r}")
    return spaces.Dict(parts)


def tree_without(tree: Tree, keys: Sequence[str]) -> Tree:
    """An observation without `keys`, of a space that `space_without` has accepted."""
    for key in keys:
        tree = _cut(tree, key.split("."))
    return tree


def _cut(tree: Any, path: list[str]) -> Any:
    if len(path) > 1:
        return {**tree, path[0]: _cut(tree[path[0]], path[1:])}
    return {name: part for name, part in tree.items() if name != path[0]}


class DropKeys(GroupWrapper):
    """Of all lanes of a group."""

    def __init__(self, group: AgentGroup, num_envs: int, *, keys: Sequence[str]) -> None:
        super().__init__(group, num_envs)
        self._keys = keys
        self.space = space_without(group.observation_space, keys)

    def observation(self, obs: Any) -> Any:
        return tree_without(obs, self._keys)


class KeysDropped(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Of one `gymnasium.Env`."""

    def __init__(self, env: gymnasium.Env[Any, Any], keys: Sequence[str]) -> None:
        super().__init__(env)
        self._keys = keys
        self.observation_space = space_without(env.observation_space, keys)

    def observation(self, observation: Mapping[str, Any]) -> Any:
        return tree_without(dict(observation), self._keys)
