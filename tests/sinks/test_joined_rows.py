"""Many small arrays one after the other: the compiled way gives what NumPy gives, and leaves alone what does not fit."""

from dataclasses import replace

import numpy as np
import pytest
from recorded_steps import plain_trajectory

from relayrl.compiled.loader import VARIABLE, kernels
from relayrl.errors import ConfigError
from relayrl.sinks.layout_book import LayoutBook, layout_book

LENGTHS = [1, 20, 3, 64]
needs_kernels = pytest.mark.skipif(kernels() is None, reason="no compiled kernels here")


def parts(dtype=np.float32, shape: tuple[int, ...] = (4,)) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(100 * rng.standard_normal((length, *shape))).astype(dtype) for length in LENGTHS]


def join(arrays, lengths=LENGTHS, dtype=np.float32, shape=(4,)):
    out = np.zeros((sum(LENGTHS), *shape), dtype)
    return kernels().join_rows(arrays, list(lengths), np.dtype(dtype), out), out


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


@pytest.mark.parametrize("compiled", ["", "off"])
def test_trajectories_are_stored_the_same_with_and_without_kernels(compiled, monkeypatch):
    monkeypatch.setenv(VARIABLE, compiled)
    given = [plain_trajectory(1, i, num_steps=length) for i, length in enumerate(LENGTHS)]
    given[1] = replace(given[1], obs=np.repeat(given[1].obs, 2, 1)[:, ::2])  # not contiguous
    (block,) = LayoutBook().check(given)
    columns = ("reward", "policy_version", "obs", "action", "logp", "value")
    for array, name in zip(block.arrays, columns, strict=True):
        assert np.array_equal(array, np.concatenate([getattr(each, name) for each in given]))


@pytest.mark.parametrize("compiled", ["", "off"])
def test_what_does_not_fit_is_named(compiled, monkeypatch):
    monkeypatch.setenv(VARIABLE, compiled)
    given = [plain_trajectory(1, i) for i in range(3)]
    given[2] = replace(given[2], logp=given[2].logp.astype(np.float64))
    with pytest.raises(ConfigError, match="column 'logp' is float64"):
        LayoutBook().check(given)


def test_sinks_of_a_process_share_layouts():
    (one,) = layout_book().check([plain_trajectory(1, 0)])
    (other,) = layout_book().check([plain_trajectory(2, 0)])
    assert one.layout is other.layout
