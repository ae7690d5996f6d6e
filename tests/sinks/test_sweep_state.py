"""Leases of a sweep in SQLite and PostgreSQL: no job is worked on twice, nor more at once than the sweep allows."""

import threading

import pytest

from relayrl.errors import SinkError
from relayrl.sweeps.sweep_state import LEASE_S, SweepState
from relayrl.sweeps.trial_jobs import Job, JobState, TrialOutcome

SETTINGS = {"trials": 3, "grid": {}}
KINDS = ["sqlite", "postgresql"]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=KINDS)
def opened(request, place):
    """`opened(name)` is another connection to the same place."""
    url, clock, states = place(request.param), Clock(), []

    def make(sweep="s"):
        state = SweepState(url, sweep, clock)
        states.append(state)
        state.begin(SETTINGS, 2)
        return state

    make.clock = clock
    yield make
    for state in states:
        state.__exit__()


def jobs(count):
    return [Job(trial, 0, 7, {"pi_lr": 1e-3 * trial, "sizes": [64]}, until=100) for trial in range(count)]


def test_what_was_added_is_read_back(opened):
    state = opened()
    added = [*jobs(2), Job(0, 1, (1 << 63) - 1, {"a": "ä'?"}, None, parent=1)]
    state.add(added)
    state.add(added)
    assert state.jobs() == [added[0], added[1], added[2]]
    assert opened("other").jobs() == []
    assert state.settings() == SETTINGS


def test_claims_stay_within_the_concurrency_of_all_processes(opened):
    state = opened()
    state.add(jobs(5))
    claimed, lock = [], threading.Lock()

    def work(owner):
        own = opened()
        for _ in range(10):
            for job in own.claim(owner, 2):
                running = sum(each.state is JobState.RUNNING for each in own.jobs())
                with lock:
                    claimed.append((job.trial, running))
                own.end(owner, job, TrialOutcome(value=1.5))

    threads = [threading.Thread(target=work, args=(f"h/{number}/x",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert sorted(trial for trial, _ in claimed) == [0, 1, 2, 3, 4]
    assert max(running for _, running in claimed) <= 2
    assert {job.outcome.value for job in state.jobs()} == {1.5}


def test_a_lease_ends_and_its_old_owner_writes_nothing(opened):
    state = opened()
    state.add(jobs(1))
    (job,) = state.claim("a/1/x", 1)
    assert state.claim("b/1/x", 1) == []
    opened.clock.now += LEASE_S * 0.9
    assert state.renew("a/1/x") == {job.key}
    opened.clock.now += LEASE_S * 0.9
    assert state.expired() == set()
    opened.clock.now += LEASE_S * 0.2
    assert state.expired() == {job.key}
    assert [each.key for each in state.free(lambda each: each.key == job.key)] == [job.key]
    assert state.claim("b/1/x", 1) == [job]
    state.end("a/1/x", job, TrialOutcome(value=9.0))
    assert state.jobs()[0].state is JobState.RUNNING
    assert state.renew("a/1/x") == set()
    state.end("b/1/x", job, TrialOutcome(value=3.0))
    assert state.jobs()[0].outcome.value == 3.0


def test_restarts_are_counted(opened):
    state = opened()
    state.add(jobs(1))
    for attempts in (1, 2):
        (job,) = state.claim("a/1/x", 1)
        state.give_back("b/1/x", job, "killed", 2)  # of another: nothing happens
        state.give_back("a/1/x", job, "killed", 2)
        assert (state.jobs()[0].state, state.jobs()[0].attempts) == (JobState.WAITING, attempts)
    state.give_back("a/1/x", state.claim("a/1/x", 1)[0], "killed", 2)
    assert state.jobs()[0].state is JobState.FAILED
    assert state.jobs()[0].outcome.error == "killed, after 2 restarts"
    assert [job.key for job in state.retry_failed()] == [(0, 0, 7)]
    assert state.jobs()[0].state is JobState.WAITING


def test_work_that_raises_leaves_nothing(opened):
    state = opened()
    with pytest.raises(TypeError):
        state.add([*jobs(1), Job(1, 0, 7, {"a": object()})])
    assert state.jobs() == []


def test_a_server_that_was_killed_comes_back(postgres):
    state = SweepState(postgres.new_place(), "s", Clock())
    with state:
        state.begin(SETTINGS, 2)
        state.add(jobs(2))
        postgres.kill()
        postgres.restart()
        assert len(state.claim("a/1/x", 2)) == 2


def test_a_server_that_is_not_there_is_said_without_its_password():
    with pytest.raises(SinkError, match=r"postgresql://me:\*\*\*@localhost:1/db") as caught:
        SweepState("postgresql://me:secret@localhost:1/db", "s", Clock())
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "sweep.db").write_bytes(b"not a database, but long enough to be read as one" * 40)
    with pytest.raises(SinkError, match="not a database"):
        SweepState(f"sqlite:{tmp_path / 'sweep.db'}", "s", Clock())
