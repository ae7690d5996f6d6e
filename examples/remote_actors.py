"""A training server and actors in processes of their own: the server is killed in between, and nothing is lost.

python examples/remote_actors.py [RUN_DIR]
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import relayrl

STEPS = 20_000


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "relayrl", *map(str, arguments)]


def main() -> None:
    base = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    quiet = ("--quiet", "--set", "evaluation.episodes=0")
    serve = command(
        "serve", "training", "CartPole-v1", "--bind", address, "--run-dir", base, "--steps", STEPS, "--resume", *quiet
    )
    play = command("actor", "CartPole-v1", "--server", address, "--num-envs", 4, "--spool-dir", base / "spool")
    play += ["--connect-timeout", "120", "--give-up-after", "120"]  # seconds; 60 and 600 unless told

    server = subprocess.Popen(serve)
    actors = [subprocess.Popen(play) for _ in range(2)]
    journal = base / "journal.index"
    while server.poll() is None and not (journal.exists() and journal.stat().st_size >= 1_000):
        time.sleep(0.05)
    server.send_signal(signal.SIGKILL)
    server.wait()

    subprocess.run(serve, check=True)  # the same command goes on where it was
    for actor in actors:
        actor.wait(timeout=150)
    with relayrl.open_source(f"arrow:{base / 'journal'}") as source:
        ids = [trajectory.trajectory_id for trajectory in source]
    assert len(ids) == len(set(ids))
    print(f"{len(ids)} trajectories, each once; {relayrl.load_run(base).result.num_env_steps} steps learned from")


if __name__ == "__main__":
    main()
