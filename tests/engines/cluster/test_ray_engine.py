"""The engine on a real Ray cluster of several nodes: the local engine's numbers, whatever is killed meanwhile.

One cluster for the module, on this machine: a head and nodes that come and go. CPUs are counted, not measured.
"""

import contextlib
import csv
import os
import signal
import subprocess
import sys

import psutil
import pytest

import relayrl
from cli_in_process import relayrl as command
from ray_clusters import MB, add_node, connected, ray_cluster
from relayrl.errors import EnvironmentFailedError, MissingExtraError
from waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's
SETTINGS = {
    "num_envs": 6,
    "time_horizon": 16,
    "summary_freq": 192,
    "checkpoint_interval": 384,
    "evaluation.episodes": 2,
    "network.hidden_sizes": [16],
    "lr_schedule": "constant",  # runs of different lengths are compared
    "tensorboard": False,
}
ON_RAY = {**SETTINGS, "engine": "ray", "workers": 2}
STEPS = 1920


@pytest.fixture(scope="module")
def cluster():
    with (
        ray_cluster({"num_cpus": 1, "resources": {"head": 1}}, [{"num_cpus": 1}]) as (made, _),
        connected(address=made.address),
    ):
        yield made


def train(path, algo="ppo", settings=ON_RAY, **arguments):
    arguments = {"steps": STEPS, "env": "CartPole-v1", **arguments}
    return relayrl.train(algo=algo, run_dir=path, settings=settings, progress=False, **arguments).result


def collector_processes():
    """Those of this cluster, whose nodes are children of this process."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            if "".join(each.cmdline()).startswith("ray::CollectorProcess"):
                found.append(each)
    return found


def at(steps, act):
    """A callback that acts once."""
    done = []

    def callback(run):
        if run.num_env_steps >= steps and not done:
            done.append(act())

    return callback


def test_collectors_and_nodes_that_are_lost_change_no_number(cluster, tmp_path, caplog):
    local = train(tmp_path / "local", settings=SETTINGS)
    removed = cluster.list_all_nodes()[-1]

    def lose_a_node():
        add_node(cluster, num_cpus=1)
        cluster.remove_node(removed)

    lose = [at(480, lambda: collector_processes()[0].kill()), at(960, lose_a_node)]
    on_ray = train(tmp_path / "ray", callbacks=lose)
    assert on_ray.parameter_hash == local.parameter_hash
    assert (on_ray.returns, on_ray.train_return) == (local.returns, local.train_return)
    assert caplog.text.count("is replaced") >= 2
    assert "begin new episodes" not in caplog.text
    wait_until(lambda: not collector_processes())


def test_an_asynchronous_run_goes_on_while_a_collector_is_lost(cluster, tmp_path, caplog):
    import ray

    settings = {**ON_RAY, "cluster.asynchronous": True}
    kill = at(480, lambda: collector_processes()[0].kill())
    result = train(tmp_path / "run", "impala", settings, callbacks=[kill], steps=20 * STEPS)
    assert result.num_env_steps >= 20 * STEPS
    assert caplog.text.count("is replaced") == 1
    assert "policy/lag_versions" in (tmp_path / "run" / "progress.csv").read_text().splitlines()[0]
    used = ray.cluster_resources()["object_store_memory"] - ray.available_resources().get("object_store_memory", 0)
    assert used < 100 * MB


def test_a_collector_that_keeps_dying_ends_the_run_with_its_environment_and_seed(cluster, tmp_path):
    settings = {**ON_RAY, "workers": 1, "environment.options.how": "exit", "cluster.max_replacements_per_minute": 1}
    with pytest.raises(EnvironmentFailedError, match=r"seed \d+.*environments 0 to 5 was lost.*1 replacements") as info:
        train(tmp_path / "run", env="relayrl.testing:Crashing", settings=settings)
    assert str(info.value.env_id) in str(info.value)


def test_an_environment_that_raises_ends_the_run_as_it_does_locally(cluster, tmp_path):
    settings = {**ON_RAY, "workers": 1}
    with pytest.raises(
        EnvironmentFailedError, match=r"(?s)seed \d+.*--- traceback of the environment.*in step"
    ) as info:
        train(tmp_path / "run", env="relayrl.testing:Crashing", settings=settings)
    assert info.value.step == 3


SHARDED = {
    "engine": "ray",
    "workers": 2,
    "cluster.replay": "sharded",
    "learning_starts": 96,
    "batch_size": 16,
    "update_interval": 96,
    "train_iters": 4,
}


SELF_PLAY = {"self_play.save_steps": 384, "self_play.swap_steps": 192, "self_play.window": 3}


@pytest.mark.parametrize(
    ("env", "algo", "settings", "whole"),
    [
        ("CartPole-v1", "ppo", {}, {}),
        ("Pendulum-v1", "sac", SHARDED, SHARDED),
        ("native:pong", "ppo", SELF_PLAY, SELF_PLAY),
    ],
    ids=["on policy", "sharded replay", "self-play"],
)
def test_a_driver_that_is_killed_resumes_and_its_collectors_end_with_it(env, algo, settings, whole, cluster, tmp_path):
    own = {key: value for key, value in SETTINGS.items() if algo == "ppo" or key != "lr_schedule"}
    undisturbed = train(tmp_path / "whole", algo, {**own, **whole}, env=env)
    sets = [f"--set={key}={value}" for key, value in {**own, **settings, "keep_checkpoints": 100_000}.items()]
    command = [
        sys.executable,
        "-m",
        "relayrl",
        "train",
        env,
        "--algo",
        algo,
        "--run-dir",
        str(tmp_path / "run"),
        "--quiet",
    ]
    command += [*sets, "--engine=ray", "--workers=2", f"--steps={STEPS * 1000}", f"--address={cluster.address}"]
    with open(tmp_path / "output", "w") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: len(list((tmp_path / "run").glob("checkpoints/step_*.ckpt"))) > 2 or driver.poll() is not None
        )
        assert driver.poll() is None, (tmp_path / "output").read_text()
    finally:
        driver.kill()
        driver.wait(DEADLINE_S)
    wait_until(lambda: not collector_processes())
    for late in (tmp_path / "run" / "checkpoints").glob("step_*.ckpt"):
        if int(late.stem.removeprefix("step_")) > STEPS // 2:
            late.unlink()  # a fast machine has come further than the run that it is compared with
    resumed = relayrl.train(
        run_dir=tmp_path / "run", resume=True, settings={"max_steps": STEPS}, progress=False, trust=True
    ).result
    assert resumed.parameter_hash == undisturbed.parameter_hash
    if "self_play.window" in settings:
        assert ladder(tmp_path / "run") == ladder(tmp_path / "whole")


def ladder(path):
    return command("ladder", str(path), "--json").stdout


def test_games_against_snapshots_are_the_local_ones_whoever_is_lost(cluster, tmp_path, caplog):
    local = train(tmp_path / "local", settings={**SETTINGS, **SELF_PLAY}, env="native:simple_tag")
    kill = at(960, lambda: collector_processes()[0].kill())
    settings = {**ON_RAY, **SELF_PLAY}
    on_ray = train(tmp_path / "ray", settings=settings, env="native:simple_tag", callbacks=[kill])
    assert caplog.text.count("is replaced") == 1
    assert on_ray.parameter_hash == local.parameter_hash
    assert ladder(tmp_path / "ray") == ladder(tmp_path / "local")


def test_a_lost_shard_of_the_replay_begins_empty_and_the_run_goes_on(cluster, tmp_path, caplog):
    own = {key: value for key, value in SETTINGS.items() if key != "lr_schedule"}
    kill = at(960, lambda: collector_processes()[0].kill())
    result = train(tmp_path / "run", "sac", {**own, **SHARDED, "summary_freq": 96}, env="Pendulum-v1", callbacks=[kill])
    assert result.num_env_steps == STEPS
    assert caplog.text.count("its shard of the replay is lost, and begins empty") == 1
    with open(tmp_path / "run" / "progress.csv") as file:
        sizes = {int(row["num_env_steps"]): float(row["replay/size"]) for row in csv.DictReader(file)}
    assert sizes[960] == 960
    assert sizes[STEPS] == STEPS - 480  # of six environments, three had taken 160 steps each when theirs was lost


def test_without_ray_only_its_engine_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"the engine ray needs .* pip install 'relayrl\[ray\]'"):
        train(tmp_path / "run")
    assert train(tmp_path / "local", settings=SETTINGS, steps=192).num_env_steps == 192


@pytest.mark.slow
def test_a_cluster_of_the_run_is_on_loopback_and_ctrl_c_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "relayrl", "train", "CartPole-v1", "--run-dir", str(tmp_path / "run"), "--quiet"]
    command += ["--engine=ray", "--workers=1", "--steps=100000000", "--set=cluster.object_store_mb=100"]
    with open(tmp_path / "output", "w") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    started = [psutil.Process(driver.pid)]
    try:
        wait_until(lambda: any((tmp_path / "run").glob("checkpoints/step_*.ckpt")) or driver.poll() is not None)
        assert driver.poll() is None, (tmp_path / "output").read_text()
        started += started[0].children(recursive=True)
        listening = {
            connection.laddr.ip
            for process in started
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        assert driver.wait(DEADLINE_S) == 130
        wait_until(lambda: all(not each.is_running() or each.status() == "zombie" for each in started))
    finally:
        for process in started:
            if process.is_running():
                process.kill()
        driver.wait(DEADLINE_S)
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert "continue with" in (tmp_path / "output").read_text()
