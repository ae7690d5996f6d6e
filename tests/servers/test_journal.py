"""The journal of a training server: exactly once, in order, whenever the server is killed."""

from uuid import UUID, uuid4

import pytest

from relayrl import open_source
from relayrl.bench.servers.trajectory_producer import numbered_trajectory, trajectory_name
from relayrl.compiled.loader import row_kernels
from relayrl.data.arrow.checked_streams import StreamPlans
from relayrl.data.arrow.codec import encode_block
from relayrl.servers.training.journal import Entry, Journal
from relayrl.sinks.buffered import checked_blocks

CLIENT = UUID(int=7)


def entry(number, client=CLIENT):
    """Decoded trajectories where the number is even, received bytes where it is odd: a journal may hold both."""
    (block,) = checked_blocks([numbered_trajectory(client, number, 3)])
    if number % 2 == 0 or row_kernels() is None:
        return Entry(client, number, [block])
    plans = StreamPlans()
    plans.add(block)
    return Entry(client, number, [plans.check(bytes(encode_block(block)))])


@pytest.fixture(params=["arrow", "sqlite"])
def url(request, tmp_path):
    return f"{request.param}:{tmp_path / 'journal'}"


def committed(journal, *entries):
    for each in entries:
        journal.take(each)
    journal.commit(entries)


def stored(url):
    with open_source(url) as source:
        return [t.trajectory_id for t in source]


def test_what_is_committed_is_stored_and_marked(url, tmp_path):
    journal = Journal(url, tmp_path / "index")
    committed(journal, entry(0), entry(1))
    journal.close()
    assert sorted(stored(url)) == sorted(trajectory_name(CLIENT, k) for k in (0, 1))
    again = Journal(url, tmp_path / "index")
    assert (again.mark(CLIENT), again.mark(uuid4()), again.num_entries, again.num_trajectories) == (1, -1, 2, 2)
    again.close()


def test_killed_between_flush_and_index_the_retry_is_stored_once(url, tmp_path):
    journal = Journal(url, tmp_path / "index")
    journal.take(entry(0))
    journal._sink.flush()  # and here the process is killed: the index knows nothing
    again = Journal(url, tmp_path / "index")
    assert again.mark(CLIENT) == -1
    committed(again, entry(0))
    again.close()
    journal.close()
    assert stored(url) == [trajectory_name(CLIENT, 0)]


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_index_forgets_only_its_last_record(url, tmp_path, cut):
    journal = Journal(url, tmp_path / "index")
    committed(journal, entry(0), entry(1))
    journal.close()
    data = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(data[:-cut])
    again = Journal(url, tmp_path / "index")
    assert again.mark(CLIENT) == 0
    committed(again, entry(1))
    again.close()
    assert sorted(stored(url)) == sorted(trajectory_name(CLIENT, k) for k in (0, 1))


def test_what_follows_a_position_comes_in_order(url, tmp_path):
    other = UUID(int=9)
    journal = Journal(url, tmp_path / "index")
    committed(journal, entry(0), entry(0, other))
    committed(journal, Entry(CLIENT, 1, ()), entry(2), entry(1, other))
    after = [[t.trajectory_id for t in each] for each in journal.after(1)]
    journal.close()
    assert after == [
        [trajectory_name(other, 0)],
        [],
        [trajectory_name(CLIENT, 2)],
        [trajectory_name(other, 1)],
    ]
