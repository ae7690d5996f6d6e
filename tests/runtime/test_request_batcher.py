"""Requests of many threads in one pass."""

import sys
import threading
import time

import pytest
from runtime_fakes import ListSink, fixed_policy, obs, steps_of

from relayrl.errors import ConfigError, InferenceError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.agents.client_config import BatchingSettings
from relayrl.runtime.requests.request_batcher import RequestBatcher
from waiting import DEADLINE_S, wait_until


class Request:
    def __init__(self, name, num_rows: int = 1) -> None:
        self.name, self.num_rows, self.error = name, num_rows, None


def in_threads(work, count: int) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_single_caller_is_served_in_its_own_thread():
    served_by = []
    batcher = RequestBatcher(lambda _: served_by.append(threading.current_thread()), BatchingSettings())
    batcher.run((Request("a"),))
    assert served_by == [threading.current_thread()]


def test_those_who_come_while_a_pass_runs_share_the_next():
    passes, entered, go_on = [], threading.Event(), threading.Event()

    def serve(requests) -> None:
        passes.append(sorted(request.name for request in requests))
        entered.set()
        go_on.wait(DEADLINE_S)

    batcher = RequestBatcher(serve, BatchingSettings())
    first = threading.Thread(target=batcher.run, args=((Request(0),),))
    first.start()
    assert entered.wait(DEADLINE_S)
    others = [threading.Thread(target=batcher.run, args=((Request(i),),)) for i in range(1, 6)]
    for thread in others:
        thread.start()
    wait_until(lambda: len(batcher._queue) == 5)
    go_on.set()
    for thread in (first, *others):
        thread.join(DEADLINE_S)
    assert passes == [[0], [1, 2, 3, 4, 5]]


def test_who_comes_later_does_not_overtake_who_waits():
    order, entered, go_on = [], threading.Event(), threading.Event()

    def serve(requests) -> None:
        order.extend(request.name for request in requests)
        entered.set()
        go_on.wait(DEADLINE_S)

    batcher = RequestBatcher(serve, BatchingSettings())
    threads = []
    for i in range(3):
        threads.append(threading.Thread(target=batcher.run, args=((Request(i),),)))
        threads[-1].start()
        assert entered.wait(DEADLINE_S)
        wait_until(lambda n=i: len(batcher._queue) == n)
    assert not batcher.try_to_lead()
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert order == [0, 1, 2]
    assert batcher.try_to_lead()
    batcher.hand_on()


def test_nobody_is_forgotten_when_passes_are_short():
    served = []
    batcher = RequestBatcher(lambda requests: served.extend(request.name for request in requests), BatchingSettings())

    def work(i: int) -> None:
        for k in range(2000):
            if batcher.try_to_lead():
                served.append((i, k))
                batcher.hand_on()
            else:
                batcher.wait_for((Request((i, k)),))

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(work, 8)
    finally:
        sys.setswitchinterval(interval_s)
    assert len(served) == len(set(served)) == 16_000


def test_a_pass_has_no_more_rows_than_allowed():
    sizes, entered, go_on = [], threading.Event(), threading.Event()

    def serve(requests) -> None:
        sizes.append(sum(request.num_rows for request in requests))
        entered.set()
        go_on.wait(DEADLINE_S)

    batcher = RequestBatcher(serve, BatchingSettings(max_rows=10))
    threads = [threading.Thread(target=batcher.run, args=((Request(i, 4),),)) for i in range(6)]
    for thread in threads:
        thread.start()
    assert entered.wait(DEADLINE_S)
    wait_until(lambda: len(batcher._queue) == 5)
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sum(sizes) == 24
    assert max(sizes) <= 10


def test_leadership_passes_on_when_serving_raises():
    def serve(requests) -> None:
        time.sleep(0.002)
        if any(request.name % 5 == 0 for request in requests):
            raise KeyboardInterrupt

    batcher, outcomes = RequestBatcher(serve, BatchingSettings()), []

    def work(i: int) -> None:
        request = Request(i)
        try:
            batcher.run((request,))
            outcomes.append("served" if request.error is None else "failed")
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    in_threads(work, 20)
    assert len(outcomes) == 20
    assert "interrupted" in outcomes


def test_a_pass_that_hangs_is_an_error_after_the_deadline():
    hang, entered = threading.Event(), threading.Event()

    def serve(requests) -> None:
        entered.set()
        hang.wait(DEADLINE_S)

    batcher = RequestBatcher(serve, BatchingSettings(request_timeout_s=0.1))
    first = threading.Thread(target=batcher.run, args=((Request(0),),))
    first.start()
    assert entered.wait(DEADLINE_S)
    with pytest.raises(InferenceError, match="no forward pass within"):
        batcher.run((Request(1),))
    hang.set()
    first.join(DEADLINE_S)
    batcher.run((Request(2),))


def test_threads_share_forward_passes_and_each_gets_its_own_action():
    policy, sink = fixed_policy(1, 1), ListSink()
    with AgentBuilder().actor_count(16).default_model(policy).sink(sink).build() as agent:
        ids = agent.get_actor_ids()
        batcher = agent._coordinator.state.handle(ids[0]).slot.policy.batcher

        def hold_the_first() -> None:
            if len(policy.actor.batch_sizes) == 1:
                wait_until(lambda: len(batcher._queue) == 15)

        policy.actor.before_pass = hold_the_first

        def play(i: int) -> None:
            for t in range(25):
                record = agent.request_action((ids[i],), obs(100 * i + t), reward=None if t == 0 else float(i))
                assert record.actor_ids == (ids[i],)
            agent.flag_last_action((ids[i],), reward=float(i))

        in_threads(play, 16)
    assert policy.actor.batch_sizes[0] == 1
    assert policy.actor.batch_sizes[1] >= 15  # the first may be back already
    assert sum(policy.actor.batch_sizes) == 400
    steps = steps_of(sink.trajectories)
    assert len(steps) == len(set(steps)) == 400
    for trajectory in sink.trajectories:
        i = [str(each) for each in ids].index(trajectory.agent_id)
        assert trajectory.obs[:, 0].tolist() == [100 * i + t for t in range(25)]
        assert trajectory.reward.tolist() == [float(i)] * 25


def test_a_wrong_request_does_not_spoil_the_pass_it_shares():
    policy, errors = fixed_policy(1, 1, delay_s=0.005), []
    with AgentBuilder().actor_count(8).default_model(policy).build() as agent:
        ids = agent.get_actor_ids()

        def play(i: int) -> None:
            for _ in range(10):
                try:
                    assert agent.request_action((ids[i],), obs(0), reward=1.0 if i == 0 else None).action[0] == 1
                except ConfigError as error:
                    errors.append((i, str(error)))

        in_threads(play, 8)
    assert {i for i, _ in errors} == {0}
    assert all("has not acted" in text for _, text in errors)
