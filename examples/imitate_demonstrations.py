"""An expert, its recording, a clone, and PPO that goes on from it: `python examples/imitate_demonstrations.py SCRATCH_DIR`.

A person records demonstrations with `relayrl demo record CartPole-v1`; here a trained policy plays.
"""

import sys
from pathlib import Path

import relayrl

ENV = "native:CartPole"
NETWORK = {"network.hidden_sizes": [64, 64], "network.normalize_observations": True, "evaluation.episodes": 5}


def main(folder: Path) -> None:
    """Train, record, clone, go on."""
    expert = relayrl.train(ENV, algo="ppo", steps=40_000, run_dir=folder / "expert", settings=NETWORK, progress=False)
    demos = f"arrow:{folder / 'demos'}"
    shown = relayrl.record_demonstrations(ENV, demos, policy=expert.path, episodes=10)
    print(f"demonstrated: {sum(shown.returns) / 10:.0f} over {sum(shown.lengths)} steps")

    cloned = NETWORK | {"learn_from": demos}
    clone = relayrl.train(ENV, algo="bc", steps=60_000, run_dir=folder / "clone", settings=cloned, progress=False)
    print(f"cloned: {clone.result.mean_return:.0f}")

    given = {"steps": 8_192, "run_dir": folder / "warm", "init_from": clone.path, "progress": False}
    signals = {"gail": {"strength": 0.1, "options": {"demo_path": demos}}}
    warm = relayrl.train(ENV, algo="ppo", settings=NETWORK | {"reward_signals": signals}, **given)
    print(f"PPO's first episodes: {warm.result.train_return:.0f}")
    assert warm.result.train_return > 100.0  # those of an untrained policy: about 20


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/imitation"))
