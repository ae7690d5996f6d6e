"""The same run in this process and on Ray with two collectors: the same parameters, bit for bit. Needs `relayrl[ray]`.

python examples/ray_cluster.py [RUN_DIR]

The environment is code of this script; it is sent to the collectors.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import relayrl


class Guess(gymnasium.Env[Any, Any]):
    """Name the larger of two numbers, eight times."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.num_guesses, self.numbers = 0, self.np_random.random(2, dtype=np.float32)
        return self.numbers, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == np.argmax(self.numbers))
        self.num_guesses, self.numbers = self.num_guesses + 1, self.np_random.random(2, dtype=np.float32)
        return self.numbers, reward, self.num_guesses == 8, False, {}


SMALL = {"num_envs": 4, "time_horizon": 32, "evaluation.episodes": 4}
ON_RAY = {**SMALL, "engine": "ray", "workers": 2, "cluster.object_store_mb": 100}


def main() -> None:
    base = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    local = relayrl.train(Guess, steps=2_048, run_dir=base / "local", settings=SMALL, progress=False)
    on_ray = relayrl.train(Guess, steps=2_048, run_dir=base / "ray", settings=ON_RAY, progress=False)
    for name, run in (("local", local), ("ray", on_ray)):
        print(f"{name:<6} {run.result.parameter_hash:.16}  return {run.result.mean_return:.1f} of 8")
    assert on_ray.result.parameter_hash == local.result.parameter_hash


if __name__ == "__main__":
    main()
