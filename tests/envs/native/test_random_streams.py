"""The counter-based random numbers: known values, the same in NumPy and torch, even and independent."""

from __future__ import annotations

import numpy as np
import pytest

from relayrl.envs.native.array_namespace import namespace_of
from relayrl.envs.native.random_streams import mix64, uniforms, world_keys
from relayrl.errors import ConfigError

NUMPY, TORCH = namespace_of("cpu"), namespace_of("cpu:0")
GAMMA = 0x9E37_79B9_7F4A_7C15


def test_mix64_gives_splitmix64s_published_sequence() -> None:
    counters = [(1234567 + i * GAMMA) % 2**64 for i in range(1, 6)]
    mixed = mix64(np.array(counters, np.uint64).view(np.int64)).view(np.uint64)
    assert mixed.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_torch_draws_the_same_numbers_as_numpy() -> None:
    worlds, episodes = np.arange(50), np.arange(50) * 3
    ours = uniforms(NUMPY, world_keys(NUMPY, 99, worlds), episodes, 7)
    keys = world_keys(TORCH, 99, TORCH.from_host(worlds))
    theirs = TORCH.to_host(uniforms(TORCH, keys, TORCH.from_host(episodes), 7))
    np.testing.assert_array_equal(ours, theirs)


def test_a_worlds_numbers_do_not_depend_on_the_others() -> None:
    many = uniforms(NUMPY, world_keys(NUMPY, 5, np.arange(100)), np.full(100, 8), 4)
    one = uniforms(NUMPY, world_keys(NUMPY, 5, np.array([42])), np.array([8]), 4)
    np.testing.assert_array_equal(many[:, 42], one[:, 0])


def test_numbers_are_even_and_uncorrelated() -> None:
    draws = uniforms(NUMPY, world_keys(NUMPY, 0, np.arange(2000)), np.zeros(2000, np.int64), 20)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 / np.sqrt(12 * draws.size)
    counts, _ = np.histogram(draws, bins=50, range=(0, 1))
    chi_squared = ((counts - draws.size / 50) ** 2 / (draws.size / 50)).sum()
    assert chi_squared < 49 + 4 * np.sqrt(2 * 49)
    centred = draws - 0.5
    for neighbours in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        assert abs(neighbours.mean() * 12) < 4 / np.sqrt(neighbours.size)


def test_seed_world_episode_and_draw_all_matter() -> None:
    def first(seed: int, world: int, episode: int) -> tuple[float, ...]:
        draws = uniforms(NUMPY, world_keys(NUMPY, seed, np.array([world])), np.array([episode]), 2)
        return tuple(draws[:, 0])

    seen = [first(s, w, e) for s in (0, 1, 2**64, 2**64 + 1) for w in (0, 1) for e in (0, 1)]
    numbers = [number for pair in seen for number in pair]
    assert len(set(numbers)) == len(numbers)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="negative"):
        world_keys(NUMPY, -1, np.arange(2))
