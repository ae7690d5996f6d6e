"""Collections are paused and objects set aside only for as long as was asked, and only where nobody else does so."""

import gc

import pytest

from relayrl.garbage import collection_paused, living_set_aside


@pytest.fixture(autouse=True)
def collection_as_before():
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


def test_collections_pause_inside_and_go_on_after_an_error():
    @collection_paused()
    def fail():
        raise ValueError(f"enabled: {gc.isenabled()}")

    with pytest.raises(ValueError, match="enabled: False"):
        fail()
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_a_process_without_collections_stays_without():
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_what_was_made_in_a_pause_is_old():
    with collection_paused():
        made = [[] for _ in range(5000)]
    assert gc.get_count()[0] < 700
    assert any(kept is made for kept in gc.get_objects(generation=2))


def test_garbage_made_inside_is_collected_inside():
    with living_set_aside():
        assert gc.get_freeze_count() > 0
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
    assert gc.get_freeze_count() == 0


def test_what_others_have_set_aside_stays_aside():
    gc.freeze()
    with living_set_aside():
        pass
    assert gc.get_freeze_count() > 0
