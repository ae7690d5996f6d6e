"""Self-play on games of two sides: how strong the newest policies are, and how far from a solution where one is known.

    python benchmarks/self_play.py pong soccer tictactoe connect_four kuhn --seeds 0,1

Games are played by the newest policies with their most likely actions, as every side in turn, against opponents that draw
uniformly among what is allowed; `first` and `second` are tictactoe's lines of play: all that an opponent can do against the
policy, counted once each. Kuhn poker's numbers are exact: exploitability of the newest policy, and of the mixture of the
policies after the updates of the second half. Elo is that of the run, which begins with 1200.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import relayrl
from relayrl.testing import kuhn_exploitability, kuhn_mixture, kuhn_strategy

Numbers = dict[str, Any]
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
OLD_OPPONENTS = {"self_play.window": 1000}
"""All snapshots stay in the window: against random play, positions count that strong players never reach."""
LARGE_ROLLOUTS = {
    "environment.num_envs": 64,
    "trainer.time_horizon": 128,
    "params.num_minibatches": 16,
    "params.train_pi_iters": 5,
    "params.train_vf_iters": 5,
}
"""Goals are rare: critics that see a few of them many times explain nothing of the next rollout."""
PASSES = {"params.train_pi_iters": 10, "params.train_vf_iters": 10, "params.num_minibatches": 8}


@dataclass(frozen=True)
class Game:
    """An environment, how long it is learned, and the settings that differ from the generic ones."""

    env: str
    num_steps: int
    settings: Numbers = field(default_factory=dict)
    algo: str = "ppo"


GAMES = {
    "pong": Game(
        "native:pong", 300_000, {**OLD_OPPONENTS, "self_play.save_steps": 10_000, "self_play.swap_steps": 5_000}
    ),
    "soccer": Game(
        "native:soccer",
        2_000_000,
        {
            **OLD_OPPONENTS,
            **LARGE_ROLLOUTS,
            "self_play.save_steps": 20_000,
            "self_play.swap_steps": 4_000,
            "params.entropy_coef": 0.0,  # a bonus outweighs goals between equals: policies drift back to random play
        },
    ),
    "tictactoe": Game(
        "pettingzoo:classic.tictactoe_v3",
        900_000,
        {
            **OLD_OPPONENTS,
            **PASSES,
            "self_play.save_steps": 20_000,
            "params.entropy_coef": 0.02,
            "params.pi_lr": 1e-3,
            "params.lr_schedule": "linear",
            "network.hidden_sizes": [128, 128],
        },
    ),
    "connect_four": Game(
        "pettingzoo:classic.connect_four_v3",
        600_000,
        {
            **OLD_OPPONENTS,
            **PASSES,
            "self_play.save_steps": 10_000,
            "params.entropy_coef": 0.05,  # less, and its games follow a few lines that random play leaves at once
            "network.hidden_sizes": [128, 128],
        },
    ),
    "kuhn": Game(
        "relayrl.testing:KuhnPoker",
        400_000,
        {
            "self_play.save_steps": 4_096,
            "self_play.swap_steps": 1_024,
            "self_play.play_against_latest_model_ratio": 1.0,  # opponents that lag behind make it circle more
            "environment.num_envs": 64,
            "trainer.time_horizon": 16,
            "params.gamma": 1.0,
            "params.lam": 1.0,
            "params.entropy_coef": 0.12,  # pulls to a logit equilibrium, whose exploitability is near 0.02
            "params.train_pi_iters": 4,
            "params.num_minibatches": 4,
            "params.pi_lr": 4e-3,
            "params.lr_schedule": "linear",
        },
    ),
}


class Strategies(relayrl.Callback):
    """The strategy at Kuhn poker after every update."""

    def __init__(self) -> None:
        self.found: list[dict[tuple[int, str], float]] = []

    def on_update(self, run: Any) -> None:
        """Keep the newest."""
        self.found.append(kuhn_strategy(run.policy.distribution))


def measure(name: str, seed: int, num_steps: int | None) -> Numbers:
    """Train a seed; the numbers of its row."""
    game, kept, began = GAMES[name], Strategies(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = relayrl.train(
            game.env,
            algo=game.algo,
            steps=num_steps or game.num_steps,
            seed=seed,
            run_dir=folder,
            settings={**game.settings, "evaluation.episodes": 400},
            callbacks=[kept] if name == "kuhn" else [],
            progress=False,
        )
        found: Numbers = {"game": name, "algo": game.algo, "seed": seed, "steps": run.result.num_env_steps}
        found |= {key: round(run.history[f"self_play/{key}"][-1]) for key in ("elo", "elo_error", "games")}
        if name == "kuhn":
            late = kept.found[len(kept.found) // 2 :]
            found["exploitability"] = round(kuhn_exploitability(kept.found[-1]), 4)
            found["of_mixture"] = round(kuhn_exploitability(kuhn_mixture(late)), 4)
            found["at_first"] = round(kuhn_exploitability(kept.found[0]), 4)
        else:
            match = run.result.opponents["random"]
            found |= {key: round(match[key], 3) for key in ("win_rate", "draw_rate", "loss_rate")}
        if name == "tictactoe":
            found |= {"first": lines_of_play(run.policy, 1), "second": lines_of_play(run.policy, 2)}
    return {**found, "seconds": round(time.perf_counter() - began)}


def lines_of_play(policy: Any, own: int) -> dict[str, int]:
    """How all games of tictactoe end in which the opponent of player `own` (1 begins) tries everything."""
    count = {"won": 0, "drawn": 0, "lost": 0}

    def go_on(board: tuple[int, ...], mover: int) -> None:
        winner = next((board[i] for i, j, k in _LINES if board[i] and board[i] == board[j] == board[k]), 0)
        free = [cell for cell in range(9) if not board[cell]]
        if winner or not free:
            count["drawn" if not winner else "won" if winner == own else "lost"] += 1
            return
        if mover == own:
            seen = np.array(board).reshape(3, 3)
            obs = np.stack([seen == own, seen == 3 - own], -1).astype(np.int8)
            free = [int(policy.act(obs, np.array(board) == 0))]
        for cell in free:
            go_on((*board[:cell], mover, *board[cell + 1 :]), 3 - mover)

    go_on((0,) * 9, 1)
    return count


def main() -> None:
    """One JSON line for each game and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="+", choices=[*GAMES])
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, help="instead of the game's own number")
    given = parser.parse_args()
    for name in given.games:
        for seed in given.seeds.split(","):
            print(json.dumps(measure(name, int(seed), given.steps)), flush=True)


if __name__ == "__main__":
    main()
