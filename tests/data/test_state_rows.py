"""Global states beside rollouts: what stands on a row, what followed it, and what of it survives cutting and stacking."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.data.arrow.codec import decode_rollout, encode
from relayrl.data.columns import LaneHeader, Rollout, joined_rollouts
from relayrl.data.stacking import stack_jointly
from relayrl.data.state_rows import StateBuilder, states_after
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.envs.environment_contract import FinalObservations
from relayrl.errors import ConfigError, DecodeError, EnvError

SPACE = spaces.Box(0.0, 100.0, (1,), np.float32)
ENV_IDS = (UUID(int=1), UUID(int=2))


def states(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def played(num_steps: int, first: float = 0.0) -> Rollout:
    """Two environments of two agents; environment 1's state is 50 more. Environment 0's first episode is truncated in step
    1, in state 99."""
    header = LaneHeader("team", ENV_IDS, ("a", "b"), SPACE, spaces.Discrete(2))
    rows, block = RolloutBuilder(header, num_steps), StateBuilder(SPACE, 2, num_steps)
    everyone, nobody = np.ones((2, 2), bool), np.zeros((2, 2), bool)
    for t in range(num_steps):
        rows.add(np.full((2, 2, 1), t, np.float32), np.zeros((2, 2), np.int64), everyone)
        block.add(states(first + t, first + t + 50))
        is_end = first == 0 and t == 1
        ends = np.array([[is_end, is_end], [False, False]])
        final = FinalObservations(np.array([0, 0]), np.array([0, 1]), states(7, 8)) if is_end else None
        rows.finish_row(np.zeros((2, 2), np.float32), nobody, ends, final=final)
        block.finish_row(np.array([is_end, False]), states(99) if is_end else None)
    rollout = rows.build(np.zeros((2, 2, 1), np.float32), policy_version=0)
    return block.build(states(first + num_steps, first + num_steps + 50)).beside(rollout)


def test_what_followed_an_end_is_the_final_state_and_not_the_next_episodes_first() -> None:
    rollout = played(3)
    assert rollout.state.tolist() == [[[0], [50]], [[1], [51]], [[2], [52]]]
    after = [*zip(rollout.successors.step.tolist(), rollout.successors.lane.tolist(), strict=True)]
    assert after == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert rollout.successors.state[:, 0].tolist() == [99, 99, 3, 3, 53, 53]
    assert states_after([rollout])[..., 0].tolist() == [[1, 51], [99, 52], [3, 53]]


def test_blocks_take_turns_in_two_sets_of_buffers() -> None:
    block = StateBuilder(SPACE, 1, 1)
    built = []
    for number in (1.0, 2.0):
        block.add(states(number))
        block.finish_row(np.array([False]), None)
        built.append(block.build(states(number + 1)))
    assert [float(part.now[0, 0, 0]) for part in built] == [1.0, 2.0]
    assert [float(part.after[0, 0, 0]) for part in built] == [2.0, 3.0]


def test_an_end_without_a_final_state_is_an_error_of_the_environment() -> None:
    block = StateBuilder(SPACE, 1, 2)
    block.add(states(1))
    with pytest.raises(EnvError, match="no final_state"):
        block.finish_row(np.array([True]), None)


def test_trajectories_hold_the_states_of_their_env() -> None:
    parts = {(t.env_id, t.agent_id, t.episode): t for t in played(3).trajectories()}
    first, second, other = parts[ENV_IDS[0], "a", 0], parts[ENV_IDS[0], "a", 1], parts[ENV_IDS[1], "b", 0]
    assert (first.state[:, 0].tolist(), first.final_state.tolist()) == ([0, 1], [99])
    assert (second.state[:, 0].tolist(), second.final_state.tolist()) == ([2], [3])
    assert (other.state[:, 0].tolist(), other.final_state.tolist()) == ([50, 51, 52], [53])


def test_stacking_puts_states_back_where_they_were() -> None:
    stacked = stack_jointly(t for t in played(3).trajectories() if t.agent_id == "a")["team"]
    by_env = {(env_id, int(stacked.first_episode[b])): b for b, env_id in enumerate(stacked.header.env_ids)}
    after = states_after([stacked])
    first, other = by_env[ENV_IDS[0], 0], by_env[ENV_IDS[1], 0]
    # Behind the last rows is a void one, in the state that followed them: the lanes go on.
    assert (stacked.state[:, first, 0].tolist(), after[:3, first, 0].tolist()) == ([0, 1, 2, 3], [1, 99, 3])
    assert (stacked.state[:, other, 0].tolist(), after[:3, other, 0].tolist()) == ([50, 51, 52, 53], [51, 52, 53])


def test_states_of_some_agents_only_are_refused() -> None:
    some, *rest = played(3).trajectories()
    with pytest.raises(ConfigError, match="some trajectories have states"):
        stack_jointly([replace(some, state=None, final_state=None), *rest])


def test_joined_blocks_keep_states() -> None:
    whole = joined_rollouts([played(2), played(2, first=2.0)])
    assert whole.state[:, :, 0].tolist() == [[0, 50], [1, 51], [2, 52], [3, 53]]
    assert states_after([whole])[..., 0].tolist() == [[1, 51], [99, 52], [3, 53], [4, 54]]


def test_bytes_in_which_agents_of_an_env_disagree_about_its_state_are_refused() -> None:
    data = bytearray(bytes(encode(played(3))))
    assert decode_rollout(bytes(data)).state.tolist() == played(3).state.tolist()
    at = data.find(np.array([50, 50], np.float32).tobytes())
    data[at : at + 4] = np.float32(51).tobytes()
    with pytest.raises(DecodeError, match="differs between agents"):
        decode_rollout(bytes(data))
