"""Try packages of environments that RelayRL adapts: `python benchmarks/libraries.py [STEPS]`.

Each of those that are installed is trained for some steps and evaluated, and a line says what came of it, with its version; the
others are named with the command that installs them. None of them is needed by RelayRL or by its tests.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import relayrl

TRIED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("lbforaging", "lbforaging:Foraging-8x8-2p-1f-v3", "ippo", {}),
    ("rware", "rware:rware-tiny-2ag-v2", "mappo", {}),
    ("minigrid", "minigrid:MiniGrid-Empty-5x5-v0", "ppo", {}),
    ("mo-gymnasium", "mo_gymnasium:deep-sea-treasure-v0", "ppo", {"environment.reward_weights": [1.0, 0.1]}),
    ("dm-control", "dm_control/cartpole-balance-v0", "ppo", {}),
    ("bsuite", "bsuite/catch-v0", "ppo", {}),
    ("open-spiel", "libraries:tic_tac_toe", "ippo", {}),
    ("envpool", "envpool:CartPole-v1", "ppo", {}),
    ("gymnasium-robotics", "gymnasium_robotics:FetchReach-v4", "td3", {"params.hindsight_ratio": 4.0}),
    ("dm-meltingpot", "libraries:melting_pot", "ippo", {}),
]
"""Package, environment, algorithm, settings."""
SMALL = {"environment.num_envs": 2, "evaluation.episodes": 2, "statistics.tensorboard": False}


def tic_tac_toe() -> Any:
    import pyspiel
    from shimmy import OpenSpielCompatibilityV0

    return OpenSpielCompatibilityV0(env=pyspiel.load_game("tic_tac_toe"))


def melting_pot() -> Any:
    from shimmy import MeltingPotCompatibilityV0

    return MeltingPotCompatibilityV0(substrate_name="prisoners_dilemma_in_the_matrix__arena")


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    os.environ.setdefault("MUJOCO_GL", "disable")
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).parent))
    for package, env, algo, settings in TRIED:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{package:<20} absent: pip install {package}")
            continue
        starts = {"params.learning_starts": steps // 4} if algo == "td3" else {}
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = relayrl.train(
                    env,
                    algo=algo,
                    steps=steps,
                    run_dir=Path(folder) / "run",
                    settings={**SMALL, **starts, **settings},
                    progress=False,
                )
            except Exception as error:  # noqa: BLE001 - what one package does must not hide the others
                print(f"{package:<20} {version:<10} {env} failed: {type(error).__name__}: {str(error)[:200]}")
                continue
            rate = run.result.num_env_steps / run.result.seconds
            print(f"{package:<20} {version:<10} {env} {algo}: return {run.result.mean_return:.1f}, {rate:.0f} steps/s")


if __name__ == "__main__":
    main()
