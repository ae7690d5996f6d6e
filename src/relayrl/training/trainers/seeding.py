"""All randomness of a run, derived from its one seed: each part has a stream of its own."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """Who draws. The numbers are part of every run's identity: append, never renumber."""

    ENVIRONMENT = 0
    ACTING = 1
    INITIALISATION = 2
    LEARNING = 3
    EVALUATION = 4
    REWARD_SIGNALS = 5
    SELF_PLAY = 6
    CLONING = 7
    SHARDS = 8


def stream_seed(seed: int, stream: Stream, index: int = 0) -> int:
    """A 31-bit seed for one part of the run; `index` tells policy groups apart."""
    words = np.random.SeedSequence([seed, int(stream), index]).generate_state(1, np.uint32)
    return int(words[0]) & 0x7FFF_FFFF
