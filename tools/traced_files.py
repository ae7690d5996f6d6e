"""Which files a PPO step and a requested action pass through, traced in real runs.

A file counts when one of its functions is entered, in whichever thread. `python tools/traced_files.py` prints the lists.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
from gymnasium import spaces

import relayrl
from relayrl.extend import StatisticsWriter, make_run_parts

PACKAGE = Path(relayrl.__file__).parent
NUM_ENVS, HORIZON = 8, 32
SETTINGS = {"environment.num_envs": NUM_ENVS, "trainer.time_horizon": HORIZON}
WARM_UP = 3
"""PPO steps, and episodes, before the one that is traced."""


class Tracer:
    """Collects files of the package while `is_on`; threads that were started before it was made are not seen."""

    def __init__(self) -> None:
        self.is_on = False
        self._codes: set[str] = set()
        self._caller = threading.get_ident()
        self._sees_caller = True
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if self.is_on and event == "call" and (self._sees_caller or threading.get_ident() != self._caller):
            self._codes.add(frame.f_code.co_filename)

    @contextmanager
    def caller_waits(self) -> Iterator[None]:
        """What the calling thread does to wait for the others is no part of what is traced."""
        self._sees_caller = False
        yield
        self._sees_caller = True

    def close(self) -> list[str]:
        """Stop, and give the files, from the package's root on."""
        sys.setprofile(None)
        threading.setprofile(None)
        inside = (Path(name) for name in self._codes if name.startswith(f"{PACKAGE}/"))
        return sorted(str(path.relative_to(PACKAGE)) for path in inside)


class _Window(StatisticsWriter):
    """A row of statistics ends each PPO step: the tracer is on between two of them."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer, self._num_rows = tracer, 0

    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        self._num_rows += 1
        self._tracer.is_on = self._num_rows == WARM_UP


def ppo_step_files() -> list[str]:
    """Files of one step of PPO on CartPole-v1, 8 environments: a rollout and its update."""
    tracer = Tracer()
    with _closed(tracer) as files:
        parts = make_run_parts("CartPole-v1", algo="ppo", settings=SETTINGS)
        for step in range(WARM_UP + 1):
            tracer.is_on = step == WARM_UP
            parts.trainer.receive(parts.collector.collect(parts.trainer.policy_version))
            parts.trainer.advance()
        tracer.is_on = False
        parts.env.close()
    return files


def run_step_files() -> list[str]:
    """The same inside of a run, with what the run does besides: statistics, progress, evaluations that are due."""
    tracer = Tracer()
    relayrl.register_writer("traced_window", lambda path: _Window(tracer))
    block = NUM_ENVS * HORIZON
    settings = {
        **SETTINGS,
        "trainer.summary_freq": block,
        "trainer.checkpoint_interval": 1_000 * block,
        "statistics.writers": ["traced_window"],
        "statistics.tensorboard": False,
        "evaluation.episodes": 0,
    }
    with tempfile.TemporaryDirectory() as folder, _closed(tracer) as files:
        steps = (WARM_UP + 3) * block
        relayrl.train(
            "CartPole-v1", algo="ppo", steps=steps, run_dir=f"{folder}/run", settings=settings, progress=False
        )
    return files


def request_files() -> list[str]:
    """Files of an episode of one request, from `request_action` until its trajectory is durable in an Arrow file."""
    tracer = Tracer()
    observations, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    with tempfile.TemporaryDirectory() as folder, _closed(tracer) as files:
        args = relayrl.TrainerArgs("traced", Path(folder), observation_space=observations, action_space=actions)
        model = relayrl.RelayRLTrainer.ppo(args).acquire_model("onnx").path
        with relayrl.AgentBuilder().default_model(model).sink(f"arrow:{folder}/experience").seed(0).build() as agent:
            ids, obs = agent.get_actor_ids(), np.zeros((1, 4), np.float32)
            for episode in range(WARM_UP + 1):
                tracer.is_on = episode == WARM_UP
                agent.request_action(ids, obs)
                agent.flag_last_action(ids, reward=1.0)
                with tracer.caller_waits():
                    agent.flush()
            tracer.is_on = False
    return files


@contextmanager
def _closed(tracer: Tracer) -> Iterator[list[str]]:
    files: list[str] = []
    try:
        yield files
    finally:
        files += tracer.close()


if __name__ == "__main__":
    traced = {"PPO step": ppo_step_files, "PPO step of a run": run_step_files, "request to disk": request_files}
    for title, find in traced.items():
        found = find()
        print(f"{title}: {len(found)} files", *found, sep="\n  ")
