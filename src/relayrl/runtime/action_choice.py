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
        return lambda parameters: _categorical(head, parameters, rng)
    return lambda parameters: _with_logp(head, parameters, head.sample(parameters, rng))


def _with_logp(head: ActionHead, parameters: Array, action: Array) -> tuple[Array, Array | None]:
    if not isinstance(head, LikelihoodHead):
        return np.array(action), None
    return np.array(action), np.asarray(head.log_prob_numpy(parameters, action), np.float32)


def _categorical(head: CategoricalHead, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    L = len(parameters)
    if L == 1:
        return _one_categorical(head.start, parameters[0], rng)
    action = head.sample(parameters, rng)
    flat = np.arange(0, L * head.num_parameters, head.num_parameters)
    flat += action
    if head.start:
        flat -= head.start
    return action, parameters.ravel().take(flat)


def _one_categorical(start: int, row: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """One draw from log-probabilities [A]: a search in the cumulative sum, where many rows are compared with it."""
    cumulative = np.add.accumulate(np.exp(row))
    # The same draw from (0, total] as the head's, so that neither rounding nor a draw of zero can pick a masked action.
    point = (1.0 - rng.random(dtype=np.float32)) * cumulative[-1]
    if point != point:
        raise InferenceError("the policy gave NaN; look for NaN in the observation or in the model")
    chosen = cumulative.searchsorted(point)
    return np.array((start + chosen,)), row[chosen : chosen + 1].copy()
