"""A policy that must remember: PPO with an LSTM on an environment that shows a cue and asks for it later, then acting from
the file.

    python examples/recall_with_memory.py RUN_DIR

An MLP cannot do better than guess (a return of 0.5); with a memory every episode ends with 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import relayrl
from relayrl.testing import RecallCue

ENV = "relayrl.testing:RecallCue"


def main(run_dir: Path) -> None:
    run = relayrl.train(ENV, run_dir=run_dir, settings={"evaluation.episodes": 50})
    print(f"with a memory: {run.result.mean_return:.2f}")
    assert run.result.mean_return > 0.95

    policy = run.policy  # the exported ONNX file
    env = RecallCue()
    num_right = 0.0
    for episode in range(20):
        obs, is_over = env.reset(seed=episode).observation, False
        memory = np.zeros((1, policy.memory_width), np.float32)  # an episode begins with zeros
        while not is_over:
            parameters, memory = policy.step(np.asarray(obs)[None], None, memory)
            (action,) = policy.head.mode(parameters)
            step = env.step(action)
            obs, is_over = step.observation, step.terminated or step.truncated
            num_right += step.reward
    print(f"from the file: {num_right:.0f} of 20 cues recalled")
    assert num_right == 20


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/recall"))
