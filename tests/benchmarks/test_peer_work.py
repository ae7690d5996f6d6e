"""The works, their targets and their jobs fit together, and every worker exists."""

import pytest
from environments import CONSTRAINTS, requirements
from jobs import JOBS, selected
from targets import ANY_TORCH, METRIC_NAMES, OURS, TARGETS, TORCH_PEERS
from work import WORKS, Task

WORKERS = CONSTRAINTS.parent / "workers"


@pytest.mark.parametrize("work", WORKS)
def test_every_work_has_a_target_and_somebody_to_meet_it(work):
    targets = [target for target in TARGETS if target.work == work]
    assert targets
    assert [job for job in JOBS if job.work == work and job.peer == OURS]
    for target in targets:
        peers = TORCH_PEERS if target.peer == ANY_TORCH else (target.peer,)
        rivals = [job for job in JOBS if job.work == target.compared_work and job.peer in peers]
        assert [job for job in rivals if target.peer_variant in (None, job.variant)]
        assert target.metric in METRIC_NAMES


def test_the_targets_are_those_of_the_issue():
    rates = {(t.work, t.variant, t.peer): t.at_least for t in TARGETS if t.metric == "env_steps_per_s"}
    assert rates["W1", None, "Stable-Baselines3"] == 5.0
    assert rates["W2", None, ANY_TORCH] == 3.0
    assert rates["W2k", None, "JAX, one program"] == 2.0
    assert rates["W4a", "ippo", "RLlib"] == 3.5
    assert rates["W4c", "mappo", "BenchMARL"] == 10.0
    assert rates["W5-sac", None, "Stable-Baselines3"] == 2.5
    others = {t.metric: t.at_least for t in TARGETS if t.metric != "env_steps_per_s"}
    assert others == {
        "seconds_to_threshold": 3.0,
        "seconds_to_first_update": 2.0,
        "training_peak_mib": 1.0,
        "process_peak_mib": 1.0,
    }


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_has_its_script_and_requirements_with_the_one_torch(job):
    assert (WORKERS / job.script).exists()
    if job.venv is not None:
        pins = requirements(job.venv).read_text().split()
        assert all("==" in pin for pin in pins)
        assert job.venv == "jax" or "torch==2.13.0" in pins
    assert CONSTRAINTS.read_text() == "torch==2.13.0\n"


def test_one_peer_comes_with_ours_beside_it():
    names = [job.name for job in selected("benchmarl/W4b/mappo")]
    ours = [f"RelayRL/{work}/{algo}" for work in ("W4b", "W4c") for algo in ("mappo", "ippo")]
    assert names == [*ours[:2], "BenchMARL/W4b/mappo", *ours[2:]]
    with pytest.raises(SystemExit, match="skrl/W1/sync"):
        selected("nobody")


def test_sizes_of_a_task():
    task = Task("W1", "CartPole-v1", threads=1, seed=0)
    assert (task.ppo.batch, task.ppo.minibatch, task.num_steps) == (1024, 256, 102_400)
    assert Task("W1", "", 1, 0, quick=True).num_steps == 25 * 1024
    assert Task("W5-td3", "", 1, 0, quick=True).num_steps == 1050 + 2950 // 4
    with pytest.raises(TypeError, match="W5-td3"):
        _ = Task("W5-td3", "", 1, 0).ppo
