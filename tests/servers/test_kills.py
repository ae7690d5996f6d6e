"""Real processes and SIGKILL: nothing is lost, nothing is doubled, and everybody comes back by themselves."""

import random
import signal
import subprocess
import sys
import time

import pytest
from remote_parts import Program, expected_ids, free_port, serve, stored_ids

from relayrl.bench.servers.chaos_proxy import ChaosProxy, ChaosSettings
from waiting import wait_until


def _grows(path, program):
    """Whether a file has grown since this was called, or the program that makes it grow has ended."""
    before = path.stat().st_size
    return lambda: path.stat().st_size > before or not program.is_running


PRODUCER = "relayrl.bench.servers.trajectory_producer"


@pytest.fixture
def programs():
    """Starts programs, which are killed when the test ends."""
    started = []

    def start(make, *arguments, **options):
        started.append(make(*arguments, **options))
        return started[-1]

    yield start
    for program in started:
        program.kill()


def test_an_actor_never_loads_torch(tmp_path, programs):
    port = free_port()
    programs(serve, tmp_path / "run", port)
    code = (
        "import sys; from pathlib import Path; from relayrl.runtime.remote.remote_actor import run_remote_actor\n"
        f"where = {{'server': 'tcp://127.0.0.1:{port}', 'spool_base': Path({str(tmp_path)!r})}}\n"
        "report = run_remote_actor('CartPole-v1', **where, max_steps=600)\n"
        "print(report.num_env_steps >= 600, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.slow
def test_kill_either_side_and_everything_is_stored_once(tmp_path, programs):
    count, port = 400, free_port()
    run_dir, spool = tmp_path / "run", tmp_path / "spool"
    rng = random.Random(1)
    server = programs(serve, run_dir, port)
    with ChaosProxy(
        f"tcp://127.0.0.1:{port}",
        ChaosSettings(
            drop=0.01, duplicate=0.01, reorder=0.01, delay=0.05, reset=0.002, truncate=0.002, half_open=0.001
        ),
        seed=3,
    ) as proxy:
        producer = programs(Program, proxy.address, spool, count, module=PRODUCER)
        for victim in ("server", "producer", "server", "producer"):
            wait_until(lambda: (run_dir / "journal.index").exists())
            wait_until(_grows(run_dir / "journal.index", producer))
            time.sleep(rng.uniform(0.0, 0.1))
            if victim == "server":
                server.kill()
                server = programs(serve, run_dir, port)
            else:
                producer.kill()
                producer = programs(Program, proxy.address, spool, count, module=PRODUCER)
        assert producer.wait() == 0, producer.lines
    server.send(signal.SIGTERM)
    assert server.wait() == 130
    assert sorted(stored_ids(f"arrow:{run_dir / 'journal'}")) == sorted(expected_ids(spool, count))


@pytest.mark.slow
def test_four_actors_teach_a_server_cart_pole_though_it_is_killed(tmp_path, programs):
    port, run_dir = free_port(), tmp_path / "run"
    options = ("--set", "evaluation.interval=5000", "--set", "evaluation.target_return=475", "--json")
    server = programs(serve, run_dir, port, *options, steps=150_000)
    actors = [
        programs(
            Program, "actor", "CartPole-v1", "--server", f"tcp://127.0.0.1:{port}", "--spool-dir", tmp_path / "spool"
        )
        for _ in range(4)
    ]
    wait_until(lambda: len(list((run_dir / "checkpoints").glob("step_*.ckpt"))) > 1 or not server.is_running)
    server.kill()
    actors[0].kill()
    server = programs(serve, run_dir, port, *options, steps=150_000)
    assert server.wait() == 0, server.lines
    assert '"reached_target": true' in server.lines[-1]
    codes = {actor.wait(): actor.lines for actor in actors[1:]}
    # Who was between two tries to connect when the server reached its target finds nobody, and says so.
    assert 0 in codes
    assert set(codes) == {0} or "is a training server running there" in codes[1][-1], codes
