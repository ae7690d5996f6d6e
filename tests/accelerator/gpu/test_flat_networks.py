"""Networks of algorithms that learn from replay, in Triton's interpreter: values and gradients beside float64's."""

import copy

import pytest
import torch

from relayrl.accelerator.gpu.mlp_tiles import mlp_shape
from relayrl.accelerator.gpu.replay.flat_networks import FlatNetworks
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.models.network_settings import Activation
from relayrl.models.networks.mlp import MLP

SHAPES = [
    ((4, 32, 32, 1), "relu", 2),
    ((3, 256, 256, 2), "relu", 1),
    ((4, 20, 1), "relu", 2),
    ((5, 40, 24, 3), "tanh", 2),
    ((3, 24, 17, 40, 2), "tanh", 1),
    ((12, 33, 16, 1), "relu", 2),
    ((40, 16, 12), "tanh", 2),
    ((5, 16, 16, 10), "relu", 1),
]


def made(sizes, activation, count, num_rows=150):
    generator = torch.Generator().manual_seed(3)
    networks = [MLP(sizes, Activation(activation), 1.0, generator) for _ in range(count)]
    with torch.no_grad():
        for network in networks:
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    adam = FlatAdam([p for network in networks for p in network.parameters()], 1e-3, None)
    x = torch.randn(num_rows, sizes[0], generator=generator)
    weight = torch.randn(count, num_rows, sizes[-1], generator=generator)
    return networks, adam, x, weight


def flat(networks, adam):
    shape = mlp_shape(networks[0])
    pieces = [piece.split(shape.num_parameters) for piece in (adam.vector, adam.gradient)]
    return FlatNetworks(shape, *pieces, tuple(p for network in networks for p in network.parameters()))


def exact(networks, x, weight):
    """Outputs, and gradients by parameters and inputs, in float64."""
    networks = [copy.deepcopy(network).double() for network in networks]
    x = x.double().requires_grad_()
    out = torch.stack([network(x) for network in networks])
    parameters = [p for network in networks for p in network.parameters()]
    *by_parameters, by_x = torch.autograd.grad((out * weight.double()).sum(), [*parameters, x])
    return out.detach(), torch.cat([g.flatten() for g in by_parameters]), by_x


def require_close(found, expected, relative=2e-5):
    assert torch.isfinite(found).all()
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    assert error < relative, error


@pytest.fixture(params=[False, True], ids=["float32", "tf32"])
def tf32(request):
    """Whether products may be tf32, for which there are kernels; the interpreter's are float32."""
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, request.param
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize(("sizes", "activation", "count"), SHAPES)
def test_values_and_gradients_are_those_of_float64(sizes, activation, count):
    networks, adam, x, weight = made(sizes, activation, count)
    out, by_parameters, by_x = exact(networks, x, weight)
    own = flat(networks, adam)
    rows = x.clone().requires_grad_()
    found = own(rows)
    (found * weight).sum().backward(inputs=[*own.parameters, rows])
    require_close(found.detach(), out)
    require_close(adam.gradient, by_parameters)
    require_close(rows.grad, by_x)
    with torch.no_grad():
        torch.testing.assert_close(own(x), found.detach(), rtol=0, atol=0)


@pytest.mark.usefixtures("tf32")
def test_those_that_do_not_learn_pass_gradients_on_to_their_inputs_alone():
    networks, adam, x, weight = made((4, 32, 32, 1), "relu", 2)
    _, _, by_x = exact(networks[:1], x, weight[:1])
    rows = x.clone().requires_grad_()
    adam.gradient.fill_(7.0)
    (flat(networks, adam).first(1)(rows) * weight[:1]).sum().backward(inputs=[rows])
    require_close(rows.grad, by_x)
    assert bool((adam.gradient == 7.0).all())


@pytest.mark.usefixtures("tf32")
def test_gradients_are_the_same_again_bit_for_bit():
    found = []
    for _ in range(2):
        networks, adam, x, weight = made((4, 32, 32, 1), "relu", 2, num_rows=5_000)
        own = flat(networks, adam)
        (own(x) * weight).sum().backward(inputs=list(own.parameters))
        found.append(adam.gradient.clone())
    torch.testing.assert_close(*found, rtol=0, atol=0)
