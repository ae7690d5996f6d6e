"""The critic of a team by kernels, held to the reference in torch."""

import numpy as np
import pytest
import torch

from relayrl.accelerator.team_kernels import KernelTeamUpdate, fastest_team_update
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.poca.team_update import TeamBatch, TeamUpdate
from relayrl.compiled.loader import kernels, set_num_threads
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.models.networks.network_factory import BuiltInNetworks
from relayrl.models.teams.team_critic import TeamCritic

NUM_FEATURES, NUM_ACTIONS = 7, 3
SHAPES = [((16, 16), 4, 3, "tanh"), ((24,), 2, 5, "relu"), ((20, 12), 3, 60, "tanh"), ((64, 64), 4, 1, "relu")]
"""Hidden sizes, heads, agents and activation: heads that fill vectors and that do not, teams larger than a tile."""


def critic(hidden_sizes=(16, 16), num_heads=4, activation="tanh", kind=TeamCritic) -> TeamCritic:
    network, generator = NetworkSettings(hidden_sizes=hidden_sizes, activation=activation), torch.Generator()
    layout = SideBySide([plain_numbers(NUM_FEATURES)])
    net = kind(layout, NUM_ACTIONS, num_heads, network, BuiltInNetworks(network), generator.manual_seed(0))
    with torch.no_grad():
        for parameter in net.parameters():  # biases and norms are not 0 and 1
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return net


def teams(num_teams: int, num_agents: int) -> TeamBatch:
    rng = np.random.default_rng(3)
    present = rng.random((num_teams, num_agents)) < 0.7
    present[:, 0] |= ~present.any(-1)
    numbers = [rng.standard_normal(shape).astype(np.float32) for shape in ((num_teams,), (num_teams,), present.shape)]
    seen, did = (
        rng.standard_normal((*present.shape, width)).astype(np.float32) for width in (NUM_FEATURES, NUM_ACTIONS)
    )
    return TeamBatch(seen, did, present, *numbers)


def updates(**shape) -> tuple[KernelTeamUpdate, TeamUpdate]:
    """By kernels and by torch, of equal critics."""
    fast = fastest_team_update(net := critic(**shape), FlatAdam(list(net.parameters()), 1e-3, 0.5))
    assert isinstance(fast, KernelTeamUpdate)
    reference = TeamUpdate(net := critic(**shape), FlatAdam(list(net.parameters()), 1e-3, 0.5))
    return fast, reference


@pytest.fixture(params=kernels().instruction_sets())
def instruction_set(request, monkeypatch):
    monkeypatch.setenv("RELAYRL_COMPILED", request.param)
    yield request.param
    monkeypatch.undo()
    kernels()


@pytest.mark.parametrize(("hidden_sizes", "num_heads", "num_agents", "activation"), SHAPES)
def test_values_and_gradients_are_those_of_torch(hidden_sizes, num_heads, num_agents, activation, instruction_set):
    fast, reference = updates(hidden_sizes=hidden_sizes, num_heads=num_heads, activation=activation)
    batch = teams(23, num_agents)
    batch.present[4] = False  # nobody is there: the value of an empty team
    columns = batch.features, batch.actions, batch.present
    for mine, theirs in zip(fast.values(*columns), reference.values(*columns), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(fast.value(*columns[::2]), reference.value(*columns[::2]), rtol=2e-5, atol=2e-6)
    chosen = np.random.default_rng(0).permutation(23)[:17]
    for clip in (None, 0.2):
        objective = Objective(ClippedSurrogate(0.2), 0.0, clip, None)
        losses = [update.gradient(batch.rows(chosen), objective) for update in (fast, reference)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        mine, theirs = (update._optimizer.gradient.numpy() for update in (fast, reference))
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=2e-6 * np.abs(theirs).max())


def test_nothing_depends_on_the_number_of_threads():
    batch = teams(900, 3)
    objective = Objective(ClippedSurrogate(0.2), 0.0, None, None)
    found = []
    for threads in (1, 2, 5):
        set_num_threads(threads)
        try:
            fast = updates()[0]
            losses = fast.gradient(batch, objective)
        finally:
            set_num_threads(None)
        found.append((losses, fast._optimizer.gradient.numpy().tobytes()))
    assert found[0] == found[1] == found[2]


class LastValueWins(TeamCritic):
    """A user's own."""

    def value(self, features, present):
        return features[:, -1, 0] + super().value(features, present)


def test_what_the_kernels_do_not_know_is_left_to_torch(monkeypatch):
    own, hooked, frozen = critic(kind=LastValueWins), critic(), critic()
    hooked.joined.register_forward_hook(lambda *_: None)
    frozen.entity_norm.weight.requires_grad_(False)
    for net in (own, hooked, frozen):
        update = fastest_team_update(net, FlatAdam(list(net.parameters()), 1e-3, None))
        assert type(update) is TeamUpdate
    monkeypatch.setenv("RELAYRL_COMPILED", "off")
    net = critic()
    assert type(fastest_team_update(net, FlatAdam(list(net.parameters()), 1e-3, None))) is TeamUpdate


def test_teams_larger_than_the_kernels_take_are_left_to_torch():
    fast, reference = updates()
    batch = teams(2, kernels().MAX_AGENTS + 1)
    columns = batch.features, batch.actions, batch.present
    assert torch.equal(fast.values(*columns)[0], reference.values(*columns)[0])


def test_arrays_that_do_not_fit_are_refused():
    module, batch = kernels(), teams(4, 3)
    fast = updates()[0]
    shape, vector = fast._shape(batch.present), fast._optimizer.vector.numpy()
    rest = np.empty(4, np.float32), np.empty((4, 3), np.float32), 1
    with pytest.raises(ValueError, match="vector"):
        module.team_values(shape, vector[:-1], batch.features, batch.actions, batch.present, *rest)
    with pytest.raises(ValueError, match="features"):
        module.team_values(shape, vector, batch.features[:3], batch.actions, batch.present, *rest)
    with pytest.raises(ValueError, match="heads or agents"):
        module.team_values((*shape[:3], 5, True), vector, batch.features, batch.actions, batch.present, *rest)
    columns = batch.features, batch.actions, batch.present, np.array([4]), batch.target, batch.old_value
    with pytest.raises(ValueError, match="chosen holds 4"):
        module.team_gradient(shape, vector, *columns, batch.old_baseline, -1.0, 0.5, vector.copy(), 1)
