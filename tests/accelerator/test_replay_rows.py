"""The rows that kernels take are the critics' views, laid out or not."""

import numpy as np
import pytest
import torch

from relayrl.accelerator.replay_rows import rows_of
from relayrl.algorithms.critics.critic_sight import CriticSight
from relayrl.algorithms.critics.critic_views import CentralView, GroupShape, LocalView
from relayrl.models.networks.shared_rows import laid_out, with_own

SHAPES = {"wolf": GroupShape(3, 2, 1), "sheep": GroupShape(1, 1, 2)}
SIGHTS = [CriticSight(observations=True, state=False), CriticSight(True, True), CriticSight(False, True)]
VIEWS = {"local": LocalView(SHAPES)} | {
    f"central {i}": CentralView(SHAPES, dict.fromkeys(SHAPES, sight), 2) for i, sight in enumerate(SIGHTS)
}


def columns(rng: np.random.Generator, width: str) -> dict[str, np.ndarray]:
    return {g: rng.normal(size=(5, s.num_agents, getattr(s, width))).astype(np.float32) for g, s in SHAPES.items()}


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("group", SHAPES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_rows_are_what_the_view_shows(view, group):
    rng = np.random.default_rng(0)
    features, actions, own = columns(rng, "num_features"), columns(rng, "num_actions"), columns(rng, "num_actions")
    seen = {name: rng.random(rows.shape[:2]) < 0.5 for name, rows in features.items()}
    state, rows = rng.normal(size=(5, 2)).astype(np.float32), rows_of(view)
    given = group, tensors(features), tensors(actions)
    plain = rows.inputs(group, features, actions, state)
    torch.testing.assert_close(torch.from_numpy(laid_out(plain)), view.inputs(*given, torch.from_numpy(state)))
    with_others = laid_out(with_own(plain, rows.own(group, own[group])))
    expected = view.inputs(*given, torch.from_numpy(state), torch.from_numpy(own[group]))
    torch.testing.assert_close(torch.from_numpy(with_others), expected)
    after = laid_out(rows.next_inputs(group, features, actions, seen, ~seen[group], state))
    expected = view.next_inputs(*given, tensors(seen), torch.from_numpy(state))
    torch.testing.assert_close(torch.from_numpy(after), expected)


def test_a_view_of_a_users_own_has_no_rows():
    class Other(LocalView):
        pass

    assert rows_of(Other(SHAPES)) is None


def test_what_an_environment_shows_is_kept_once_for_its_agents():
    features, actions = {"wolf": np.ones((7, 40, 3), np.float32)}, {"wolf": np.ones((7, 40, 2), np.float32)}
    inputs = rows_of(CentralView({"wolf": GroupShape(40, 3, 2)})).inputs("wolf", features, actions, None)
    assert [part.table.shape for part in inputs.parts] == [(7, 120), (7, 80), (40, 40)]
    assert np.shares_memory(inputs.parts[0].table, features["wolf"])
