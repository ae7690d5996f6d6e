"""From a distribution's parameters to actions and their log-probabilities, as fast as each head allows.

From the same generator comes what the head itself draws; tests hold the shortcuts to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from enum import Enum
from itertools import accumulate
from math import exp, log
from typing import TypeAlias

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import InferenceError
from relayrl.models.action_head import ActionHead, LikelihoodHead
from relayrl.models.built_in import BuiltIns
from relayrl.models.discrete_heads import CategoricalHead

MAX_LISTED_ACTIONS, DRAWS_AHEAD = 16, 64


class ActionChoice(Enum):
    """How actions are chosen from the distribution."""

    SAMPLE = "sample"
    GREEDY = "greedy"


Chooser: TypeAlias = Callable[[Array], tuple[Array, Array | None]]
"""Actions [L, …] and their log-probabilities [L], or None where the head has none, from parameters [L, P]; fresh arrays."""


_HEADS = BuiltIns(CategoricalHead)


def chooser(head: ActionHead, choice: ActionChoice, rng: np.random.Generator) -> Chooser:
    """How actions of `head` are chosen; `rng` draws them."""
    if isinstance(head, CategoricalHead) and head in _HEADS:
        return CategoricalChooser(head, choice, rng)
    if choice is ActionChoice.GREEDY:
        return lambda parameters: _with_logp(head, parameters, head.mode(parameters))
    return lambda parameters: _with_logp(head, parameters, head.sample(parameters, rng))


def _with_logp(head: ActionHead, parameters: Array, action: Array) -> tuple[Array, Array | None]:
    if not isinstance(head, LikelihoodHead):
        return np.array(action), None
    return np.array(action), np.asarray(head.log_prob_numpy(parameters, action), np.float32)


class CategoricalChooser:
    """Draws from log-probabilities [L, A]: the first action whose cumulative probability reaches the draw.

    The draw is the head's, from (0, total] and compared strictly, so that neither rounding nor a draw of zero can pick a
    masked action. Actions come first in memory: numpy adds whole rows several times faster than along short ones. One
    row is chosen from in plain Python, from numbers that were drawn ahead, by many threads at once; it need not be normalised.
    """

    def __init__(self, head: CategoricalHead, choice: ActionChoice, rng: np.random.Generator) -> None:
        self._head, self._start, self._rng = head, head.start, rng
        self._is_greedy = choice is ActionChoice.GREEDY
        self._row_starts = np.zeros(0, np.int64)
        self._draws: list[float] = []

    def __call__(self, parameters: Array) -> tuple[Array, Array | None]:
        L, A = parameters.shape
        if L == 1:
            if A <= MAX_LISTED_ACTIONS:
                return self._one(parameters.tolist()[0])
            parameters = self._head.parameters_numpy(parameters, None)
        if self._is_greedy:
            return _with_logp(self._head, parameters, self._head.mode(parameters))
        cumulative = np.add.accumulate(np.exp(parameters.T, order="C"), 0)
        draw = 1.0 - self._rng.random(L, dtype=np.float32)
        draw *= cumulative[-1]
        chosen = np.add.reduce(cumulative < draw, 0)
        if len(self._row_starts) != L:
            self._row_starts = np.arange(0, L * A, A)
        logp = parameters.ravel()[chosen + self._row_starts]
        return (chosen + self._start if self._start else chosen), logp

    def _one(self, row: list[float]) -> tuple[Array, Array]:
        top = max(row)
        cumulative = list(accumulate([exp(each - top) for each in row]))
        total = cumulative[-1]
        if total != total:
            raise InferenceError("the policy gave NaN; look for NaN in the observation or in the model")
        chosen = row.index(top) if self._is_greedy else bisect_left(cumulative, (1.0 - self._next_draw()) * total)
        return np.array((self._start + chosen,)), np.array((row[chosen] - top - log(total),), np.float32)

    def _next_draw(self) -> float:
        try:
            return self._draws.pop()
        except IndexError:  # asked for rather than looked at: another thread may take the last one
            drawn: list[float] = self._rng.random(DRAWS_AHEAD, dtype=np.float32)[::-1].tolist()
            first = drawn.pop()
            self._draws = drawn
            return first
