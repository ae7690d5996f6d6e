"""Train on a simulator of your own, then act with the exported policy: `python examples/own_environment.py`."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime

FOLDER = Path(__file__).parent


class Thermostat(gymnasium.Env[np.ndarray, int]):
    """Keep a room at 20 °C by switching a heater off and on; the further away, the more it costs."""

    observation_space = gymnasium.spaces.Box(-5, 5, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._temperature, self._step = float(self.np_random.uniform(10, 30)), 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._temperature += (1.0 if action else -1.0) + float(self.np_random.normal(0, 0.1))
        self._step += 1
        return self._observation(), -abs(self._temperature - 20) / 10, False, self._step == 50, {}

    def _observation(self) -> np.ndarray:
        return np.array([np.clip((self._temperature - 20) / 10, -5, 5)], np.float32)


def main(run_dir: Path) -> None:
    """Train from the command line, then act in plain onnxruntime."""
    settings = ["--set", "params.train_pi_iters=10", "--set", "params.train_vf_iters=10", "--set", "num_minibatches=4"]
    command = ["train", "own_environment:Thermostat", "--steps", "20000", "--run-dir", str(run_dir), *settings]
    subprocess.run([sys.executable, "-m", "relayrl", *command], check=True, cwd=FOLDER)

    session = onnxruntime.InferenceSession(run_dir / "model.onnx")
    action, value = session.run(["action", "value"], {"obs": np.array([[-0.8], [0.8]], np.float32)})
    print(f"12 °C: heater {'on' if action[0] else 'off'}, value {value[0]:.1f}")
    print(f"28 °C: heater {'on' if action[1] else 'off'}, value {value[1]:.1f}")
    assert action.tolist() == [1, 0]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/thermostat").absolute())
