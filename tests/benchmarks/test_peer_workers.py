"""Our own worker does the work that it is given; the JAX program's CartPole is Gymnasium's; failures are told."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import relayrl_worker
from cart_pole_equations import MAX_STEPS, advance, has_fallen
from jobs import JOBS, OWN_CHOICE
from relayrl_worker import settings_of
from targets import OURS
from work import WORKS, Task
from worker_process import WorkerError, run_worker

from relayrl.engines.settings.run_settings import build_run_settings

OUR_WORKER = Path(relayrl_worker.__file__)


@pytest.mark.parametrize("job", [job for job in JOBS if job.peer == OURS], ids=lambda job: job.name)
def test_our_settings_are_the_work(job):
    env, flags = settings_of(Task(job.work, job.variant, OWN_CHOICE, seed=3))
    settings = build_run_settings(env, None, flags, [])
    assert settings.seed == 3
    assert settings.environment.num_envs == WORKS[job.work].num_envs
    if job.work.startswith("W5"):
        assert settings.algo == job.work.removeprefix("W5-")
        assert settings.network.hidden_sizes == (256, 256)
        params = settings.params.model_dump()
        assert (params["batch_size"], params["update_interval"], params["train_iters"]) == (256, 1, 1)
    elif job.work != "W3":
        params = settings.params.model_dump()
        assert (params["train_pi_iters"], params["train_vf_iters"], params["num_minibatches"]) == (4, 4, 4)
        assert settings.network.hidden_sizes == WORKS[job.work].layers
        assert settings.trainer.time_horizon == WORKS[job.work].rollout


@pytest.mark.slow
def test_our_worker_reports_what_it_did():
    figures = run_worker(None, OUR_WORKER, Task("W4c", "ippo", 1, seed=0, quick=True))
    assert figures["num_env_steps"] == 4 * 8192
    assert figures["timed_steps"] == 3 * 8192
    assert figures["env_steps_per_s"] == pytest.approx(figures["timed_steps"] / figures["timed_seconds"])
    assert 0 < figures["seconds_to_first_update"] < figures["process_seconds"]
    assert 50 < figures["training_peak_mib"] <= figures["process_peak_mib"]
    assert figures["mean_return"] < 0


def test_a_worker_that_fails_says_why_without_folders(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise ValueError('no such file: /home/somebody/data.bin')")
    with pytest.raises(WorkerError, match=r"^ValueError: no such file: data\.bin$"):
        run_worker(None, script, Task("W1", "", 1, seed=0))


def test_a_progress_bar_does_not_hide_the_result(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        "import sys\nfrom measuring import report\n"
        "sys.stderr.write('50%')\nsys.stderr.flush()\nreport('1.0', {'env_steps_per_s': 5.0}, mean_return=None)\n"
    )
    (tmp_path / "measuring.py").write_text((OUR_WORKER.parents[1] / "measuring.py").read_text())
    (tmp_path / "work.py").write_text((OUR_WORKER.parents[1] / "work.py").read_text())
    figures = run_worker(None, script, Task("W1", "", 1, seed=0))
    assert (figures["version"], figures["env_steps_per_s"], figures["mean_return"]) == ("1.0", 5.0, None)


def test_cart_pole_equations_are_gymnasiums():
    env = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(0)
    ends = 0
    state, _ = env.reset(seed=0)
    state = np.asarray(env.unwrapped.state)
    for _ in range(400):
        action = int(rng.integers(2))
        _, _, terminated, _, _ = env.step(action)
        ours = advance(np, state[None], np.array([action]))
        np.testing.assert_allclose(ours[0], env.unwrapped.state, rtol=0, atol=1e-12)
        assert bool(has_fallen(np, ours)[0]) == terminated
        state = ours[0]
        if terminated:
            ends += 1
            env.reset()
            state = np.asarray(env.unwrapped.state)
    assert ends > 5
    assert env.spec.max_episode_steps == MAX_STEPS
