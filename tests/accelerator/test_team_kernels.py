"""The critic of a team by kernels, held to the reference in torch."""

import gc

import numpy as np
import pytest
import torch

from relayrl.accelerator import team_kernels
from relayrl.accelerator.team_kernels import KernelTeamUpdate, fastest_team_update
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.poca.team_update import TeamBatch, TeamUpdate
from relayrl.algorithms.updates.torch_update import PassPlan
from relayrl.compiled.loader import kernels, set_num_threads
from relayrl.errors import TrainingDivergedError
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.models.teams.team_critic import TeamCritic, TeamNetworks

NUM_FEATURES, NUM_ACTIONS = 7, 3
SHAPES = [
    ((16, 16), 16, 4, 3, "tanh"),
    ((24,), 24, 2, 5, "relu"),
    ((20, 12, 7), 30, 3, 60, "tanh"),
    ((64, 64), 32, 4, 1, "relu"),
    ((), 3, 3, 4, "tanh"),
]
"""Hidden sizes, units and heads of the attention, agents and activation: heads of eight units and of others, large teams."""


def critic(hidden_sizes=(16, 16), size=16, num_heads=4, activation="tanh", kind=TeamCritic) -> TeamCritic:
    network, generator = NetworkSettings(hidden_sizes=hidden_sizes, activation=activation), torch.Generator()
    layout = SideBySide([plain_numbers(NUM_FEATURES)])
    networks = TeamNetworks.built_in(network)
    net = kind(layout, NUM_ACTIONS, size, num_heads, network, networks, generator.manual_seed(0))
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


@pytest.mark.parametrize(("hidden_sizes", "size", "num_heads", "num_agents", "activation"), SHAPES)
def test_values_and_gradients_are_those_of_torch(
    hidden_sizes, size, num_heads, num_agents, activation, instruction_set
):
    fast, reference = updates(hidden_sizes=hidden_sizes, size=size, num_heads=num_heads, activation=activation)
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


def trained(update: TeamUpdate, batch: TeamBatch, minibatch_rows: int, objective: Objective) -> dict[str, float]:
    """Three passes, in orders that are the same for every update."""
    plan = PassPlan(len(batch), 0, 3, minibatch_rows, np.random.default_rng(5))
    return update.begin(batch, plan, objective)()


@pytest.mark.parametrize("rows_per_call", [1, 100, 100_000])
@pytest.mark.parametrize("minibatch_rows", [7, 23])
def test_all_steps_of_an_update_are_those_of_torch(minibatch_rows, rows_per_call, monkeypatch):
    """Minibatches that do not divide the teams, and passes that take one call or several."""
    monkeypatch.setattr(team_kernels, "ROWS_PER_CALL", rows_per_call)
    fast, reference = updates()
    batch, objective = teams(23, 3), Objective(ClippedSurrogate(0.2), 0.0, 0.2, None)
    mine, theirs = (trained(update, batch, minibatch_rows, objective) for update in (fast, reference))
    assert mine == pytest.approx(theirs, rel=1e-4)
    assert mine["value/gradient_steps"] == fast._optimizer.num_steps == 3 * -(-23 // minibatch_rows)
    vectors = [update._optimizer.vector.numpy() for update in (fast, reference)]
    np.testing.assert_allclose(*vectors, rtol=1e-3, atol=2e-5)


def test_an_update_ends_alike_on_any_threads_and_whoever_waits_for_it():
    batch, objective = teams(900, 3), Objective(ClippedSurrogate(0.2), 0.0, None, None)
    found = []
    for threads in (1, 2, 5):
        set_num_threads(threads)
        try:
            fast, forgotten = updates()[0], updates()[0]
            metrics = trained(fast, batch, 225, objective)
            forgotten.begin(
                batch, PassPlan(900, 0, 3, 225, np.random.default_rng(5)), objective
            )  # nobody asks for its end
            gc.collect()
        finally:
            set_num_threads(None)
        found.append((metrics, fast._optimizer.vector.numpy().tobytes()))
        assert forgotten._optimizer.vector.numpy().tobytes() == found[0][1]
    assert found[0] == found[1] == found[2]


def test_a_loss_that_is_not_finite_is_raised_with_its_cause_and_not_learned_from():
    update, batch = updates()[0], teams(23, 3)
    batch.target[5] = np.inf
    before = update._optimizer.vector.clone()
    with pytest.raises(TrainingDivergedError, match="vf_lr"):
        trained(update, batch, 23, Objective(ClippedSurrogate(0.2), 0.0, None, None))
    assert torch.equal(update._optimizer.vector, before)


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
    hooked.acted.register_forward_hook(lambda *_: None)
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
        module.team_values((*shape[:3], 5, *shape[4:]), vector, batch.features, batch.actions, batch.present, *rest)
    columns = batch.features, batch.actions, batch.present, np.array([4]), batch.target, batch.old_value
    with pytest.raises(ValueError, match="chosen holds 4"):
        module.team_gradient(shape, vector, *columns, batch.old_baseline, -1.0, 0.5, vector.copy(), 1)
