"""Teams whose agents leave before they are paid: POCA beside IPPO and beside MAPPO with absorbing states; POCA's speed.

    python benchmarks/teams.py learn --seeds 0,1,2                  grids and simple_spread, one line of each seed
    python benchmarks/teams.py speed                                steps/s with 3, 8 and 20 agents beside MAPPO

All algorithms of an environment run with the preset of POCA for it, MAPPO on simple_spread with its own. Returns are
those of episodes played while training, the mean over the last tenth of a run: 1 on a grid is every episode solved. `solved
at` is the first step from which on the mean over a tenth of the run is at least 0.9.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import relayrl
from relayrl.engines.settings.run_settings import preset

SOLVED = 0.9
SPEED = {
    "environment.num_envs": 64,
    "network.hidden_sizes": [64, 64],
    "trainer.time_horizon": 25,
    "params.train_pi_iters": 3,
    "params.train_vf_iters": 3,
    "params.num_minibatches": 4,
    "params.target_kl": None,
    "evaluation.episodes": 1,
}


@dataclass(frozen=True)
class TeamRow:
    """One environment and algorithm, with options of the environment."""

    env: str
    algo: str
    num_steps: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.algo}, absorbing" if self.options.get("absorbing") else self.algo


ROWS = [
    *(
        TeamRow(env, algo, 150_000, options)
        for env in ("native:dungeon_escape", "native:baton_pass")
        for algo, options in (("poca", {}), ("ippo", {}), ("mappo", {"absorbing": True}))
    ),
    TeamRow("native:simple_spread", "poca", 200_000),
    TeamRow("native:simple_spread", "mappo", 200_000),
]


def learn(row: TeamRow, seed: int) -> str:
    """Train a seed; a row of the table."""
    settings = dict(preset(row.env, row.algo) or preset(row.env, "poca"))
    environment = settings["environment"] | {"options": settings["environment"].get("options", {}) | row.options}
    flat = {f"{part}.{key}": value for part in ("network", "params") for key, value in settings[part].items()}
    flat |= {f"environment.{key}": value for key, value in environment.items()} | {"params.target_kl": None}
    flat |= {"trainer.time_horizon": settings["trainer"]["time_horizon"], "trainer.summary_freq": 2_000}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = relayrl.train(
            row.env,
            algo=row.algo,
            steps=row.num_steps,
            seed=seed,
            run_dir=folder,
            settings=flat | {"evaluation.episodes": 100},
            progress=False,
        )
        returns, greedy = np.array(run.history["episode/return_mean"]), run.result.mean_return
    tenth = max(1, len(returns) // 10)
    means = np.convolve(returns, np.ones(tenth) / tenth, "valid")
    below = np.flatnonzero(means < SOLVED)
    first = 0 if not len(below) else int(below[-1]) + 1
    solved = f"{round((first + tenth) / len(returns) * row.num_steps, -3):,.0f}" if first < len(means) else "never"
    seconds = time.perf_counter() - began
    return f"| `{row.env}` | {row.name} | {seed} | {means[-1]:.2f} | {greedy:.2f} | {solved} | {seconds:.0f} |"


def steps_per_cpu_second(algo: str, num_agents: int, num_steps: int) -> float:
    """Environment steps of a run by the processor time of its process, which others on the machine change least."""
    seconds = []
    for steps in (num_steps // 4, num_steps):
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            settings = SPEED | {"environment.options": {"N": num_agents}}
            relayrl.train(
                "native:simple_spread",
                algo=algo,
                steps=steps,
                seed=0,
                run_dir=folder,
                settings=settings,
                progress=False,
            )
        seconds.append(time.process_time() - began)
    return (num_steps - num_steps // 4) / (seconds[1] - seconds[0])  # without what a run costs at its beginning and end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learn", "speed"))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--env", help="only rows of this environment")
    given = parser.parse_args()
    if given.what == "speed":
        print("| agents | poca, steps/s | mappo, steps/s | poca / mappo |\n|--:|--:|--:|--:|")
        for num_agents in (3, 8, 20):
            poca = steps_per_cpu_second("poca", num_agents, 120_000 // num_agents)
            mappo = steps_per_cpu_second("mappo", num_agents, 600_000 // num_agents)
            print(f"| {num_agents} | {poca:,.0f} | {mappo:,.0f} | {poca / mappo:.0%} |", flush=True)
        return
    print("| environment | algorithm | seed | return | greedy | solved at | seconds |\n|---|---|--:|--:|--:|--:|--:|")
    for row in ROWS:
        if given.env in (None, row.env):
            for seed in given.seeds.split(","):
                print(learn(row, int(seed)), flush=True)


if __name__ == "__main__":
    main()
