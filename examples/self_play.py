"""Self-play: one policy learns pong against snapshots of itself; ratings tell whether it gets better, which returns cannot.

    python examples/self_play.py RUN_DIR

Both players' returns cancel. The rating of the newest policy, against snapshots that no longer change, goes up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import relayrl

SETTINGS = {
    "self_play.save_steps": 4_000,  # a snapshot of the policy that learns
    "self_play.swap_steps": 2_000,  # another opponent, drawn from the snapshots or the newest policy
    "self_play.window": 10,
    "evaluation.episodes": 100,
}


def main(run_dir: Path) -> None:
    run = relayrl.train("native:pong", steps=40_000, run_dir=run_dir, settings=SETTINGS)
    elo, error = run.history["self_play/elo"], run.history["self_play/elo_error"]
    print(f"rating: {elo[0]:.0f} at first, {elo[-1]:.0f} ± {error[-1]:.0f} at the end")
    print(f"all snapshots: relayrl ladder {run_dir} -o ladder.png")
    assert elo[-1] > 1200

    match = run.result.opponents["random"]
    print(f"against random play: won {match['win_rate']:.0%}, lost {match['loss_rate']:.0%}")
    assert match["win_rate"] > 0.55


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/self-play"))
