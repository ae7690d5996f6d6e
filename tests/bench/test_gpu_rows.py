"""`relayrl bench gpu`: what its works are, that each runs on the CPU at a tiny size, and what rows say of what fails."""

import importlib.util
import json
from types import SimpleNamespace

import pytest

from cli_in_process import relayrl
from relayrl.bench.gpu import gpu_rows, gpu_worker
from relayrl.bench.gpu.gpu_rows import Bench, MeasurementError, measured
from relayrl.bench.gpu.gpu_works import STARTUP, WORKS, Program
from relayrl.engines.device.recurrent_learner import RecurrentLearner
from relayrl.engines.device.resident_run import build_resident
from relayrl.engines.settings.run_settings import build_run_settings

AFTER_THE_FIRST = ("second update, captured", "third update")
TINY = Bench("cpu", 1, 250.0, is_tiny=True, environ={"OMP_NUM_THREADS": "1"})


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(gpu_rows, "has_cuda", lambda: False)


def test_without_cuda_there_are_no_rows(no_cuda):
    done = relayrl("bench", "gpu", "--only", "cartpole_large", "--json")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], json.loads(lines[-1])) == (0, "no CUDA device", {"rows": []})


def test_rows_have_names(no_cuda):
    done = relayrl("bench", "gpu", "--only", "cartpole_larg")
    assert done.returncode == 2
    assert "cartpole_large" in done.complaint


def test_only_gpu_has_rows_to_choose_from():
    done = relayrl("bench", "codec", "--only", "cartpole_large")
    assert done.returncode == 2
    assert "relayrl bench gpu" in done.complaint


@pytest.mark.parametrize("name", WORKS)
def test_settings_of_a_work_are_settings_of_a_run(name):
    work = WORKS[name]
    given = {"algo": work.algo, "trainer.max_steps": work.num_steps, "environment.num_envs": work.num_envs}
    settings = build_run_settings(work.env, None, given, list(work.run_settings("cpu").items()))
    params = settings.params.model_dump()
    if work.peer is None:
        assert (params["batch_size"], settings.environment.num_envs) == (32_768, 4_096)
        assert params["learning_starts"] < work.num_warm_up_steps < work.on_cpu().num_steps
    else:
        assert (params["train_pi_iters"], params["train_vf_iters"], params["num_minibatches"]) == (4, 4, 4)
        assert settings.trainer.time_horizon == work.rollout
        # Generic settings normalise where nothing is said.
        assert not work.settings["params.normalize_returns"]
        assert not work.settings["network.normalize_observations"]
    assert work.num_iterations > work.num_warm_up
    there = work.run_settings("cuda")
    assert (there["device"], there["tf32"]) == ("cuda", name != "cartpole_float32")


def test_targets_are_those_of_the_table():
    assert {name: work.target for name, work in WORKS.items()} == {
        "cartpole_large": 4.0,
        "cartpole_float32": 1.3,
        "cartpole_small": 4.0,
        "cartpole_medium": 4.0,
        "ippo_spread": 3.0,
        "mappo_rnn_spread": 10.0,
        "td3_pendulum": 20.0,
        "sac_pendulum": 20.0,
        "cnn": 2.0,
        "wide": 2.0,
    }


def test_the_recurrent_row_stays_on_its_device():
    work = WORKS["mappo_rnn_spread"].tiny()
    given = {"algo": work.algo, "trainer.max_steps": work.num_steps, "environment.num_envs": work.num_envs}
    parts = build_resident(build_run_settings(work.env, None, given, list(work.run_settings("cpu:0").items())))
    (learner,), (rollout,) = parts.resident_learners.values(), parts.collector.rollouts.values()
    assert type(learner) is RecurrentLearner
    # A minibatch's loop has the rollout's length, as the program's scan has.
    assert rollout.memory.sequence_length == work.rollout == 128


def bench_that(answers):
    """Measurements that are given instead of taken."""

    class Given(Bench):
        def _figures(self, words):
            return answers(words)

    return Given("cpu", 1)


def failing(words):
    raise MeasurementError("took longer than 5 s")


def test_a_row_is_ours_beside_the_program():
    bench = bench_that(lambda words: {"env_steps_per_s": 6.0 if "-m" in words else 2.0, "mean_return": None})
    (row,) = measured("wide", bench)
    assert (row.figure, row.against, row.against_figure, row.ratio) == (6.0, "torch_ppo_continuous.py", 2.0, 3.0)
    assert row.passed


def test_a_run_of_ours_that_fails_misses_its_target():
    (row,) = measured("wide", bench_that(failing))
    assert "took longer than 5 s" in row.name
    assert row.passed is False


def test_a_program_that_fails_is_said_and_compared_with_nothing():
    bench = bench_that(lambda words: {"env_steps_per_s": 6.0, "mean_return": 1.0} if "-m" in words else failing(words))
    (row,) = measured("wide", bench)
    assert row.against == "torch_ppo_continuous.py: took longer than 5 s"
    assert row.passed is None


def test_programs_that_are_missing_are_said(monkeypatch, tmp_path):
    with pytest.raises(MeasurementError, match="nothing is not installed"):
        TINY.program(Program("nothing_ppo.py"))
    monkeypatch.setattr(gpu_rows, "PROGRAMS", tmp_path / "nowhere")
    with pytest.raises(MeasurementError, match="in the repository"):
        TINY.program(Program("torch_ppo_image.py"))


def test_the_clock_leaves_the_warm_up_out(monkeypatch):
    times = iter([10.0, 14.0])
    monkeypatch.setattr(gpu_worker.time, "perf_counter", lambda: next(times))
    clock = gpu_worker.UpdateClock(200, "cpu")
    for num_env_steps in (100, 200, 300, 400):
        clock(SimpleNamespace(num_env_steps=num_env_steps, max_steps=400, policy_version=num_env_steps // 200))
    assert clock.env_steps_per_s == (400 - 200) / (14.0 - 10.0)
    assert clock.first_update_s > 0


def test_a_run_without_timed_updates_has_no_rate():
    with pytest.raises(RuntimeError, match="too few updates"):
        _ = gpu_worker.UpdateClock(200, "cpu").env_steps_per_s


def test_phases_of_the_start_add_up_to_the_first_update():
    figures = TINY.ours(STARTUP, "cpu", 1)
    phases = figures["phases_s"]
    assert phases["import torch"] > 0.1
    assert phases["compilation"] == 0.0
    until_first = [seconds for name, seconds in phases.items() if name not in AFTER_THE_FIRST]
    assert sum(until_first) == pytest.approx(figures["seconds_to_first_update"], abs=0.05)
    assert all(phases[name] >= 0.0 for name in AFTER_THE_FIRST)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole_small", "td3_pendulum", "wide", STARTUP])
def test_a_row_runs_on_the_cpu_at_a_tiny_size(name):
    rows = measured(name, TINY)
    assert rows[0].figure > 0
    is_compared = name in ("td3_pendulum", "wide") or importlib.util.find_spec("jax") is not None
    assert (rows[-1].ratio is not None) == is_compared, rows[-1].against
