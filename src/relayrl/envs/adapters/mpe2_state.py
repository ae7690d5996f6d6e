"""Reading and writing the state of an mpe2 world as named arrays, so that a checkpoint can continue it bit for bit.

An mpe2 environment keeps its state in plain attributes of its world, its scenario, its entities and their `state` and
`action`: numbers, arrays, lists of those, random generators and references to other entities (goals). Each becomes one array
named after its owner, itself and its kind, as in `entity0.state/_p_pos:array`. A reference is the index of the entity.

Not responsible for whose turn it is: states are read and written between the steps of the parallel API only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.generator_words import generator_from_words, generator_to_words
from relayrl.errors import CheckpointError, EnvError

_CONSTANT = {"name", "agents", "landmarks", "state", "action"}
"""Attributes of a world or an entity that never change, or that are owners of their own."""


_STATELESS_WRAPPERS = {
    "AssertOutOfBoundsWrapper",
    "ClipOutOfBoundsWrapper",
    "OrderEnforcingWrapper",
    "aec_to_parallel_wrapper",
}


def can_save(env: Any) -> bool:
    """Whether `env` is a parallel environment of mpe2 that holds nothing but what this file can save."""
    raw_env = env.unwrapped
    if not type(raw_env).__module__.startswith("mpe2."):
        return False
    while env is not raw_env:
        if type(env).__name__ not in _STATELESS_WRAPPERS:
            return False
        env = env.aec_env if hasattr(env, "aec_env") else env.env
    try:
        read(raw_env)
    except EnvError:
        return False
    return True


def read(raw_env: Any) -> dict[str, Array]:
    """The state of an mpe2 environment between two steps."""
    entities = raw_env.world.entities
    state = {"steps": np.asarray(raw_env.steps), "np_random": generator_to_words(raw_env.np_random)}
    for owner_name, owner in _owners(raw_env).items():
        for name, value in vars(owner).items():
            if name not in _CONSTANT:
                kind, array = _encode(value, entities, f"{owner_name}/{name}")
                state[f"{owner_name}/{name}:{kind}"] = array
    return state


def write(raw_env: Any, state: Mapping[str, Array]) -> None:
    """Put a state that `read` gave into an environment made with the same options."""
    owners, entities = _owners(raw_env), raw_env.world.entities
    now, given = ({name.partition(":")[0] for name in names} for names in (read(raw_env), state))
    if now != given:
        raise CheckpointError(f"the state is of another environment: {sorted(now ^ given)[:4]} are not in both")
    for name, array in state.items():
        path, _, kind = name.partition(":")
        owner_name, _, attribute = path.partition("/")
        if attribute:
            setattr(owners[owner_name], attribute, _decode(kind, array, entities))
    raw_env.steps = int(state["steps"])
    raw_env.np_random = generator_from_words(state["np_random"])


def _owners(raw_env: Any) -> dict[str, Any]:
    """The objects whose attributes are the state."""
    owners = {"scenario": raw_env.scenario, "world": raw_env.world}
    for i, entity in enumerate(raw_env.world.entities):
        owners |= {f"entity{i}": entity, f"entity{i}.state": entity.state}
        if i < len(raw_env.world.agents):
            owners[f"entity{i}.action"] = entity.action
    return owners


def _encode(value: Any, entities: Sequence[Any], where: str) -> tuple[str, Array]:
    if value is None:
        return "none", np.zeros(0, bool)
    for kind, types in (("bool", (bool, np.bool_)), ("int", (int, np.integer)), ("float", (float, np.floating))):
        if isinstance(value, types):
            return kind, np.asarray(value, kind)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return "array", value.copy()
    if isinstance(value, np.random.Generator):
        return "generator", generator_to_words(value)
    if any(value is entity for entity in entities):
        return "entity", np.asarray(next(i for i, entity in enumerate(entities) if entity is value))
    if isinstance(value, list):
        encoded = [_encode(item, entities, where) for item in value]
        kinds, shapes = {kind for kind, _ in encoded}, {array.shape for _, array in encoded}
        if len(kinds) == len(shapes) == 1:
            return f"list {kinds.pop()}", np.stack([array for _, array in encoded])
        if not encoded:
            return "list none", np.zeros((0, 0), bool)
    raise EnvError(f"{where} is a {type(value).__name__}, which cannot be saved as an array")


def _decode(kind: str, array: Array, entities: Sequence[Any]) -> Any:
    if kind == "none":
        return None
    if kind in ("bool", "int", "float"):
        return array.item()
    if kind == "array":
        return array.copy()
    if kind == "generator":
        return generator_from_words(array)
    if kind == "entity":
        return entities[int(array)]
    if kind.startswith("list "):
        return [_decode(kind.removeprefix("list "), row, entities) for row in array]
    raise CheckpointError(f"the state holds a value of unknown kind {kind!r}")
