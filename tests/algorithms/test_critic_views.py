"""What critics see, against inputs written out by hand: two wolves (two features, one action) and a sheep (one, two)."""

import numpy as np
import pytest

from relayrl.algorithms.critic_views import CentralView, GroupShape, LocalView

SHAPES = {"wolf": GroupShape(2, 2, 1), "sheep": GroupShape(1, 1, 2)}


@pytest.fixture
def features():
    return {"wolf": np.array([[[1.0, 2.0], [3.0, 4.0]]]), "sheep": np.array([[[5.0]]])}


@pytest.fixture
def actions():
    return {"wolf": np.array([[[0.1], [0.2]]]), "sheep": np.array([[[0.3, 0.4]]])}


def rows(inputs: np.ndarray) -> list[list[float]]:
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
    wolves, sheep = np.array([[[0.7], [0.8]]]), np.array([[[0.5, 0.6]]])
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
        assert np.array_equal(view(SHAPES).inputs_with_own(group, features, actions, actions[group]), plain)


@pytest.mark.parametrize("view", [LocalView, CentralView])
def test_gradients_flow_through_own_actions_only(view, features, actions):
    for group, shape in SHAPES.items():
        own = np.zeros((1, shape.num_agents, shape.num_actions), np.float32)
        base = view(SHAPES).inputs_with_own(group, features, actions, own)
        by_input = np.random.default_rng(0).normal(size=base.shape).astype(np.float32)
        by_own = view(SHAPES).own_gradient(group, by_input)
        assert by_own.shape == own.shape
        for n, a in np.ndindex(own.shape[1:]):
            moved = own.copy()
            moved[0, n, a] = 1.0
            change = view(SHAPES).inputs_with_own(group, features, actions, moved) - base
            assert by_own[0, n, a] == pytest.approx(float((change * by_input).sum()), rel=1e-5)


def test_rows_do_not_mix():
    view = CentralView(SHAPES)
    rng = np.random.default_rng(0)
    features = {g: rng.normal(size=(5, s.num_agents, s.num_features)).astype(np.float32) for g, s in SHAPES.items()}
    actions = {g: rng.normal(size=(5, s.num_agents, s.num_actions)).astype(np.float32) for g, s in SHAPES.items()}
    own = rng.normal(size=(5, 2, 1)).astype(np.float32)
    whole = view.inputs_with_own("wolf", features, actions, own)
    for m in range(5):
        one = slice(m, m + 1)
        part = view.inputs_with_own(
            "wolf", {g: f[one] for g, f in features.items()}, {g: a[one] for g, a in actions.items()}, own[one]
        )
        assert np.array_equal(whole[one], part)
