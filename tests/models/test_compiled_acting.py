"""The compiled forward pass and draw are those of the reference, on live parameters."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.compiled_mlp import CompiledMLP
from relayrl.accelerator.live_actor import live_actor
from relayrl.accelerator.mlp_actor import MlpActor
from relayrl.compiled import loader
from relayrl.models.acting.torch_actor import TorchActor
from relayrl.models.network_settings import Activation, NetworkSettings
from relayrl.models.networks.mlp import MLP
from relayrl.models.policy import ActorCritic

ACTIONS = {
    "discrete": spaces.Discrete(4, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[0, 5]),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
}
KERNELS = loader.kernels()


def make_policy(space, *, normalize=False) -> ActorCritic:
    generator = torch.Generator().manual_seed(0)
    network = NetworkSettings(hidden_sizes=(16, 16), normalize_observations=normalize)
    policy = ActorCritic(spaces.Box(-1, 1, (3,)), space, network, generator)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return policy


@pytest.fixture(params=KERNELS.instruction_sets() if KERNELS else ())
def instruction_set(request, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, request.param)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("sizes", [(4, 64, 64, 2), (5, 33, 17, 3), (3, 7), (57, 130, 1)])
def test_outputs_are_those_of_the_module(sizes, activation):
    module = MLP(sizes, activation, 1.0, torch.Generator().manual_seed(1))
    compiled = CompiledMLP(module)
    rng = np.random.default_rng(0)
    for rows in (1, 8, 97, 3000):
        x = 3 * rng.normal(size=(rows, sizes[0])).astype(np.float32)
        with torch.no_grad():
            expected = module(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(compiled.forward(x), expected, rtol=1e-5, atol=3e-6)


@pytest.mark.usefixtures("instruction_set")
def test_tanh_is_accurate_over_its_whole_range():
    module = MLP((1, 1, 1), Activation.TANH, 1.0, torch.Generator())
    with torch.no_grad():
        for layer in module.linears():
            layer.weight.fill_(1.0)
            layer.bias.zero_()
    x = np.concatenate([np.linspace(-20, 20, 40_001), np.logspace(-30, 0, 1_001), [0.0]]).astype(np.float32)[:, None]
    out = CompiledMLP(module).forward(x)
    np.testing.assert_allclose(out, np.tanh(x.astype(np.float64)), rtol=4e-7, atol=1e-37)
    assert np.abs(out).max() <= 1.0


def test_what_is_not_a_number_stays_one():
    module = MLP((2, 4, 1), Activation.TANH, 1.0, torch.Generator())
    assert np.isnan(CompiledMLP(module).forward(np.array([[np.nan, 0.0]], np.float32))).all()


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("space", ACTIONS)
def test_the_same_generator_draws_the_same_actions(space, masked, normalize):
    policy = make_policy(ACTIONS[space], normalize=normalize)
    compiled, oracle = live_actor(policy), TorchActor(policy)
    assert isinstance(compiled, MlpActor)
    rng = np.random.default_rng(2)
    obs = rng.normal(size=(200, 3)).astype(np.float32)
    mask = None
    if masked and policy.head.mask_width is not None:
        mask = rng.random((200, policy.head.mask_width)) < 0.6
        mask[:, [0, -1]] = True
    (action, logp, *_), (other, other_logp, *_) = (
        actor.decide(obs, mask, None, np.random.default_rng(7)) for actor in (compiled, oracle)
    )
    np.testing.assert_allclose(action, other, rtol=1e-5, atol=1e-6)
    assert action.dtype == other.dtype
    np.testing.assert_allclose(logp, other_logp, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(action, compiled.decide(obs, mask, None, np.random.default_rng(7)).action)


def test_a_masked_action_is_never_drawn():
    policy = make_policy(spaces.Discrete(5))
    mask = np.zeros((1000, 5), bool)
    mask[:, 3] = True
    obs = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    action, logp, *_ = live_actor(policy).decide(obs, mask, None, np.random.default_rng(1))
    assert set(action.tolist()) == {3}
    np.testing.assert_allclose(logp, 0.0, atol=1e-6)


def test_frequencies_are_the_probabilities():
    policy = make_policy(spaces.Discrete(3))
    obs = np.tile(np.array([[0.3, -0.2, 0.9]], np.float32), (200_000, 1))
    actor = live_actor(policy)
    counts = np.bincount(actor.act(obs, None, np.random.default_rng(0)), minlength=3) / len(obs)
    np.testing.assert_allclose(counts, np.exp(actor.distribution(obs[:1], None)[0]), atol=0.005)


def test_new_parameters_are_seen_at_once():
    policy = make_policy(ACTIONS["box"])
    actor = live_actor(policy)
    obs = np.ones((1, 3), np.float32)
    before = actor.decide(obs, None, None, np.random.default_rng(0)).action
    with torch.no_grad():
        policy.actor.linears()[-1].bias.add_(1.0)
    after = actor.decide(obs, None, None, np.random.default_rng(0)).action
    np.testing.assert_allclose(after - before, policy.head.half_range[None], rtol=1e-5)


def test_arrays_that_do_not_fit_are_refused():
    network = CompiledMLP(MLP((2, 4, 1), Activation.TANH, 1.0, torch.Generator())).network
    with pytest.raises(ValueError, match="out has 4 bytes, not 8"):
        network.forward(np.zeros((2, 2), np.float32), np.zeros((1, 1), np.float32), 1)


@pytest.mark.parametrize("space", ACTIONS)
@pytest.mark.parametrize("rows", [1, 192, 1000])
def test_one_thread_and_two_draw_the_same_actions(space, rows):
    generator = torch.Generator().manual_seed(3)
    policy = ActorCritic(spaces.Box(-1, 1, (3,)), ACTIONS[space], NetworkSettings(hidden_sizes=(96, 96)), generator)
    obs = np.random.default_rng(1).normal(size=(rows, 3)).astype(np.float32)
    drawn = []
    for threads in (1, 2):
        loader.set_num_threads(threads)
        drawn.append(live_actor(policy).decide(obs, None, None, np.random.default_rng(2))[:2])
    loader.set_num_threads(None)
    for one, two in zip(*drawn, strict=True):
        np.testing.assert_array_equal(one, two)
