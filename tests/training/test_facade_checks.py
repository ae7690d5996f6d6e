"""What the facade refuses to learn from, naming the trajectory, the column and the first row that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from test_facade import LENGTH, make_trainer, play

from relayrl import RelayRLTrainer, TrainerArgs
from relayrl.errors import ConfigError
from relayrl.training.facade.trajectory_trainer import TrajectoryTrainer


def _with(column: Any, where: Any, value: Any) -> Any:
    changed = np.array(column)
    changed[where] = value
    return changed


CHANGES: dict[str, tuple[Any, str]] = {
    "a NaN reward": (lambda t: {"reward": _with(t.reward, 3, np.nan)}, "'reward' in row 3 is NaN or infinite"),
    "an infinite reward": (lambda t: {"reward": _with(t.reward, 0, -np.inf)}, "'reward' in row 0 is NaN or infinite"),
    "a NaN observation": (lambda t: {"obs": _with(t.obs, (2, 1), np.nan)}, "'obs' in row 2 is NaN or infinite"),
    "a NaN at the end": (lambda t: {"final_obs": _with(t.final_obs, 1, np.nan)}, "'final_obs' is NaN or infinite"),
    "a NaN log-probability": (lambda t: {"logp": _with(np.zeros(LENGTH), 4, np.nan)}, "'logp' in row 4"),
    "an action that does not exist": (lambda t: {"action": _with(t.action, 5, 99)}, "'action' in row 5 is 99"),
    "actions of another kind": (lambda t: {"action": t.action.astype(np.float32)}, "'action' is float32"),
    "a shorter column": (lambda t: {"action": t.action[:-1]}, r"'action' is int64 \[9\]"),
    "another structure": (lambda t: {"obs": {"x": t.obs}}, "'obs' should be one array"),
    "a negative step": (lambda t: {"first_step": -1}, "number of an episode or step that is negative"),
    "failed and not truncated": (lambda t: {"failed": True, "truncated": False}, "must be truncated"),
    "no steps": (lambda t: {"reward": t.reward[:0]}, "has no steps"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_cannot_be_learned_from_is_refused_and_nothing_is_taken(name: str, tmp_path) -> None:
    change, message = CHANGES[name]
    trainer = make_trainer("ppo", tmp_path)
    (right,) = play(trainer, 0)
    who = f"trajectory {right.trajectory_id} of agent 'agent' in environment {right.env_id}"
    with pytest.raises(ConfigError, match=f"^{who}.*{message}"):
        trainer.receive_trajectory(replace(right, **change(right)))
    assert trainer.num_pending == 0
    trainer.receive_trajectory(right)
    assert trainer.num_pending == 1


def test_what_an_actor_did_not_give_is_worked_out(tmp_path) -> None:
    """The runtime records NaN where an actor gave no log-probability or value, though its policy has them."""
    trainer = make_trainer("ppo", tmp_path)
    for episode in range(2):
        (right,) = play(trainer, episode)
        unknown = np.full(len(right), np.nan, np.float32)
        trainer.receive_trajectory(replace(right, logp=unknown, value=unknown))
    assert trainer.num_pending == 2
    assert trainer.train_model()


def test_wider_numbers_of_the_same_kind_are_converted(tmp_path) -> None:
    trainer, same = make_trainer("ppo", tmp_path / "a"), make_trainer("ppo", tmp_path / "b")
    for episode in range(2):
        (right,) = play(trainer, episode)
        trainer.receive_trajectory(right)
        same.receive_trajectory(
            replace(right, obs=right.obs.astype(np.float64), reward=right.reward.astype(np.float64))
        )
    assert [each.obs.dtype for each in same._pending.values()] == [np.float32] * 2
    assert trainer.train_model()
    assert same.train_model()


def test_actions_outside_of_a_box_are_taken_and_nan_is_not(tmp_path) -> None:
    trainer = make_trainer("td3", tmp_path)
    (right,) = play(trainer, 0)
    trainer.receive_trajectory(replace(right, action=right.action + 50))
    (other,) = play(trainer, 1)
    with pytest.raises(ConfigError, match="'action' in row 1 is NaN"):
        trainer.receive_trajectory(replace(other, action=_with(other.action, 1, np.nan)))


def _masked(space: spaces.Space, tmp_path) -> TrajectoryTrainer:
    args = TrainerArgs(tmp_path, tmp_path, obs_dim=2, action_space=space, masks_actions=True)
    return RelayRLTrainer.ppo(args)


@pytest.mark.parametrize(
    ("space", "action", "forbidden"),
    [
        (spaces.Discrete(3, start=2), np.array([2, 4, 3]), 2),
        (spaces.MultiDiscrete([2, 3]), np.array([[0, 0], [1, 2], [1, 1]]), 4),
    ],
)
def test_an_action_that_its_mask_forbids_is_refused(space, action, forbidden: int, tmp_path) -> None:
    trainer = _masked(space, tmp_path)
    (right,) = play(make_trainer("ppo", tmp_path / "other"), 0)
    mask = np.ones((3, 3 if isinstance(space, spaces.Discrete) else 5), bool)
    right = replace(
        right,
        observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float32),
        obs=np.zeros((3, 2), np.float32),
        final_obs=np.zeros(2, np.float32),
        action_space=space,
        action=action,
        action_mask=mask,
        reward=np.ones(3, np.float32),
        policy_version=np.zeros(3, np.int64),
    )
    with pytest.raises(ConfigError, match=r"'action' in row 1 is .*, which its mask forbids"):
        trainer.receive_trajectory(replace(right, action_mask=_with(mask, (1, forbidden), False)))
    trainer.receive_trajectory(replace(right, action_mask=_with(mask, (0, forbidden), False)))
