"""The record of a run that was killed and resumed holds each of its steps once, as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from relayrl.data.trees import leaves
from relayrl.engines.local import run_recorder
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import Progress, RunInterrupted
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.sinks.contract import open_source
from waiting import wait_until

Place = Callable[[str], str]
FORK = multiprocessing.get_context("fork")
QUICK = {
    "environment.num_envs": 2,
    "network.hidden_sizes": (8,),
    "trainer.checkpoint_interval": 128,
    "evaluation.episodes": 0,
    "statistics.tensorboard": False,
}
PPO = QUICK | {
    "algo": "ppo",
    "trainer.max_steps": 480,
    "trainer.time_horizon": 8,
    "params.num_minibatches": 1,
    "params.train_pi_iters": 1,
    "params.train_vf_iters": 1,
}
TD3 = QUICK | {
    "algo": "td3",
    "trainer.max_steps": 480,
    "params.batch_size": 8,
    "params.buffer_size": 500,
    "params.learning_starts": 40,
    "params.update_interval": 2,
    "params.train_iters": 1,
}
SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole-v1": ("CartPole-v1", PPO),
    "in a worker": ("CartPole-v1", PPO | {"environment.workers": 1}),
    "several groups": ("mpe2:simple_adversary_v3", PPO | {"trainer.max_steps": 320}),
    "blocks of two steps": ("Pendulum-v1", TD3),
    "players in turn": ("turn_games:Standoff", PPO | {"trainer.time_horizon": 7}),
}
Row = tuple[str, int, int, bytes, bytes, float, int, bool]


@pytest.fixture(autouse=True)
def _soon_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is written, and flushed where sinks append, after a few steps: far ahead of checkpoints."""
    monkeypatch.setattr(run_recorder, "RECORDED_STEPS", 20)
    monkeypatch.setattr(run_recorder, "DURABLE_ROWS", 1)


def settings_of(case: tuple[str, dict[str, Any]], url: str, **changes: Any) -> RunSettings:
    env, flags = case
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return build_run_settings(env, None, flags | {"record": url} | changes, [])


class CrashError(Exception):
    """Nobody handles it: nothing is saved."""


def train(settings: RunSettings, path: Path, on_progress: Callable[[Progress], None] = lambda _: None) -> None:
    directory = RunDirectory(path)
    resumes = directory.config.exists()
    if not resumes:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    if resumes:
        engine.resume()
    engine.run(on_progress)


def crash_at(step: int) -> Callable[[Progress], None]:
    def crash(progress: Progress) -> None:
        if progress.num_env_steps >= step:
            raise CrashError

    return crash


def train_with_crashes(settings: RunSettings, path: Path, *steps: int) -> None:
    """A crash closes the recorder: everything up to it is durable, and the last checkpoint lies before it."""
    for step in steps:
        with pytest.raises(CrashError):
            train(settings, path, crash_at(step))
    train(settings, path)


def envs_in(url: str) -> Counter[tuple[Row, ...]]:
    """The rows of each environment, sorted; environments have random ids, so that they are compared by what happened in
    them."""
    rows: dict[Any, list[Row]] = {}
    with open_source(url) as source:
        for each in source:
            obs, action = (next(leaf for _, leaf in leaves(tree)) for tree in (each.obs, each.action))
            rows.setdefault(each.env_id, []).extend(
                (
                    *(each.agent_id, each.episode, int(each.steps[i]), obs[i].tobytes(), action[i].tobytes()),
                    *(float(each.reward[i]), int(each.policy_version[i])),
                    i == len(each) - 1 and (each.terminated or each.truncated),
                )
                for i in range(len(each))
            )
    return Counter(tuple(sorted(env)) for env in rows.values())


def raw_steps(url: str) -> int:
    """Every row that is stored, copies and abandoned ones included."""
    with open_source(url, with_abandoned=True) as source:
        num_steps = source.count().num_steps
        assert source.report.num_duplicates == 0
    return num_steps


def _killed_at(settings: RunSettings, path: Path, step: int, *, durable_steps: int = 0) -> None:
    """Train until `step`, and until so many steps are durable: with more than 128, some lie behind the checkpoint."""

    def kill(progress: Progress) -> None:
        if progress.num_env_steps >= step:
            if durable_steps:
                wait_until(lambda: raw_steps(str(settings.record)) >= durable_steps)
            os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=train, args=(settings, path, kill))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "case"),
    [*((kind, "CartPole-v1") for kind in ("arrow", "sqlite", "postgresql")), ("arrow", "players in turn")],
)
def test_kill_9_and_resume_record_each_step_once(kind: str, case: str, place: Place, tmp_path: Path) -> None:
    calm, fire = place(kind), place(kind)
    train(settings_of(SAVED[case], calm), tmp_path / "calm")
    settings = settings_of(SAVED[case], fire)
    for step in (16, 240, 208, 464):
        _killed_at(settings, tmp_path / "fire", step)
    train(settings, tmp_path / "fire")
    assert envs_in(fire) == envs_in(calm)
    assert raw_steps(fire) == 480


@pytest.mark.parametrize("kind", ["arrow", "sqlite"])
def test_kill_9_where_environments_cannot_be_saved_marks_what_was_taken_back(
    kind: str, place: Place, tmp_path: Path
) -> None:
    url = place(kind)
    settings = settings_of(("FrozenLake-v1", PPO), url)
    for step, durable_steps in ((112, 48), (240, 160), (240, 160)):
        _killed_at(settings, tmp_path / "run", step, durable_steps=durable_steps)
    train(settings, tmp_path / "run")
    with open_source(url) as source:
        assert source.count().num_steps == 480
        assert source.report.num_abandoned > 0
    assert raw_steps(url) > 480
    for steps in steps_of_episodes(url).values():
        assert steps == list(range(len(steps)))


def steps_of_episodes(url: str) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    with open_source(url) as source:
        for each in source:
            steps = found.setdefault((str(each.env_id), each.episode), [])
            steps.extend(range(each.first_step, each.first_step + len(each)))
    return {episode: sorted(steps) for episode, steps in found.items()}


@pytest.mark.parametrize("case", SAVED)
def test_each_step_is_recorded_once_whatever_is_collected(case: str, place: Place, tmp_path: Path) -> None:
    calm, fire = place("arrow"), place("arrow")
    train(settings_of(SAVED[case], calm), tmp_path / "calm")
    train_with_crashes(settings_of(SAVED[case], fire), tmp_path / "fire", 240, 208)
    assert envs_in(fire) == envs_in(calm)


@pytest.mark.parametrize("kind", ["parquet", "csv", "memory"])
def test_each_step_is_recorded_once_in_every_kind_of_sink(kind: str, place: Place, tmp_path: Path) -> None:
    calm, fire = place(kind), place(kind)
    train(settings_of(SAVED["CartPole-v1"], calm), tmp_path / "calm")
    train_with_crashes(settings_of(SAVED["CartPole-v1"], fire), tmp_path / "fire", 240, 208)
    assert envs_in(fire) == envs_in(calm)


@pytest.mark.parametrize("kind", ["arrow", "sqlite"])
def test_a_stop_amid_steps_that_are_recorded_already_cuts_them_elsewhere_and_loses_none(
    kind: str, place: Place, tmp_path: Path
) -> None:
    calm, fire = place(kind), place(kind)
    train(settings_of(SAVED["CartPole-v1"], calm), tmp_path / "calm")
    settings = settings_of(SAVED["CartPole-v1"], fire)
    with pytest.raises(CrashError):
        train(settings, tmp_path / "fire", crash_at(240))
    engine = LocalEngine(settings, RunDirectory(tmp_path / "fire"), tensorboard=False)
    assert engine.resume()
    reached: list[int] = []
    with pytest.raises(RunInterrupted):  # saved amid a trajectory of the record
        engine.run(lambda progress: reached.append(progress.num_env_steps), lambda: reached[-1] >= 192)
    train_with_crashes(settings, tmp_path / "fire", 208)
    assert envs_in(fire) == envs_in(calm)


@pytest.mark.parametrize(
    "changes", [{"params__gamma": 0.5}, {"trainer__threaded": True}, {"trainer__checkpoint_interval": 48}]
)
def test_a_run_that_goes_on_otherwise_takes_back_what_it_had_recorded(
    changes: dict[str, Any], place: Place, tmp_path: Path
) -> None:
    url = place("arrow")
    with pytest.raises(CrashError):
        train(settings_of(SAVED["CartPole-v1"], url), tmp_path / "run", crash_at(240))
    changed = settings_of(SAVED["CartPole-v1"], url, **changes)
    train_with_crashes(changed, tmp_path / "run", 400)
    with open_source(url) as source:
        assert source.count().num_steps == 480
    for steps in steps_of_episodes(url).values():
        assert steps == list(range(len(steps)))


def test_what_was_recorded_beyond_an_earlier_end_is_taken_back(place: Place, tmp_path: Path) -> None:
    url = place("arrow")
    with pytest.raises(CrashError):
        train(settings_of(SAVED["CartPole-v1"], url), tmp_path / "run", crash_at(240))
    train(settings_of(SAVED["CartPole-v1"], url, trainer__max_steps=192), tmp_path / "run")
    with open_source(url) as source:
        assert source.count().num_steps == 192
    calm = place("arrow")
    train(settings_of(SAVED["CartPole-v1"], url), tmp_path / "run")
    train(settings_of(SAVED["CartPole-v1"], calm), tmp_path / "calm")
    assert envs_in(url) == envs_in(calm)


def test_a_damaged_checkpoint_records_no_step_twice(place: Place, tmp_path: Path) -> None:
    calm, fire = place("arrow"), place("arrow")
    train(settings_of(SAVED["CartPole-v1"], calm), tmp_path / "calm")
    settings = settings_of(SAVED["CartPole-v1"], fire)
    with pytest.raises(CrashError):
        train(settings, tmp_path / "fire", crash_at(304))
    newest = max((tmp_path / "fire" / "checkpoints").glob("step_*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-1])
    train(settings, tmp_path / "fire")
    assert envs_in(fire) == envs_in(calm)
    assert raw_steps(fire) == 480


def test_ids_of_envs_are_part_of_the_checkpoint(place: Place, tmp_path: Path) -> None:
    url = place("arrow")
    train_with_crashes(settings_of(("FrozenLake-v1", PPO), url), tmp_path / "run", 240, 400)
    with open_source(url) as source:
        trajectories = list(source)
    assert len({each.env_id for each in trajectories}) == 2
    assert len({each.trajectory_id for each in trajectories}) == len(trajectories)
    for before, after in pairwise(sorted({each.episode for each in trajectories})):
        assert after == before + 1
