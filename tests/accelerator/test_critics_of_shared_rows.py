"""Critics of rows which share parts: however they are computed, as if every row were laid out."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch_networks import TorchNetworks

from relayrl.accelerator.compiled_mlp import CompiledTapes
from relayrl.accelerator.replay_rows import rows_of
from relayrl.algorithms.critics.critic_sight import CriticSight
from relayrl.algorithms.critics.critic_views import CentralView, GroupShape
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.compiled import loader
from relayrl.models.network_settings import Activation
from relayrl.models.networks.mlp import MLP
from relayrl.models.networks.shared_rows import OwnColumns, SharedRows

needs_kernels = pytest.mark.skipif(loader.kernels() is None, reason="the kernels were not built")
TEAMS = {"wolf": GroupShape(12, 5, 2), "sheep": GroupShape(3, 4, 3)}
FEW = {"wolf": GroupShape(2, 2, 1), "sheep": GroupShape(1, 1, 2)}


@dataclass(frozen=True)
class Case:
    """What a group's critics see, what its agents would do instead, and what is asked of each row."""

    x: SharedRows
    own: OwnColumns
    target: np.ndarray
    share: np.ndarray


def draw_case(shapes: dict[str, GroupShape], group: str = "wolf", *, envs: int = 40, state: int = 0) -> Case:
    """Rows of a central view; some agents are absent."""
    rng = np.random.default_rng(0)

    def columns(width_of):
        rows = {g: rng.normal(size=(envs, s.num_agents, width_of(s))).astype(np.float32) for g, s in shapes.items()}
        rows["wolf"][::3, -1] = 0.0
        return rows

    sight = CriticSight(observations=True, state=state > 0)
    view = rows_of(CentralView(shapes, dict.fromkeys(shapes, sight), state))
    seen_state = rng.normal(size=(envs, state)).astype(np.float32) if state else None
    features, actions, drawn = columns(lambda s: s.num_features), *(columns(lambda s: s.num_actions) for _ in range(2))
    x = view.inputs(group, features, actions, seen_state)
    target, share = rng.normal(size=(2, len(x), 1)).astype(np.float32)
    return Case(x, view.own(group, drawn[group]), target, share)


CASES = {
    "two groups": (draw_case(TEAMS), True),
    "the other group": (draw_case(TEAMS, "sheep"), True),
    "with a state": (draw_case(TEAMS, state=7), True),
    "more than a tile of environments": (draw_case(TEAMS, envs=151), True),
    "few agents": (draw_case(FEW, envs=99), False),
    "one environment": (draw_case(FEW, envs=1), False),
}


def critics(width: int, count: int, activation: Activation, hidden: tuple[int, ...]) -> list[MLP]:
    generator = torch.Generator().manual_seed(0)
    modules = [MLP((width, *hidden, 1), activation, 1.0, generator) for _ in range(count)]
    FlatAdam([p for module in modules for p in module.parameters()], 1e-3, None)
    return modules


def everything(networks: CompiledTapes | TorchNetworks, modules: list[MLP], case: Case, x) -> list[np.ndarray]:
    """Outputs, a regression's loss, outputs and gradients, the lowest value and its gradient."""
    outputs = [output.copy() for output in networks.forward(x)]
    values, loss = networks.regress(x, case.target, case.share)
    values = [value.copy() for value in values]
    gradients = [p.grad.numpy().copy() for module in modules for p in module.parameters()]
    return [*outputs, np.array(loss), *values, *gradients, *networks.min_q(x, case.own, case.share[:, 0])]


def assert_agree(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-5 * max(1.0, np.abs(other).max()))


@pytest.mark.parametrize("name", CASES)
def test_the_cases_are_of_both_kinds(name):
    (case, is_factored) = CASES[name]
    assert case.x.pays_factored(len(case.x)) is is_factored


@needs_kernels
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("hidden", [(), (33, 17), (64, 64)])
def test_rows_that_share_parts_agree_with_rows_that_are_laid_out(name, count, activation, hidden):
    case, _ = CASES[name]
    modules = critics(case.x.width, count, activation, hidden)
    expected = everything(TorchNetworks(modules), modules, case, case.x.laid_out())
    assert_agree(everything(CompiledTapes(modules), modules, case, case.x), expected)


@pytest.mark.parametrize("instructions", loader.kernels().instruction_sets() if loader.kernels() else ())
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_thread_and_two_give_the_same_numbers(instructions, name, count, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, instructions)
    case, _ = CASES[name]
    results = []
    for threads in (1, 2):
        loader.set_num_threads(threads)
        modules = critics(case.x.width, count, Activation.RELU, (64, 64))
        results.append(everything(CompiledTapes(modules), modules, case, case.x))
    loader.set_num_threads(None)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@needs_kernels
def test_mlps_lay_nothing_out_that_many_rows_share(monkeypatch):
    case, _ = CASES["with a state"]
    modules = critics(case.x.width, 2, Activation.RELU, (8, 8))
    monkeypatch.setattr(SharedRows, "laid_out", lambda _: pytest.fail("rows were laid out"))
    everything(CompiledTapes(modules), modules, case, case.x)
