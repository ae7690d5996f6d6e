"""A policy of MLPs as arrays: what the accelerator needs in order to act with it, live or from a file's metadata.

The exporter writes it as text beside the graph, so that nothing has to be read out of the graph again. Free of torch.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.models.network_settings import MAX_HIDDEN_LAYERS, MAX_UNITS, Activation
from relayrl.models.normalization import Normalization

MAX_NUMBERS = 1 << 20
"""Larger networks are not described in files: 4 MiB, a third more as text. They gain nothing from the accelerator."""


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """Linear layers `(weight [O, I], bias [O])` with an activation between them."""

    activation: Activation
    layers: tuple[tuple[Array, Array], ...]

    @property
    def sizes(self) -> list[int]:
        """From input to output."""
        return [self.layers[0][0].shape[1], *(len(bias) for _, bias in self.layers)]

    @property
    def num_weights(self) -> int:
        return sum(weight.size for weight, _ in self.layers)


@dataclass(frozen=True, slots=True, eq=False)
class MlpDescription:
    """Everything between the features of an observation and the distribution's parameters and the value."""

    actor: Mlp
    critic: Mlp | None = None
    returns: tuple[Array, Array] | None = None
    """`(shift, scale)` [1] each: a value is the critic's output / scale + shift."""
    log_std: Array | None = None
    """[A] of a `GaussianHead`, in units of half the action range."""
    observations: Normalization | None = None

    @property
    def num_weights(self) -> int:
        return self.actor.num_weights + (0 if self.critic is None else self.critic.num_weights)

    def with_values_in_critic(self) -> MlpDescription:
        """The same with the scale of values as part of the critic's last layer."""
        if self.critic is None or self.returns is None:
            return self
        (shift, scale), (*hidden, (weight, bias)) = self.returns, self.critic.layers
        last = np.ascontiguousarray(weight / scale[:, None]), bias / scale + shift
        return replace(self, critic=replace(self.critic, layers=(*hidden, last)), returns=None)

    def to_text(self) -> str:
        """For a file's metadata; empty where it is too large for that."""
        arrays = [
            array for mlp in (self.actor, self.critic) if mlp is not None for layer in mlp.layers for array in layer
        ]
        arrays += [] if self.returns is None else self.returns
        arrays += [] if self.log_std is None else [self.log_std]
        arrays += [] if self.observations is None else [self.observations.shift, self.observations.scale]
        if sum(array.size for array in arrays) > MAX_NUMBERS:
            return ""
        numbers = np.concatenate([array.ravel() for array in arrays]).astype("<f4")
        described = {
            "actor": _shape(self.actor),
            "critic": None if self.critic is None else _shape(self.critic),
            "log_std": 0 if self.log_std is None else len(self.log_std),
            "clip": None if self.observations is None else self.observations.clip,
            "numbers": base64.b64encode(numbers.tobytes()).decode("ascii"),
        }
        return json.dumps(described)

    @staticmethod
    def from_text(text: str) -> MlpDescription:
        """The reverse of `to_text`; raises `ValueError` for text that is damaged or too large."""
        try:
            given = json.loads(text)
            if len(given["numbers"]) > 4 * MAX_NUMBERS * 4 // 3 + 4:
                raise ValueError("too many numbers")
            content = binascii.a2b_base64(given["numbers"], strict_mode=True)
            numbers = np.frombuffer(content, "<f4").astype(np.float32)
            take = _Taken(numbers).take
            actor = _mlp(given["actor"], take)
            critic = None if given["critic"] is None else _mlp(given["critic"], take)
            returns = None if critic is None else (take(1), take(1))
            log_std = take(int(given["log_std"])) if given["log_std"] else None
            width, clip = actor.sizes[0], given["clip"]
            observations = None if clip is None else Normalization(take(width), take(width), float(clip))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"damaged description: {error}") from error
        return MlpDescription(actor, critic, returns, log_std, observations)


def _shape(mlp: Mlp) -> dict[str, Any]:
    return {"activation": mlp.activation.value, "sizes": mlp.sizes}


def _mlp(given: Any, take: Callable[..., Array]) -> Mlp:
    sizes = [int(size) for size in given["sizes"]]
    if not 2 <= len(sizes) <= MAX_HIDDEN_LAYERS + 2 or not all(0 < size <= MAX_UNITS for size in sizes):
        raise ValueError(f"an MLP of sizes {sizes[:20]}")
    return Mlp(Activation(given["activation"]), tuple((take(o, i), take(o)) for i, o in pairwise(sizes)))


class _Taken:
    """Numbers that are taken one array after the other."""

    def __init__(self, numbers: Array) -> None:
        self._numbers, self._start = numbers, 0

    def take(self, *shape: int) -> Array:
        end = self._start + math.prod(shape)
        if end > len(self._numbers):
            raise ValueError("too few numbers")
        taken = self._numbers[self._start : end].reshape(shape)
        self._start = end
        return taken
