"""A whole run in five lines of Python, then what one can ask of it: `python examples/run_five_lines.py SCRATCH_DIR`."""

import sys
from pathlib import Path

import numpy as np

import relayrl


def main(folder: Path) -> None:
    """Train, evaluate, look at the curve, act, export."""
    settings = {"evaluation.interval": 4096, "evaluation.interval_episodes": 5}
    run = relayrl.train("CartPole-v1", algo="ppo", steps=16_384, seed=1, run_dir=folder / "run", settings=settings)
    print(f"return {run.result.mean_return:.0f}, played again {run.evaluate(episodes=5).mean_return:.0f}")

    for step, number in zip(run.history["num_env_steps"], run.history["evaluation/return_mean"], strict=True):
        if np.isfinite(number):
            print(f"after {step:,} steps: {number:.0f}")
    print("push", "right" if run.policy.act([0.0, 0.0, 0.1, 0.5]) else "left")
    print("exported", run.export(folder / "cartpole.pt", file_format="torchscript")[0].name)
    assert run.result.mean_return > 100


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/five-lines"))
