"""The kernels' second thread: used from many threads at once, and after a fork."""

import os
import threading

import numpy as np
import torch

from relayrl.algorithms.optimizer import FlatAdam
from relayrl.compiled import loader
from relayrl.models.compiled_perceptron import CompiledTape
from relayrl.models.perceptron import Perceptron
from relayrl.models.settings import Activation


class SharedPass:
    """A pass that is large enough to be shared by two threads."""

    def __init__(self, seed: int) -> None:
        module = Perceptron((4, 256, 256, 1), Activation.RELU, 1.0, torch.Generator().manual_seed(seed))
        self._adam = FlatAdam(list(module.parameters()), 1e-3, None)
        self._tape = CompiledTape(module)
        self._x = np.random.default_rng(seed).normal(size=(256, 4)).astype(np.float32)

    def outputs_and_gradient(self) -> bytes:
        outputs = self._tape.forward(self._x).copy()
        self._tape.backward(np.ones((256, 1), np.float32))
        return outputs.tobytes() + self._adam.gradient.numpy().tobytes()


def test_callers_in_many_threads_get_their_own_results():
    assert loader.num_threads() <= 2
    expected = [SharedPass(seed).outputs_and_gradient() for seed in range(4)]
    found: list[list[bytes]] = [[] for _ in expected]

    def work(seed: int) -> None:
        for _ in range(20):
            found[seed].append(SharedPass(seed).outputs_and_gradient())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(results == [expected[seed]] * 20 for seed, results in enumerate(found))


def test_a_forked_child_gets_a_helper_of_its_own():
    shared = SharedPass(0)  # by torch, whose own threads a child does not have
    expected = shared.outputs_and_gradient()
    child = os.fork()
    if child == 0:
        os._exit(0 if shared.outputs_and_gradient() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
