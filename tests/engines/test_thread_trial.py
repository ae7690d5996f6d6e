"""`threads=0`: the number is measured before the run, told, and kept."""

import pytest

from relayrl.engines import thread_trial
from relayrl.engines.sessions import TrainRequest, open_session
from relayrl.engines.settings.run_settings import build_run_settings


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({1: 100.0}, 1),
        ({1: 100.0, 2: 105.0}, 1),
        ({1: 100.0, 2: 150.0}, 2),
        ({1: 100.0, 2: 150.0, 4: 160.0}, 2),
        ({1: 100.0, 2: 80.0, 4: 130.0}, 4),
    ],
)
def test_more_threads_are_taken_only_where_they_pay(rates, chosen):
    assert thread_trial.fewest_fast_threads(rates) == chosen


@pytest.mark.parametrize(
    ("cores", "rates", "tried"),
    [
        (1, {1: 100.0}, [1]),
        (6, {1: 100.0, 2: 150.0, 4: 200.0, 6: 250.0}, [1, 2, 4, 6]),
        (64, {1: 100.0, 2: 80.0, 4: 60.0}, [1, 2, 4]),
        (64, {1: 100.0, 2: 150.0, 4: 150.0, 8: 140.0}, [1, 2, 4, 8]),
    ],
)
def test_numbers_are_tried_up_to_the_cores_and_not_for_long_where_more_are_not_faster(cores, rates, tried, monkeypatch):
    monkeypatch.setattr(thread_trial, "num_cores", lambda: cores)
    monkeypatch.setattr(thread_trial, "trial_settings", lambda settings: settings)
    monkeypatch.setattr(thread_trial, "steps_per_s", lambda trial: rates[trial.threads])
    settings = build_run_settings("native:CartPole", None, {}, [])
    assert list(thread_trial.measured_rates(settings)) == tried


@pytest.mark.parametrize(("env", "algo"), [("native:CartPole", "ppo"), ("native:Pendulum", "td3")])
def test_the_number_is_measured_on_the_run_itself_told_and_kept(env, algo, tmp_path, monkeypatch):
    monkeypatch.setattr(thread_trial, "SECONDS", 0.05)
    monkeypatch.setattr(thread_trial, "num_cores", lambda: 2)
    request = TrainRequest(env, tmp_path / "run", flags={"algo": algo, "threads": 0, "environment.num_envs": 4})
    session = open_session(request)
    session.directory.release()
    assert session.settings.threads in {1, 2}
    assert session.directory.settings().threads == session.settings.threads
    note = session.notes[-1]
    assert note.startswith(f"threads={session.settings.threads}: ")
    assert "steps/s with 1, " in note
    assert note.endswith("steps/s with 2")


def test_trials_neither_record_nor_evaluate_and_begin_to_learn_soon(tmp_path):
    flags = {"algo": "sac", "record": f"arrow:{tmp_path}/records", "evaluation.interval": 10}
    settings = build_run_settings("native:Pendulum", None, flags, [])
    trial = thread_trial.trial_settings(settings)
    assert trial.record is None
    assert trial.evaluation.interval is None
    assert trial.params.learning_starts <= thread_trial.RANDOM_STEPS
