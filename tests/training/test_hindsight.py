"""Hindsight replay: which goals are drawn, what they pay, that goals are reached by it alone, and that it resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import relayrl
from relayrl import RelayRLTrainer, SACParams, ScalarEnvironment, TrainerArgs
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.data.trees import index
from relayrl.envs.environment_contract import FinalObservations, new_env_ids
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError
from relayrl.extend import ScalarReset, ScalarStep
from relayrl.testing import PointReach
from relayrl.training.replay.hindsight_replay import HindsightReplay

GOAL = spaces.Box(-np.inf, np.inf, (1,), np.float32)
SPACE = spaces.Dict({"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL})
NUM_ENVS, LENGTHS = 2, (3, 4)


def one_goal_at_a_time() -> PointReach:
    return PointReach(batched=False)


class EndsAtGoal(PointReach):
    """Its episodes end at the goal, which it says of any goal."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return self.compute_reward(achieved_goal, desired_goal, info) == 0.0


class NoGoals(ScalarEnvironment):
    """It has one agent, Box actions and no goals."""

    observation_space, action_space = GOAL, spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        return ScalarReset(np.zeros(1, np.float32), {})

    def step(self, action: Any) -> ScalarStep:
        return ScalarStep(np.zeros(1, np.float32), 0.0, False, True, {})

    def build_observation(self) -> Any:
        return np.zeros(1, np.float32)


def counted_rollouts(num_blocks: int, num_steps: int) -> Iterator[Rollout]:
    """Blocks in which environment b, in step k of its episode e, achieved 10,000 b + 100 e + k; it ends after `LENGTHS[b]`."""
    header = LaneHeader("agent", new_env_ids(NUM_ENVS), ("agent",), SPACE, spaces.Box(-1.0, 1.0, (1,), np.float32))
    builder = RolloutBuilder(header, num_steps)
    episode, step = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS)

    def seen() -> Any:
        achieved = (10_000.0 * np.arange(NUM_ENVS) + 100.0 * episode + step).astype(np.float32)[:, None]
        return {
            "observation": achieved,
            "achieved_goal": achieved,
            "desired_goal": np.full((NUM_ENVS, 1), -1.0, np.float32),
        }

    for _ in range(num_blocks):
        for _ in range(num_steps):
            builder.add(seen(), np.zeros((NUM_ENVS, 1), np.float32), np.ones(NUM_ENVS, bool))
            step += 1
            over = step == LENGTHS
            envs = np.flatnonzero(over)
            final = FinalObservations(envs, np.zeros_like(envs), index(seen(), envs)) if len(envs) else None
            none = np.zeros((NUM_ENVS, 1), bool)
            builder.finish_row(np.zeros((NUM_ENVS, 1), np.float32), none, over[:, None], None, final)
            episode, step = episode + over, np.where(over, 0, step)
        yield builder.build(seen(), 0)  # overwritten by the block after the next


def relabel(achieved: Any, desired: Any) -> tuple[Any, Any]:
    return (desired - achieved)[:, 0], None


def test_new_goals_are_met_later_in_the_same_episode_and_pay_what_the_environment_says():
    replay = HindsightReplay(40, NUM_ENVS, ratio=4.0, relabel=relabel)
    for rollout in counted_rollouts(9, 5):  # 90 transitions in a ring of 40
        replay.add({"agent": rollout})
    drawn = replay.sample(4_000, np.random.default_rng(0), gamma=0.9).groups["agent"]
    goal, achieved = drawn.obs["desired_goal"][:, 0, 0], drawn.next_obs["achieved_goal"][:, 0, 0]
    is_new = goal != -1.0
    assert is_new.mean() == pytest.approx(0.8, abs=0.02)
    np.testing.assert_array_equal(drawn.next_obs["desired_goal"], drawn.obs["desired_goal"])
    later = goal[is_new] - achieved[is_new]
    assert set(later.tolist()) == {0.0, 1.0, 2.0, 3.0}  # never an earlier step, never another episode or environment
    np.testing.assert_array_equal(drawn.reward[is_new, 0], later)
    assert (drawn.reward[~is_new] == 0.0).all()
    # Of the first step of an ended episode of four, each of its four steps is drawn alike.
    first = (drawn.obs["achieved_goal"][:, 0, 0] % 100 == 0) & (achieved >= 10_000.0) & (achieved < 11_100.0) & is_new
    _, counts = np.unique(goal[first] % 100, return_counts=True)
    assert len(counts) == 4
    assert counts.min() > 0.15 * counts.sum()


def test_a_restored_ring_draws_the_same_goals():
    rollouts = counted_rollouts(11, 5)
    replay = HindsightReplay(40, NUM_ENVS, ratio=4.0, relabel=relabel)
    for _ in range(10):
        replay.add({"agent": (rollout := next(rollouts))})
    other = HindsightReplay(40, NUM_ENVS, ratio=4.0, relabel=relabel)
    other.set_state(replay.get_state(), {"agent": (SPACE, rollout.header.action_space)})
    last = next(rollouts)
    for each in (replay, other):
        each.add({"agent": last})
    one, two = (each.sample(500, np.random.default_rng(1), gamma=0.9).groups["agent"] for each in (replay, other))
    np.testing.assert_array_equal(one.obs["desired_goal"], two.obs["desired_goal"])
    np.testing.assert_array_equal(one.reward, two.reward)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("env", ["one_goal_at_a_time", "EndsAtGoal"])
def test_environments_relabel_rows_with_and_without_workers(env, workers):
    envs = make_vector(f"{__name__}:{env}", EnvSettings(num_envs=2, workers=workers))
    try:
        assert envs.has_goals
        desired = np.array([[0.4, 0.0], [0.6, 0.0], [0.0, 0.1]], np.float32)
        reward, terminated = envs.relabel(np.zeros((3, 2), np.float32), desired)
        assert reward.tolist() == [0.0, -1.0, 0.0]
        assert (None if terminated is None else terminated.tolist()) == (
            [True, False, True] if env == "EndsAtGoal" else None
        )
    finally:
        envs.close()


def train(algo: str, steps: int, folder: Path, env: str = "relayrl.testing:PointReach", **settings: Any) -> relayrl.Run:
    own = {
        "environment.num_envs": 8,
        "network.hidden_sizes": [64, 64],
        "evaluation.episodes": 20,
        "statistics.tensorboard": False,
        "params.learning_starts": 500,
        "params.batch_size": 128,
        "params.actor_lr": 1e-3,
        "params.critic_lr": 1e-3,
        "params.update_interval": 8,
        "params.train_iters": 4,
        "params.gamma": 0.95,
    }
    own |= {key.replace("__", "."): value for key, value in settings.items()}
    return relayrl.train(env, algo=algo, steps=steps, seed=1, run_dir=folder, settings=own, progress=False)


@pytest.mark.parametrize(
    "algo", ["ddpg", pytest.param("td3", marks=pytest.mark.slow), pytest.param("sac", marks=pytest.mark.slow)]
)
def test_goals_are_reached_with_hindsight_and_not_without(tmp_path, algo):
    own = {"params__init_temperature": 0.05} if algo == "sac" else {}
    with_it = train(algo, 6_000, tmp_path / "with", params__hindsight_ratio=4.0, **own).result.mean_return
    without = train(algo, 6_000, tmp_path / "without", **own).result.mean_return
    assert with_it > -25.0
    assert without < -33.0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_has_the_same_bits(tmp_path, workers):
    small = {"params__hindsight_ratio": 4.0, "params__learning_starts": 100, "environment__workers": workers}
    small |= {"evaluation__episodes": 0, "trainer__checkpoint_interval": 200}
    train("ddpg", 400, tmp_path / "whole", **small)
    train("ddpg", 200, tmp_path / "cut", **small)
    relayrl.train(run_dir=tmp_path / "cut", resume=True, steps=400, progress=False, trust=True)
    hashes = [relayrl.load_run(tmp_path / name).result.parameter_hash for name in ("whole", "cut")]
    assert hashes[0] == hashes[1]


def test_what_cannot_be_relabelled_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="needs a goal environment"):
        train("sac", 100, tmp_path / "none", f"{__name__}:NoGoals", params__hindsight_ratio=4.0)
    with pytest.raises(ConfigError, match="set num_step_returns to 1"):
        train("td3", 100, tmp_path / "steps", params__hindsight_ratio=4.0, params__num_step_returns=3)
    args = TrainerArgs(env_dir=tmp_path, save_model_path=tmp_path, observation_space=SPACE, act_dim=1)
    with pytest.raises(ConfigError, match="trajectories come without their environment"):
        assert RelayRLTrainer.sac(args, SACParams(hindsight_ratio=4.0)).policies
