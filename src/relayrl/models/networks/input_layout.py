"""What a network may know about its input: leaves side by side, each with its kind and width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from gymnasium import spaces

from relayrl.models.networks.observation_encoder import LeafEncoding


class InputLayout(Protocol):
    """The features of a network's input. An `ObservationEncoder` is one; so is whatever a critic sees besides."""

    @property
    def num_features(self) -> int:
        """F."""
        ...

    @property
    def encodings(self) -> Sequence[LeafEncoding]:
        """The leaves that make up the features, in order."""
        ...


class SideBySide:
    """Several inputs as one."""

    def __init__(self, parts: Iterable[InputLayout | LeafEncoding]) -> None:
        self.encodings: list[LeafEncoding] = []
        for part in parts:
            self.encodings += [part] if isinstance(part, LeafEncoding) else part.encodings
        self.num_features = sum(encoding.width for encoding in self.encodings)


def plain_numbers(width: int) -> LeafEncoding:
    """A leaf of so many real numbers, such as an action or a one-hot number."""
    return LeafEncoding(spaces.Box(-np.inf, np.inf, (width,), np.float32))
