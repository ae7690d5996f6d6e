"""Teams whose agents leave before they are paid: POCA beside IPPO and beside MAPPO with absorbing states.

    python benchmarks/teams.py --seeds 0,1,2                  grids and simple_spread, one line of each seed
    python benchmarks/teams.py --env native:baton_pass --steps 200000 --set environment.options.num_agents=5
                                                              rows of one environment, with settings of one's own

All algorithms of an environment run with the preset of POCA for it, MAPPO on simple_spread with its own. Returns are
those of episodes played while training, the mean over the last tenth of a run: 1 on a grid is every episode solved. `solved
at` is the first step from which on the mean over a tenth of the run is at least 0.9.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import yaml

import relayrl
from relayrl.engines.settings.run_settings import preset

SOLVED = 0.9


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


def learn(row: TeamRow, seed: int, given: Mapping[str, Any] | None = None) -> str:
    """Train a seed, with settings `given` beside the preset's; a row of the table."""
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
            settings=flat | {"evaluation.episodes": 100} | dict(given or {}),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--env", help="only rows of this environment")
    parser.add_argument("--algo", help="only rows of this algorithm")
    parser.add_argument("--steps", type=int, help="environment steps of every run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every run")
    given = parser.parse_args()
    settings = {key: yaml.safe_load(value) for key, value in (each.split("=", 1) for each in given.set)}
    print("| environment | algorithm | seed | return | greedy | solved at | seconds |\n|---|---|--:|--:|--:|--:|--:|")
    for row in ROWS:
        if given.env not in (None, row.env) or given.algo not in (None, row.algo):
            continue
        chosen = row if given.steps is None else replace(row, num_steps=given.steps)
        for seed in given.seeds.split(","):
            print(learn(chosen, int(seed), settings), flush=True)


if __name__ == "__main__":
    main()
