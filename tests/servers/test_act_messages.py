"""ACT and ACTION: what is packed comes back, and what strangers send is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from relayrl.errors import ProtocolError
from relayrl.runtime.remote.act_messages import DTYPES, ActRequest, RemoteChoice, packed, unpacked
from relayrl.runtime.remote.deployment import Deployment
from relayrl.transport.messages import Kind, Message, decode, encode

ROWS = 3
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(lambda rest: (ROWS, *rest))
ARRAYS = st.dictionaries(
    st.text(max_size=5),
    st.tuples(st.sampled_from(list(DTYPES.values())), SHAPES).flatmap(lambda each: npst.arrays(*each)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(ARRAYS)
def test_arrays_come_back(arrays):
    described, frames = packed(arrays)
    found = unpacked(described, frames, ROWS)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@settings(max_examples=60, deadline=None)
@given(ARRAYS, st.data())
def test_frames_that_do_not_fit_are_refused(arrays, data):
    described, (frame,) = packed(arrays)
    length = data.draw(st.integers(0, len(frame) + 16).filter(lambda n: n != len(frame)))
    with pytest.raises(ProtocolError):
        unpacked(described, ((frame + bytes(16))[:length],), ROWS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def code_of(read) -> str | None:
    """How reading is refused; None where it is not."""
    try:
        read()
    except ProtocolError as error:
        return error.code
    return None


@settings(max_examples=60, deadline=None)
@given(JSON, st.binary(max_size=64))
def test_any_description_of_arrays_is_read_or_refused(described, frame):
    assert code_of(lambda: unpacked(described, (frame,), ROWS)) in (None, "malformed")


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["group", "version", "actor", "rows", "choice", "wait_ms", "arrays"]), JSON))
def test_any_header_is_read_or_refused(header):
    good = ActRequest("agent", 1, "a", 1, RemoteChoice.GREEDY, 1.0, {"obs": np.zeros((1, 2), np.float32)}).as_message()
    message = Message(Kind.ACT, good.header | header, good.payload)
    assert code_of(lambda: ActRequest.from_message(message)) in (None, "malformed")


def test_a_request_survives_the_wire():
    arrays = {"obs": np.arange(4, dtype=np.float32).reshape(2, 2), "action_mask": np.array([[True], [False]])}
    asked = ActRequest("agent", None, "me", 2, RemoteChoice.SAMPLE, 0.25, arrays)
    frames = [bytes(frame) for frame in encode(asked.as_message())]
    found = ActRequest.from_message(decode(frames))
    assert (found.group, found.version, found.actor, found.num_rows) == ("agent", None, "me", 2)
    assert (found.choice, found.wait_s) == (RemoteChoice.SAMPLE, 0.25)
    np.testing.assert_array_equal(found.arrays["action_mask"], arrays["action_mask"])


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_any_deployment_is_read_or_refused(header):
    assert code_of(lambda: Deployment.from_header(header)) in (None, "malformed")
    deployment = Deployment(3, 1, 2, 0.25)
    assert Deployment.from_header(deployment.as_header()) == deployment
