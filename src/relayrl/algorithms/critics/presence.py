"""Which agents a central critic sees after a row of a rollout, where agents die, appear or wait for their turn.

A critic is trained on rows on which its agent acts, and sees those who act beside it there. What it is asked about must look
the same, or it gives numbers that nothing has taught it. So after a row, an agent's critic sees

- the agent itself, though it ended or waits;
- those who acted beside it when it last did, unless they ended and the environment goes on: it goes on while an agent that
  acted in the episode has not ended;
- those who appear on the next row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array


@dataclass(frozen=True, slots=True)
class Presence:
    """Agents of all groups side by side, G of them, in rows `[T, B, G]` of the same environments and steps."""

    seen: Array  # whom the critics of those see who acted on the row and are among them
    _sees_others: Array  # whether the critic of an agent is asked about the row and sees others than that
    _valid: Array
    _last_acted: Array  # the row on which an agent last acted; negative: before the block, or never
    _stays: Array  # whether an agent is in the episode after the row, or ended with the environment
    _appears: Array  # whether the next row is its first

    @staticmethod
    def of(rollouts: Mapping[str, Rollout]) -> Presence | None:
        """None where all agents act on all rows and end together: everybody sees everybody."""
        valid, ended = (_side_by_side(rollouts, column) for column in (lambda r: r.valid, lambda r: r.ended))
        if valid.all() and (ended == ended[..., :1]).all():
            return None
        acted_before = _side_by_side(rollouts, lambda r: (r.first_step > 0)[None])
        last_acted, was_in, is_in = membership(valid, ended, acted_before)
        is_over = np.logical_not(is_in.any(-1, keepdims=True))
        stays = is_in | (was_in & ended & is_over)
        appears = np.zeros_like(valid)
        appears[:-1] = valid[1:] & ~is_in[:-1] & ~is_over[:-1]
        seen = valid & stays | appears
        terminated = _side_by_side(rollouts, lambda r: r.terminated)
        sees_others = was_in & (last_acted >= 0) & ~terminated & ~(valid & seen)
        return Presence(seen, sees_others, valid, last_acted, stays, appears)

    def own_views(self, step: Array, env: Array, agent: Array) -> tuple[Array, Array]:
        """Which `agent`s [K] see others than `seen` after their rows `(step, env)`, and whom [R, G] those do."""
        rows = np.flatnonzero(self._sees_others[step, env, agent])
        step, env, agent = step[rows], env[rows], agent[rows]
        beside = self._valid[self._last_acted[step, env, agent], env]
        seen = beside & self._stays[step, env] | self._appears[step, env]
        seen[np.arange(len(rows)), agent] = True
        return rows, seen


def membership(valid: Array, ended: Array, acted_before: Array) -> tuple[Array, Array, Array]:
    """[T, B, G] the row on which each agent last acted, and who is in the episode on a row and after it.

    An agent is in it from its first action to its end; `acted_before` [1, B, G] says who was when the block began.
    """
    row = np.arange(len(valid))[:, None, None]
    last_acted = np.maximum.accumulate(np.where(valid, row, np.where(acted_before, -1, -2)), 0)
    last_end = np.maximum.accumulate(np.where(ended, row, -2), 0)
    last_end_before = np.concatenate([np.full_like(last_end[:1], -2), last_end[:-1]])
    return last_acted, last_acted > last_end_before, last_acted > last_end


def _side_by_side(rollouts: Mapping[str, Rollout], column: Callable[[Rollout], Array]) -> Array:
    """[T, B, G] a column of all groups."""
    return np.concatenate([rollout.joint(column(rollout)) for rollout in rollouts.values()], -1)
