"""What waits for an update: whole environments, fragments that are cut at common steps, and agents that never come."""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_facade import hashes, make_trainer, play, small_params, train

from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.stacking import count_env_steps
from relayrl.training.queued.update_buffer import Incomplete, UpdateBuffer

ENV = uuid.UUID(int=7)
A_AND_B = ("a", "b")


def fragment(
    agent_id: str, first: int, last: int, *, ended: bool = False, episode: int = 0, env: uuid.UUID = ENV
) -> Trajectory:
    """Steps `first … last - 1` of an agent; observations, actions and rewards are the step's number."""
    steps = np.arange(first, last)
    return Trajectory(
        trajectory_id=trajectory_id(env, agent_id, episode, first),
        env_id=env,
        agent_id=agent_id,
        group=agent_id,
        observation_space=None,
        action_space=None,
        episode=episode,
        first_step=first,
        obs=steps[:, None].astype(np.float32),
        action=steps,
        reward=steps.astype(np.float32),
        policy_version=np.zeros(len(steps), np.int64),
        terminated=ended,
        truncated=False,
        failed=False,
        final_obs=np.array([last], np.float32),
    )


def buffer_of(*agents: str, **bounds: Any) -> UpdateBuffer:
    buffer = UpdateBuffer(**bounds)
    buffer.expect(agents)
    return buffer


def taken(buffer: UpdateBuffer) -> list[tuple[str, list[int]]]:
    return [(t.agent_id, t.reward.astype(int).tolist()) for t in buffer.take()]


def test_an_episode_waits_for_every_agent():
    buffer = buffer_of(*A_AND_B)
    buffer.add([fragment("a", 0, 3, ended=True)])
    assert (buffer.num_ready, buffer.num_held, buffer.incomplete()) == (0, 1, [Incomplete(ENV, 0, ("b",))])
    buffer.add([fragment("b", 0, 2, ended=True)])
    assert (buffer.num_ready, buffer.num_held, buffer.incomplete()) == (1, 0, [])
    assert taken(buffer) == [("a", [0, 1, 2]), ("b", [0, 1])]
    assert (buffer.num_ready, len(buffer)) == (0, 0)


def test_one_agent_alone_is_no_epoch():
    buffer = buffer_of(*A_AND_B)
    for episode in range(4):
        buffer.add([fragment("a", 0, 2, ended=True, episode=episode)])
    assert buffer.num_ready == 0


def test_fragments_are_ready_up_to_the_step_that_all_have_reached():
    buffer = buffer_of(*A_AND_B)
    buffer.add([fragment("a", 0, 4)])
    buffer.add([fragment("b", 0, 3)])
    assert taken(buffer) == [("a", [0, 1, 2]), ("b", [0, 1, 2])]
    assert buffer.num_held == 1  # the fourth step of "a"
    buffer.add([fragment("b", 3, 6, ended=True)])
    assert taken(buffer) == [("a", [3]), ("b", [3])]
    buffer.add([fragment("a", 4, 6, ended=True)])
    assert sorted(taken(buffer)) == [("a", [4, 5]), ("b", [4, 5])]
    assert len(buffer) == 0


def test_a_joint_fragment_counts_once():
    buffer = buffer_of(*A_AND_B)
    for first in (0, 4, 8):
        buffer.add([fragment("a", first, first + 4), fragment("b", first, first + 4)])
    assert buffer.num_ready == 3


def test_steps_of_all_agents_that_are_taken_are_the_same():
    """However fragments are cut and interleaved, what is taken together covers the same steps for both."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        cuts = {name: sorted({*rng.integers(1, 20, rng.integers(0, 5)).tolist(), 20}) for name in A_AND_B}
        pieces = {
            name: [fragment(name, a, b, ended=b == 20) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
            for name, ends in cuts.items()
        }
        buffer, seen = buffer_of(*A_AND_B), {name: [] for name in A_AND_B}
        while any(pieces.values()):
            name = str(rng.choice([name for name, left in pieces.items() if left]))
            buffer.add([pieces[name].pop(0)])
            epoch = {name: [] for name in A_AND_B}
            for trajectory in buffer.take():
                epoch[trajectory.agent_id] += trajectory.reward.astype(int).tolist()
                assert trajectory.final_obs == trajectory.obs[-1] + 1
            assert epoch["a"] == epoch["b"]
            for name, steps in epoch.items():
                seen[name] += steps
        assert seen == {"a": list(range(20)), "b": list(range(20))}
        assert (len(buffer), buffer.num_incomplete) == (0, 0)


def test_an_absent_agent_is_not_waited_for():
    buffer = buffer_of(*A_AND_B)
    buffer.declare_absent(ENV, 0, "b")
    buffer.add([fragment("a", 0, 2, ended=True), fragment("a", 0, 2, ended=True, episode=1)])
    assert buffer.num_ready == 1
    buffer.declare_absent(ENV, None, "b")
    assert buffer.num_ready == 2
    assert buffer.num_incomplete == 0


def test_whoever_delivers_a_later_episode_was_absent_from_the_one_before():
    buffer = buffer_of(*A_AND_B)
    buffer.add([fragment("a", 0, 2, ended=True)])
    buffer.add([fragment("b", 0, 2, episode=1)])
    assert taken(buffer) == [("a", [0, 1])]
    assert buffer.incomplete() == [Incomplete(ENV, 1, ("a",))]


def test_an_absence_that_is_declared_ahead_says_nothing_of_earlier_episodes():
    buffer = buffer_of(*A_AND_B)
    buffer.add([fragment("a", 0, 2, ended=True)])
    buffer.declare_absent(ENV, 1, "b")
    assert buffer.num_ready == 0


def test_an_environment_that_holds_too_many_steps_goes_on_without_the_missing(caplog):
    buffer = buffer_of(*A_AND_B, max_held_steps=5)
    buffer.add([fragment("a", 0, 3, ended=True)])
    with caplog.at_level(logging.WARNING):
        buffer.add([fragment("a", 0, 3, ended=True, episode=1)])
    assert taken(buffer) == [("a", [0, 1, 2])]
    assert buffer.num_incomplete == 1
    assert f"episode 0 of environment {ENV} is incomplete: b delivered nothing" in caplog.text
    buffer.add([fragment("b", 0, 3, ended=True)])  # late
    assert taken(buffer) == [("b", [0, 1, 2])]
    assert buffer.num_incomplete == 2
    buffer.add([fragment("b", 0, 3, ended=True, episode=1)])
    assert [name for name, _ in taken(buffer)] == ["a", "b"]
    assert buffer.num_incomplete == 2


def test_other_environments_may_hold_as_much():
    buffer = buffer_of(*A_AND_B, max_held_steps=5)
    for number in range(10):
        buffer.add([fragment("a", 0, 5, ended=True, env=uuid.UUID(int=number))])
    assert (buffer.num_ready, buffer.num_held) == (0, 10)


def test_a_silent_environment_is_given_up_after_its_time():
    buffer = buffer_of(*A_AND_B, max_held_s=0.0)
    buffer.add([fragment("a", 0, 3, ended=True)])
    assert (buffer.num_ready, buffer.num_incomplete) == (1, 1)


def test_release_reports_what_was_incomplete():
    buffer = buffer_of("a", "b", "c")
    buffer.add([fragment("a", 0, 3, ended=True), fragment("c", 0, 2)])
    assert buffer.release() == [Incomplete(ENV, 0, ("b", "c"))]
    assert taken(buffer) == [("a", [0, 1, 2]), ("c", [0, 1])]


def test_a_saved_buffer_knows_who_has_ended():
    buffer = buffer_of(*A_AND_B)
    buffer.add([fragment("a", 0, 3, ended=True), fragment("b", 0, 2)])
    assert taken(buffer) == [("a", [0, 1]), ("b", [0, 1])]
    other = buffer_of(*A_AND_B)
    other.restore(*buffer.state())
    other.add([fragment("b", 2, 3, ended=True)])
    assert sorted(taken(other)) == [("a", [2]), ("b", [2])]
    assert len(other) == 0


def in_turns(agent_id: str, first: int, end: int, steps: list[int], *, ended: bool = False) -> Trajectory:
    rows = np.array(steps)
    own = fragment(agent_id, first, first + len(steps), ended=ended)
    return replace(own, first_step=first, end_step=end, step=rows, reward=rows.astype(np.float32))


def test_a_step_that_a_waiting_agent_covered_before_is_counted_once():
    buffer = buffer_of(*A_AND_B)
    buffer.add([in_turns("a", 0, 2, [0]), in_turns("b", 0, 3, [1])])
    first = buffer.take()
    assert (count_env_steps(first), buffer.num_covered(first)) == (3, 0)
    for each in (saved_and_loaded(buffer), buffer):
        each.add([in_turns("a", 2, 6, [2, 4]), in_turns("b", 3, 6, [3, 5], ended=True)])
        each.add([in_turns("a", 6, 7, [6], ended=True)])
        rest = each.take()
        assert (count_env_steps(rest), each.num_covered(rest)) == (5, 1)
        each.add([fragment("a", 0, 2, ended=True, episode=1), fragment("b", 0, 2, ended=True, episode=1)])
        assert each.num_covered(each.take()) == 0


def saved_and_loaded(buffer: UpdateBuffer) -> UpdateBuffer:
    again = buffer_of(*A_AND_B)
    again.restore(*buffer.state())
    return again


def test_a_saved_buffer_knows_who_is_absent_and_what_was_given_up():
    buffer = buffer_of(*A_AND_B)
    other, third = uuid.UUID(int=8), uuid.UUID(int=9)
    buffer.declare_absent(ENV, None, "b")
    buffer.declare_absent(other, 0, "b")
    buffer.add([fragment("a", 0, 3, ended=True, env=env) for env in (ENV, other, third)])
    buffer.release()
    assert buffer.num_ready == 3
    again = saved_and_loaded(buffer)
    assert (again.num_ready, again.num_held, again.incomplete()) == (3, 0, [])
    for each in (buffer, again):
        each.num_incomplete = 0
        each.add([fragment("a", 0, 2, ended=True, episode=1)])  # of whom b is absent forever
        each.add([fragment("b", 0, 3, ended=True, env=third)])  # too late
        assert (each.num_ready, each.num_incomplete, each.incomplete()) == (4, 1, [])
    assert taken(again) == taken(buffer)


def test_a_saved_buffer_goes_on_in_the_middle_of_fragments():
    buffer = buffer_of(*A_AND_B)
    whole = fragment("a", 0, 8)
    buffer.add([whole, fragment("b", 0, 3)])
    again = saved_and_loaded(buffer)
    for each in (buffer, again):
        assert (len(each), each.num_ready, each.num_held) == (2, 1, 1)
        assert each.add([whole]) == []  # waits already, in part
        each.add([fragment("b", 3, 8, ended=True)])
        each.num_incomplete = 0
        each.add([fragment("b", 1, 2)])
        assert each.num_incomplete == 1  # those steps were handed over
    assert taken(again) == taken(buffer)


def test_one_agent_needs_nobody():
    buffer = buffer_of("a")
    buffer.add([fragment("a", 4, 6)])
    assert taken(buffer) == [("a", [4, 5])]


@pytest.mark.parametrize("algo", ["mappo", "masac", "ippo", "isac"])
def test_trajectories_that_come_in_any_order_give_joint_steps(algo, tmp_path):
    """What arrives one agent after the other is learned from as if it had come together."""
    together, apart = (make_trainer(algo, tmp_path / name, params=small_params(algo)) for name in ("a", "b"))
    episodes = [play(together, episode) for episode in range(4)]
    train_on(together, [t for pair in episodes for t in pair])
    train_on(apart, [pair[1] for pair in episodes] + [pair[0] for pair in episodes])
    assert together.num_env_steps == apart.num_env_steps == 40
    for trainer in (together, apart):
        if trainer.params.replay_size is not None:
            arrays = trainer.learner.replay.get_state()["arrays"]
            assert len(trainer.learner.replay) == 40
            assert arrays["a/valid"].all()
            assert arrays["b/valid"].all()


def train_on(trainer: Any, trajectories: list[Trajectory]) -> None:
    for trajectory in trajectories:
        trainer.receive_trajectory(trajectory)
        trainer.train_model()
    assert trainer.num_pending == 0


def test_feeders_in_threads_and_training_beside_them(tmp_path):
    """Every trajectory is learned from once, whoever brings it while somebody else trains."""
    trainer = make_trainer("mappo", tmp_path)
    num_threads, num_episodes = 4, 25
    errors: list[BaseException] = []

    def feed(thread: int) -> None:
        try:
            for episode in range(thread * num_episodes, (thread + 1) * num_episodes):
                for trajectory in play(trainer, episode):
                    trainer.receive_trajectory(trajectory)
        except BaseException as error:  # noqa: BLE001 - the test fails with it below
            errors.append(error)

    threads = [threading.Thread(target=feed, args=(thread,)) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        trainer.train_model()
        _ = trainer.num_pending, trainer.incomplete
    for thread in threads:
        thread.join(60)
    trainer.train_model()
    assert errors == []
    left = trainer.update_buffer.num_ready
    assert trainer.num_env_steps == 10 * (num_threads * num_episodes - left)
    assert left < 2
    row = trainer.log_epoch()
    assert row["episode/count"] == 2 * num_threads * num_episodes


def test_a_loaded_trainer_goes_on_waiting(tmp_path):
    one = make_trainer("mappo", tmp_path)
    train(one)
    a, b = play(one, 9)
    one.receive_trajectory(a)
    one.save("waiting")
    other = make_trainer("mappo", tmp_path)
    other.load("waiting")
    assert [each.missing for each in other.incomplete] == [("b",)]
    other.receive_trajectory(b)
    assert other.update_buffer.num_ready == 1


def test_a_loaded_trainer_does_not_wait_for_who_is_absent(tmp_path):
    """Three of four trajectories are there when it is saved; the fourth completes the epoch in both."""
    params = small_params("mappo", traj_per_epoch=4)
    first, again = (make_trainer("mappo", tmp_path, params=params) for _ in range(2))
    alone = [next(t for t in play(first, number) if t.agent_id == "a") for number in range(4)]
    for each in alone[:3]:
        first.declare_absent(each.env_id, None, "b")
        first.receive_trajectory(each)
    first.declare_absent(alone[3].env_id, None, "b")
    first.save("x")
    again.load("x")
    for trainer in (first, again):
        assert trainer.incomplete == []
        assert trainer.receive_trajectory(alone[3])
        assert trainer.train_model()
    assert hashes(again) == hashes(first)


def test_old_steps_are_left_out_of_on_policy_updates(tmp_path):
    """The front of a trajectory may be of older policies; what follows it is learned from."""
    trainer = make_trainer("ppo", tmp_path)
    for number in range(3):
        train(trainer, number)
    assert trainer.policy_version == 3
    trainer.bound_policy_lag(1)
    versions = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    for episode in (5, 6):
        trainer.receive_trajectory(replace(play(trainer, episode)[0], policy_version=versions))
    assert trainer.train_model()
    assert trainer.log_epoch()["epoch/num_stale_steps"] == 2 * 6
