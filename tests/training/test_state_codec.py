"""States as files: what goes in comes out, every changed bit is found, nothing is ever run."""

import json
import math
import pickle
import struct

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.errors import CheckpointError
from relayrl.training.files.state_codec import CheckpointVersionError, read_state, write_state


def save(state, path):
    with path.open("wb") as file:
        write_state(file, state)
    return path


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b or (math.isnan(a) and math.isnan(b))


STATE = {
    "weights": {"0.bias": torch.randn(3, generator=torch.Generator().manual_seed(0)), "empty": torch.zeros(0, 4)},
    "view": torch.arange(12.0).reshape(3, 4).T,
    "half": torch.ones(5, dtype=torch.bfloat16),
    "rng": np.random.default_rng(3).bit_generator.state,  # holds integers of 128 bits
    "words": np.arange(3, dtype=np.uint64) + 2**63,
    "flags": np.array([True, False, True]),
    "scalar": np.array(7),
    "generator": torch.Generator().manual_seed(1).get_state(),
    "by number": {0: 1.5, 1: None},
    "numbers": [1, 0.1, math.nan, math.inf, -0.0, True],
    "pair": ("a", ("b",)),
    "a/b": torch.ones(1),
    "a": {"b": torch.zeros(1)},
}


def test_a_state_comes_back_as_it_was(tmp_path):
    assert_same(read_state(save(STATE, tmp_path / "x")), STATE)


def test_numpy_numbers_become_plain_ones(tmp_path):
    assert read_state(save({"x": np.float32(0.5), "n": np.int64(3)}, tmp_path / "x")) == {"x": 0.5, "n": 3}


def test_any_safetensors_tool_reads_the_tensors(tmp_path):
    tensors = safetensors.torch.load_file(save(STATE, tmp_path / "x"))
    assert torch.equal(tensors["weights/0.bias"], STATE["weights"]["0.bias"])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_changed_bit_is_found(data, tmp_path_factory):
    path = save(STATE, tmp_path_factory.mktemp("bits") / "x")
    content = bytearray(path.read_bytes())
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(path)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 0.999))
def test_every_file_cut_short_is_found(share, tmp_path_factory):
    path = save(STATE, tmp_path_factory.mktemp("short") / "x")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(path)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was run')",))


@pytest.mark.parametrize("content", [pickle.dumps(Bomb()), b"", b"\xff" * 64, b"[" * 100_000])
def test_other_files_are_refused_and_never_run(content, tmp_path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(tmp_path / "x")
    torch.save({"x": Bomb()}, tmp_path / "y")
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(tmp_path / "y")


def test_another_version_is_told_apart_from_damage(tmp_path):
    import hashlib

    path = save({"x": 1}, tmp_path / "x")
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["version"] = "3"
    del header["__metadata__"]["sha256"]
    plain = json.dumps(header, separators=(",", ":")).encode()
    header["__metadata__"]["sha256"] = hashlib.sha256(plain + content[8 + length :]).hexdigest()
    encoded = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])
    with pytest.raises(CheckpointVersionError, match="version 3; this RelayRL reads 2"):
        read_state(path)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["text"]), torch.ones(1, dtype=torch.complex64)])
def test_what_cannot_be_saved_is_named(value, tmp_path):
    with pytest.raises(CheckpointError, match="'outer/inner'"):
        save({"outer": {"inner": value}}, tmp_path / "x")
