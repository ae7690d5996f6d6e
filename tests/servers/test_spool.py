"""The spool of an actor: numbers, durability, bounds, and what a kill leaves."""

import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.errors import ConfigError, SinkError, SpoolFullError
from relayrl.runtime.remote.spool import Spool, SpoolSettings, take_spool
from waiting import wait_until


def filled(directory, *payloads, **options):
    spool = Spool(directory, SpoolSettings(**options) if options else None)
    for payload in payloads:
        spool.append([payload])
    spool.sync()
    return spool


def test_records_come_back_with_their_numbers(tmp_path):
    with filled(tmp_path, b"one", b"", b"three") as spool:
        assert [spool.read(number) for number in range(3)] == [[b"one"], [b""], [b"three"]]
        assert spool.append([b"a", b"bc"]) == 3
        assert spool.read(3) == [b"a", b"bc"]


def test_what_is_not_acknowledged_in_time_is_due_for_a_sync(tmp_path):
    with filled(tmp_path, b"one", sync_after_s=60.0) as spool:
        assert spool.sync_due_s() is None
        spool.append([b"two"])
        assert (spool.end_of_synced, spool.next_number) == (1, 2)
        assert 0.0 < spool.sync_due_s() <= 60.0
        spool.sync()
        assert (spool.end_of_synced, spool.sync_due_s()) == (2, None)


def test_what_is_acknowledged_needs_no_sync(tmp_path):
    with filled(tmp_path, b"one", sync_after_s=0.0) as spool:
        spool.append([b"two"])
        spool.append([b"three"])
        assert spool.sync_due_s() == 0.0
        spool.acknowledge(1)
        assert (spool.end_of_synced, spool.sync_due_s()) == (2, 0.0)
        spool.acknowledge(2)
        assert (spool.end_of_synced, spool.sync_due_s()) == (3, None)


def test_numbers_that_a_loss_of_power_took_go_on_behind_what_the_server_knows(tmp_path):
    """The record of number 1 was sent and never reached the disk."""
    filled(tmp_path, b"one").close()
    with Spool(tmp_path) as again:
        assert again.next_number == 1
        again.acknowledge(1)
        assert again.append([b"three"]) == 2
    with Spool(tmp_path) as later:
        assert (later.next_number, later.read(2)) == (3, [b"three"])


def test_a_spool_that_is_opened_again_goes_on(tmp_path):
    first = filled(tmp_path, b"one", b"two", b"three")
    first.acknowledge(0)
    first.close()
    with Spool(tmp_path) as again:
        # What was acknowledged may come back: the server knows its number.
        assert again.client_id == first.client_id
        assert again.next_number == 3
        assert again.read(2) == [b"three"]


def test_numbers_are_never_used_twice_even_when_all_is_acknowledged(tmp_path):
    with filled(tmp_path, *[bytes(100)] * 20, segment_bytes=300) as spool:
        spool.acknowledge(19)
        assert spool.num_waiting == 0
        assert len(list(tmp_path.glob("segment-*"))) == 1
    with Spool(tmp_path) as again:
        assert again.next_number == 20


def test_numbers_that_a_server_knows_are_skipped(tmp_path):
    with filled(tmp_path, b"one") as spool:
        spool.acknowledge(9)
        assert spool.append([b"next"]) == 10
    with Spool(tmp_path) as again:
        assert (again.next_number, again.first_unacknowledged) == (11, 10)


def test_acknowledged_segments_are_removed(tmp_path):
    with filled(tmp_path, *[bytes(100)] * 20, segment_bytes=300) as spool:
        before = len(list(tmp_path.glob("segment-*")))
        assert spool.acknowledge(9) == 10
        assert len(list(tmp_path.glob("segment-*"))) < before
        assert spool.read(9) is None
        assert spool.read(10) == [bytes(100)]


def test_a_full_spool_takes_nothing_until_there_is_room(tmp_path):
    with filled(tmp_path, bytes(400), max_bytes=1000) as spool:
        spool.append([bytes(400)])
        with pytest.raises(SpoolFullError):
            spool.append([bytes(400)])
        assert spool.next_number == 2
        spool.acknowledge(0)
        assert spool.append([bytes(400)]) == 2


def test_a_record_that_never_fits_is_an_error(tmp_path):
    with Spool(tmp_path, SpoolSettings(max_bytes=100)) as spool, pytest.raises(ConfigError, match="does not fit"):
        spool.append([bytes(200)])


def test_one_process_uses_a_spool_and_the_next_takes_another(tmp_path):
    with take_spool(tmp_path) as one, take_spool(tmp_path) as other:
        assert one.client_id != other.client_id
        first_id = one.client_id
    with take_spool(tmp_path) as again:
        assert again.client_id == first_id


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_record_that_was_being_written_is_cut_off(tmp_path, cut):
    filled(tmp_path, b"one", b"two").close()
    (segment,) = tmp_path.glob("segment-*")
    segment.write_bytes(segment.read_bytes()[:-cut])
    with Spool(tmp_path) as spool:
        assert spool.next_number == 1
        assert spool.append([b"again"]) == 1
        assert spool.read(1) == [b"again"]


def test_damage_in_the_middle_is_not_taken_for_an_end(tmp_path):
    filled(tmp_path, *[bytes(100)] * 8, segment_bytes=300).close()
    segment = sorted(tmp_path.glob("segment-*"))[0]
    data = bytearray(segment.read_bytes())
    data[60] ^= 1
    segment.write_bytes(data)
    with pytest.raises(SinkError, match="damaged"):
        Spool(tmp_path)


@given(st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 40)), max_size=60))
@settings(max_examples=50, deadline=None)
def test_whatever_the_order_of_records_and_acknowledgements(tmp_path_factory, actions):
    directory = tmp_path_factory.mktemp("spool")
    expected, acknowledged = {}, -1
    spool = Spool(directory, SpoolSettings(segment_bytes=256))
    for action in actions:
        if isinstance(action, bytes):
            expected[spool.append([action])] = action
        else:
            acknowledged = max(acknowledged, min(action, spool.next_number - 1))
            spool.acknowledge(min(action, spool.next_number - 1))
    spool.close()
    with Spool(directory) as again:
        assert again.next_number == len(expected)
        for number in range(acknowledged + 1, len(expected)):
            assert again.read(number) == [expected[number]]


def test_killed_at_any_moment_everything_synced_is_there(tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from relayrl.runtime.remote.spool import Spool, SpoolSettings
        spool = Spool(Path(sys.argv[1]), SpoolSettings(segment_bytes=2000))
        while True:
            number = spool.append([str(spool.next_number).encode() * 30])
            spool.sync()
            print(number, flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    synced = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    synced += [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait()
    process.stdout.close()
    with Spool(tmp_path) as spool:
        assert spool.next_number > max(synced)
        assert all(spool.read(n) == [str(n).encode() * 30] for n in range(spool.next_number))


def test_waiting_for_room_ends_when_the_server_acknowledges(tmp_path):
    with filled(tmp_path, bytes(900), max_bytes=1000) as spool:
        assert not spool.wait_for_room(500, 0.01)
        spool.acknowledge(0)
        wait_until(lambda: spool.wait_for_room(500, 1.0))
