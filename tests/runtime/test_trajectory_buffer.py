"""The buffer between actors and routers: bounds, order, priority."""

import threading
import uuid

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.data.columns import Trajectory
from relayrl.runtime.agents.client_config import RouterBufferSettings
from relayrl.runtime.routing.trajectory_buffer import Priority, TrajectoryBuffer
from waiting import DEADLINE_S

OBS, ACT = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
LANES = [uuid.UUID(int=i) for i in range(4)]


def trajectory(lane: uuid.UUID, number: int) -> Trajectory:
    return Trajectory(
        trajectory_id=uuid.uuid4(),
        env_id=lane,
        agent_id="a",
        group="agent",
        observation_space=OBS,
        action_space=ACT,
        episode=number,
        first_step=0,
        obs=np.zeros((1, 1), np.float32),
        action=np.zeros(1, np.int64),
        reward=np.zeros(1, np.float32),
        policy_version=np.zeros(1, np.int64),
        terminated=True,
        truncated=False,
        failed=False,
        final_obs=np.zeros(1, np.float32),
    )


def buffer(**bounds) -> TrajectoryBuffer:
    return TrajectoryBuffer(RouterBufferSettings(**bounds))


def test_urgent_trajectories_come_first_and_their_actors_older_ones_before_them():
    one = buffer()
    one.put(LANES[0], trajectory(LANES[0], 0), Priority.FRAGMENT)
    one.put(LANES[1], trajectory(LANES[1], 0), Priority.FRAGMENT)
    one.put(LANES[1], trajectory(LANES[1], 1), Priority.FLUSH)
    taken = [(entry.lane_key.int, entry.trajectory.episode) for entry in one.take(10, 0)]
    assert taken == [(1, 0), (0, 0), (1, 1)] or taken == [(1, 0), (1, 1), (0, 0)]
    assert taken[0] == (1, 0)


def test_an_actor_with_its_number_of_trajectories_has_to_wait_and_others_do_not():
    one = buffer(max_trajectories_per_actor=2)
    for number in range(2):
        one.put(LANES[0], trajectory(LANES[0], number), Priority.EPISODE)
    assert one.is_pressed
    assert (one.has_room(LANES[0]), one.has_room(LANES[1])) == (False, True)
    taken = one.take(1, 0)
    assert not one.has_room(LANES[0])  # taken is not durable
    one.settle(taken)
    assert one.has_room(LANES[0])
    assert not one.is_pressed


def test_bytes_are_bounded_for_all():
    one = buffer(max_bytes=1)
    one.put(LANES[0], trajectory(LANES[0], 0), Priority.EPISODE)
    assert not one.has_room(LANES[3])
    one.settle(one.take(1, 0))
    assert one.has_room(LANES[3])
    assert one.num_bytes == 0


def test_waiting_for_room_ends_when_there_is_some():
    one = buffer(max_trajectories_per_actor=1)
    one.put(LANES[0], trajectory(LANES[0], 0), Priority.EPISODE)
    assert not one.wait_for_room(LANES[0], 0.05)
    timer = threading.Timer(0.05, lambda: one.settle(one.take(1, 0)))
    timer.start()
    assert one.wait_for_room(LANES[0], DEADLINE_S)
    timer.join(DEADLINE_S)


def test_larger_bounds_give_room_at_once():
    one = buffer(max_trajectories_per_actor=1)
    one.put(LANES[0], trajectory(LANES[0], 0), Priority.EPISODE)
    one.resize(RouterBufferSettings(max_trajectories_per_actor=5))
    assert one.has_room(LANES[0])


def test_a_closed_buffer_takes_nothing_and_gives_what_it_had():
    one = buffer()
    one.put(LANES[0], trajectory(LANES[0], 0), Priority.EPISODE)
    one.put(LANES[0], trajectory(LANES[0], 1), Priority.EPISODE)
    taken = one.take(1, 0)
    left = one.close()
    assert [entry.trajectory.episode for entry in left] == [1]
    assert not one.put(LANES[0], trajectory(LANES[0], 2), Priority.EPISODE)
    assert len(one) == 1
    one.settle(taken)
    assert len(one) == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 3), st.sampled_from(list(Priority))),
            st.tuples(st.just("take"), st.integers(1, 4)),
        ),
        max_size=40,
    )
)
def test_nothing_is_lost_and_actors_keep_their_order(moves):
    one, numbers, taken = buffer(), [0, 0, 0, 0], []
    for first, second in moves:
        if first == "take":
            entries = one.take(second, 0)
            one.settle(entries)
            taken += entries
        else:
            one.put(LANES[first], trajectory(LANES[first], numbers[first]), second)
            numbers[first] += 1
    taken += one.take(1000, 0)
    for lane, count in zip(LANES, numbers, strict=True):
        assert [entry.trajectory.episode for entry in taken if entry.lane_key == lane] == list(range(count))
