"""Random numbers by counter: draw `d` of episode `e` of world `b` under seed `s` is a hash of `(s, b, e, d)`.

There is no generator to advance, so that the worlds that begin an episode, however many, are one array operation, an episode
does not depend on how many worlds there are or on what the others did, and the whole random state of a world is two
integers. The hash is SplitMix64's output function (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"),
chained once per level. Arithmetic is on signed 64-bit integers modulo 2⁶⁴, which NumPy and torch do alike: both give the same
numbers.

Initial states only need good statistics: this is not a cryptographic generator.
"""

from __future__ import annotations

import secrets

import numpy as np

from relayrl.envs.native.array_namespace import ArrayNamespace, XArray
from relayrl.errors import ConfigError


def _signed(value: int) -> int:
    """The 64-bit pattern of `value` as the signed integer that has it."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E37_79B9_7F4A_7C15)
_MIX_1 = _signed(0xBF58_476D_1CE4_E5B9)
_MIX_2 = _signed(0x94D0_49BB_1331_11EB)


def mix64(bits: XArray) -> XArray:
    """SplitMix64's output function, element by element; int64 in, int64 out."""
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: XArray, by: int) -> XArray:
    """Logical shift: int64 shifts are arithmetic, so the copies of the sign bit are masked away."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def fresh_seed() -> int:
    """A seed from the operating system, for runs that were given none."""
    return secrets.randbits(63)


def world_keys(xp: ArrayNamespace, seed: int, worlds: XArray) -> XArray:
    """[K] int64 keys of the streams of `worlds` (indices) under `seed`: a function of `(seed, b)` alone."""
    seed = int(seed)
    if seed < 0:
        raise ConfigError(f"seed {seed} is negative; use an integer of 0 or more")
    words = [_signed(seed >> shift) for shift in range(0, max(seed.bit_length(), 1), 64)]
    key = np.zeros(1, np.int64)
    for word in words:
        key = mix64(key + _GAMMA ^ np.array([word]))
    return mix64(xp.from_host(key) + (worlds + 1) * _GAMMA)


def uniforms(xp: ArrayNamespace, keys: XArray, episodes: XArray, num_draws: int) -> XArray:
    """[D, K] float64 numbers in [0, 1): the draws that begin `episodes` [K] of the worlds with `keys` [K]."""
    streams = mix64(keys + (episodes + 1) * _GAMMA)
    counters = xp.table(np.arange(1, num_draws + 1, dtype=np.int64)[:, None])
    bits = mix64(streams[None, :] + counters * _GAMMA)
    return xp.cast(_shift_right(bits, 11), "float64") * 2.0**-53
