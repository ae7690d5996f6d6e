"""From the start of a process to the first gradient step of PPO on CartPole, and the memory of W2, beside Stable-Baselines3.

And what else a user waits for: the command's help beside the import of its parser, the work before the first step of an
environment, and the start of a worker process.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from relayrl.bench.rows import Row, interleaved, seconds_of

REPETITIONS = 3
PEER = "Stable-Baselines3"
HELP_TARGET, FIRST_STEP_S, WORKER_S = 0.5, 3.0, 2.0

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
from relayrl.engines.process.interrupts import Interrupt
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

_WATCH = """
import gymnasium, numpy, os, time

class Watch(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, "float32"), {}

    def step(self, action):
        print(time.process_time(), flush=True)
        os._exit(0)
"""

_WORKER = """
import time
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings

if __name__ == "__main__":
    start = time.perf_counter()
    env = make_vector("CartPole-v1", EnvSettings(num_envs=1, workers=1))
    print(time.perf_counter() - start)
    env.close()
"""


def startup_rows() -> list[Row]:
    """Seconds to the end of the first update with 8 environments, and peak memory with 64."""
    has_peer = importlib.util.find_spec("stable_baselines3") is not None
    scripts = (_OURS, _THEIRS) if has_peer else (_OURS,)
    against = PEER if has_peer else f"{PEER} is not installed: pip install 'relayrl[peers]'"
    seconds = [[_run(script, 8)["seconds"] for script in scripts] for _ in range(REPETITIONS)]
    own, *other = (statistics.median(column) for column in zip(*seconds, strict=True))
    rows = [_row("start-up to the first update", "s", against, own, other, 2.0)]
    own, *other = (_run(script, 64)["mib"] for script in scripts)
    return [*rows, _row("W2 peak memory", "MiB", against, own, other, 1.0), *_command_rows()]


def _command_rows() -> list[Row]:
    """What is measured here alone: wall seconds of the help, CPU seconds before a step, wall seconds of a worker's start."""
    help_s, parser_s = interleaved(
        lambda: seconds_of(lambda: _python("-m", "relayrl.cli.main", "--help")),
        lambda: seconds_of(lambda: _python("-c", "import typer")),
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "watch.py").write_text(_WATCH)
        Path(folder, "worker.py").write_text(_WORKER)
        train = ("-m", "relayrl.cli.main", "train", "watch:Watch", "--run-dir", "run", "--quiet")
        work_s = float(_python(*train, cwd=folder).split()[-1])
        worker_s = float(_python("worker.py", cwd=folder).split()[-1])
    return [
        Row("relayrl --help", help_s, "s", "import of its parser", parser_s, parser_s / help_s, HELP_TARGET),
        Row("work before the first step", work_s, "CPU s", "target", FIRST_STEP_S, FIRST_STEP_S / work_s, 1.0),
        Row("start of a worker process", worker_s, "s", "target", WORKER_S, WORKER_S / worker_s, 1.0),
    ]


def _row(name: str, unit: str, against: str, own: float, other: list[float], target: float) -> Row:
    """How many times less than the peer, where there is one."""
    theirs, ratio = (other[0], other[0] / own) if other else (None, None)
    return Row(name, own, unit, against, theirs, ratio, target)


def _run(script: str, num_envs: int) -> dict[str, float]:
    figures: dict[str, float] = json.loads(_python("-c", script, str(num_envs)).splitlines()[-1])
    return figures


def _python(*arguments: str, cwd: str | None = None) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout
