"""Rollouts of games as the learner's alone: lanes that others play seem to be of agents that are not in the episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from relayrl.data.columns import Rollout
from relayrl.data.trees import Array
from relayrl.engines.self_play.seats import LEARNER


def learner_rows(rollout: Rollout, seats: Array, next_seats: Array) -> Rollout:
    """`rollout` without what others did, where `seats` [T, L] say who played, and `next_seats` [L] who goes on.

    Seats change between episodes only, so the learner's lanes keep all that belongs to them: rewards and ends that arrive while
    they wait as well.
    """
    others, next_others = seats != LEARNER, next_seats != LEARNER
    if not others.any() and not next_others.any():
        return rollout
    own = ~others
    waits = next_others if rollout.waits is None else rollout.waits | next_others
    return replace(
        rollout,
        valid=rollout.valid & own,
        terminated=rollout.terminated & own,
        truncated=rollout.truncated & own,
        reward=np.where(own, rollout.reward, rollout.reward.dtype.type(0)),
        policy_version=rollout.policy_version.copy(),
        first_step=np.where(own[0], rollout.first_step, 0),
        waits=waits,
    )
