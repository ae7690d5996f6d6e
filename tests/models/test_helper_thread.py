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


def outputs_and_gradient(seed: int) -> bytes:
    """A pass that is large enough to be shared by two threads."""
    module = Perceptron((4, 256, 256, 1), Activation.RELU, 1.0, torch.Generator().manual_seed(seed))
    adam = FlatAdam(list(module.parameters()), 1e-3, None)
    tape = CompiledTape(module)
    x = np.random.default_rng(seed).normal(size=(256, 4)).astype(np.float32)
    outputs = tape.forward(x).copy()
    tape.backward(np.ones((256, 1), np.float32))
    return outputs.tobytes() + adam.gradient.numpy().tobytes()


def test_callers_in_many_threads_get_their_own_results():
    assert loader.num_threads() <= 2
    expected = [outputs_and_gradient(seed) for seed in range(4)]
    found: list[list[bytes]] = [[] for _ in expected]

    def work(seed: int) -> None:
        for _ in range(20):
            found[seed].append(outputs_and_gradient(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(results == [expected[seed]] * 20 for seed, results in enumerate(found))


def test_a_forked_child_gets_a_helper_of_its_own():
    expected = outputs_and_gradient(0)
    child = os.fork()
    if child == 0:
        os._exit(0 if outputs_and_gradient(0) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
