"""Self-play on games of two sides: how strong the newest policies are, and how far from a solution where one is known.

    python benchmarks/self_play.py pong soccer tictactoe connect_four kuhn --seeds 0,1

Games are played by the newest policies with their most likely actions, as every side in turn, against opponents that draw
uniformly among what is allowed. Of tictactoe all lines of play are walked (`tictactoe_lines.py`), so that its rates are exact;
`first` and `second` have, as each player, the number of lines that end so and their probability. Kuhn poker's numbers are
exact: exploitability of the newest policy, and of the mixture of the policies after the updates of the second half. Elo is
that of the run, which begins with 1200.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import relayrl
from relayrl.testing import kuhn_exploitability, kuhn_mixture, kuhn_strategy
from tictactoe_lines import Board, Ends, add, lines_of_play, to_move

Numbers = dict[str, Any]
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
MANY_GAMES = {
    "environment.num_envs": 64,
    "trainer.time_horizon": 256,
    "params.num_minibatches": 16,
    "params.train_pi_iters": 4,
    "params.train_vf_iters": 4,
}
"""About 1,300 games a rollout: ten passes over the 150 games of 8 environments leave a critic worse than a constant."""
BOARD = {
    "network.encoder": "match3",
    "network.image_layout": "channels_last",
    "network.encoder_size": 128,
    "network.hidden_sizes": [],
    "threads": 1,
}
"""Convolutions over the board. With seeds 10 to 12 an MLP wins about as much; RESULTS.md has both."""
SHORT_ROLLOUTS = {
    "environment.num_envs": 128,
    "trainer.time_horizon": 32,
    "params.num_minibatches": 8,
    "params.train_pi_iters": 4,
    "params.train_vf_iters": 4,
}
"""About 550 games a rollout. Opponents are drawn between rollouts: longer ones meet fewer of them."""


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
        1_500_000,
        {
            **OLD_OPPONENTS,
            **SHORT_ROLLOUTS,
            "self_play.save_steps": 20_000,
            "params.entropy_coef": 0.6,  # against opponents that do not err, all moves that do not lose are worth the same
            "params.pi_lr": 1e-3,
            "params.vf_lr": 1e-3,
            "params.lam": 0.8,
            "params.lr_schedule": "linear",  # while the rate is high, some lines are lost now and then
            "network.hidden_sizes": [128, 128],
        },
    ),
    "connect_four": Game(
        "pettingzoo:classic.connect_four_v3",
        600_000,
        {
            **OLD_OPPONENTS,
            **MANY_GAMES,
            **BOARD,
            "self_play.save_steps": 10_000,
            "params.entropy_coef": 0.05,  # less, and its games follow a few lines that random play leaves at once
            "params.pi_lr": 1e-3,
            "params.vf_lr": 1e-3,
            "params.lam": 0.9,
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
            found |= against_every_line(run.policy)
    return {**found, "seconds": round(time.perf_counter() - began)}


def against_every_line(policy: Any) -> Numbers:
    """The most likely moves of `policy` at tictactoe: exact rates against random play, and its lines of play as each player."""
    found: Numbers = {}
    means = []
    for own, name in ((1, "first"), (2, "second")):
        lines = list(lines_of_play(partial(_most_likely_cell, policy), own))
        means.append(add(lines))
        found[name] = {
            how: [sum(share > 0 for share in shares), round(float(sum(shares)), 4)]
            for how, shares in zip(Ends._fields, zip(*lines, strict=True), strict=True)
        }
    rates = zip(("win_rate", "draw_rate", "loss_rate"), add(means), strict=True)
    return {name: round(float(both) / 2, 4) for name, both in rates} | found


def _most_likely_cell(policy: Any, board: Board) -> int:
    own = to_move(board)
    seen = np.array(board).reshape(3, 3)
    obs = np.stack([seen == own, seen == 3 - own], -1).astype(np.int8)
    return int(policy.act(obs, np.array(board) == 0))


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
