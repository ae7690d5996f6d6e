"""The global state is computed only where a critic looks at it, and an environment that cannot say its last one goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import relayrl
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import EnvironmentFailedError
from relayrl.testing import DyingAgents

CALLS = {"state": 0}


class CountsCalls(DyingAgents):
    """Counts how often it is asked for its state."""

    def state(self) -> np.ndarray:
        CALLS["state"] += 1
        return super().state()


class NoStateAtAll(DyingAgents):
    """Like multiwalker: it declares a state, and raises when it is asked for it."""

    def state(self) -> np.ndarray:
        raise KeyError("walker_0")


class NoFinalState(DyingAgents):
    """Its state needs living agents."""

    def state(self) -> np.ndarray:
        if not self.agents:
            raise KeyError("nobody is left")
        return super().state()


def _train(env: str, tmp_path: Path, algo: str, **settings: object) -> None:
    relayrl.train(
        f"{__name__}:{env}",
        algo=algo,
        steps=64,
        run_dir=tmp_path / "run",
        settings={"environment.num_envs": 2, "trainer.time_horizon": 16, "params.train_pi_iters": 1}
        | {"params.train_vf_iters": 1, "evaluation.episodes": 2, **settings},
    )


def test_independent_critics_never_ask_for_the_state_and_central_ones_do(tmp_path):
    CALLS["state"] = 0
    _train("CountsCalls", tmp_path / "independent", "ippo")
    assert CALLS["state"] == 0
    _train("CountsCalls", tmp_path / "central", "mappo")
    assert CALLS["state"] >= 64  # once a step, once at each end, and not in the evaluation


def test_an_environment_whose_state_raises_trains_where_nobody_needs_it(tmp_path):
    _train("NoStateAtAll", tmp_path / "ippo", "ippo")
    with pytest.raises(EnvironmentFailedError, match="walker_0"):
        _train("NoStateAtAll", tmp_path / "mappo", "mappo")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_final_state_that_fails_is_the_state_before_it(workers):
    env = make_vector(f"{__name__}:NoFinalState", EnvSettings(num_envs=1, workers=workers))
    try:
        env.reset(seed=0)
        actions = {"sheep": np.zeros((1, 2), np.int64), "wolf_0": np.zeros((1, 1), np.int64)}
        steps = [env.step(actions) for _ in range(6)]
        assert steps[-1].episode_over[0]
        assert steps[-1].final_state is not None
        np.testing.assert_array_equal(steps[-1].final_state, [[5.0]])  # after step 6 it would have been 6
        np.testing.assert_array_equal(steps[-1].state, [[0.0]])
    finally:
        env.close()


def test_states_are_given_until_somebody_says_that_nobody_asks():
    env = relayrl.make_env(DyingAgents, num_envs=2)
    assert env.reset(seed=0).state is not None
    env.give_states(False)
    assert env.reset(seed=0).state is None
    env.close()
