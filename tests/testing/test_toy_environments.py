"""The toy environments do what their docstrings say, to the number."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from relayrl.envs.environment_contract import (
    MultiAgentEnvironment,
    MultiAgentStep,
    ScalarEnvironment,
    ScalarStep,
    env_seeds,
)
from relayrl.testing import toy_environments


def scalar_episode(env: ScalarEnvironment, action: Any = 0, seed: int = 0) -> list[ScalarStep]:
    env.reset(seed=seed)
    steps = [env.step(action)]
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(env.step(action))
    return steps


def test_counting_env_counts() -> None:
    steps = scalar_episode(toy_environments.CountingEnv(terminate_at=3))
    assert [(step.observation.tolist(), step.reward) for step in steps] == [([1.0], 1.0), ([2.0], 2.0), ([3.0], 3.0)]
    assert (steps[-1].terminated, steps[-1].truncated) == (True, False)


@pytest.mark.parametrize(("terminate_at", "truncate_at", "flags"), [(9, 2, (False, True)), (2, 2, (True, False))])
def test_counting_env_truncates_unless_it_terminates(
    terminate_at: int, truncate_at: int, flags: tuple[bool, bool]
) -> None:
    steps = scalar_episode(toy_environments.CountingEnv(terminate_at=terminate_at, truncate_at=truncate_at))
    assert len(steps) == 2
    assert (steps[-1].terminated, steps[-1].truncated) == flags


def test_counting_env_begins_again() -> None:
    env = toy_environments.CountingEnv()
    scalar_episode(env)
    assert env.reset().observation.tolist() == [0.0]


def test_slow_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(toy_environments.time, "perf_counter", lambda: next(now))
    env = toy_environments.Slow(step_s=20)
    env.reset()
    env.step(0)
    assert next(now) == 21


def test_crashing_raises_in_the_step_that_was_asked_for() -> None:
    env = toy_environments.Crashing(at_step=7, terminate_at=5)
    assert len(scalar_episode(env)) == 5
    env.reset()
    env.step(0)
    with pytest.raises(RuntimeError, match="step 7"):
        env.step(0)


def test_crashing_observes_nan_when_asked_to() -> None:
    env = toy_environments.Crashing(at_step=1, how="nan")
    env.reset()
    assert np.isnan(env.step(0).observation).all()


def test_crashing_ends_its_process_when_asked_to() -> None:
    program = (
        "from relayrl.testing.toy_environments import Crashing; Crashing(at_step=1, how='exit').step(0); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "")


def test_crashing_spares_envs_with_other_seeds() -> None:
    seeds = env_seeds(0, 3)
    outcomes = []
    for seed in seeds:
        env = toy_environments.Crashing(at_step=1, how="nan", seeds=[seeds[1]])
        env.reset(seed=seed)
        outcomes.append(bool(np.isnan(env.step(0).observation).any()))
    assert outcomes == [False, True, False]


def test_random_walk_depends_on_its_seed_alone() -> None:
    walks = [[step.reward for step in scalar_episode(toy_environments.RandomWalk(), seed=seed)] for seed in (1, 1, 2)]
    assert walks[0] == walks[1] != walks[2]


def test_random_walk_drifts_with_its_action() -> None:
    ends = [scalar_episode(toy_environments.RandomWalk(), action, seed=1)[-1].observation[0] for action in (0, 1)]
    assert ends[0] < -1.0 < 1.0 < ends[1]


def test_random_walk_continues_from_its_state() -> None:
    env, other = toy_environments.RandomWalk(), toy_environments.RandomWalk()
    env.reset(seed=0)
    env.step(0)
    other.set_state(env.get_state())
    assert [env.step(1).reward for _ in range(5)] == [other.step(1).reward for _ in range(5)]


def test_nested_spaces_observes_inside_its_space() -> None:
    env = toy_environments.NestedSpaces(horizon=4)
    steps = scalar_episode(env, action=np.array([1, 2]))
    assert all(env.observation_space.contains(step.observation) for step in steps)
    assert [int(step.observation["camera"].max()) for step in steps] == [1, 2, 3, 4]
    assert [step.reward for step in steps] == [3.0] * 4


def play(env: MultiAgentEnvironment, actions: list[int]) -> list[MultiAgentStep]:
    """Steps in which every acting agent takes the same action."""
    env.reset(seed=0)
    return [env.step(dict.fromkeys(env.acting_agents(), action)) for action in actions]


def test_dying_agents_die_and_appear_on_time() -> None:
    env = toy_environments.DyingAgents()
    env.reset()
    present, ends = [], {}
    for t in range(1, 7):
        present.append(tuple(env.agents))
        step = env.step(dict.fromkeys(env.agents, 0))
        ends |= {agent: (t, "terminated") for agent in step.terminated if step.terminated[agent]}
        ends |= {agent: (t, "truncated") for agent in step.truncated if step.truncated[agent]}
    sheep, wolf = ("sheep_0", "sheep_1"), ("sheep_1", "wolf_0")
    assert present == [sheep, sheep, ("sheep_1",), wolf, wolf, ("wolf_0",)]
    assert ends == {"sheep_0": (2, "terminated"), "sheep_1": (5, "truncated"), "wolf_0": (6, "terminated")}
    assert tuple(env.agents) == ()


def test_dying_agents_pays_the_living() -> None:
    steps = play(toy_environments.DyingAgents(), [0] * 6)
    totals = {agent: sum(step.rewards.get(agent, 0.0) for step in steps) for agent in ("sheep_0", "sheep_1", "wolf_0")}
    assert totals == {"sheep_0": 2.0, "sheep_1": 5.0, "wolf_0": 30.0}


def test_taking_turns_pays_the_other_player() -> None:
    steps = play(toy_environments.TakingTurns(num_rounds=2), [1, 2, 0, 2])
    assert [step.rewards for step in steps] == [
        {"player_1": 1.0},
        {"player_0": 2.0},
        {"player_1": 0.0},
        {"player_0": 2.0},
    ]
    assert steps[-1].terminated == {"player_0": True, "player_1": True}


def test_taking_turns_forbids_the_last_move() -> None:
    env = toy_environments.TakingTurns()
    play(env, [1])
    assert {agent: mask.tolist() for agent, mask in env.action_masks().items()} == {"player_1": [True, False, True]}


def test_taking_turns_ends_on_a_forbidden_move() -> None:
    last = play(toy_environments.TakingTurns(), [1, 1])[-1]
    assert last.rewards == {"player_1": -1.0}
    assert all(last.terminated.values())


@pytest.mark.parametrize(
    ("row", "column", "pay"), [(0, 0, (-1, -1)), (1, 0, (0, -3)), (0, 1, (-3, 0)), (1, 1, (-2, -2))]
)
def test_matrix_game_is_the_prisoners_dilemma(row: int, column: int, pay: tuple[float, float]) -> None:
    env = toy_environments.MatrixGame()
    env.reset()
    step = env.step({"player_0": row, "player_1": column})
    assert tuple(step.rewards.values()) == pay
    assert {agent: int(seen) for agent, seen in step.observations.items()} == {"player_0": column, "player_1": row}
    assert all(step.terminated.values())


def test_masked_bandit_pays_the_allowed_arm_alone() -> None:
    env = toy_environments.MaskedBandit(num_arms=3)
    env.reset(seed=0)
    allowed = int(np.flatnonzero(env.action_masks()["agent"])[0])
    assert env.step({"agent": allowed}).rewards == {"agent": 1.0}
    allowed = int(np.flatnonzero(env.action_masks()["agent"])[0])
    assert env.step({"agent": (allowed + 1) % 3}).rewards == {"agent": -100.0}


def test_masked_bandit_is_truncated() -> None:
    assert play(toy_environments.MaskedBandit(episode_length=2), [0, 0])[-1].truncated == {"agent": True}


def test_torch_counting_ends_env_by_env() -> None:
    env = toy_environments.TorchCounting(terminate_at=2)
    env.init_num_envs(2)
    env.reset()
    steps = [env.step({"agent": np.zeros((2, 1))}) for _ in range(3)]
    assert [step.episode_over.tolist() for step in steps] == [[False, False], [True, False], [False, True]]
    assert steps[2].groups["agent"].reward.tolist() == [[1.0], [3.0]]
    assert steps[2].groups["agent"].obs.tolist() == [[[1.0]], [[0.0]]]


def test_the_envs_do_not_import_torch() -> None:
    program = "import sys, relayrl.testing.toy_environments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
