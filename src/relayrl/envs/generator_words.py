"""NumPy generators as arrays, so that states of environments hold no pickles."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import EnvError

_WORD = 2**64


def generator_to_words(generator: np.random.Generator) -> Array:
    """A PCG64 generator as six 64-bit words: its 128-bit state and increment, then the half word it keeps for later."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise EnvError(f"a {state['bit_generator']} generator cannot be saved, only PCG64")
    words = [part for key in ("state", "inc") for part in divmod(state["state"][key], _WORD)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def generator_from_words(words: Array) -> np.random.Generator:
    """The generator that `generator_to_words` described."""
    state_high, state_low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high * _WORD + state_low, "inc": inc_high * _WORD + inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)
