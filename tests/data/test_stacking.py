"""Stacking trajectories: what comes back, and where rows that nobody acted on get their numbers from."""

from __future__ import annotations

import uuid
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from data_strategies import arrays_of, differences, examples
from data_strategies import trajectories as any_trajectory
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from relayrl.algorithms.returns import gae, with_successor_values
from relayrl.data.arrow.codec import decode_trajectory, encode
from relayrl.data.columns import LaneHeader, Trajectory, trajectory_id
from relayrl.data.stacking import count_env_steps, joint_envs, stack_jointly, stack_trajectories, unaligned
from relayrl.errors import ConfigError

ENV_IDS = [uuid.UUID(int=i) for i in range(3)]
LINE = spaces.Box(-1e9, 1e9, (1,))
CHOICE = spaces.Discrete(3, start=1)


def trajectory(
    first: int,
    length: int,
    *,
    env: int = 0,
    agent: str = "a",
    group: str = "g",
    episode: int = 0,
    terminated: bool = False,
    truncated: bool = False,
    failed: bool = False,
    **extra: Any,
) -> Trajectory:
    """Observation and reward of step `t` are `t`; what followed the last one is 100 plus its number."""
    steps = np.arange(first, first + length)
    return Trajectory(
        trajectory_id=trajectory_id(ENV_IDS[env], agent, episode, first),
        env_id=ENV_IDS[env],
        agent_id=agent,
        group=group,
        observation_space=LINE,
        action_space=CHOICE,
        episode=episode,
        first_step=first,
        obs=steps[:, None].astype(np.float32),
        action=np.full(length, 2, np.int64),
        reward=steps.astype(np.float32),
        policy_version=np.zeros(length, np.int64),
        terminated=terminated,
        truncated=truncated or failed,
        failed=failed,
        final_obs=np.array([100.0 + first + length - 1], np.float32),
        **extra,
    )


@st.composite
def groups_of_trajectories(draw: st.DrawFn) -> list[Trajectory]:
    """Trajectories that share spaces and columns, of a few environments and agents, each with an id of its own."""
    example = draw(any_trajectory())
    found = {}
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, len(example)))
        env, agent = draw(st.sampled_from(ENV_IDS)), draw(st.sampled_from(["a", "b"]))
        episode, first_step = draw(st.integers(0, 3)), draw(st.integers(0, 2**40))
        failed = draw(st.booleans())
        columns = {
            name: _rows(getattr(example, name), length)
            for name in ("obs", "action", "policy_version", "action_mask", "logp", "value", "memory")
        }
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        one = replace(
            example,
            trajectory_id=trajectory_id(env, agent, episode, first_step),
            env_id=env,
            agent_id=agent,
            episode=episode,
            first_step=first_step,
            terminated=draw(st.booleans()),
            truncated=failed or draw(st.booleans()),
            failed=failed,
            # Rewards of rows without an action are added to the last one, so these must be numbers.
            reward=rng.normal(size=length).astype(np.float32),
            step=None,
            end_step=None,
            **columns,
        )
        found[one.trajectory_id] = one
    return list(found.values())


def _rows(column: Any, length: int) -> Any:
    if isinstance(column, dict):
        return {key: _rows(part, length) for key, part in column.items()}
    if isinstance(column, tuple):
        return tuple(_rows(part, length) for part in column)
    return None if column is None else column[:length]


@given(groups_of_trajectories())
@examples(150)
def test_splitting_gives_back_what_was_stacked_but_for_states(given_trajectories: list[Trajectory]) -> None:
    back = {t.trajectory_id: t for t in stack_trajectories(given_trajectories).trajectories()}
    assert set(back) == {t.trajectory_id for t in given_trajectories}
    for one in given_trajectories:
        other = replace(back[one.trajectory_id], end_step=None)
        assert differences(replace(one, state=None, final_state=None), other) == []


def test_lanes_are_in_the_order_of_the_trajectories() -> None:
    rollout = stack_trajectories([trajectory(0, 2, env=1), trajectory(0, 3), trajectory(5, 1, env=1)])
    assert rollout.header.env_ids == (ENV_IDS[1], ENV_IDS[0], ENV_IDS[1])
    assert rollout.valid.sum(0).tolist() == [2, 3, 1]
    assert rollout.first_step.tolist() == [0, 0, 5]


def test_a_lane_that_goes_on_waits_at_its_final_observation() -> None:
    rollout = stack_trajectories([trajectory(0, 2), trajectory(0, 4, env=1)])
    assert rollout.obs[:, 0, 0].tolist() == [0, 1, 101, 101]
    assert not rollout.ended.any()
    assert rollout.successors.obs[:, 0].tolist() == [101, 103]


def test_nothing_is_seen_after_an_end() -> None:
    rollout = stack_trajectories([trajectory(0, 2, terminated=True), trajectory(0, 4, env=1)])
    assert rollout.obs[:, 0, 0].tolist() == [0, 1, 0, 0]
    assert rollout.terminated[:, 0].tolist() == [False, True, False, False]
    assert list(zip(rollout.successors.step.tolist(), rollout.successors.obs[:, 0].tolist(), strict=True)) == [
        (1, 101),
        (3, 0),
        (3, 103),
    ]


def test_idle_rows_hold_actions_of_the_space() -> None:
    rollout = stack_trajectories([trajectory(0, 1), trajectory(0, 3, env=1)])
    assert rollout.action[:, 0].tolist() == [2, 1, 1]


def test_advantages_of_a_stack_are_those_of_each_trajectory_alone() -> None:
    """γ = λ = ½ and V(s) = s: one of each kind of end, beside a longer lane."""
    kinds = [{}, {"terminated": True}, {"truncated": True}, {"failed": True}]
    alone = [trajectory(0, 2, env=0, **kind) for kind in kinds]
    together = stack_trajectories([*(replace(t, env_id=uuid.uuid4()) for t in alone), trajectory(0, 5, env=1)])
    for lane, one in enumerate(alone):
        np.testing.assert_allclose(_advantages(together)[:2, lane], _advantages(stack_trajectories([one]))[:2, 0])
    # By hand, for the one that goes on: Â₁ = 1 + 101/2 − 1, Â₀ = 0 + 1/2 − 0 + Â₁/4.
    np.testing.assert_allclose(_advantages(together)[:2, 0], [0.5 + 50.5 / 4, 50.5])
    np.testing.assert_allclose(_advantages(together)[:2, 1], [0.5, 0.0])


def _advantages(rollout: Any) -> np.ndarray:
    value = rollout.obs[..., 0]
    next_value = with_successor_values(value, rollout.successors, rollout.successors.obs[:, 0])
    flags = (rollout.terminated, rollout.truncated, rollout.valid)
    return gae(rollout.reward, value, next_value, *flags, gamma=0.5, lam=0.5)


def test_decoded_trajectories_become_writable_columns() -> None:
    decoded = decode_trajectory(encode(trajectory(0, 3, logp=np.zeros(3, np.float32))))
    assert not decoded.obs.flags.writeable
    rollout = stack_trajectories([decoded])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for array in arrays_of(rollout).values():
            torch.from_numpy(array)
    assert all(array.flags.writeable for array in arrays_of(rollout).values())


def test_columns_that_only_some_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="some trajectories have logp"):
        stack_trajectories([trajectory(0, 1), trajectory(0, 1, env=1, logp=np.zeros(1, np.float32))])


def test_other_spaces_are_refused() -> None:
    other = replace(trajectory(0, 1), action_space=spaces.Discrete(9))
    with pytest.raises(ConfigError, match="cannot be stacked"):
        stack_trajectories([trajectory(0, 1), other])


def test_nothing_cannot_be_stacked() -> None:
    with pytest.raises(ConfigError, match="nothing to stack"):
        stack_trajectories([])
    with pytest.raises(ConfigError, match="nothing to stack"):
        stack_jointly([])


def test_agents_of_an_env_are_aligned_by_step() -> None:
    one, other, third = trajectory(3, 2, agent="a"), trajectory(4, 3, agent="b"), trajectory(5, 1, group="h")
    rollouts = stack_jointly([replace(each, terminated=True) for each in (one, other, third)])
    assert rollouts["g"].obs[:, 0, 0].tolist() == [3, 4, 0, 0]
    assert rollouts["g"].obs[:, 1, 0].tolist() == [0, 4, 5, 6]
    assert rollouts["g"].valid.T.tolist() == [[True, True, False, False], [False, True, True, True]]
    assert rollouts["h"].valid.T.tolist() == [[False, False, True, False]]
    assert rollouts["g"].step()[:, 1].tolist() == [3, 4, 5, 6]


def test_steps_without_an_action_are_rows_that_are_not_valid() -> None:
    late = trajectory(0, 3, agent="a", terminated=True, step=np.array([6, 7, 9]), end_step=11)
    rollout = stack_jointly([late, trajectory(0, 10, agent="b", truncated=True, end_step=10)])["g"]
    assert rollout.obs[:, 0, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0]
    assert np.flatnonzero(rollout.valid[:, 0]).tolist() == [6, 7, 9]
    assert np.flatnonzero(rollout.terminated[:, 0]).tolist() == [10]
    assert np.flatnonzero(rollout.truncated[:, 1]).tolist() == [9]
    assert rollout.env_step[:, 0].tolist() == list(range(11))


def test_a_stack_begins_where_somebody_acts() -> None:
    late = trajectory(0, 1, agent="a", step=np.array([7]), end_step=8)
    rollout = stack_jointly([late, trajectory(5, 3, agent="b", end_step=8)])["g"]
    assert rollout.env_step[:, 0].tolist() == [5, 6, 7, 8]
    assert rollout.first_step.tolist() == [0, 5]


def test_a_missing_fragment_of_one_agent_does_not_move_its_others() -> None:
    fragments = [trajectory(0, 2, agent="a"), trajectory(4, 2, agent="a"), trajectory(0, 6, agent="b")]
    rollout = stack_jointly(fragments)["g"]
    assert rollout.obs[:, 0, 0].tolist() == [0, 1, 101, 0, 4, 5, 105]
    assert np.flatnonzero(rollout.truncated[:, 0]).tolist() == [2, 6]


def test_unaligned_agents_are_those_that_did_not_act_equally_often_and_know_no_steps() -> None:
    known = [trajectory(0, 2, agent="a", end_step=2), trajectory(0, 3, agent="b", end_step=3)]
    assert unaligned(known) == []
    assert unaligned([trajectory(0, 2, agent="a"), trajectory(0, 2, agent="b")]) == []
    assert [len(env) for env in unaligned([trajectory(0, 2, agent="a"), trajectory(0, 3, agent="b")])] == [2]


def test_in_a_joint_stack_a_lane_that_goes_on_ends_on_a_void_row() -> None:
    rollout = stack_jointly([trajectory(0, 2), trajectory(2, 1), trajectory(0, 5, agent="b", terminated=True)])["g"]
    assert np.flatnonzero(rollout.truncated[:, 0] & rollout.failed[:, 0]).tolist() == [3]
    assert rollout.terminated[:, 1].tolist() == [False, False, False, False, True]
    where = (rollout.successors.step == 3) & (rollout.successors.lane == 0)
    assert rollout.successors.obs[where].tolist() == [[102]]


def test_episodes_and_envs_do_not_mix() -> None:
    given_trajectories = [trajectory(0, 2), trajectory(0, 1, episode=1), trajectory(0, 3, env=1, agent="b")]
    rollout = stack_jointly(given_trajectories)["g"]
    assert rollout.header.env_ids == (ENV_IDS[0], ENV_IDS[1])
    assert np.flatnonzero(rollout.valid[:, 0]).tolist() == [
        0,
        1,
        3,
    ]  # a void row is between an episode that goes on and the next
    assert rollout.env_episode is None
    assert rollout.valid.sum(0).tolist() == [3, 0, 0, 3]
    assert count_env_steps(given_trajectories) == 6


def test_fragments_that_follow_each_other_become_one_lane() -> None:
    rollout = stack_jointly([trajectory(2, 2, terminated=True), trajectory(0, 2)])["g"]
    assert rollout.obs[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert rollout.terminated[:, 0].tolist() == [False, False, False, True]
    assert rollout.successors.obs[:, 0].tolist() == [103]


def test_fragments_with_a_gap_between_them_stay_apart() -> None:
    assert stack_jointly([trajectory(0, 2), trajectory(3, 2)])["g"].num_lanes == 2
    assert [len(part) for part in joint_envs([trajectory(0, 2), trajectory(3, 2)])] == [1, 1]


def test_a_repeated_trajectory_does_not_hide_the_first() -> None:
    assert stack_jointly([trajectory(0, 2), trajectory(0, 2)])["g"].valid.sum() == 4


def test_headers_keep_a_place_for_absent_agents_and_groups() -> None:
    headers = {name: LaneHeader(name, (), ("a", "b"), LINE, CHOICE) for name in ("g", "h")}
    rollouts = stack_jointly([trajectory(0, 2, agent="b", terminated=True)], headers, {"h": 3})
    assert rollouts["g"].valid.T.tolist() == [[False, False], [True, True]]
    assert rollouts["g"].action_mask is None
    assert not rollouts["h"].valid.any()
    assert rollouts["h"].action.tolist() == [[1, 1]] * 2
    assert rollouts["h"].action_mask.shape == (2, 2, 3)


@pytest.mark.parametrize(("change", "message"), [({"agent": "z"}, "agent 'z'"), ({"group": "z"}, "group 'z'")])
def test_strangers_are_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stack_jointly([trajectory(0, 1, **change)], {"g": LaneHeader("g", (), ("a",), LINE, CHOICE)})
