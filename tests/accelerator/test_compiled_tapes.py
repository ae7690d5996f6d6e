"""MLPs differentiated by compiled kernels give the numbers that torch does."""

import copy

import numpy as np
import pytest
import torch
from torch_networks import TorchNetworks

from relayrl.accelerator.compiled_mlp import CompiledTape, CompiledTapes
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.compiled import loader
from relayrl.models.network_settings import Activation
from relayrl.models.networks.mlp import MLP
from relayrl.models.networks.shared_rows import OwnColumns

ROWS = 17


def mlp(activation: Activation, *sizes: int) -> MLP:
    module = MLP(sizes, activation, 1.0, torch.Generator().manual_seed(0))
    FlatAdam(list(module.parameters()), 1e-3, None)
    return module


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("sizes", [(3, 1), (3, 8, 2), (5, 16, 16, 1), (20, 7, 33, 3), (4, 256, 256, 1)])
@pytest.mark.parametrize("rows", [1, 17, 250])
def test_a_tape_agrees_with_autograd(activation, sizes, rows):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, sizes[0])).astype(np.float32)
    gradient = rng.normal(size=(rows, sizes[-1])).astype(np.float32)
    results = []
    for way in (CompiledTapes, TorchNetworks):
        module = mlp(activation, *sizes)
        network = way([module])
        outputs = network.forward(x)[0].copy()
        network.backward([gradient])
        results.append((outputs, *(p.grad.numpy().copy() for p in module.parameters())))
    for ours, autograd in zip(*results, strict=True):
        np.testing.assert_allclose(ours, autograd, rtol=1e-3, atol=1e-5 * max(1.0, np.abs(autograd).max()))


def test_one_thread_and_two_give_the_same_numbers():
    rng = np.random.default_rng(0)
    x, gradient = rng.normal(size=(257, 4)).astype(np.float32), rng.normal(size=(257, 1)).astype(np.float32)
    results = []
    for threads in (1, 2):
        loader.set_num_threads(threads)
        module = mlp(Activation.RELU, 4, 256, 256, 1)
        tape = CompiledTape(module)
        outputs = tape.forward(x).copy()
        tape.backward(gradient)
        results.append((outputs, *(p.grad.numpy().copy() for p in module.parameters())))
    loader.set_num_threads(None)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_arrays_of_the_wrong_size_are_refused():
    tape = CompiledTape(mlp(Activation.RELU, 4, 8, 1))
    tape.forward(np.zeros((5, 4), np.float32))
    with pytest.raises(ValueError, match="gradient has 16 bytes, not 20"):
        tape.backward(np.zeros((4, 1), np.float32))


def test_a_frozen_mlp_gives_the_same_outputs_and_no_gradients():
    module = mlp(Activation.TANH, 4, 33, 20, 2)
    frozen = copy.deepcopy(module).requires_grad_(False)
    FlatAdam(list(frozen.parameters()), 1e-3, None)
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    tape = CompiledTape(frozen, learns=False)
    np.testing.assert_array_equal(tape.forward(x), CompiledTape(module).forward(x))
    with pytest.raises(ValueError, match="no forward pass"):
        tape.backward(np.zeros((400, 2), np.float32))


def twins(activation: Activation, *sizes: int, count: int = 2) -> list[MLP]:
    generator = torch.Generator().manual_seed(0)
    modules = [MLP(sizes, activation, 1.0, generator) for _ in range(count)]
    FlatAdam([p for module in modules for p in module.parameters()], 1e-3, None)
    return modules


def gradients_of(modules: list[MLP]) -> list[np.ndarray]:
    return [p.grad.numpy().copy() for module in modules for p in module.parameters()]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 250, 500])
@pytest.mark.parametrize("sizes", [(4, 33, 17, 1), (5, 16, 3), (4, 256, 256, 1)])
def test_regression_side_by_side_agrees_with_autograd(count, rows, sizes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, sizes[0])).astype(np.float32)
    target, share = rng.normal(size=(2, rows, sizes[-1])).astype(np.float32)
    results = []
    for wrap in (CompiledTapes, TorchNetworks):
        modules = twins(Activation.RELU, *sizes, count=count)
        outputs, loss = wrap(modules).regress(x, target, share)
        results.append([loss, *(output.copy() for output in outputs), *gradients_of(modules)])
    for ours, autograd in zip(*results, strict=True):
        np.testing.assert_allclose(ours, autograd, rtol=1e-3, atol=1e-5 * max(1.0, np.abs(autograd).max()))


@pytest.mark.parametrize("name", loader.kernels().instruction_sets() if loader.kernels() else ())
@pytest.mark.parametrize("rows", [1, 5, 144, 300])
def test_units_that_are_silent_are_skipped_and_their_gradients_are_zero(name, rows, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, name)
    rng = np.random.default_rng(0)
    x, target, share = (rng.normal(size=(rows, width)).astype(np.float32) for width in (4, 1, 1))
    results = []
    for wrap in (CompiledTapes, TorchNetworks):
        modules = twins(Activation.RELU, 4, 100, 90, 70, 1)
        networks = wrap(modules)
        networks.regress(x, target, share)  # leaves gradients behind that must not stay
        with torch.no_grad():
            for module in modules:
                for layer in module.linears()[:-1]:
                    layer.bias[::3] = -1e3
        outputs, _ = networks.regress(x, target, share)
        results.append([*(output.copy() for output in outputs), *gradients_of(modules)])
        assert not any(layer.weight.grad[::3].any() for module in modules for layer in module.linears()[:-1])
    for ours, autograd in zip(*results, strict=True):
        np.testing.assert_allclose(ours, autograd, rtol=1e-3, atol=1e-5 * max(1.0, np.abs(autograd).max()))


def test_regression_gives_the_same_numbers_on_one_thread_and_two_and_agrees_with_the_passes_that_it_joins():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    target, share = rng.normal(size=(2, 300, 1)).astype(np.float32)
    by_joined, by_apart = [], []
    for threads in (1, 2):
        loader.set_num_threads(threads)
        joined, apart = twins(Activation.TANH, 4, 256, 256, 1), twins(Activation.TANH, 4, 256, 256, 1)
        values, loss = CompiledTapes(joined).regress(x, target, share)
        outputs = [loss, *(value.copy() for value in values)]
        for module in apart:
            CompiledTapes([module]).regress(x, target, share)
        by_joined.append([*outputs, *gradients_of(joined)])
        by_apart.append([*outputs, *gradients_of(apart)])
    loader.set_num_threads(None)
    for alone, beside in zip(by_joined[0] + by_apart[0], by_joined[1] + by_apart[1], strict=True):
        np.testing.assert_array_equal(alone, beside)
    for one, other in zip(by_joined[0], by_apart[0], strict=True):  # rows of a single network are added up in blocks
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def draw_own(rng, rows: int, num_inputs: int, num_own: int = 2) -> OwnColumns:
    first = rng.integers(num_inputs - num_own + 1, size=rows)
    return OwnColumns(first, rng.normal(size=(rows, num_own)).astype(np.float32))


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 17, 250, 500])
@pytest.mark.parametrize("sizes", [(4, 1), (3, 33, 17, 1), (4, 256, 256, 1)])
def test_the_lowest_value_and_its_gradient_agree_with_autograd(activation, count, rows, sizes):
    rng = np.random.default_rng(0)
    x, share = rng.normal(size=(rows, sizes[0])).astype(np.float32), rng.normal(size=rows).astype(np.float32)
    own = draw_own(rng, rows, sizes[0])
    modules = twins(activation, *sizes, count=count)
    lowest, by_own = CompiledTapes(modules).min_q(x, own, share)
    expected, gradient = TorchNetworks(modules).min_q(x, own, share)
    assert all(not p.grad.any() for module in modules for p in module.parameters())
    np.testing.assert_allclose(lowest, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_own, gradient, rtol=1e-3, atol=1e-5 * max(1.0, np.abs(gradient).max()))


def test_the_lowest_value_is_the_same_on_one_thread_and_two_and_what_is_no_number_is_lowest():
    modules = twins(Activation.RELU, 4, 256, 256, 1)
    rng = np.random.default_rng(0)
    x, share, own = rng.normal(size=(300, 4)).astype(np.float32), np.ones(300, np.float32), draw_own(rng, 300, 4)
    results = []
    for threads in (1, 2):
        loader.set_num_threads(threads)
        results.append(CompiledTapes(modules).min_q(x, own, share))
    loader.set_num_threads(None)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
    with torch.no_grad():
        modules[1].linears()[-1].bias.fill_(torch.nan)
    assert np.isnan(CompiledTapes(modules).min_q(x, own, share)[0]).all()
    assert np.isnan(CompiledTapes(modules[::-1]).min_q(x, own, share)[0]).all()


def test_critics_have_one_output_and_the_same_inputs():
    own = draw_own(np.random.default_rng(0), 3, 4)
    several = CompiledTapes(twins(Activation.RELU, 4, 8, 2))
    unlike = CompiledTapes([*twins(Activation.RELU, 4, 8, 1, count=1), *twins(Activation.RELU, 5, 8, 1, count=1)])
    for tapes in (several, unlike):
        with pytest.raises(ValueError, match="one output and the same inputs"):
            tapes.min_q(np.zeros((3, 4), np.float32), own, np.zeros(3, np.float32))
    pair = CompiledTapes(twins(Activation.RELU, 4, 8, 1))
    with pytest.raises(ValueError, match="a part of the inputs has 32 bytes, not 48"):
        pair.min_q(np.zeros((2, 4), np.float32), own, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="first holds 3"):
        pair.min_q(np.zeros((3, 4), np.float32), OwnColumns(np.full(3, 3), own.numbers), np.zeros(3, np.float32))


def test_a_regression_is_of_tapes_with_the_same_inputs():
    modules = [mlp(Activation.RELU, 4, 8, 1), mlp(Activation.RELU, 5, 8, 1)]
    column = np.zeros((3, 1), np.float32)
    with pytest.raises(ValueError, match="the same inputs and as many outputs"):
        CompiledTapes(modules).regress(np.zeros((3, 4), np.float32), column, column)


def test_after_a_regression_nothing_can_be_differentiated_and_no_tape_takes_part_twice():
    tapes = CompiledTapes(twins(Activation.RELU, 4, 8, 1))
    x, column = np.zeros((5, 4), np.float32), np.zeros((5, 1), np.float32)
    tapes.regress(x, column, column)
    with pytest.raises(ValueError, match="no forward pass"):
        tapes.backward([column, column])
    with pytest.raises(ValueError, match="share has 16 bytes, not 20"):
        tapes.regress(x, column, column[1:])
    tape = tapes._tapes[0]
    with pytest.raises(ValueError, match="once"):
        loader.kernels().forward_tapes((tape, tape), (x, x), (column, column.copy()), 2)
