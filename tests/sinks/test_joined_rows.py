"""Many small arrays one after the other: the compiled way gives what NumPy gives, and leaves alone what does not fit."""

from dataclasses import fields, replace
from uuid import UUID

import numpy as np
import pytest
from recorded_steps import plain_trajectory

from relayrl.compiled.loader import kernels
from relayrl.data.arrow.arrow_writing import header_columns
from relayrl.data.arrow.layout_book import LayoutBook, layout_book
from relayrl.data.trajectory_block import TrajectoryHeaders
from relayrl.errors import ConfigError
from relayrl.sinks.databases.postgres_copy import trajectory_rows

LENGTHS = [1, 20, 3, 64]
needs_kernels = pytest.mark.skipif(kernels() is None, reason="no compiled kernels here")


def parts(dtype=np.float32, shape: tuple[int, ...] = (4,)) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(100 * rng.standard_normal((length, *shape))).astype(dtype) for length in LENGTHS]


def join(arrays, lengths=LENGTHS, dtype=np.float32, shape=(4,)):
    out = np.zeros((sum(LENGTHS), *shape), dtype)
    return kernels().join_rows([arrays], np.array(lengths, np.int64), (out,)), out


@needs_kernels
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_rows_are_joined_as_numpy_joins_them(dtype, shape):
    fits, out = join(parts(dtype, shape), dtype=dtype, shape=shape)
    assert fits
    assert np.array_equal(out, np.concatenate(parts(dtype, shape)))


@needs_kernels
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(np.zeros((20, 4), np.int32), id="another dtype of the same size"),
        pytest.param(np.zeros((20, 4), ">f4"), id="another byte order"),
        pytest.param(np.zeros((20, 8), np.float32)[:, ::2], id="not contiguous"),
        pytest.param(np.zeros((20, 2, 2), np.float32), id="more axes"),
        pytest.param(np.zeros((10, 8), np.float32), id="as many bytes in another shape"),
        pytest.param(np.zeros((21, 4), np.float32), id="another length"),
        pytest.param(np.zeros((20, 4), np.float32).view(np.recarray), id="no plain array"),
        pytest.param([0.0] * 80, id="no array"),
        pytest.param(None, id="nothing"),
    ],
)
def test_an_array_that_does_not_fit_is_told(wrong):
    arrays = parts()
    arrays[1] = wrong
    assert join(arrays)[0] is False


@needs_kernels
def test_rows_are_never_written_beyond_the_end():
    longer = [np.ones((length + 1, 4), np.float32) for length in LENGTHS]
    assert join(longer, [length + 1 for length in LENGTHS])[0] is False
    assert join(parts()[:-1], LENGTHS[:-1])[0] is False
    assert join(parts(), LENGTHS[:-1])[0] is False


@needs_kernels
def test_rows_without_an_axis_of_rows_are_stacked():
    finals, out = list(parts()[1]), np.zeros((20, 4), np.float32)
    assert kernels().join_rows([finals], None, (out,))
    assert np.array_equal(out, parts()[1])
    assert not kernels().join_rows([[*finals[:-1], np.zeros((1, 4), np.float32)]], None, (out,))


@needs_kernels
def test_ids_become_the_bytes_and_texts_of_uuids():
    ids = [UUID(int=0), UUID(int=2**128 - 1), UUID("12345678-9abc-def0-1234-56789abcdef0")]
    found = kernels().uuid_bytes(ids)
    texts = np.zeros((3, 36), np.uint8)
    kernels().uuid_texts(found, texts)
    assert found == [each.bytes for each in ids]
    assert [bytes(text).decode() for text in texts] == [str(each) for each in ids]
    assert kernels().uuid_bytes([ids[0], "no id"]) is None


@needs_kernels
def test_attributes_come_from_slots_and_from_code():
    class Slots:
        __slots__ = ("held",)
        twice = property(lambda self: 2 * self.held)

    first, second = Slots(), Slots()
    first.held, second.held = 1, 2
    assert kernels().attributes([first, second], ("held", "twice")) == [[1, 2], [2, 4]]
    with pytest.raises(AttributeError, match="held"):
        kernels().attributes([first, Slots()], ("held",))


def given_headers(num_trajectories: int = 5) -> TrajectoryHeaders:
    rng = np.random.default_rng(1)
    ids = [rng.bytes(16) for _ in range(num_trajectories)]
    numbers = [rng.integers(0, 1000, num_trajectories) for _ in range(2)]
    flags = [rng.integers(0, 2, num_trajectories).astype(bool) for _ in range(3)]
    num_steps = rng.integers(1, 20, num_trajectories)
    return TrajectoryHeaders(
        ids, [ids[i // 2] for i in range(num_trajectories)], ["a", "b"] * 2 + ["a"], *numbers, num_steps, *flags
    )


@needs_kernels
def test_header_columns_are_the_same_with_and_without_kernels(use_kernels):
    headers = given_headers()
    num_rows = int(headers.num_steps.sum())
    compiled = header_columns(headers, num_rows)
    use_kernels("off")
    plain = header_columns(headers, num_rows)
    for field in fields(compiled):
        assert getattr(compiled, field.name) == getattr(plain, field.name), field.name


@needs_kernels
def test_headers_are_not_spread_over_rows_that_they_do_not_have():
    with pytest.raises(ValueError, match="do not fit"):
        header_columns(given_headers(), int(given_headers().num_steps.sum()) + 1)


@needs_kernels
def test_copy_streams_are_the_same_with_and_without_kernels(use_kernels):
    (block,) = LayoutBook().blocks([plain_trajectory(1, i, num_steps=length) for i, length in enumerate(LENGTHS * 100)])
    keys = range(7, 7 + len(block))
    pieces = [bytes(piece) for piece in trajectory_rows(block, keys, 3)]
    assert len(pieces) > 1
    use_kernels("off")
    assert b"".join(pieces) == b"".join(trajectory_rows(block, keys, 3))


@pytest.mark.parametrize("compiled", ["", "off"])
def test_trajectories_are_stored_the_same_with_and_without_kernels(compiled, use_kernels):
    use_kernels(compiled)
    given = [plain_trajectory(1, i, num_steps=length) for i, length in enumerate(LENGTHS)]
    given[1] = replace(given[1], obs=np.repeat(given[1].obs, 2, 1)[:, ::2])  # not contiguous
    (block,) = LayoutBook().blocks(given)
    columns = ("reward", "policy_version", "obs", "action", "logp", "value")
    for array, name in zip(block.arrays, columns, strict=True):
        assert np.array_equal(array, np.concatenate([getattr(each, name) for each in given]))


@pytest.mark.parametrize("compiled", ["", "off"])
def test_what_does_not_fit_is_named(compiled, use_kernels):
    use_kernels(compiled)
    given = [plain_trajectory(1, i) for i in range(3)]
    given[2] = replace(given[2], logp=given[2].logp.astype(np.float64))
    with pytest.raises(ConfigError, match="column 'logp' is float64"):
        LayoutBook().blocks(given)


def test_sinks_of_a_process_share_layouts():
    (one,) = layout_book().blocks([plain_trajectory(1, 0)])
    (other,) = layout_book().blocks([plain_trajectory(2, 0)])
    assert one.layout is other.layout
