"""Where the time of an iteration goes, without the compiled kernels and with them; writes the table of docs/speed.md.

    python benchmarks/phases.py                 every work, some 10 s each
    python benchmarks/phases.py --only W5       works whose names begin so; printed, not written

An iteration is a rollout and its update, of the work that `benchmarks/peers` defines. Milliseconds are medians over the rows of
statistics of one run, its first update left out; "environment" is the vector environment alone, stepped as often with random
actions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"
BEGIN, END = "<!-- phases: written by benchmarks/phases.py -->", "<!-- end of phases -->"
SECONDS = 3.0
MIN_ROWS = 4
OFF_POLICY_ROW_STEPS = 100
WORKS = (
    *(("W1", "CartPole-v1"), ("W1", "native:CartPole"), ("W2", "CartPole-v1"), ("W2", "native:CartPole")),
    *(("W2k", "native:CartPole"), ("W4a", "mappo"), ("W4b", "mappo"), ("W4c", "mappo"), ("W4c", "ippo")),
    *(("W5-td3", ""), ("W5-sac", ""), ("W5-ddpg", "")),
)

sys.path[:0] = [str(HERE / "peers"), str(HERE / "peers" / "workers")]
from relayrl_worker import settings_of  # noqa: E402 - of the peers' harness, whose work this is
from work import OffPolicyWork, Task  # noqa: E402


def run_work(work_name: str, variant: str) -> dict[str, float]:
    """In this process: milliseconds an iteration of each phase."""
    from relayrl.engines.runs.run_record import Progress, RunInterrupted
    from relayrl.engines.sessions import TrainRequest, open_session, run_session
    from stopping import StopWhen

    task = Task(work_name, variant, threads=0, seed=1)
    env, flags = settings_of(task)
    is_off_policy = isinstance(task.work, OffPolicyWork)
    steps = 1 if is_off_policy else task.ppo.batch
    row_steps = OFF_POLICY_ROW_STEPS if is_off_policy else steps
    flags |= {"trainer.max_steps": 10**9, "trainer.summary_freq": row_steps, "statistics.tensorboard": False}
    begin, rows = time.perf_counter(), []

    def on_progress(progress: Progress) -> None:
        if (
            progress.num_env_steps >= task.work.steps_before_clock + row_steps
            and progress.num_env_steps % row_steps == 0
        ):
            rows.append(progress.row)

    def is_over() -> bool:
        return len(rows) >= MIN_ROWS and time.perf_counter() - begin >= SECONDS

    with tempfile.TemporaryDirectory() as folder:
        session = open_session(TrainRequest(env, Path(folder) / "run", flags=flags))
        with contextlib.suppress(RunInterrupted):
            run_session(session, on_progress, StopWhen(is_over))
    phases = {
        phase: 1e3 * steps / statistics.median(row[f"time/{phase}_steps_per_s"] for row in rows)
        for phase in ("collect", "learn")
    }
    return {**phases, "environment": _environment_ms(session.settings, steps), "steps": steps}


def _environment_ms(settings: Any, num_env_steps: int) -> float:
    """Milliseconds of so many steps of the environment alone, the median of several goes."""
    import numpy as np

    from relayrl.envs.environment_registry import make_vector
    from relayrl.testing.random_play import random_actions

    env = make_vector(settings.env, settings.environment)
    num_vector_steps = num_env_steps // env.num_envs
    observed, rng, goes = env.reset(seed=0), np.random.default_rng(0), []
    actions = random_actions(env.groups, observed.groups, rng)
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(max(num_vector_steps, 50)):
            env.step(actions)
        goes.append((time.perf_counter() - begin) / max(num_vector_steps, 50) * num_vector_steps)
    env.close()
    return 1e3 * statistics.median(goes)


def measure(work_name: str, variant: str, kernels: str) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps([work_name, variant])]
    environ = {**os.environ, "RELAYRL_COMPILED": kernels}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def lines(only: str) -> Iterator[str]:
    """The table, line by line as it is measured."""
    columns = "steps an iteration | without kernels: collect + learn | kernels: collect + learn"
    yield f"| work | {columns} | of collecting, the environment |"
    yield "|---|--:|--:|--:|--:|"
    for work_name, variant in WORKS:
        if work_name.startswith(only):
            before, after = measure(work_name, variant, "off"), measure(work_name, variant, "")
            name = f"{work_name} {variant}".strip()
            cells = (f"{m['collect']:.3g} + {m['learn']:.3g}" for m in (before, after))
            yield f"| {name} | {after['steps']:,} | {' | '.join(cells)} | {after['environment']:.3g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="works whose names begin so")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run_work(*json.loads(arguments.one))))
        return
    table = []
    for line in lines(arguments.only):
        print(line, flush=True)
        table.append(line)
    if not arguments.only:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text("\n".join([before + BEGIN, *table, END + rest.partition(END)[2]]))


if __name__ == "__main__":
    main()
