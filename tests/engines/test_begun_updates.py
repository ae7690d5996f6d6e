"""Critics that go on learning while the next rollout is collected: the same bits, and nothing looks at them too early."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.local.overlap import InTurns
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.local.run_parts import RunParts, build_parts
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.errors import TrainingDivergedError
from relayrl.models.policy import parameter_hash
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.statistics.statistics_writers import STEP_COLUMN, read_progress

FEW = {"train_pi_iters": 3, "train_vf_iters": 5, "num_minibatches": 2}
SPREAD = ("native:simple_spread", {"algo": "mappo", "params": FEW})
RUNS = {
    "one group": SPREAD,
    "two groups": ("native:simple_adversary", {"algo": "mappo", "params": FEW}),
    "more passes than one call takes": ("native:CartPole", {"algo": "ppo"}),
    "one pass of the policy": ("native:CartPole", {"algo": "reinforce"}),
}


def parts_of(run: tuple[str, dict[str, Any]], num_envs: int, **flags: Any) -> RunParts:
    common = {
        "environment.num_envs": num_envs,
        "trainer.time_horizon": 64,
        "trainer.max_steps": 10**6,
        "network.normalize_observations": True,
    }
    return build_parts(build_run_settings(run[0], None, common | run[1] | flags, []))


def hashes(parts: RunParts) -> dict[str, str]:
    return {name: parameter_hash(policy) for name, policy in parts.policies.items()}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("num_envs", [4, 64])  # minibatches as they are, and in blocks
def test_collecting_beside_the_critic_changes_nothing(name: str, num_envs: int) -> None:
    beside, apart = parts_of(RUNS[name], num_envs), parts_of(RUNS[name], num_envs)
    statistics = Statistics([])
    pace = InTurns(beside.trainer, statistics, beside.collector, PhaseClock(), lambda _: {})
    expected: list[dict[str, float]] = []
    for _ in range(5):
        pace.advance(beside.block_steps // num_envs)
        apart.trainer.receive(apart.collector.collect(apart.trainer.policy_version))
        expected.append(apart.trainer.advance())
    pace.settle()
    assert hashes(beside) == hashes(apart)
    row = statistics.summarize(0, {})
    for metric in expected[0]:
        assert row[metric] == pytest.approx(sum(own[metric] for own in expected) / 5), metric
    beside.close()
    apart.close()


def test_a_state_is_not_taken_while_the_critic_learns() -> None:
    parts = parts_of(SPREAD, 4)
    parts.trainer.receive(parts.collector.collect(0))
    finish = parts.trainer.begin()
    for early in (parts.trainer.state_dict, parts.trainer.begin, lambda: parts.trainer.load_state_dict({})):
        with pytest.raises(RuntimeError, match="critic is still learning"):
            early()
    assert finish()["value/loss"] > 0
    assert parts.trainer.state_dict()["policy_version"] == 1
    parts.close()


def test_an_update_that_diverged_is_over() -> None:
    parts = parts_of(SPREAD, 4)
    rollouts = parts.collector.collect(0)
    rollouts["agent"].reward[:] = np.nan
    parts.trainer.receive(rollouts)
    with pytest.raises(TrainingDivergedError):
        parts.trainer.advance()
    assert parts.trainer.state_dict()["groups"].keys() == {"agent"}
    parts.close()


def test_an_update_that_nobody_finishes_ends_by_itself() -> None:
    """Where an error of the environment stops a run: the arrays that the critic learns from are held until it is done."""
    for _ in range(5):
        parts = parts_of(SPREAD, 64)
        parts.trainer.receive(parts.collector.collect(0))
        parts.trainer.begin()
        parts.close()
        del parts


def test_a_child_that_is_forked_meanwhile_goes_on() -> None:
    expected, parts, of_child = (parts_of(SPREAD, 64, **{"network.normalize_observations": False}) for _ in range(3))
    expected.trainer.receive(expected.collector.collect(0))
    expected.trainer.advance()
    parts.trainer.receive(parts.collector.collect(0))
    of_child.trainer.receive(of_child.collector.collect(0))
    finish = parts.trainer.begin()
    child = os.fork()
    if child == 0:
        finish()  # of no use to the child, but it must not wait for a thread that it does not have
        of_child.trainer.advance()
        os._exit(0 if hashes(of_child) == hashes(expected) else 1)
    finish()
    assert os.waitpid(child, 0)[1] == 0
    assert hashes(parts) == hashes(expected)


def test_several_runs_in_threads_get_their_own_results() -> None:
    """They share the kernels' thread pool."""

    def learn() -> str:
        parts = parts_of(SPREAD, 64)
        for _ in range(4):
            parts.trainer.receive(parts.collector.collect(0))
            finish = parts.trainer.begin()
            parts.collector.collect(1)
            finish()
        return parameter_hash(parts.policies["agent"])

    expected, found = learn(), []
    threads = [threading.Thread(target=lambda: found.append(learn())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 3


def engine_of(path: Path, env: Any = "native:CartPole") -> LocalEngine:
    flags = {
        "algo": "ppo",
        "environment.num_envs": 2,
        "trainer.time_horizon": 32,
        "trainer.max_steps": 256,
        "trainer.summary_freq": 64,
        "evaluation.episodes": 0,
        "statistics.tensorboard": False,
    }
    settings = build_run_settings(env, None, flags, [])
    directory = RunDirectory(path)
    directory.create(settings)
    return LocalEngine(settings, directory)


def test_every_row_holds_the_update_of_its_step(tmp_path: Path) -> None:
    engine_of(tmp_path / "run").run(lambda _: {})
    columns = read_progress(tmp_path / "run" / "progress.csv")
    assert list(columns[STEP_COLUMN]) == [64, 128, 192, 256]
    assert all(steps == columns["value/gradient_steps"][0] > 0 for steps in columns["value/gradient_steps"])


def test_a_run_that_an_error_ends_has_the_row_of_its_last_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(tmp_path / "run")
    collector = engine._parts.collector
    collect, calls = collector.collect, []

    def fail_at_third(version: int, num_steps: int) -> Any:
        calls.append(version)
        if len(calls) == 3:
            raise OSError("the simulator went away")
        return collect(version, num_steps)

    monkeypatch.setattr(collector, "collect", fail_at_third)
    with pytest.raises(OSError, match="went away"):
        engine.run(lambda _: {})
    columns = read_progress(tmp_path / "run" / "progress.csv")
    assert list(columns[STEP_COLUMN]) == [64, 128]
    assert columns["value/gradient_steps"][1] > 0
