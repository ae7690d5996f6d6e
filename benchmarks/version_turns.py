"""Two versions of RelayRL on the same work, in turns of 0.3 s: how much faster this one is than another checkout.

    git worktree add ../before COMMIT && (cd ../before && python setup.py build_ext --inplace)
    python benchmarks/version_turns.py ../before --rows W1,td3 --threads 1,2

Both train from the same seed. Signals stop one while the other runs, so that whatever else the machine does meets both alike:
ratios repeat within a few percent where those of whole runs, one after the other, differ by 20. Equal parameter hashes say
that both did the same work to the last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import relayrl

SLICE_S, LIMIT_S = 0.3, 300.0
HERE = Path(__file__).parent.parent
FOUR_PASSES = {"params.num_minibatches": 4, "params.train_pi_iters": 4, "params.train_vf_iters": 4}
ROLLOUTS, LARGE_ROLLOUTS = {**FOUR_PASSES, "trainer.time_horizon": 128}, {**FOUR_PASSES, "trainer.time_horizon": 32}
REPLAY = {"params.learning_starts": 500, "params.batch_size": 256, "network.hidden_sizes": [256, 256]}
ROWS: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "W1": ("CartPole-v1", "ppo", 8, 600_000, ROLLOUTS),
    "native": ("native:CartPole", "ppo", 8, 1_500_000, ROLLOUTS),
    "W2": ("CartPole-v1", "ppo", 64, 3_000_000, ROLLOUTS),
    "W2k": ("native:CartPole", "ppo", 1_024, 9_000_000, LARGE_ROLLOUTS),
    "W4": ("native:simple_spread", "mappo", 64, 600_000, {}),
    "W6a": ("Acrobot-v1", "ppo", 8, 80_000, {**ROLLOUTS, "network.hidden_sizes": [256, 256, 256]}),
    "td3": ("Pendulum-v1", "td3", 1, 4_000, REPLAY),
    "ddpg": ("Pendulum-v1", "ddpg", 1, 4_000, REPLAY),
    "sac": ("Pendulum-v1", "sac", 1, 3_000, REPLAY),
}


def train(row: str, threads: int, share: float, seed: int) -> str:
    env, algo, num_envs, steps, settings = ROWS[row]
    settings = {**settings, "threads": threads, "evaluation.episodes": 0, "statistics.tensorboard": False}
    with tempfile.TemporaryDirectory() as folder:
        run = relayrl.train(
            env,
            algo=algo,
            steps=int(steps * share),
            seed=seed,
            num_envs=num_envs,
            run_dir=Path(folder) / "run",
            settings=settings,
            progress=False,
        )
        return str(run.result.parameter_hash)


def work(row: str, threads: int) -> None:
    """One version's side: warms up, waits for a line, trains."""
    train(row, threads, 0.05, seed=1)
    print("ready", flush=True)
    sys.stdin.readline()
    print("done", train(row, threads, 1.0, seed=2), flush=True)


def start(checkout: Path, row: str, threads: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(checkout), "--work", row, "--threads", str(threads)]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        if process.poll() is not None:
            raise SystemExit(f"{checkout}: ended before its work began")
    process.send_signal(signal.SIGSTOP)
    process.stdin.write("\n")
    process.stdin.flush()
    return process


def let_run(process: subprocess.Popen[str]) -> tuple[float, str]:
    """Seconds of a turn, and the hash where it was the last one."""
    assert process.stdout is not None
    began = time.perf_counter()
    process.send_signal(signal.SIGCONT)
    ready, _, _ = select.select([process.stdout], [], [], SLICE_S)
    found = process.stdout.readline().split()[-1] if ready else ""
    if not found:
        process.send_signal(signal.SIGSTOP)
    return time.perf_counter() - began, found


def compare(before: Path, row: str, threads: int) -> dict[str, Any]:
    sides = {name: start(checkout, row, threads) for name, checkout in (("before", before), ("now", HERE))}
    seconds, hashes = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, "")
    try:
        names, began = list(sides), time.monotonic()
        while not all(hashes.values()):
            if time.monotonic() - began > LIMIT_S:
                raise SystemExit(f"{row}: not done after {LIMIT_S:.0f} s")
            for name in names:
                if not hashes[name]:
                    spent, hashes[name] = let_run(sides[name])
                    seconds[name] += spent
            names.reverse()
    finally:
        for process in sides.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    return {
        "row": row,
        "threads": threads,
        **{f"{name}_s": round(spent, 2) for name, spent in seconds.items()},
        "speed": round(seconds["before"] / seconds["now"], 3),
        "same_parameters": len(set(hashes.values())) == 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="another checkout, with its kernels built")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--threads", default="2")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, int(given.threads))
        return
    for row in given.rows.split(","):
        for threads in given.threads.split(","):
            print(json.dumps(compare(given.before, row, int(threads))), flush=True)


if __name__ == "__main__":
    main()
