"""What critics see, against inputs written out by hand: two wolves (two features, one action) and a sheep (one, two)."""

import pytest
import torch

from relayrl.algorithms.critic_views import CentralView, GroupShape, LocalView

SHAPES = {"wolf": GroupShape(2, 2, 1), "sheep": GroupShape(1, 1, 2)}


@pytest.fixture
def features():
    return {"wolf": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), "sheep": torch.tensor([[[5.0]]])}


@pytest.fixture
def actions():
    return {"wolf": torch.tensor([[[0.1], [0.2]]]), "sheep": torch.tensor([[[0.3, 0.4]]])}


def rows(inputs: torch.Tensor) -> list[list[float]]:
    return [[pytest.approx(number, abs=1e-7) for number in row] for row in inputs[0].tolist()]


def test_a_local_view_is_the_agents_own(features, actions):
    view = LocalView(SHAPES)
    assert view.width("wolf") == 3
    assert view.width("sheep") == 3
    assert rows(view.inputs("wolf", features, actions)) == [[1, 2, 0.1], [3, 4, 0.2]]
    assert rows(view.inputs("sheep", features, actions)) == [[5, 0.3, 0.4]]


def test_a_central_view_is_everybodys_and_who_is_judged(features, actions):
    view = CentralView(SHAPES)
    joint = [1, 2, 3, 4, 5, 0.1, 0.2, 0.3, 0.4]
    assert view.width("wolf") == 11
    assert view.width("sheep") == 10
    assert rows(view.inputs("wolf", features, actions)) == [[*joint, 1, 0], [*joint, 0, 1]]
    assert rows(view.inputs("sheep", features, actions)) == [[*joint, 1]]


def test_own_actions_replace_exactly_the_agents_own_slot(features, actions):
    wolves, sheep = torch.tensor([[[0.7], [0.8]]]), torch.tensor([[[0.5, 0.6]]])
    local, central = LocalView(SHAPES), CentralView(SHAPES)
    assert rows(local.inputs_with_own("wolf", features, actions, wolves)) == [[1, 2, 0.7], [3, 4, 0.8]]
    seen = [1, 2, 3, 4, 5]
    assert rows(central.inputs_with_own("wolf", features, actions, wolves)) == [
        [*seen, 0.7, 0.2, 0.3, 0.4, 1, 0],
        [*seen, 0.1, 0.8, 0.3, 0.4, 0, 1],
    ]
    assert rows(central.inputs_with_own("sheep", features, actions, sheep)) == [[*seen, 0.1, 0.2, 0.5, 0.6, 1]]


@pytest.mark.parametrize("view", [LocalView, CentralView])
def test_with_the_same_actions_both_inputs_are_equal(view, features, actions):
    for group in SHAPES:
        plain = view(SHAPES).inputs(group, features, actions)
        assert torch.equal(view(SHAPES).inputs_with_own(group, features, actions, actions[group]), plain)


@pytest.mark.parametrize("view", [LocalView, CentralView])
def test_gradients_flow_through_own_actions_only(view, features, actions):
    own = torch.tensor([[[0.7], [0.8]]], requires_grad=True)
    for columns in (features, actions):
        for column in columns.values():
            column.requires_grad_()
    inputs = view(SHAPES).inputs_with_own("wolf", features, actions, own)
    # Weight 10 on the first agent's row and 1 on the second's: each own action appears once, in its agent's row.
    (inputs[0, 0].sum() * 10 + inputs[0, 1].sum()).backward()
    assert own.grad.tolist() == [[[10.0], [1.0]]]
    if view is LocalView:
        assert actions["wolf"].grad is None
        assert actions["sheep"].grad is None
    else:
        # The batch's actions are seen by the others: wolf 0's by wolf 1 and the other way round.
        assert actions["wolf"].grad.tolist() == [[[1.0], [10.0]]]
        assert actions["sheep"].grad.tolist() == [[[11.0, 11.0]]]


def test_rows_do_not_mix():
    view = CentralView(SHAPES)
    generator = torch.Generator().manual_seed(0)
    features = {g: torch.randn(5, s.num_agents, s.num_features, generator=generator) for g, s in SHAPES.items()}
    actions = {g: torch.randn(5, s.num_agents, s.num_actions, generator=generator) for g, s in SHAPES.items()}
    own = torch.randn(5, 2, 1, generator=generator)
    whole = view.inputs_with_own("wolf", features, actions, own)
    for m in range(5):
        one = slice(m, m + 1)
        part = view.inputs_with_own(
            "wolf", {g: f[one] for g, f in features.items()}, {g: a[one] for g, a in actions.items()}, own[one]
        )
        assert torch.equal(whole[one], part)
