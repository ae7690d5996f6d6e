"""A policy earns the same on native simple_spread and on mpe2's: the distribution of beginnings is the same, too."""

from __future__ import annotations

import numpy as np
from mpe2 import simple_spread_v3

from relayrl.data.trees import Array
from relayrl.envs import native

MPE2_EPISODES, NATIVE_EPISODES = 200, 4000


def go_to_own_landmark(obs: Array) -> Array:
    """Agent n steers to landmark n, braking on the way; `obs` [B, 3, 18]."""
    landmarks = obs[:, :, 4:10].reshape(len(obs), 3, 3, 2)
    error = landmarks[:, np.arange(3), np.arange(3)] - 0.4 * obs[:, :, :2]
    x, y = error[..., 0], error[..., 1]
    along_x, along_y = np.where(x > 0, 2, 1), np.where(y > 0, 4, 3)
    return np.where(np.abs(error).max(-1) < 0.05, 0, np.where(np.abs(x) > np.abs(y), along_x, along_y))


def native_returns() -> Array:
    env = native.make("simple_spread")
    env.init_num_envs(NATIVE_EPISODES)
    obs, total = env.reset(seed=0).groups["agent"].obs, np.zeros(NATIVE_EPISODES)
    for _ in range(25):
        step = env.step({"agent": go_to_own_landmark(obs)})
        obs, total = step.groups["agent"].obs, total + step.groups["agent"].reward.mean(axis=1)
    assert step.episode_over.all()
    return total


def mpe2_returns() -> Array:
    env, totals = simple_spread_v3.parallel_env(), np.zeros(MPE2_EPISODES)
    for episode in range(MPE2_EPISODES):
        seen, _ = env.reset(seed=episode)
        while env.agents:
            actions = go_to_own_landmark(np.stack(list(seen.values()))[None])[0]
            seen, rewards, *_ = env.step(dict(zip(env.agents, actions, strict=True)))
            totals[episode] += np.mean(list(rewards.values()))
    env.close()
    return totals


def test_a_scripted_policy_earns_the_same_on_both() -> None:
    ours, theirs = native_returns(), mpe2_returns()
    error = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    assert abs(ours.mean() - theirs.mean()) < 3 * error
    # the comparison can tell: it would notice a difference of a tenth of the return
    assert 3 * error < 0.1 * abs(ours.mean())
