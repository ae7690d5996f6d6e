"""From a distribution's parameters to actions and their log-probabilities, as fast as each head allows.

What is drawn is what the head itself draws from the same generator, bit for bit; tests hold the shortcuts to it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import numpy as np

from relayrl.data.trees import Array
from relayrl.models.action_head import ActionHead, LikelihoodHead
from relayrl.models.discrete_heads import CategoricalHead
from relayrl.runtime.runtime_errors import InferenceError


class ActionChoice(Enum):
    """How actions are chosen from the distribution."""

    SAMPLE = "sample"
    GREEDY = "greedy"


Chooser: TypeAlias = Callable[[Array], tuple[Array, Array | None]]
"""Actions [L, …] and their log-probabilities [L], or None where the head has none, from parameters [L, P]; fresh arrays."""


def chooser(head: ActionHead, choice: ActionChoice, rng: np.random.Generator) -> Chooser:
    """How actions of `head` are chosen; `rng` draws them."""
    if choice is ActionChoice.GREEDY:
        return lambda parameters: _with_logp(head, parameters, head.mode(parameters))
    if isinstance(head, CategoricalHead):
        return CategoricalChooser(head, rng)
    return lambda parameters: _with_logp(head, parameters, head.sample(parameters, rng))


def _with_logp(head: ActionHead, parameters: Array, action: Array) -> tuple[Array, Array | None]:
    if not isinstance(head, LikelihoodHead):
        return np.array(action), None
    return np.array(action), np.asarray(head.log_prob_numpy(parameters, action), np.float32)


class CategoricalChooser:
    """Draws from log-probabilities [L, A]: the first action whose cumulative probability reaches the draw.

    The draw is the head's, from (0, total] and compared strictly, so that neither rounding nor a draw of zero can pick a
    masked action. Actions come first in memory: numpy adds whole rows several times faster than along short ones.
    """

    def __init__(self, head: CategoricalHead, rng: np.random.Generator) -> None:
        self._start, self._rng = head.start, rng
        self._row_starts = np.zeros(0, np.int64)

    def __call__(self, parameters: Array) -> tuple[Array, Array | None]:
        L, A = parameters.shape
        if L == 1:
            return _one_categorical(self._start, parameters[0], self._rng)
        cumulative = np.add.accumulate(np.exp(parameters.T, order="C"), 0)
        draw = 1.0 - self._rng.random(L, dtype=np.float32)
        draw *= cumulative[-1]
        chosen = np.add.reduce(cumulative < draw, 0)
        if len(self._row_starts) != L:
            self._row_starts = np.arange(0, L * A, A)
        logp = parameters.ravel()[chosen + self._row_starts]
        return (chosen + self._start if self._start else chosen), logp


def _one_categorical(start: int, row: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """One draw: a search in the cumulative sum."""
    cumulative = np.add.accumulate(np.exp(row))
    point = (1.0 - rng.random(dtype=np.float32)) * cumulative[-1]
    if point != point:
        raise InferenceError("the policy gave NaN; look for NaN in the observation or in the model")
    chosen = cumulative.searchsorted(point)
    return np.array((start + chosen,)), row[chosen : chosen + 1].copy()
