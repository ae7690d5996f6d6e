"""A person as an actor: keys in, actions out; and where keys come from.

A `KeySource` shows the environment and says which keys are pressed. `ScriptedKeys` reads them from a list, for tests and for
demonstrations that repeat; the keyboard is `keyboard.PygameKeys`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.data.action_masks import mask_parts
from relayrl.data.trees import Array, Space, Tree
from relayrl.engines.demos.key_map import KeyMap
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.heads.head_registry import likelihood_head

MAX_SCRIPT_BYTES = 64 << 20


class KeySource(ABC):
    """Says which keys are pressed, step by step."""

    goes_on: bool = True
    """False when the person has stopped."""

    def begin(self, env: VectorEnvironment) -> None:  # noqa: B027 - a script shows nothing
        """The environment is there to be shown."""

    def show(self) -> None:  # noqa: B027 - a script shows nothing
        """The environment has stepped."""

    @abstractmethod
    def pressed(self) -> frozenset[str]:
        """Names of the keys that are pressed now; called once before each step."""


class ScriptedKeys(KeySource):
    """Keys of a list, one set for each step; the person stops where it ends."""

    def __init__(self, steps: Iterable[Iterable[str]]) -> None:
        self._steps = [frozenset(keys) for keys in steps]
        self._next = 0
        self.goes_on = bool(self._steps)

    @classmethod
    def from_file(cls, path: Path) -> ScriptedKeys:
        """A line for each step, with the names of its keys separated by blanks; an empty line presses none."""
        if path.stat().st_size > MAX_SCRIPT_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_SCRIPT_BYTES >> 20} MiB, which no script of keys is")
        try:
            return cls([line.split() for line in path.read_text("utf-8").splitlines()])
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is no text: {error.reason}") from error

    def pressed(self) -> frozenset[str]:
        keys = self._steps[self._next]
        self._next += 1
        self.goes_on = self._next < len(self._steps)
        return keys


class KeyActor(Actor):
    """Acts as the keys say; where a mask forbids that, as the idle action or the first one that is allowed."""

    def __init__(self, space: Space, key_map: KeyMap, keys: KeySource) -> None:
        self._map, self._keys = key_map, keys
        self.head = likelihood_head(space)

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        raise ConfigError("a person at the keyboard has no distribution of actions")

    def decide(self, obs: Any, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        del obs, memory, rng
        wanted = self._map.action(self._keys.pressed())
        if mask is not None:
            wanted = self._allowed(wanted, mask[0])
        return Decision(wanted[None])

    def _allowed(self, wanted: Array, mask: Array) -> Array:
        """`wanted`, with forbidden choices replaced."""
        space: Any = self._map.space  # only choices have masks
        start = np.asarray(space.start).reshape(-1)
        chosen, idle = (each.reshape(-1).astype(np.int64) - start for each in (wanted, self._map.action(())))
        begin = 0
        for i, size in enumerate(mask_parts(self._map.space)):
            own = mask[begin : begin + size]
            begin += size
            if not own[chosen[i]]:
                chosen[i] = idle[i] if own[idle[i]] else int(np.argmax(own))
        return np.asarray(chosen + start, wanted.dtype).reshape(wanted.shape)
