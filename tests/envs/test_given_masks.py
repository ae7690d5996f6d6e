"""Masks as environments give them: in Gymnasium's forms, of a wrong size, or later than in the first reset."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from pettingzoo import ParallelEnv

from relayrl import make_env
from relayrl.errors import EnvError

OBSERVATION = spaces.Box(-1.0, 1.0, (2,), np.float32)
JOINED = [True, False, True, False, True, False, False]


class Masked(gymnasium.Env[Any, Any]):
    """Shows the masks of `shown` in turn, the first by `reset`; None: no mask."""

    observation_space, action_space = OBSERVATION, spaces.MultiDiscrete([3, 4])

    def __init__(self, *shown: Any) -> None:
        self._shown, self._step = shown, 0

    def _info(self) -> dict[str, Any]:
        mask = self._shown[min(self._step, len(self._shown) - 1)]
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(2, np.float32), self._info()

    def step(self, action: Any) -> Any:
        self._step += 1
        return np.zeros(2, np.float32), 1.0, False, self._step == 4, self._info()


class MaskedTeam(ParallelEnv[str, Any, Any]):
    """The same for the one agent of a PettingZoo environment, whose masks are in `infos`."""

    metadata: dict[str, Any] = {"name": "masked_team"}  # noqa: RUF012 - PettingZoo's own declaration

    def __init__(self, *shown: Any) -> None:
        self._env = Masked(*shown)
        self.possible_agents = ["a"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._env.observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._env.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a"]
        observation, info = self._env.reset(seed=seed)
        return {"a": observation}, {"a": info}

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = self._env.step(actions["a"])
        self.agents = [] if truncated else ["a"]
        return {"a": observation}, {"a": reward}, {"a": terminated}, {"a": truncated}, {"a": info}


def vector(*shown: Any) -> Any:
    return SyncVectorEnv([partial(Masked, *shown)] * 2)


MAKERS: dict[str, Callable[..., Any]] = {"scalar": Masked, "vector": vector, "team": MaskedTeam}
PARTS = (np.array([1, 0, 1], np.int8), np.array([0, 1, 0, 0], np.int8))


def second_mask(kind: str, *shown: Any) -> list[bool]:
    """The mask after one step."""
    env = make_env(partial(MAKERS[kind], *shown), num_envs=2)
    try:
        (name,) = env.groups
        env.reset(seed=0)
        mask = env.step({name: np.zeros((2, 1, 2), np.int64)}).groups[name].action_mask
        assert mask is not None
        return list(mask[1, 0].tolist())
    finally:
        env.close()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    "mask", [PARTS, np.array(JOINED), [int(entry) for entry in JOINED]], ids=["tuple", "array", "list"]
)
def test_masks_of_several_choices_are_joined(kind: str, mask: Any) -> None:
    assert second_mask(kind, mask) == JOINED


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("wrong", [np.ones(6, np.int8), np.ones(1, np.int8), PARTS[:1], "all"], ids=repr)
def test_a_mask_that_does_not_fit_is_an_error_that_names_both_sizes(kind: str, wrong: Any) -> None:
    with pytest.raises(EnvError, match=r"the action mask .*give one entry per action, \(7,\)"):
        second_mask(kind, np.array(JOINED), wrong)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_mask_that_comes_only_after_the_first_reset_is_not_ignored(kind: str) -> None:
    with pytest.raises(EnvError, match="though the first reset had none"):
        second_mask(kind, None, np.array(JOINED))
