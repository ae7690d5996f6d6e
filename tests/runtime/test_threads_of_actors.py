"""Threads that act at once: none waits for another's actor, and every action is recorded once, with its version."""

import sys
import threading
import uuid

import numpy as np
import pytest
import torch
from runtime_fakes import ListSink, export, make_policy, obs, steps_of
from test_step_pages import LAYOUT

from relayrl.data.steps.step_pages import StepPages
from relayrl.errors import ConfigError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from waiting import DEADLINE_S

NUM_THREADS, NUM_REQUESTS, NUM_VERSIONS = 8, 400, 6
ONE = np.zeros(1, np.float32)


@pytest.fixture
def hasty_threads():
    """Threads take turns so often that they do so everywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def worth_its_version(folder, version: int):
    """A policy whose value of anything is its version."""
    policy = make_policy(seed=version)
    with torch.no_grad():
        last = [each for each in policy.critic.modules() if isinstance(each, torch.nn.Linear)][-1]
        last.weight.zero_()
        last.bias.fill_(version)
    return export(policy, folder / f"{version}.onnx", version=version)


def append(pages: StepPages, lane) -> None:
    assert pages.append_one(lane, (ONE, 1, 0.0, 0.0, 0, None, None), None) == []


@pytest.mark.usefixtures("hasty_threads")
def test_every_action_of_many_threads_is_recorded_once_while_policies_are_replaced(tmp_path):
    models, sink = [worth_its_version(tmp_path, v) for v in range(1, NUM_VERSIONS + 1)], ListSink()
    given: list[list[tuple[str, float, int, int]]] = [[] for _ in range(NUM_THREADS + 1)]
    versions_in_use = threading.Barrier(NUM_THREADS + 2)

    def note(thread: int, record, numbers) -> None:
        assert record.value.tolist() == record.policy_version.tolist()
        rows = zip(record.actor_ids, numbers, record.action.tolist(), record.policy_version.tolist(), strict=True)
        given[thread] += [(str(actor), float(number), action, version) for actor, number, action, version in rows]

    with AgentBuilder().actor_count(NUM_THREADS).default_model(models[0]).sink(sink).seed(0).build() as agent:
        ids = agent.get_actor_ids()

        def alone(i: int) -> None:
            versions_in_use.wait(30)
            for k in range(NUM_REQUESTS):
                number = i * NUM_REQUESTS + k
                note(i, agent.request_action((ids[i],), obs(number)), [number])

        def together() -> None:
            versions_in_use.wait(30)
            for k in range(NUM_REQUESTS // 4):
                numbers = [-1 - k * NUM_THREADS - i for i in range(NUM_THREADS)]
                note(NUM_THREADS, agent.request_action(ids, obs(*numbers)), numbers)

        def replace() -> None:
            versions_in_use.wait(30)
            for model in models[1:]:
                agent.update_model(model)

        works = [lambda i=i: alone(i) for i in range(NUM_THREADS)] + [together, replace]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    steps = steps_of(sink.trajectories)
    assert len(steps) == len(set(steps)) == NUM_THREADS * (NUM_REQUESTS + NUM_REQUESTS // 4)
    recorded = [
        (each.agent_id, *row)
        for each in sink.trajectories
        for row in zip(each.obs[:, 0].tolist(), each.action.tolist(), each.policy_version.tolist(), strict=True)
    ]
    assert sorted(recorded) == sorted(row for rows in given for row in rows)
    assert all(each.value.tolist() == each.policy_version.tolist() for each in sink.trajectories)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_ask_the_same_actor_take_turns():
    pages = StepPages(LAYOUT, 10_000)
    lane = pages.open_lane(uuid.uuid4(), "a")
    threads = [threading.Thread(target=lambda: [append(pages, lane) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with pages.lock:
        assert pages.num_open_steps(lane) == 2000


def test_an_actor_is_not_in_another_ones_way():
    pages = StepPages(LAYOUT, 10_000)
    one, other = (pages.open_lane(uuid.uuid4(), name) for name in "ab")
    append(pages, one)
    append(pages, other)
    with one.lock:
        pages._at_work.add(one)
        append(pages, other)
        pages._at_work.discard(one)
    assert pages.num_open_steps(other) == 2


def test_whoever_has_all_lanes_has_them_alone():
    pages = StepPages(LAYOUT, 10_000)
    lane = pages.open_lane(uuid.uuid4(), "a")
    append(pages, lane)
    thread = threading.Thread(target=append, args=(pages, lane))
    with pages.lock:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert pages.num_open_steps(lane) == 1
    thread.join(DEADLINE_S)
    assert pages.num_open_steps(lane) == 2


def test_all_lanes_are_given_when_those_at_work_have_left():
    pages, taken = StepPages(LAYOUT, 10_000), threading.Event()
    lane = pages.open_lane(uuid.uuid4(), "a")

    def take_all() -> None:
        with pages.lock:
            pages.set_max_length(5)
            taken.set()

    with lane.lock:
        pages._at_work.add(lane)
        thread = threading.Thread(target=take_all)
        thread.start()
        assert not taken.wait(0.05)
        pages._at_work.discard(lane)
    thread.join(DEADLINE_S)
    assert taken.is_set()


def test_a_removed_actor_has_no_more_steps():
    pages = StepPages(LAYOUT, 10_000)
    lane = pages.open_lane(uuid.uuid4(), "a")
    append(pages, lane)
    with pages.lock:
        pages.interrupt(lane)
        pages.close_lane(lane)
        new = pages.open_lane(uuid.uuid4(), "b")
    append(pages, new)
    assert new.number == lane.number
    with pytest.raises(ConfigError, match="was removed"):
        append(pages, lane)
    assert pages.num_open_steps(new) == 1
