"""The kernels' thread pool: the same bits with any number of threads, from many callers at once, and after a fork."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from relayrl.compiled import loader

kernels = loader.kernels()
pytestmark = pytest.mark.skipif(kernels is None, reason="needs the compiled kernels")
THREADS = (1, 2, 3, 4, 5, 6, 7, 8, 64)
f4 = np.float32
Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[int], list[Array]]
"""Does some work with a number of threads; gives all that came out."""


@pytest.fixture(params=kernels.instruction_sets() if kernels else ())
def _instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(loader.VARIABLE, request.param)
    loader.kernels()
    yield
    monkeypatch.undo()
    loader.kernels()


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(f4)


def layers(sizes: tuple[int, ...], seed: int = 0) -> tuple[tuple[Array, Array], ...]:
    return tuple(
        (normal(out, into, seed=seed, scale=into**-0.5), normal(out, seed=seed)) for into, out in pairwise(sizes)
    )


def num_parameters(sizes: tuple[int, ...]) -> int:
    return sum((into + 1) * out for into, out in pairwise(sizes))


def forward(rows: int, sizes: tuple[int, ...]) -> Call:
    network, x = kernels.MLP(layers(sizes), True), normal(rows, sizes[0])

    def call(threads: int) -> list[Array]:
        out = np.empty((rows, sizes[-1]), f4)
        network.forward(x, out, threads)
        return [out]

    return call


def parts_of(rows: int, width: int, num_lines: int) -> tuple[tuple[Array, Array | None], ...]:
    """Inputs of which many rows share the first part."""
    shared = normal(num_lines, width - 3, seed=1), np.sort(np.random.default_rng(2).integers(num_lines, size=rows))
    return shared, (normal(rows, 3, seed=3), None)


def forward_parts(rows: int, sizes: tuple[int, ...], is_factored: bool) -> Call:
    network, parts = kernels.MLP(layers(sizes), False), parts_of(rows, sizes[0], rows // 7)

    def call(threads: int) -> list[Array]:
        out = np.empty((rows, sizes[-1]), f4)
        network.forward_parts(parts, is_factored, out, threads)
        return [out]

    return call


def choose(rows: int, sizes: tuple[int, ...]) -> Call:
    network, x = kernels.MLP(layers(sizes), True), normal(rows, sizes[0])
    draws = np.random.default_rng(0).random((2, rows)).astype(f4)

    def call(threads: int) -> list[Array]:
        choice, logp = np.empty((rows, 2), np.int64), np.empty(rows, f4)
        network.choose(x, (2, sizes[-1] - 2), draws, None, choice, logp, threads)
        return [choice, logp]

    return call


def draw_normal(rows: int, sizes: tuple[int, ...]) -> Call:
    network, x, noise = kernels.MLP(layers(sizes), True), normal(rows, sizes[0]), normal(rows, sizes[-1], seed=1)
    log_std, scale, center = normal(3, sizes[-1], seed=2) ** 2

    def call(threads: int) -> list[Array]:
        action, logp = np.empty((rows, sizes[-1]), f4), np.empty(rows, f4)
        network.draw_normal(x, noise, log_std, scale, center, action, logp, threads)
        return [action, logp]

    return call


def forward_and_backward(rows: int, sizes: tuple[int, ...], count: int) -> Call:
    networks = [kernels.MLP(layers(sizes, seed), False) for seed in range(count)]
    x, gradient = normal(rows, sizes[0]), normal(rows, sizes[-1], seed=1)

    def call(threads: int) -> list[Array]:
        tapes = tuple(kernels.Tape(network, True) for network in networks)
        outs, flats = ([np.empty(shape, f4) for _ in tapes] for shape in ((rows, sizes[-1]), num_parameters(sizes)))
        kernels.forward_tapes(tapes, (x,) * count, tuple(outs), threads)
        kernels.backward_tapes(tapes, (gradient,) * count, tuple(flats), threads)
        return [*outs, *flats]

    return call


def regress(rows: int, sizes: tuple[int, ...], count: int, is_factored: bool = False) -> Call:
    networks = [kernels.MLP(layers(sizes, seed), True) for seed in range(count)]
    parts, (target, share) = parts_of(rows, sizes[0], rows // 5), normal(2, rows, sizes[-1], seed=1)

    def call(threads: int) -> list[Array]:
        tapes = tuple(kernels.Tape(network, True) for network in networks)
        outs, flats = ([np.empty(shape, f4) for _ in tapes] for shape in ((rows, sizes[-1]), num_parameters(sizes)))
        loss = kernels.regress_tapes(tapes, parts, is_factored, target, share, tuple(outs), tuple(flats), threads)
        return [np.array(loss), *outs, *flats]

    return call


def minimum(rows: int, sizes: tuple[int, ...], is_factored: bool) -> Call:
    networks = tuple(kernels.MLP(layers(sizes, seed), False) for seed in range(2))
    parts, own, share = parts_of(rows, sizes[0], rows // 5), normal(rows, 2), normal(rows, seed=1)
    first = np.random.default_rng(0).integers(sizes[0] - 2, size=rows)

    def call(threads: int) -> list[Array]:
        lowest, by_own = np.empty(rows, f4), np.empty((rows, 2), f4)
        kernels.min_q(networks, parts, is_factored, first, own, share, lowest, by_own, threads)
        return [lowest, by_own]

    return call


def adam(count: int) -> Call:
    def call(threads: int) -> list[Array]:
        vector, gradient, first, second = normal(4, count) ** 2
        norm = kernels.adam_step(vector, gradient, first, second, 3, 1e-2, 0.9, 0.999, 1e-8, 0.5, threads)
        return [np.array(norm), vector, first, second]

    return call


def soft_update(count: int) -> Call:
    def call(threads: int) -> list[Array]:
        target, source = normal(2, count)
        kernels.soft_update(target, source, 0.1, threads)
        return [target]

    return call


def job(sizes: tuple[int, ...], num_parameters: int, rows: int, minibatch_rows: int) -> dict[str, Any]:
    order = np.concatenate([np.random.default_rng(seed).permutation(rows) for seed in range(2)])
    return {
        "sizes": sizes,
        "is_tanh": True,
        "vector": normal(num_parameters, scale=0.1),
        "first_moment": np.zeros(num_parameters, f4),
        "second_moment": np.zeros(num_parameters, f4),
        "num_steps": 0,
        "learning_rate": 1e-2,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "max_norm": 0.5,
        "num_rows": rows,
        "num_passes": 2,
        "minibatch_rows": minibatch_rows,
        "inputs": ((normal(rows, sizes[0]), None),),
        "is_factored": False,
        "order": order,
    }


def policy_job(sizes: tuple[int, ...], rows: int, minibatch_rows: int, *, is_normal: bool = False) -> dict[str, Any]:
    own = job(sizes, num_parameters(sizes) + is_normal * sizes[-1], rows, minibatch_rows)
    own |= {"is_surrogate": 1, "clip_ratio": 0.2, "entropy_coef": 0.01, "kl_limit": 1e9, "mask": None}
    own |= {"logp": np.full(rows, -1.0, f4), "advantage": normal(rows, seed=1)}
    if is_normal:
        scales = {"scale": np.ones(sizes[-1], f4), "center": np.zeros(sizes[-1], f4)}
        return own | scales | {"part_sizes": (), "action": normal(rows, sizes[-1], seed=2)}
    action = np.random.default_rng(0).integers(sizes[-1], size=rows)
    return own | {"part_sizes": (sizes[-1],), "action": action}


def value_job(sizes: tuple[int, ...], rows: int, minibatch_rows: int) -> dict[str, Any]:
    own = job(sizes, num_parameters(sizes), rows, minibatch_rows)
    return own | {"clip": 0.2, "target": normal(rows, seed=1), "old_value": np.zeros(rows, f4)}


def update(rows: int, minibatch_rows: int, hidden: int, *, is_normal: bool = False, **other: Any) -> Call:
    def call(threads: int) -> list[Array]:
        actor = policy_job((5, hidden, hidden, 3), rows, minibatch_rows, is_normal=is_normal) | other
        critic = value_job((5, hidden, hidden, 1), rows, minibatch_rows) | other
        sums = kernels.Update(actor, critic, threads).finish()
        numbers = [np.array(list(own.values()), float) for own in sums]
        return [
            *numbers,
            *(own[name] for own in (actor, critic) for name in ("vector", "first_moment", "second_moment")),
        ]

    return call


CALLS: dict[str, Callable[[], Call]] = {
    "forward": lambda: forward(9_001, (5, 33, 3)),
    "forward of parts": lambda: forward_parts(8_303, (20, 33, 1), False),
    "forward of factored parts": lambda: forward_parts(8_303, (20, 33, 1), True),
    "categorical draws": lambda: choose(1_009, (5, 70, 70, 5)),
    "normal draws": lambda: draw_normal(1_009, (5, 70, 70, 3)),
    "gradients of few rows": lambda: forward_and_backward(257, (5, 130, 130, 2), 1),
    "gradients of many rows": lambda: forward_and_backward(5_003, (5, 50, 50, 2), 1),
    "gradients of twins": lambda: forward_and_backward(257, (5, 130, 130, 1), 2),
    "gradients of three with many rows": lambda: forward_and_backward(2_351, (5, 50, 50, 1), 3),
    "a regression": lambda: regress(3_001, (20, 50, 50, 1), 1),
    "regressions of twins": lambda: regress(311, (20, 130, 130, 1), 2),
    "regressions of twins with many rows": lambda: regress(2_111, (20, 50, 50, 1), 2),
    "a factored regression": lambda: regress(1_501, (20, 50, 50, 1), 1, True),
    "the minimum of twins": lambda: minimum(1_103, (20, 70, 70, 1), False),
    "the factored minimum of twins": lambda: minimum(1_103, (20, 70, 70, 1), True),
    "Adam": lambda: adam(81_003),
    "Adam with larger chunks": lambda: adam((1 << 20) + 5),
    "a soft update": lambda: soft_update(81_003),
    "an update": lambda: update(700, 300, 40),
    "an update whose threads share units": lambda: update(700, 300, 144),
    "the same with normal draws, relu and padding": lambda: update(600, 299, 150, is_normal=True, is_tanh=False),
    "the same with rows as they are": lambda: update(500, 500, 150, order=None),
    "an update in halves": lambda: update(2_407, 1_203, 40),
    "an update in blocks": lambda: update(9_973, 9_973, 40),
    "an update in blocks, and a rest": lambda: update(7_001, 3_000, 33, is_normal=True),
}


@pytest.mark.usefixtures("_instruction_set")
@pytest.mark.parametrize("name", CALLS)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    call = CALLS[name]()
    expected = [array.tobytes() for array in call(1)]
    for threads in THREADS:
        assert [array.tobytes() for array in call(threads)] == expected, threads


def test_tapes_of_other_instruction_sets_and_tapes_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = kernels.MLP(layers((2, 3, 1)), True)
    tapes, outs = [kernels.Tape(network, True)], (np.empty((4, 1), f4), np.empty((4, 1), f4))
    monkeypatch.setenv(loader.VARIABLE, "portable")
    loader.kernels()
    tapes.append(kernels.Tape(network, True))
    monkeypatch.undo()
    loader.kernels()
    for pair in ((tapes[0], tapes[0]), (tapes[0], tapes[1])):
        if kernels.instruction_sets()[0] != "portable" or pair[0] is pair[1]:
            with pytest.raises(ValueError, match="takes part once, with tapes of the same instruction set"):
                kernels.forward_tapes(pair, (normal(4, 2),) * 2, outs, 2)


@pytest.mark.parametrize("threads", [-(2**31), -1, 0, 65, 2**31 - 1])
def test_numbers_of_threads_that_make_no_sense_are_taken_for_the_nearest_that_does(threads: int) -> None:
    call = forward(9_001, (5, 33, 3))
    assert call(threads)[0].tobytes() == call(1)[0].tobytes()


def bits(calls: list[Call], threads: int) -> list[bytes]:
    return [array.tobytes() for call in calls for array in call(threads)]


BUSY = (
    "gradients of many rows",
    "regressions of twins",
    "an update whose threads share units",
    "an update in halves",
    "Adam",
)


def test_many_callers_at_once_get_their_own_results() -> None:
    """For about a second: more callers than there are places in the pool, with updates that are left to it among them."""
    made = [[CALLS[name]() for name in BUSY] for _ in range(20)]
    expected, found = bits(made[0], 1), []
    end = time.monotonic() + 1.0

    def work(calls: list[Call], threads: int) -> None:
        while True:
            found.append(bits(calls, threads) == expected)
            if time.monotonic() > end:
                return

    callers = [threading.Thread(target=work, args=(calls, 1 + i % 8)) for i, calls in enumerate(made)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert len(found) >= len(made)
    assert all(found)


def test_several_updates_may_be_left_to_the_pool() -> None:
    jobs = [(policy_job((5, 40, 3), 2_000, 2_000), value_job((5, 40, 1), 2_000, 2_000)) for _ in range(20)]
    updates = [kernels.Update(*pair, 4) for pair in jobs]  # more than there are places
    sums = [one.finish() for one in reversed(updates)]
    assert all(own == sums[0] for own in sums)
    assert all(np.array_equal(critic["vector"], jobs[0][1]["vector"]) for _, critic in jobs)


def test_forked_children_get_a_pool_of_their_own() -> None:
    names = ("gradients of many rows", "an update whose threads share units", "an update in blocks")
    calls = [CALLS[name]() for name in names]
    expected = bits(calls, 5)
    left = kernels.Update(policy_job((5, 64, 3), 9_000, 9_000), value_job((5, 64, 1), 9_000, 9_000), 4)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            left.finish()  # of no use to the child, but it must not wait for threads that it does not have
            os._exit(0 if bits(calls, 5) == expected else 1)
        children.append(child)
    assert left.finish()[1]["num_steps"] == 2
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert bits(calls, 5) == expected
