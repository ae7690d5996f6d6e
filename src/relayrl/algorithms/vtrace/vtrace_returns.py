"""V-trace as a pure function of `[T, L]` columns, as `returns` describes them."""

from __future__ import annotations

import numpy as np

from relayrl.data.trees import Array

MAX_LOG_RATIO = 20.0
"""Beyond it, an importance weight is clipped whatever the bound, and its exponential would overflow."""


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    log_ratio: Array,
    *,
    gamma: float,
    lam: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, Array]:
    """[T, L] V-trace's advantages, 0 on invalid rows, and its value targets (Espeholt et al., 2018). `log_ratio` is
    log π(a) − log μ(a): π is the policy that learns, μ the one that acted.

        ρ_t = min(ρ̄, π/μ),  c_t = λ min(c̄, π/μ),  δ_t = ρ_t (r_t + γ (1 − terminated_t) V(s_{t+1}) − V(s_t))
        v_t = V(s_t) + δ_t + γ (1 − ended_t) c_t (v_{t+1} − V(s_{t+1}))
        Â_t = ρ_t (r_t + γ (1 − terminated_t) (λ v_{t+1} + (1 − λ) V(s_{t+1})) − V(s_t))

    Where π = μ, Â is `returns.gae`'s and v_t = Â_t + V(s_t). Rows without a decision are as in `returns.gae`.
    """
    ended = terminated | truncated
    ratio = np.exp(np.minimum(log_ratio, MAX_LOG_RATIO))
    rho, trace = np.minimum(ratio, rho_bar), lam * np.minimum(ratio, c_bar)
    own_reward, ahead_value = _of_decisions(reward, value, np.where(terminated, 0.0, next_value), ended, valid)
    td_error = own_reward + gamma * ahead_value - value
    delta = np.where(valid, rho * td_error, 0.0)
    # A row without a decision passes on what comes after it.
    carried = np.where(ended, 0.0, np.where(valid, gamma * trace, 1.0))
    correction, after = np.zeros_like(value), np.zeros_like(value[0])
    for t in range(len(reward) - 1, -1, -1):
        correction[t] = after = delta[t] + carried[t] * after
    ahead = np.concatenate([correction[1:], np.zeros_like(value[:1])])
    ahead[ended] = 0.0
    advantage = np.where(valid, rho * (td_error + gamma * (lam * ahead)), 0.0)
    return np.asarray(advantage, np.float32), np.asarray(value + correction, np.float32)


def _of_decisions(reward: Array, value: Array, bootstrap: Array, ended: Array, valid: Array) -> tuple[Array, Array]:
    """[T, L] what each decision was rewarded with until the lane's next one, and the value of what followed it."""
    if valid.all():
        return reward, bootstrap
    own_reward, own_next = np.zeros_like(value), np.zeros_like(value)
    ahead_reward, ahead_value = np.zeros_like(value[0]), bootstrap[-1]
    for t in range(len(reward) - 1, -1, -1):
        own_next[t] = ahead_value = np.where(ended[t], bootstrap[t], ahead_value)
        own_reward[t] = ahead_reward = np.where(ended[t], 0.0, ahead_reward) + reward[t]
        ahead_value = np.where(valid[t], value[t], ahead_value)
        ahead_reward = np.where(valid[t], 0.0, ahead_reward)
    return own_reward, own_next
