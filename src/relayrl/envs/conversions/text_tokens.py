"""Text observations as numbers: words, hashed into a fixed number of tokens, at a fixed length.

    "Go to the red ball"  →  [token("go"), token("to"), token("the"), token("red"), token("ball"), 0, 0, …]
    token(word) = 1 + CRC-32(word in UTF-8) mod (NUM_TOKENS − 1)

Words are runs of letters, digits and underscores, in lower case. There is nothing to learn or to store, so that a token means
the same in every run; two words may share one. Text after the last token is not seen, missing words are token 0.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space

NUM_TOKENS = 128
NUM_WORDS = 16
_WORD = re.compile(r"\w+")


def tokens(text: str) -> Array:
    """[NUM_WORDS] int64."""
    found = _WORD.findall(text.lower())[:NUM_WORDS]
    row = np.zeros(NUM_WORDS, np.int64)
    row[: len(found)] = [1 + zlib.crc32(word.encode()) % (NUM_TOKENS - 1) for word in found]
    return row


def has_text(space: Any) -> bool:
    """Whether a space, or a part of it, is a text."""
    if isinstance(space, spaces.Dict):
        return any(has_text(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(has_text(part) for part in space.spaces)
    return _is_text(space)


class TextTokens(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose texts are tokens."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._of = env.observation_space
        self.observation_space = _tokenized_space(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return _tokenized(self._of, observation), info

    def step(self, action: Any) -> Any:
        observation, *others = self.env.step(action)
        return _tokenized(self._of, observation), *others


def _is_text(space: Any) -> bool:
    """A Text space, or a space of strings of an author's own, as MiniGrid's missions."""
    if isinstance(space, spaces.Text):
        return True
    return isinstance(space, spaces.Space) and space.dtype is not None and np.dtype(space.dtype).kind == "U"


def _tokenized_space(space: Any) -> Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _tokenized_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_tokenized_space(part) for part in space.spaces])
    return spaces.MultiDiscrete([NUM_TOKENS] * NUM_WORDS) if _is_text(space) else space


def _tokenized(space: Any, observation: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _tokenized(part, observation[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tokenized(part, observation[i]) for i, part in enumerate(space.spaces))
    return tokens(str(observation)) if _is_text(space) else observation
