"""Lessons: when the next one begins, what is logged of it, and that nothing of it is lost when a run is killed."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import relayrl
from cli_in_process import relayrl as command
from relayrl.engines.lessons.curriculum import Curriculum
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.runtime.collector import EndedEpisodes

SMALL = {
    "environment.num_envs": 2,
    "network.hidden_sizes": (8,),
    "trainer.time_horizon": 16,
    "params.num_minibatches": 2,
    "params.train_pi_iters": 1,
    "params.train_vf_iters": 1,
    "statistics.tensorboard": False,
}


def settings_with(*criteria: dict, env: str = "native:rooms", name: str = "num_rooms", **flags) -> RunSettings:
    """One lesson for each of the criteria, and a last one; lesson k has the value k + 1."""
    lessons = [{"name": f"lesson{k}", "value": k + 1, "completion_criteria": each} for k, each in enumerate(criteria)]
    lessons.append({"name": "last", "value": len(criteria) + 1})
    parameters = {"environment_parameters": {name: {"curriculum": lessons}}}
    return build_run_settings(env, None, {**SMALL, **parameters, **flags}, [])


def ended(*returns: float, began_at: int = 0, group: str = "agent") -> EndedEpisodes:
    return EndedEpisodes(group_returns={group: list(returns)}, began_at=[began_at] * len(returns))


def test_reward_needs_enough_episodes_of_the_lesson_above_the_threshold():
    criteria = {"behavior": "agent", "threshold": 0.5, "min_lesson_length": 3, "signal_smoothing": False}
    lessons = Curriculum(settings_with(criteria, criteria), ["agent"])
    assert not lessons.advance(ended(1.0, 1.0), 10, 0.0, {})
    assert not lessons.advance(ended(0.0, 0.0), 20, 0.0, {})  # mean of the latest three: 1/3
    (begun,) = lessons.advance(ended(1.0, 1.0), 30, 0.0, {})
    assert (begun.parameter, begun.number, begun.lesson.value) == ("num_rooms", 1, 2)
    assert lessons.numbers == [1]
    # Episodes that began before step 30 were those of the lesson before.
    assert not lessons.advance(ended(1.0, 1.0, 1.0, began_at=29), 40, 0.0, {})
    assert lessons.advance(ended(1.0, 1.0, 1.0, began_at=30), 50, 0.0, {})
    assert lessons.is_final
    assert not lessons.advance(ended(1.0, began_at=60), 70, 1.0, {})


def test_smoothing_begins_with_the_first_measure():
    criteria = {"behavior": "agent", "threshold": -10.0}
    lessons = Curriculum(settings_with(criteria, criteria), ["agent"])
    assert not lessons.advance(ended(-12.0), 1, 0.0, {})  # from 0 it would be 0.75 × −12 = −9, above −10
    assert not lessons.advance(ended(-9.5), 2, 0.0, {})  # 0.25 × −12 + 0.75 × −9.5 = −10.125
    assert lessons.advance(ended(-9.5), 3, 0.0, {})  # 0.25 × −10.125 + 0.75 × −9.5 = −9.656
    assert not lessons.advance(ended(-10.1, began_at=3), 4, 0.0, {})  # nothing is left of the lesson before


def test_progress_and_elo_are_measured_by_name():
    progress = {"behavior": "agent", "measure": "progress", "threshold": 0.25}
    lessons = Curriculum(settings_with(progress), ["agent"])
    assert not lessons.advance(ended(), 1, 0.25, {})
    assert lessons.advance(ended(), 2, 0.26, {})
    elo = {"behavior": "agent", "measure": "Elo", "threshold": 1300, "signal_smoothing": False}
    with pytest.raises(ConfigError, match="self_play"):
        Curriculum(settings_with(elo), ["agent"])


def test_elo_is_the_metric_of_that_name():
    elo = {"behavior": "agent", "measure": "Elo", "threshold": 1300, "signal_smoothing": False}
    lessons = Curriculum(settings_with(elo, **{"self_play.window": 3}), ["agent"])
    assert not lessons.advance(ended(), 1, 0.0, {})  # not rated yet
    assert not lessons.advance(ended(), 2, 0.0, {"self_play/elo": 1300.0})
    assert lessons.advance(ended(), 3, 0.0, {"self_play/elo": 1301.0})


def test_behaviors_are_groups():
    criteria = {"behavior": "dog", "threshold": 0.5, "signal_smoothing": False}
    with pytest.raises(UnknownNameError, match="dog"):
        Curriculum(settings_with(criteria), ["cat", "mouse"])
    lessons = Curriculum(settings_with(criteria), ["cat", "dog"])
    assert not lessons.advance(ended(1.0, group="cat"), 1, 0.0, {})
    assert lessons.advance(ended(1.0, group="dog"), 2, 0.0, {})
    assert Curriculum(settings_with(criteria), ["agent"]).advance(ended(1.0), 1, 0.0, {})  # one group has one name


def test_a_curriculum_goes_on_from_its_state():
    criteria = {"behavior": "agent", "threshold": 0.5, "min_lesson_length": 2}
    settings = settings_with(criteria, criteria)
    one = Curriculum(settings, ["agent"])
    one.advance(ended(1.0, 1.0), 10, 0.0, {})
    one.advance(ended(0.2, 0.4, began_at=12), 20, 0.0, {})
    two = Curriculum(settings, ["agent"])
    two.load_state_dict(json.loads(json.dumps(one.state_dict(20))))
    assert two.numbers == one.numbers == [1]
    # The collector of a resumed run counts from 0 where the other counts from 20.
    assert one.advance(ended(0.9, began_at=9), 30, 0.0, {}) == two.advance(ended(0.9, began_at=-11), 10, 0.0, {}) == []
    assert one.advance(ended(0.8, 0.9, began_at=15), 40, 0.0, {}) == two.advance(
        ended(0.8, 0.9, began_at=-5), 20, 0.0, {}
    )


LESSONS = {
    "num_rooms": {
        "curriculum": [
            {
                "name": "one room",
                "value": 1,
                "completion_criteria": {"behavior": "Walker", "measure": "progress", "threshold": 0.4},
            },
            {"name": "two rooms", "value": 2},
        ]
    }
}


def test_a_change_of_lesson_is_told_everywhere(tmp_path):
    config = tmp_path / "run.yaml"
    run = {"env": "native:rooms", "environment": {"options": {"num_rooms": 2, "room_size": 2}, "num_envs": 2}}
    run |= {"environment_parameters": LESSONS, "evaluation": {"interval": 256, "episodes": 2, "interval_episodes": 4}}
    run |= {
        "trainer": {"max_steps": 1024, "time_horizon": 16, "summary_freq": 32},
        "statistics": {"tensorboard": False},
    }
    config.write_text(yaml.safe_dump(run))
    path = tmp_path / "run"
    done = command("train", "--config", str(config), "--run-dir", str(path))
    assert done.returncode == 0, done.stderr
    assert "num_rooms: lesson 2, 'two rooms', value 2" in done.stderr
    assert "num_rooms: lesson 2, 'two rooms', value 2" in (path / "run.log").read_text()
    with (path / "progress.csv").open(newline="") as file:
        rows = [(int(row["num_env_steps"]), row["curriculum/num_rooms/lesson"]) for row in csv.DictReader(file)]
    assert {lesson for steps, lesson in rows if steps < 410} == {"0.0"}
    assert {lesson for steps, lesson in rows if steps > 448} == {"1.0"}
    refused = command(
        "train", "--resume", "--run-dir", str(path), "--steps", "2048", "--set", "environment_parameters.num_rooms=1"
    )
    assert refused.returncode == 2
    assert "environment.parameters.num_rooms" in refused.stderr
    assert command("train", "--resume", "--run-dir", str(path), "--steps", "1280", "--quiet").returncode == 0
    assert "lesson 2" not in (path / "run.log").read_text().split("resumed at")[1]
    assert command("evaluate", str(path), "--episodes", "2").returncode == 0
    one = command(
        "evaluate", str(path), "--episodes", "9", "--stochastic", "--set", "environment_parameters.num_rooms=1"
    )
    assert "return 0.00" not in one.stdout  # one room of four cells is found by chance


def test_evaluations_play_the_current_lesson_and_targets_wait_for_the_last(tmp_path):
    """In one room a policy that knows nothing reaches a target of 0; the run goes on to the last lesson."""
    run = relayrl.train(
        "native:rooms",
        run_dir=tmp_path / "run",
        settings={
            **SMALL,
            "environment.options": {"num_rooms": 2, "room_size": 2},
            "environment_parameters": LESSONS,
            "trainer.max_steps": 1024,
            "evaluation.interval": 64,
            "evaluation.target_return": 0.0,
        },
    )
    assert run.result.reached_target
    assert 410 < run.result.num_env_steps <= 512


def test_a_training_server_refuses_parameters(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"env": "native:rooms", "environment_parameters": {"num_rooms": 1}}))
    done = command("serve", "training", "--config", str(config), "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "environment parameters" in done.stderr


JOINED = """
env: mpe2:simple_spread_v3
environment: {num_envs: 2, workers: 2}
network: {hidden_sizes: [8]}
params: {num_minibatches: 2, train_pi_iters: 1, train_vf_iters: 1}
trainer: {max_steps: 800, time_horizon: 10, checkpoint_interval: 20}
evaluation: {episodes: 2}
statistics: {tensorboard: false}
environment_parameters:
  local_ratio: {sampler_type: uniform, sampler_parameters: {min_value: 0.1, max_value: 0.9}}
  max_cycles:
    curriculum:
    - {name: short, value: 5, completion_criteria: {behavior: agent, measure: progress, threshold: 0.2, require_reset: true}}
    - {name: long, value: {sampler_type: gaussian, sampler_parameters: {mean: 12, st_dev: 2}}}
"""


def test_lessons_workers_and_records_survive_a_kill(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(JOINED)
    calm, fire = tmp_path / "calm", tmp_path / "fire"
    train = ["train", "--config", str(config), "--quiet", "--run-dir"]
    assert (
        command(*train, str(calm), "--record", f"arrow:{calm}/data", "--set", "environment.workers=0").returncode == 0
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "relayrl", *train, str(fire), "--record", f"arrow:{fire}/data"], cwd=tmp_path
    )
    try:
        _wait_for_lesson(fire / "run.log", child)
        os.kill(child.pid, signal.SIGKILL)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait(timeout=30)
    assert not (fire / "result.json").exists()
    assert command("train", "--resume", "--quiet", "--run-dir", str(fire)).returncode == 0
    results = [json.loads((path / "result.json").read_text()) for path in (calm, fire)]
    assert results[0]["parameter_hash"] == results[1]["parameter_hash"]
    assert results[0]["returns"] == results[1]["returns"]
    assert _steps(calm) == _steps(fire) == 800 * 3


def _wait_for_lesson(log: Path, child: subprocess.Popen) -> None:
    deadline_s = time.monotonic() + 50
    while time.monotonic() < deadline_s and child.poll() is None:
        if log.exists() and "saved" in log.read_text().partition("lesson 2")[2]:
            return
        time.sleep(0.01)
    raise AssertionError("the second lesson never began, or the run was over before it was seen")


def _steps(path: Path) -> int:
    with relayrl.open_source(f"arrow:{path}/data") as source:
        return sum(len(trajectory) for trajectory in source)
