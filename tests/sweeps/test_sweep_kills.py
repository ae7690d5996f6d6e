"""kill -9 of a trial and of the sweep itself: nothing is repeated or lost, and never do more run than may."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_trials import SHORT

import relayrl
from ray_clusters import ray_cluster
from waiting import wait_until

HERE = Path(__file__).parent
TIMEOUT_S = 250


@pytest.fixture
def gate(tmp_path, monkeypatch):
    folder = tmp_path / "gate"
    folder.mkdir()
    monkeypatch.setenv("GATE", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    return folder


def waiting(folder):
    """Processes that wait at the gate."""
    pids = [int(path.name.partition("-")[2]) for path in folder.glob("waits-*")]
    return sorted(pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in state_of(pid))


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone, or gone between opening and reading
        return "Z"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_kills_change_nothing(tmp_path, gate):
    settings = {**SHORT, "trainer": {"max_steps": 128, "time_horizon": 8, "checkpoint_interval": 32}}
    config = {
        "env": "CartPole-v1",
        "settings": {**settings, "schedules": {"pi_lr": "gated_parts:gated_rate"}},
        "seeds": [1],
        "grid": {"gamma": [0.9, 0.95]},
        "concurrency": 2,
    }
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [
        sys.executable,
        "-m",
        "relayrl",
        "sweep",
        str(file),
        "--sweep-dir",
        str(tmp_path / "s"),
        "--trust",
        "--json",
    ]
    started = []

    def start():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        started.append(process)
        return process

    try:
        first = start()
        wait_until(lambda: len(waiting(gate)) == 2)
        before = waiting(gate)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: before[0] not in waiting(gate))
        wait_until(lambda: len(waiting(gate)) == 2)  # it was started again
        orphans = waiting(gate)
        assert orphans != before
        first.kill()
        first.communicate(timeout=TIMEOUT_S)
        second = start()
        wait_until(lambda: len(list((tmp_path / "s" / "processes").glob(f"*-{second.pid}-*.lock"))) == 1)
        assert waiting(gate) == orphans  # they hold their run directories, and nobody else is let in
        (gate / "open").touch()
        out, err = second.communicate(timeout=TIMEOUT_S)
    finally:
        (gate / "open").touch()
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 0, err
    assert not (gate / "exceeded").exists()
    trials = json.loads(out.splitlines()[-1])["trials"]
    assert [trial["state"] for trial in trials] == ["done", "done"]
    flat = {f"{group}.{name}": value for group, own in settings.items() for name, value in own.items()}
    for trial in trials:
        log = Path(trial["run_dirs"]["1"], "run.log").read_text()
        assert "resumed at step 80" in log  # where the orphans were when their sweep was gone
        own = {**flat, "gamma": trial["settings"]["gamma"], "schedules.pi_lr": free_rate}
        calm = relayrl.train(
            "CartPole-v1", seed=1, run_dir=tmp_path / str(trial["trial"]), settings=own, progress=False
        )
        assert trial["stretches"][0]["parameter_hashes"]["1"] == calm.result.parameter_hash


def free_rate(share: float) -> float:
    return 1.0e-3


@pytest.mark.slow
def test_ctrl_c_lets_the_trials_save_what_they_have(tmp_path, gate):
    config = {
        "env": "CartPole-v1",
        "settings": {**SHORT, "schedules": {"pi_lr": "gated_parts:gated_rate"}},
        "concurrency": 1,
    }
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "relayrl", "sweep", str(file), "--sweep-dir", str(tmp_path / "s"), "--trust"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        wait_until(lambda: list(gate.glob("waits-*")))
        process.send_signal(signal.SIGINT)
        (gate / "open").touch()
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        (gate / "open").touch()
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "continue with:" in err
    assert list((tmp_path / "s" / "runs").glob("*/checkpoints/*.ckpt"))
    report = relayrl.sweep(file, sweep_dir=tmp_path / "s", progress=False, trust=True)
    assert report.best.num_env_steps == 64


@pytest.fixture
def cluster_without_cpus():
    with ray_cluster({"num_cpus": 0}) as (cluster, _):
        yield cluster


@pytest.mark.slow
def test_trials_run_on_a_ray_cluster_of_their_own(tmp_path, cluster_without_cpus):
    """Another cluster that runs on this machine may end at any moment; trials would wait here for its CPUs."""
    del cluster_without_cpus
    config = {"env": "CartPole-v1", "settings": SHORT, "seeds": [1, 2], "runner": "ray", "concurrency": 2}
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "relayrl", "sweep", str(file), "--sweep-dir", str(tmp_path / "s"), "--json"]
    own = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=TIMEOUT_S, env=own
    )
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout.splitlines()[-1])["trials"]
    flat = {f"{group}.{name}": value for group, settings in SHORT.items() for name, value in settings.items()}
    alone = relayrl.train("CartPole-v1", seed=2, run_dir=tmp_path / "alone", settings=flat, progress=False)
    assert trial["stretches"][0]["parameter_hashes"]["2"] == alone.result.parameter_hash
