"""A rollout of one group as the steps of teams: what each team is paid, who is there, and where it is over.

The agents of a group in one environment are a team. Agents that die leave it, those who appear join it, and it goes on until
the last one has ended and nobody takes over in the same episode. Its reward on a step is the mean over those in the episode,
so that a reward which every agent gets counts once however many are left. Who has died keeps what the team earns later:
returns are the team's, cut at its end only.
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
    acts_next = _who_acts_next(rollout, is_in[-1])
    is_over = np.asarray(was_in.any(-1) & ~is_in.any(-1)) & ~_is_joined_later(rollout, valid, acts_next)
    is_cut = np.asarray(is_over & (truncated & was_in).any(-1))
    mean_reward = np.where(was_in, reward, 0.0).sum(-1) / np.maximum(was_in.sum(-1), 1)
    goes_on = np.zeros_like(is_over)
    goes_on[-1] = acts_next.any(-1)
    step, env = np.nonzero(is_cut | goes_on)
    next_present = np.where(is_cut[step, env, None], (truncated & was_in)[step, env], acts_next[env])
    return TeamRows(mean_reward.astype(np.float32), valid, is_over & ~is_cut, is_cut, step, env, next_present)


def _who_acts_next(rollout: Rollout, is_in: Array) -> Array:
    """[B, N] who of a team acts on what followed the block; those in the episode, where nobody knows or all wait."""
    if rollout.waits is None and rollout.next_episode is None:
        return is_in
    acts = np.ones_like(is_in) if rollout.waits is None else ~_by_team(rollout, rollout.waits[None])[0]
    # What lanes of the next episode do says nothing about this one, which is then over.
    acts = acts & (is_in if rollout.next_episode is None else _last_episode_goes_on(rollout)[:, None])
    return np.where(acts.any(-1, keepdims=True), acts, is_in)


def _is_joined_later(rollout: Rollout, valid: Array, acts_next: Array) -> Array:
    """[T, B] whether somebody of the team acts later in the same episode: those who take over from the last one there."""
    if rollout.env_episode is None:
        return np.zeros(valid.shape[:2], bool)
    num_rows = len(valid)
    row = np.where(valid.any(-1), np.arange(num_rows)[:, None], num_rows)
    following = np.concatenate([np.minimum.accumulate(row[::-1])[::-1][1:], np.full_like(row[:1], num_rows)])
    after = np.where(acts_next.any(-1), rollout.env_episode[-1], -1)
    episode = np.concatenate([rollout.env_episode, after[None]])
    return np.asarray(np.take_along_axis(episode, following, 0) == rollout.env_episode)


def _last_episode_goes_on(rollout: Rollout) -> Array:
    """[B] whether what followed the block is of the last row's episode."""
    assert rollout.env_episode is not None
    return np.asarray(rollout.next_episode == rollout.env_episode[-1])


def _by_team(rollout: Rollout, column: Array) -> Array:
    """[T, B, N] of [T, L]."""
    return np.asarray(rollout.joint(column))
