"""What critics see, against inputs written out by hand: two wolves (two features, one action) and a sheep (one, two)."""

import pytest
import torch

from relayrl.algorithms.critics.critic_sight import CriticSight
from relayrl.algorithms.critics.critic_views import CentralView, GroupShape, LocalView

SHAPES = {"wolf": GroupShape(2, 2, 1), "sheep": GroupShape(1, 1, 2)}


@pytest.fixture
def features():
    return {"wolf": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), "sheep": torch.tensor([[[5.0]]])}


@pytest.fixture
def actions():
    return {"wolf": torch.tensor([[[0.1], [0.2]]]), "sheep": torch.tensor([[[0.3, 0.4]]])}


def with_own_actions(view, group, features, actions, own):
    return view.inputs(group, features, actions, own=own)


def rows(inputs) -> list[list[float]]:
    return [[pytest.approx(number, abs=1e-7) for number in row] for row in inputs.tolist()]


def test_a_local_view_is_the_agents_own(features, actions):
    view = LocalView(SHAPES)
    assert view.width("wolf") == 3
    assert view.width("sheep") == 3
    assert rows(view.inputs("wolf", features, actions)) == [[1, 2, 0.1], [3, 4, 0.2]]
    assert rows(view.inputs("sheep", features, actions)) == [[5, 0.3, 0.4]]


def test_a_central_view_is_everybodys_and_who_is_scored(features, actions):
    view = CentralView(SHAPES)
    joint = [1, 2, 3, 4, 5, 0.1, 0.2, 0.3, 0.4]
    assert view.width("wolf") == 11
    assert view.width("sheep") == 10
    assert rows(view.inputs("wolf", features, actions)) == [[*joint, 1, 0], [*joint, 0, 1]]
    assert rows(view.inputs("sheep", features, actions)) == [[*joint, 1]]


def test_own_actions_replace_exactly_the_agents_own_slot(features, actions):
    wolves, sheep = torch.tensor([[[0.7], [0.8]]]), torch.tensor([[[0.5, 0.6]]])
    local, central = LocalView(SHAPES), CentralView(SHAPES)
    assert rows(with_own_actions(local, "wolf", features, actions, wolves)) == [[1, 2, 0.7], [3, 4, 0.8]]
    seen = [1, 2, 3, 4, 5]
    assert rows(with_own_actions(central, "wolf", features, actions, wolves)) == [
        [*seen, 0.7, 0.2, 0.3, 0.4, 1, 0],
        [*seen, 0.1, 0.8, 0.3, 0.4, 0, 1],
    ]
    assert rows(with_own_actions(central, "sheep", features, actions, sheep)) == [[*seen, 0.1, 0.2, 0.5, 0.6, 1]]


@pytest.mark.parametrize("view", [LocalView, CentralView])
def test_with_the_same_actions_both_inputs_are_equal(view, features, actions):
    for group in SHAPES:
        plain = view(SHAPES).inputs(group, features, actions)
        same = with_own_actions(view(SHAPES), group, features, actions, actions[group])
        torch.testing.assert_close(same, plain)


def test_who_left_is_there_for_its_own_critic_only(features, actions):
    seen = {"wolf": torch.tensor([[True, False]]), "sheep": torch.tensor([[True]])}
    left, own = [1, 2, 0, 0, 5, 0.1, 0, 0.3, 0.4], [1, 2, 3, 4, 5, 0.1, 0.2, 0.3, 0.4]
    local, central = LocalView(SHAPES), CentralView(SHAPES)

    def next_rows(view, group):
        return rows(view.next_inputs(group, features, actions, seen))

    assert next_rows(central, "wolf") == [[*left, 1, 0], [*own, 0, 1]]
    assert next_rows(central, "sheep") == [[*left, 1]]
    assert next_rows(local, "wolf") == [[1, 2, 0.1], [3, 4, 0.2]]


def test_a_critic_of_the_state_sees_no_action_of_who_left(features, actions):
    sight = CriticSight(observations=False, state=True)
    view = CentralView(SHAPES, dict.fromkeys(SHAPES, sight), num_state_features=1)
    seen, state = {"wolf": torch.tensor([[True, False]]), "sheep": torch.tensor([[True]])}, torch.tensor([[9.0]])
    inputs = view.next_inputs("wolf", features, actions, seen, state)
    assert rows(inputs) == [[9, 0.1, 0, 0.3, 0.4, 1, 0], [9, 0.1, 0.2, 0.3, 0.4, 0, 1]]


def test_rows_do_not_mix():
    view = CentralView(SHAPES)
    generator = torch.Generator().manual_seed(0)
    features = {g: torch.randn(5, s.num_agents, s.num_features, generator=generator) for g, s in SHAPES.items()}
    actions = {g: torch.randn(5, s.num_agents, s.num_actions, generator=generator) for g, s in SHAPES.items()}
    own = torch.randn(5, 2, 1, generator=generator)
    whole = with_own_actions(view, "wolf", features, actions, own)
    for m in range(5):
        one = slice(m, m + 1)
        some_features, some_actions = ({g: rows[one] for g, rows in all_.items()} for all_ in (features, actions))
        part = with_own_actions(view, "wolf", some_features, some_actions, own[one])
        assert torch.equal(whole[2 * m : 2 * m + 2], part)
