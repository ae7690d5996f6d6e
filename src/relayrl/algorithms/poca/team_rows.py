"""A rollout of one group as the steps of teams: what each team is paid, who is there, and where it is over.

The agents of a group in one environment are a team. Agents that die leave it, those who appear join it, and it goes on until
the last one has ended. Its reward on a step is the mean over those in the episode, so that a reward which every agent gets
counts once however many are left. Who has died keeps what the team earns later: returns are the team's, cut at its end only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relayrl.algorithms.critics.presence import membership
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array


@dataclass(frozen=True, slots=True)
class TeamRows:
    """Teams `B` over `T` steps; `next_…` are the K moments `(next_step, next_env)` whose value is not that of the next row."""

    reward: Array  # [T, B]
    present: Array  # [T, B, N] who acts
    terminated: Array  # [T, B] the team is over
    truncated: Array  # [T, B] the environment was cut off
    next_step: Array  # [K]
    next_env: Array  # [K]
    next_present: Array  # [K, N] who is there then; their observations are successors of the rollout

    @property
    def acts(self) -> Array:
        """[T, B] whether anybody of the team acts."""
        return np.asarray(self.present.any(-1))


def team_rows(rollout: Rollout) -> TeamRows:
    """The teams of a group's rollout."""
    columns = rollout.valid, rollout.terminated, rollout.truncated, rollout.reward
    valid, terminated, truncated, reward = (_by_team(rollout, column) for column in columns)
    ended = terminated | truncated
    _, was_in, is_in = membership(valid, ended, _by_team(rollout, (rollout.first_step > 0)[None]))
    is_over = np.asarray(was_in.any(-1) & ~is_in.any(-1))
    is_cut = np.asarray(is_over & (truncated & was_in).any(-1))
    mean_reward = np.where(was_in, reward, 0.0).sum(-1) / np.maximum(was_in.sum(-1), 1)
    goes_on = np.zeros_like(is_over)
    goes_on[-1] = is_in[-1].any(-1)
    step, env = np.nonzero(is_cut | goes_on)
    next_present = np.where(is_cut[step, env, None], (truncated & was_in)[step, env], is_in[step, env])
    if rollout.waits is not None:
        next_present = _those_who_act(next_present, ~_by_team(rollout, rollout.waits[None])[0, env], goes_on[step, env])
    return TeamRows(mean_reward.astype(np.float32), valid, is_over & ~is_cut, is_cut, step, env, next_present)


def _those_who_act(present: Array, acts: Array, is_known: Array) -> Array:
    """[K, N] without those who wait for their turn, where that is known and leaves anybody."""
    acting = present & acts
    return np.where((is_known & acting.any(-1))[:, None], acting, present)


def _by_team(rollout: Rollout, column: Array) -> Array:
    """[T, B, N] of [T, L]."""
    return np.asarray(rollout.joint(column))
