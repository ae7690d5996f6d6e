"""Spaces survive JSON exactly; garbage is refused with a reason, and before it costs memory."""

from __future__ import annotations

import json

import numpy as np
import pytest
from data_strategies import any_space, differences, examples
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from relayrl.data.arrow import space_json
from relayrl.data.arrow.space_json import space_from_json, space_to_json
from relayrl.data.trees import Space
from relayrl.errors import ConfigError, DecodeError


@examples(300)
@given(any_space)
def test_every_space_comes_back_exactly(space: Space) -> None:
    text = space_to_json(space)
    assert differences(space_from_json(text, max_elements=10_000), space) == []
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_uniform_bounds_are_written_once_and_infinity_as_a_word() -> None:
    image = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    assert json.loads(space_to_json(image)) == {
        "type": "box",
        "dtype": "uint8",
        "shape": [84, 84, 4],
        "low": 0,
        "high": 255,
    }
    cart_pole = spaces.Box(np.array([-4.5, -np.inf], np.float32), np.array([4.5, np.inf], np.float32))
    assert json.loads(space_to_json(cart_pole))["low"] == [-4.5, "-inf"]


def test_an_integer_box_remembers_that_it_is_unbounded() -> None:
    box = spaces.Box(-np.inf, 5, (2,), np.int64)
    read = space_from_json(space_to_json(box), max_elements=2)
    assert isinstance(read, spaces.Box)
    assert read.low.tolist() == [-(2**63)] * 2
    assert read.bounded_below.tolist() == [False, False]
    assert read.bounded_above.tolist() == [True, True]


def test_negative_zero_bounds_are_not_taken_for_zero() -> None:
    box = spaces.Box(np.array([0.0, -0.0]), np.array([1.0, 1.0]), dtype=np.float64)
    read = space_from_json(space_to_json(box), max_elements=2)
    assert isinstance(read, spaces.Box)
    assert np.signbit(read.low).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected an object"),
        ('{"type":"text"}', "unknown type"),
        ('{"type":["box"]}', "unknown type"),
        ('{"type":"multi_binary"}', "has keys"),
        ('{"type":"multi_binary","n":4,"m":4}', "has keys"),
        ('{"type":"multi_binary","n":-1}', "no valid shape"),
        ('{"type":"multi_binary","n":0}', "cannot be built"),
        ('{"type":"multi_binary","n":1.5}', "no valid shape"),
        ('{"type":"multi_binary","n":true}', "no valid shape"),
        ('{"type":"discrete","dtype":"int64","n":0,"start":0}', "cannot be built"),
        ('{"type":"discrete","dtype":"int8","n":300,"start":0}', "cannot be built"),
        ('{"type":"discrete","dtype":"float32","n":3.0,"start":0.0}', "cannot be built"),
        ('{"type":"discrete","dtype":"object","n":3,"start":0}', "unknown dtype"),
        ('{"type":"discrete","dtype":{},"n":3,"start":0}', "unknown dtype"),
        ('{"type":"multi_discrete","dtype":"int64","shape":[2],"nvec":[1],"start":0}', "has 1 numbers"),
        ('{"type":"multi_discrete","dtype":"int64","shape":[2],"nvec":["1",2],"start":0}', "int values belong"),
        ('{"type":"box","dtype":"float32","shape":[2],"low":NaN,"high":1.0}', "not JSON"),
        ('{"type":"box","dtype":"float32","shape":[2],"low":"nan","high":1.0}', "float values belong"),
        ('{"type":"box","dtype":"float32","shape":[2],"low":2.0,"high":1.0}', "cannot be built"),
        ('{"type":"box","dtype":"float16","shape":[2],"low":0.0,"high":1e300}', "cannot be built"),
        ('{"type":"box","dtype":"uint8","shape":[2],"low":"-inf","high":1}', "int values belong"),
        ('{"type":"box","dtype":"uint8","shape":[2],"low":0,"high":256}', "cannot be built"),
        ('{"type":"box","dtype":"int8","shape":[2],"low":"inf","high":"inf"}', "int values belong"),
        ('{"type":"box","dtype":"float32","shape":2,"low":0.0,"high":1.0}', "expected a list"),
        (f'{{"type":"box","dtype":"float32","shape":{[1] * 40},"low":0.0,"high":1.0}}', "no valid shape"),
        ('{"type":"dict","spaces":{}}', "expected a list"),
        ('{"type":"dict","spaces":[["a"]]}', "a pair of key and space"),
        ('{"type":"dict","spaces":[[1,{"type":"multi_binary","n":1}]]}', "a pair of key and space"),
        (
            '{"type":"dict","spaces":[["a",{"type":"multi_binary","n":1}],["a",{"type":"multi_binary","n":1}]]}',
            "repeats",
        ),
        ('{"type":"tuple","spaces":[7]}', "expected an object"),
    ],
)
def test_garbage_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        space_from_json(text, max_elements=1000)


@examples(200)
@given(any_space, st.data())
def test_damaged_text_is_a_decode_error_or_a_space(space: Space, data: st.DataObject) -> None:
    text = list(space_to_json(space))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(list('0129-.e"[]{},:tifn ')))
    try:
        read = space_from_json("".join(text), max_elements=1000)
    except DecodeError:
        return
    assert differences(space_from_json(space_to_json(read), max_elements=1000), read) == []


@pytest.mark.parametrize("shapes", [[[10**6]], [[2 * 10**9, 2 * 10**9]], [[0], [1001]], [[500], [501]], [[11, 11, 11]]])
def test_more_elements_than_allowed_are_refused_before_allocation(shapes: list[list[int]]) -> None:
    box = {"type": "box", "dtype": "float64", "low": 0.0, "high": 1.0}
    text = json.dumps({"type": "tuple", "spaces": [box | {"shape": shape} for shape in shapes]})
    with pytest.raises(DecodeError, match="elements or more, the columns only 1000"):
        space_from_json(text, max_elements=1000)


def test_depth_size_and_number_of_spaces_are_bounded_when_reading() -> None:
    nested = '{"type":"tuple","spaces":[' * 40 + "]}" * 40
    with pytest.raises(DecodeError, match="levels deep"):
        space_from_json(nested, max_elements=1)
    empty = {"type": "tuple", "spaces": []}
    many = json.dumps({"type": "tuple", "spaces": [empty] * space_json.MAX_SPACES})
    with pytest.raises(DecodeError, match="holds more than"):
        space_from_json(many, max_elements=1)
    with pytest.raises(DecodeError, match="characters"):
        space_from_json(" " * (space_json.MAX_TEXT_BYTES + 1), max_elements=1)


def test_what_could_not_be_read_back_is_refused_when_writing() -> None:
    deep: Space = spaces.Discrete(2)
    for _ in range(40):
        deep = spaces.Tuple([deep])
    rough = np.random.default_rng(0).random((600, 600))
    cases: list[tuple[Space, str]] = [
        (deep, "levels deep"),
        (spaces.Tuple([spaces.Discrete(2)] * space_json.MAX_SPACES), "more than 4096"),
        (spaces.Box(rough, rough + 1, dtype=np.float64), "one bound for all elements"),
        (spaces.Text(5), "Text spaces cannot be stored"),
        (spaces.Dict([(1, spaces.Discrete(2))]), "not a string"),
        (spaces.Box(0, 1, (2,), np.longdouble), "cannot be stored"),
    ]
    for space, reason in cases:
        with pytest.raises(ConfigError, match=reason):
            space_to_json(space)
