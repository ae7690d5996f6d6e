"""From the start of a process to the first gradient step of PPO on CartPole, and the memory of W2, beside Stable-Baselines3."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys

from relayrl.bench.rows import Row

REPETITIONS = 3
PEER = "Stable-Baselines3"

_MEASURE = """
import json, os, sys, tempfile
from pathlib import Path

def seconds_since_start():
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")

def report(seconds):
    status = Path("/proc/self/status").read_text()  # getrusage would tell of the process that started this one, too
    print(json.dumps({"seconds": seconds, "mib": int(status.split("VmHWM:")[1].split()[0]) / 1024}))
"""

_OURS = (
    _MEASURE
    + """
from relayrl.engines.interrupts import Interrupt
from relayrl.engines.sessions import TrainRequest, open_session, run_session

num_envs, first = int(sys.argv[1]), []
flags = {"environment.num_envs": num_envs, "trainer.max_steps": num_envs * 256, "trainer.time_horizon": 128,
         "network.hidden_sizes": (64, 64), "evaluation.episodes": 0}
with tempfile.TemporaryDirectory() as folder:
    session = open_session(TrainRequest("CartPole-v1", Path(folder) / "run", flags=flags))
    run_session(session, lambda _: first or first.append(seconds_since_start()), Interrupt())
report(first[0])
"""
)

_THEIRS = (
    _MEASURE
    + """
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

class Watch(BaseCallback):
    starts = []

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        self.starts.append(seconds_since_start())

torch.set_num_threads(1)
num_envs = int(sys.argv[1])
batch = num_envs * 128 // 4
model = sb3.PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=num_envs), n_steps=128, batch_size=batch, n_epochs=10,
                device="cpu")
model.learn(num_envs * 256, callback=Watch())
report(Watch.starts[1])
"""
)


def startup_rows() -> list[Row]:
    """Seconds to the end of the first update with 8 environments, and peak memory with 64."""
    has_peer = importlib.util.find_spec("stable_baselines3") is not None
    scripts = (_OURS, _THEIRS) if has_peer else (_OURS,)
    against = PEER if has_peer else f"{PEER} is not installed: pip install 'relayrl[peers]'"
    seconds = [[_run(script, 8)["seconds"] for script in scripts] for _ in range(REPETITIONS)]
    own, *other = (statistics.median(column) for column in zip(*seconds, strict=True))
    rows = [_row("start-up to the first update", "s", against, own, other, 2.0)]
    own, *other = (_run(script, 64)["mib"] for script in scripts)
    return [*rows, _row("W2 peak memory", "MiB", against, own, other, 1.0)]


def _row(name: str, unit: str, against: str, own: float, other: list[float], target: float) -> Row:
    """How many times less than the peer, where there is one."""
    theirs, ratio = (other[0], other[0] / own) if other else (None, None)
    return Row(name, own, unit, against, theirs, ratio, target)


def _run(script: str, num_envs: int) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", script, str(num_envs)], capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
