"""ML-Agents' demonstrations: read as they were written, and refused where they are damaged or hostile."""

import contextlib
import struct
import zlib
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relayrl
from relayrl.data.columns import LaneHeader
from relayrl.data.mlagents.png_images import decode_images
from relayrl.errors import ConfigError, DecodeError, RelayRLError
from relayrl.training.imitation.demonstrations import read_demonstrations

# A writer of the wire format, for tests.


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def real(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def blob(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def floats(field: int, values) -> bytes:
    return blob(field, np.asarray(values, "<f4").tobytes())


def ints(field: int, values) -> bytes:
    return blob(field, b"".join(varint(int(value)) for value in values))


def delimited(message: bytes) -> bytes:
    return varint(len(message)) + message


def vector(values) -> bytes:
    return blob(13, ints(1, [len(values)]) + blob(4, floats(1, values)))


def pair(obs: bytes, action: bytes = b"", reward=0.0, done=False, cut=False, mask=(), agent=7) -> bytes:
    info = real(7, reward) + number(8, done) + number(9, cut) + number(10, agent) + obs
    return blob(1, info + (ints(11, mask) if len(mask) else b"")) + blob(2, action)


CONTINUOUS = number(1, 2)
DISCRETE = number(2, 2) + ints(3, [3, 2])


def demo(pairs, spec=CONTINUOUS, version=1, steps=None, name=b"Walker") -> bytes:
    metadata = delimited(number(1, version) + blob(2, b"a demo") + number(3, len(pairs) if steps is None else steps))
    behavior = delimited(blob(7, name) + blob(9, spec))
    return metadata.ljust(33, b"\0") + behavior + b"".join(delimited(each) for each in pairs)


def read(tmp_path, data: bytes):
    (tmp_path / "x.demo").write_bytes(data)
    with relayrl.open_source(f"demo:{tmp_path / 'x.demo'}") as source:
        return list(source)


EPISODES = [
    pair(
        vector([1, 2, 3]), floats(6, [0.5, -0.5]), reward=9.0
    ),  # nothing came before: this reward belongs to no action
    pair(vector([4, 5, 6]), floats(6, [0.25, 1.0]), reward=1.0),
    pair(vector([7, 8, 9]), floats(6, [0, 0]), reward=-2.0, done=True),
    pair(vector([1, 1, 1]), floats(6, [1, 1]), agent=8),
    pair(vector([2, 2, 2]), floats(6, [1, 1]), reward=0.5, done=True, cut=True, agent=8),
    pair(vector([3, 3, 3]), floats(6, [1, -1]), agent=9),
    pair(vector([4, 4, 4]), reward=3.0, agent=9),  # where the recording stopped
]


def test_steps_have_the_reward_and_the_end_of_what_followed(tmp_path):
    first, second, third = read(tmp_path, demo(EPISODES) + b"left over from an earlier recording")
    assert first.group == "Walker"
    assert first.action_space == spaces.Box(-1, 1, (2,), np.float32)
    assert first.observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    np.testing.assert_array_equal(first.obs, [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(first.action, np.array([[0.5, -0.5], [0.25, 1.0]], np.float32))
    assert first.reward.tolist() == [1.0, -2.0]
    assert (first.terminated, first.truncated) == (True, False)
    np.testing.assert_array_equal(first.final_obs, [7, 8, 9])
    assert (second.terminated, second.truncated, second.reward.tolist()) == (False, True, [0.5])
    assert (third.terminated, third.truncated, third.reward.tolist()) == (False, True, [3.0])
    assert len({each.trajectory_id for each in (first, second, third)}) == 3
    again = read(tmp_path, demo(EPISODES))
    assert [each.trajectory_id for each in again] == [each.trajectory_id for each in (first, second, third)]


def test_branches_masks_and_both_kinds_of_actions(tmp_path):
    allowed = [0, 1, 0, 0, 0]  # in the file, 1 forbids
    steps = [pair(vector([1]), ints(7, [2, 1]), mask=allowed), pair(vector([1]), ints(7, [1, 0]), mask=allowed)]
    (one,) = read(tmp_path, demo([*steps, pair(vector([1]), done=True)], DISCRETE))
    assert one.action_space == spaces.MultiDiscrete([3, 2])
    assert one.action.tolist() == [[2, 1], [1, 0]]
    assert one.action_mask.astype(int).tolist() == [[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]]  # what was done counts as allowed
    both = number(1, 1) + number(2, 1) + ints(3, [4])
    step = pair(vector([1]), floats(6, [0.5]) + ints(7, [3]))
    (one,) = read(tmp_path, demo([step, pair(vector([1]), done=True)], both))
    assert one.action_space == spaces.Tuple((spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(4)))
    assert [column.tolist() for column in one.action] == [[[0.5]], [3]]


def test_files_of_older_versions(tmp_path):
    """Before communicator 1.3, actions are floats in other fields."""
    metadata = delimited(number(1, 0) + number(3, 2)).ljust(33, b"\0")
    behavior = delimited(ints(3, [3]) + number(6, 0) + blob(7, b"Old"))
    steps = [pair(vector([1, 2]), floats(1, [2.0])), pair(vector([1, 2]), done=True)]
    (one,) = read(tmp_path, metadata + behavior + b"".join(delimited(each) for each in steps))
    assert one.action_space == spaces.Discrete(3)
    assert one.action.tolist() == [2]


def png(rows: bytes, width: int, height: int, colour=2, depth=8, interlace=0, extra=b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def filtered(picture, kinds) -> bytes:
    """The filters of the PNG specification, forwards and pixel by pixel."""
    height, width, channels = picture.shape
    padded = np.zeros((height + 1, width + 1, channels), int)
    padded[1:, 1:] = picture
    out = b""
    for y, kind in enumerate(kinds):
        out += bytes([kind])
        for x in range(width):
            for c in range(channels):
                left, up, corner = padded[y + 1, x, c], padded[y, x + 1, c], padded[y, x, c]
                p = left + up - corner
                nearest = min((left, up, corner), key=lambda n: abs(p - n))
                guess = [0, left, up, (left + up) // 2, nearest][kind]
                out += bytes([int(padded[y + 1, x + 1, c] - guess) & 0xFF])
    return out


def test_pictures_with_all_filters_are_read(tmp_path):
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (5, 6, 3), np.uint8)
    data = png(filtered(picture, range(5)), 6, 5)
    np.testing.assert_array_equal(decode_images(data, (5, 6, 3), []), picture)
    seen = blob(13, ints(1, [3, 5, 6]) + number(2, 1) + blob(3, data)) + vector([0.5])
    (one,) = read(tmp_path, demo([pair(seen, floats(6, [0, 0])), pair(seen, done=True)]))
    assert one.observation_space[0] == spaces.Box(0, 255, (3, 5, 6), np.uint8)  # as the scene has it
    np.testing.assert_array_equal(one.obs[0][0], np.moveaxis(picture, -1, 0))
    np.testing.assert_array_equal(one.obs[1], [[0.5]])


def visual(shape, data) -> bytes:
    return demo([pair(blob(13, ints(1, shape) + number(2, 1) + blob(3, data)), floats(6, [0, 0]))] * 2)


FLAT = bytes(5 * (1 + 6 * 3))
BOMB = zlib.compress(bytes(50_000_000))
HOSTILE = {
    "empty": b"",
    "no demonstration": b"PK\x03\x04" + bytes(100),
    "only metadata": demo([])[:33],
    "version 2": demo(EPISODES, version=2),
    "version -1": demo(EPISODES, version=-1),
    "more steps than there are": demo(EPISODES, steps=1_000_000_000),
    "negative steps": demo(EPISODES, steps=-5),
    "a huge message": demo([], steps=1) + varint(1 << 62) + b"x",
    "an endless number": demo([], steps=1) + b"\xff" * 30,
    "a group, which nests": demo([b"\x0b" * 5000]),
    "a field of length beyond the end": demo([varint(1 << 3 | 2) + varint(1 << 40)]),
    "a field of the wrong kind": demo([number(1, 5)]),
    "nested in itself": demo([blob(1, blob(1, blob(1, blob(1, b"x" * 10))))]),
    "no actions": demo(EPISODES, b""),
    "negative actions": demo(EPISODES, number(1, -2)),
    "too many actions": demo(EPISODES, number(1, 1 << 30)),
    "negative branches": demo(EPISODES, number(2, 1) + ints(3, [-3])),
    "branches without sizes": demo(EPISODES, number(2, 3)),
    "a choice that does not exist": demo([pair(vector([1]), ints(7, [3, 0]))] * 2, DISCRETE),
    "a negative choice": demo([pair(vector([1]), ints(7, [-1, 0]))] * 2, DISCRETE),
    "a mask that is too short": demo([pair(vector([1]), ints(7, [0, 0]), mask=[0])] * 2, DISCRETE),
    "a mask that is too long": demo([pair(vector([1]), ints(7, [0, 0]), mask=[0] * 10_000)] * 2, DISCRETE),
    "too few actions": demo([pair(vector([1]), floats(6, [0]))] * 2),
    "NaN in an observation": demo([pair(vector([np.nan]), floats(6, [0, 0]))] * 2),
    "NaN in an action": demo([pair(vector([1]), floats(6, [0, np.nan]))] * 2),
    "an infinite reward": demo([pair(vector([1]), floats(6, [0, 0]), reward=np.inf)] * 2),
    "an infinite old action": demo([pair(vector([1]), floats(1, [np.inf, 0]))] * 2),
    "no observation": demo([pair(b"", floats(6, [0, 0]))] * 2),
    "observations that change": demo([pair(vector([1]), floats(6, [0, 0])), pair(vector([1, 2]), floats(6, [0, 0]))]),
    "a shape without numbers": demo([pair(blob(13, ints(1, [3])), floats(6, [0, 0]))] * 2),
    "a negative shape": demo([pair(blob(13, ints(1, [-3])), floats(6, [0, 0]))] * 2),
    "a huge shape": demo([pair(blob(13, ints(1, [1 << 30] * 8)), floats(6, [0, 0]))] * 2),
    "a shape of many axes": demo([pair(blob(13, ints(1, [1] * 1000)), floats(6, [0, 0]))] * 2),
    "an unknown compression": demo([pair(blob(13, ints(1, [1]) + number(2, 9)), floats(6, [0, 0]))] * 2),
    "floats of three bytes": demo([pair(blob(13, ints(1, [1]) + blob(4, blob(1, b"abc"))), floats(6, [0, 0]))] * 2),
    "no text": demo(EPISODES, name=b"\xff\xfe"),
    "no picture": visual([3, 5, 6], b"GIF89a"),
    "a picture of another size": visual([3, 5, 6], png(FLAT, 6, 500_000)),
    "a picture that unpacks to less": visual([3, 5, 6], png(FLAT[:-1], 6, 5)),
    "a truncated picture": visual([3, 5, 6], png(FLAT, 6, 5)[:-30]),
    "a picture with a flipped bit": visual([3, 5, 6], png(FLAT, 6, 5)[:50] + b"\x01" + png(FLAT, 6, 5)[51:]),
    "a picture with a sixth filter": visual([3, 5, 6], png(b"\x05" + FLAT[1:], 6, 5)),
    "a picture of 16 bits": visual([3, 5, 6], png(FLAT, 6, 5, depth=16)),
    "an interlaced picture": visual([3, 5, 6], png(FLAT, 6, 5, interlace=1)),
    "a picture of a gigabyte": visual([3, 20_000, 20_000], png(FLAT, 20_000, 20_000)),
    "millions of fields": demo([number(1, 0) * ((1 << 20) + 1)]),
    "an empty picture": visual([3, 5, 6], b""),
    "a picture without a size": visual([30], png(FLAT, 6, 5)),
    "a picture of too few channels": visual([40, 50, 60], b""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_damaged_is_refused(name, tmp_path):
    with pytest.raises(DecodeError, match=r"x\.demo|PNG"):
        read(tmp_path, HOSTILE[name])


@pytest.mark.parametrize("cut", [1, 20, 33, 40, 60, 90, 120])
def test_a_truncated_file_is_refused(cut, tmp_path):
    with pytest.raises(DecodeError):
        read(tmp_path, demo(EPISODES)[:cut])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_never_crash_the_reader(tmp_path, data):
    good = bytearray(demo(EPISODES))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RelayRLError):
        read(tmp_path, bytes(good))


def test_what_is_at_a_path(tmp_path):
    for name in ("b.demo", "a.demo", "notes.txt"):
        (tmp_path / name).write_bytes(demo(EPISODES))
    with relayrl.open_source(f"demo:{tmp_path}") as source:
        assert (source.count().num_trajectories, source.count().num_steps) == (6, 8)
        (layout,) = source.layouts()
        assert layout.group == "Walker"
    with pytest.raises(ConfigError, match="read only"):
        relayrl.open_sink(f"demo:{tmp_path}")
    with pytest.raises(ConfigError, match="no file or folder"):
        relayrl.open_source(f"demo:{tmp_path}/nothing")
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"no \.demo files"):
        relayrl.open_source(f"demo:{tmp_path}/none")


class Line:
    """An environment with the spaces of `EPISODES`."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.ones(3, np.float32), float(action[0]), True, False, {}


def make_line():
    import gymnasium

    class Env(Line, gymnasium.Env):
        pass

    return Env()


def test_they_are_learned_from_by_every_road(tmp_path):
    """bc, replay, gail and behavioral_cloning; by URL, by file and by folder."""
    path = tmp_path / "demos" / "walker.demo"
    path.parent.mkdir()
    path.write_bytes(demo(EPISODES * 20))
    small = {"hidden_sizes": [8], "evaluation.episodes": 1, "time_horizon": 32, "statistics.tensorboard": False}
    given = {"steps": 128, "num_envs": 1, "progress": False}
    bc = relayrl.train(
        make_line,
        algo="bc",
        run_dir=tmp_path / "bc",
        settings=small | {"learn_from": f"demo:{path}", "params.batch_size": 8},
        **given,
    )
    assert bc.history["policy/loss"][-1] < bc.history["policy/loss"][0]
    replayed = {"learn_from": f"demo:{path.parent}", "params.batch_size": 8}
    relayrl.train(make_line, algo="sac", run_dir=tmp_path / "sac", settings=small | replayed, **given)
    signals = {"gail": {"options": {"demo_path": str(path), "network": {"hidden_sizes": [8]}}}}
    cloning = {"demo_path": str(path.parent), "batch_size": 8}
    both = small | {"reward_signals": signals, "behavioral_cloning": cloning, "train_pi_iters": 1, "train_vf_iters": 1}
    run = relayrl.train(make_line, algo="ppo", run_dir=tmp_path / "ppo", settings=both, **given)
    assert run.history["signals/gail/reward_mean"][-1] > 0.0
    assert np.isfinite(run.history["cloning/loss"][-1])


def test_demonstrations_fit_a_scene_that_names_its_sensors_and_actions(tmp_path):
    seen = vector([0.25, 0.5]) + vector([1.0])
    done = floats(6, [0.125]) + ints(7, [2])
    data = demo([pair(seen, done), pair(seen, done, done=True)], number(1, 1) + number(2, 1) + ints(3, [3]))
    (tmp_path / "x.demo").write_bytes(data)
    scene = spaces.Dict({"ray": spaces.Box(-np.inf, np.inf, (2,)), "vector": spaces.Box(-np.inf, np.inf, (1,))})
    acts = spaces.Dict({"continuous": spaces.Box(-1.0, 1.0, (1,)), "discrete": spaces.Discrete(3)})
    header = LaneHeader("Walker", (UUID(int=1),), ("agent",), scene, acts)
    (rollout,) = read_demonstrations(str(tmp_path / "x.demo"), {"Walker": header})["Walker"]
    assert rollout.obs["ray"][0, 0].tolist() == [0.25, 0.5]
    assert rollout.obs["vector"][0, 0].tolist() == [1.0]
    assert rollout.action["continuous"][0, 0].tolist() == [0.125]
    assert rollout.action["discrete"][0, 0] == 2
    other = LaneHeader("Walker", (UUID(int=1),), ("agent",), spaces.Dict({"ray": scene["ray"]}), acts)
    with pytest.raises(ConfigError, match="observation"):
        read_demonstrations(str(tmp_path / "x.demo"), {"Walker": other})
