"""Cutting rollouts into trajectories: each rule by hand."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from data_strategies import arrays_of, examples, rollouts
from gymnasium import spaces
from hypothesis import given

from relayrl.data.columns import LaneHeader, Rollout, Successors, Trajectory
from relayrl.data.row_rules import rows_with_successor
from relayrl.data.splitting import split_rollout, trajectory_ids
from relayrl.errors import ConfigError

ENV_ID = uuid.UUID(int=1)


def column(text: str) -> np.ndarray:
    """Flags of the rows of one lane: `..1.` is True on the third."""
    return np.array([[letter == "1"] for letter in text])


def one_lane(valid: str, terminated: str = "", truncated: str = "", failed: str = "", **change: Any) -> Rollout:
    """A lane whose observation, action and reward on row t are t, 10 t and t; what followed row t is 100 + t."""
    T = len(valid)
    flags = {"terminated": terminated, "truncated": truncated, "failed": failed}
    columns: dict[str, Any] = {name: column(text or "." * T) for name, text in flags.items()}
    rows = np.arange(T)[:, None]
    step, lane = np.nonzero(rows_with_successor(columns["terminated"] | columns["truncated"]))
    columns |= {
        "header": LaneHeader("g", (ENV_ID,), ("a",), spaces.Box(-1e9, 1e9, (), np.float64), spaces.Discrete(99)),
        "obs": rows.astype(np.float64),
        "action": rows * 10,
        "reward": rows.astype(np.float32),
        "valid": column(valid),
        "policy_version": rows + 1000,
        "first_episode": np.array([4]),
        "first_step": np.array([7]),
        "successors": Successors(step, lane, 100.0 + step),
    }
    return Rollout(**(columns | change))


def cut(rollout: Rollout) -> list[Trajectory]:
    return list(split_rollout(rollout))


def summary(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "episode": trajectory.episode,
        "first_step": trajectory.first_step,
        "obs": trajectory.obs.tolist(),
        "reward": trajectory.reward.tolist(),
        "end": "".join(name[:2] for name in ("terminated", "truncated", "failed") if getattr(trajectory, name)),
        "final_obs": float(trajectory.final_obs),
    }


def test_a_lane_is_cut_at_its_ends_and_its_last_fragment_goes_on() -> None:
    first, second, third = cut(one_lane("111111", terminated="..1...", truncated="...1.."))
    assert summary(first) == {
        "episode": 4,
        "first_step": 7,
        "obs": [0, 1, 2],
        "reward": [0, 1, 2],
        "end": "te",
        "final_obs": 102,
    }
    assert summary(second) == {
        "episode": 5,
        "first_step": 0,
        "obs": [3],
        "reward": [3],
        "end": "tr",
        "final_obs": 103,
    }
    assert summary(third) == {
        "episode": 6,
        "first_step": 0,
        "obs": [4, 5],
        "reward": [4, 5],
        "end": "",
        "final_obs": 105,
    }
    assert (first.is_whole, second.is_whole, third.is_whole) == (False, True, False)
    assert second.action.tolist() == [30]
    assert second.policy_version.tolist() == [1003]


def test_an_end_on_the_last_row_leaves_nothing_behind_it() -> None:
    (only,) = cut(one_lane("11", terminated=".1"))
    assert summary(only)["end"] == "te"


def test_rewards_of_rows_that_are_not_valid_go_to_the_last_valid_row_before_them() -> None:
    (only,) = cut(one_lane(".1..1.", terminated=".....1"))
    assert summary(only) == {
        "episode": 4,
        "first_step": 7,
        "obs": [1, 4],
        "reward": [1 + 2 + 3, 4 + 5],
        "end": "te",
        "final_obs": 105,
    }


def test_a_reward_after_an_agents_end_belongs_to_no_action() -> None:
    first, second = cut(one_lane("11..1", terminated=".1..."))
    assert (summary(first)["reward"], summary(first)["end"]) == ([0, 1], "te")
    assert summary(second) == {
        "episode": 5,
        "first_step": 0,
        "obs": [4],
        "reward": [4],
        "end": "",
        "final_obs": 104,
    }


def test_a_fragment_without_a_valid_row_yields_nothing_but_counts_as_an_episode() -> None:
    first, second = cut(one_lane("1...1", terminated="1.1.."))
    assert (first.episode, second.episode) == (4, 6)
    assert second.reward.tolist() == [4]
    assert first.reward.tolist() == [0]
    assert cut(one_lane("...", terminated="..1")) == []


def test_a_failed_row_is_dropped_and_what_came_before_it_is_failed_and_truncated() -> None:
    first, second = cut(one_lane("11.1", truncated="..1.", failed="..1."))
    assert summary(first) == {
        "episode": 4,
        "first_step": 7,
        "obs": [0, 1],
        "reward": [0, 1],
        "end": "trfa",
        "final_obs": 102,
    }
    assert (summary(second)["obs"], summary(second)["end"]) == ([3], "")
    assert not first.is_whole


def test_lanes_come_one_after_the_other_with_their_own_envs_and_agents() -> None:
    env_ids = (uuid.UUID(int=1), uuid.UUID(int=2))
    space = spaces.Tuple([spaces.Discrete(50)])
    obs = np.arange(12).reshape(3, 4)
    ended = np.zeros((3, 4), bool)
    ended[1, 2] = True
    step, lane = np.nonzero(rows_with_successor(ended))
    rollout = Rollout(
        header=LaneHeader("g", env_ids, ("a", "b"), space, spaces.Discrete(50)),
        obs=(obs,),
        action=obs,
        reward=obs.astype(np.float32),
        terminated=ended,
        truncated=np.zeros((3, 4), bool),
        valid=np.ones((3, 4), bool),
        failed=np.zeros((3, 4), bool),
        policy_version=np.zeros((3, 4), np.int64),
        first_episode=np.zeros(4, np.int64),
        first_step=np.zeros(4, np.int64),
        successors=Successors(step, lane, (np.arange(len(step)),)),
        action_mask=np.ones((3, 4, 2), bool),
        logp=-obs.astype(np.float32),
        value=obs.astype(np.float32) / 2,
        memory={"h": obs[..., None].astype(np.float32)},
    )
    parts = cut(rollout)
    assert [(t.env_id.int, t.agent_id, t.reward.tolist()) for t in parts] == [
        (1, "a", [0, 4, 8]),
        (1, "b", [1, 5, 9]),
        (2, "a", [2, 6]),
        (2, "a", [10]),
        (2, "b", [3, 7, 11]),
    ]
    # successors in order: (1, 2), then the last row's lanes 0 to 3
    assert [int(t.final_obs[0]) for t in parts] == [1, 2, 0, 3, 4]
    assert parts[4].obs[0].tolist() == [3, 7, 11]
    assert parts[4].action_mask.shape == (3, 2)
    assert parts[4].logp.tolist() == [-3, -7, -11]
    assert parts[4].value.tolist() == [1.5, 3.5, 5.5]
    assert parts[4].memory["h"].tolist() == [[3], [7], [11]]


def test_ids_are_the_same_when_cut_again_and_differ_between_fragments() -> None:
    rollout = one_lane("1111", terminated=".1..")
    ids = [t.trajectory_id for t in cut(rollout)]
    assert ids == [t.trajectory_id for t in cut(rollout)]
    assert ids == [uuid.uuid5(ENV_ID, "a/4/7"), uuid.uuid5(ENV_ID, "a/5/0")]
    later = one_lane("1111", terminated=".1..", first_step=np.array([8]))
    assert cut(later)[0].trajectory_id != ids[0]


@pytest.mark.parametrize("agent", ["", "agent_0", "ä" * 40])
def test_ids_are_uuids_of_version_5(agent: str) -> None:
    envs = [uuid.UUID(int=n * 2**120 + n) for n in range(5)]
    episodes, first_steps = np.array([0, 9, 10**6, 2**62, -1]), np.array([0, 1, 500, 2**62, 7])
    ids = trajectory_ids([env.bytes for env in envs], [agent] * 5, episodes, first_steps)
    named = zip(envs, episodes, first_steps, strict=True)
    assert ids == [uuid.uuid5(env, f"{agent}/{episode}/{step}").bytes for env, episode, step in named]


def test_trajectories_do_not_change_when_the_rollouts_buffers_are_reused() -> None:
    rollout = one_lane("111")
    (only,) = cut(rollout)
    before = summary(only)
    for array in (rollout.obs, rollout.action, rollout.reward, rollout.successors.obs, rollout.policy_version):
        array[...] = -1
    assert summary(only) == before
    assert only.policy_version.tolist() == [1000, 1001, 1002]


def test_a_rollout_whose_successors_are_missing_is_refused() -> None:
    rollout = one_lane("111", terminated=".1.")
    missing = Successors(rollout.successors.step[1:], rollout.successors.lane[1:], rollout.successors.obs[1:])
    with pytest.raises(ConfigError, match="successors must be the rows"):
        cut(one_lane("111", terminated=".1.", successors=missing))


@examples(100)
@given(rollouts())
def test_valid_steps_are_all_there_once(rollout: Rollout) -> None:
    parts = cut(rollout)
    assert sum(map(len, parts)) == rollout.valid.sum()
    assert len({t.trajectory_id for t in parts}) == len(parts)
    assert all(not t.failed or t.truncated for t in parts)
    theirs = arrays_of(rollout).values()
    assert not any(np.shares_memory(mine, other) for t in parts for mine in arrays_of(t).values() for other in theirs)
