"""What the JAX programs share: their command line, the clock, and the line of JSON that they print.

Imported first: it makes the parts of the CPU comparison (`benchmarks/peers`) importable.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parents[1] / "peers"
sys.path += [str(PEERS), str(PEERS / "workers")]

import jax  # noqa: E402
from measuring import process_start  # noqa: E402
from work import PpoWork  # noqa: E402


@dataclass(frozen=True)
class Program:
    """A program's name, its work as the table has it, and the rate of learning that suits it."""

    name: str
    env: str
    num_envs: int
    rollout: int
    num_iterations: int
    learning_rate: float
    width: int


def arguments_of(program: Program, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--num-envs", type=int, default=program.num_envs)
    parser.add_argument("--rollout", type=int, default=program.rollout, help="steps of each environment in a rollout")
    parser.add_argument("--iterations", type=int, default=program.num_iterations)
    parser.add_argument("--learning-rate", type=float, default=program.learning_rate, help="linear to 0")
    parser.add_argument("--width", type=int, default=program.width)
    parser.add_argument("--repeats", type=int, default=3, help="whole runs, each with another seed")
    parser.add_argument("--precision", choices=("default", "highest"), default="default", help="default: tf32 on a GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="8 environments, 2 iterations: to see that it runs")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.num_envs, arguments.iterations = 8, 2
    return arguments


def run(program: Program, description: str, train: Callable[..., Any]) -> None:
    """Compile `train(key, work=, num_iterations=, learning_rate=)`, run it some times, print one JSON object.

    The last result of `train` is the mean return of each iteration's episodes. The first update is over after one of the first
    run's iterations: a compiled program does not report on its way.
    """
    arguments = arguments_of(program, description)
    if arguments.precision == "highest":
        jax.config.update("jax_default_matmul_precision", "highest")
    work = PpoWork(
        program.name,
        program.env,
        arguments.num_envs,
        arguments.rollout,
        arguments.num_envs * arguments.rollout * arguments.iterations,
        width=arguments.width,
    )

    def whole(key: jax.Array) -> Any:
        return train(key, work=work, num_iterations=arguments.iterations, learning_rate=arguments.learning_rate)

    before = time.perf_counter()
    compiled = jax.jit(whole).lower(jax.random.PRNGKey(0)).compile()
    compile_seconds = time.perf_counter() - before
    start_seconds = time.time() - process_start()
    seconds, returns = [], []
    for repeat in range(arguments.repeats):
        before = time.perf_counter()
        *_, curve = jax.block_until_ready(compiled(jax.random.PRNGKey(arguments.seed + repeat)))
        seconds.append(time.perf_counter() - before)
        returns.append(_last(curve))
    rates = [work.num_steps / s for s in seconds]
    figures = {
        "program": program.name,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "precision": arguments.precision,
        "num_envs": work.num_envs,
        "rollout": work.rollout,
        "num_iterations": arguments.iterations,
        "env_steps_per_s": statistics.median(rates),
        "rates": rates,
        "compile_seconds": compile_seconds,
        "seconds_to_first_update": start_seconds + seconds[0] / arguments.iterations,
        "mean_return": statistics.mean(returns),
        "returns": returns,
    }
    print(json.dumps(figures), flush=True)


def _last(curve: jax.Array) -> float:
    """Mean return of the newest tenth of iterations in which an episode ended."""
    finished = [float(value) for value in curve if value == value]
    newest = finished[-max(1, len(finished) // 10) :]
    return statistics.mean(newest) if newest else float("nan")
