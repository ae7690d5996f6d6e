"""Environment steps that SAC needs to −200 on Pendulum-v1, beside Stable-Baselines3 with the same settings; every seed.

    python benchmarks/steps_to_return.py --jobs 2          seeds 0 to 9 of both sides; prints the table

Two layers of 256 relu units, batches of 256, rates of 1e-3, 1,000 random steps, then a gradient step per step. Every 500
steps 20 greedy episodes in environments of their own; the first evaluation with a mean of −200 or more ends the run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ENV, RETURN, INTERVAL, EPISODES, MAX_STEPS = "Pendulum-v1", -200.0, 500, 20, 20_000
WARM_UP_STEPS, BATCH_SIZE, HIDDEN_SIZES, RATE = 1_000, 256, (256, 256), 1e-3


def ours(seed: int) -> int:
    """Steps of a run that stops at the return."""
    settings = {
        "environment.num_envs": 1,
        "network.hidden_sizes": list(HIDDEN_SIZES),
        "network.activation": "relu",
        "params.batch_size": BATCH_SIZE,
        "params.buffer_size": MAX_STEPS,
        "params.learning_starts": WARM_UP_STEPS,
        "params.actor_lr": RATE,
        "params.critic_lr": RATE,
        "params.temperature_lr": RATE,
        "evaluation.interval": INTERVAL,
        "evaluation.interval_episodes": EPISODES,
        "evaluation.target_return": RETURN,
        "evaluation.episodes": 0,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "relayrl.cli.main", "train", ENV, "--algo", "sac", "--steps", str(MAX_STEPS)]
        command += ["--seed", str(seed), "--run-dir", f"{folder}/run", "--quiet", "--json", *sets]
        return int(json.loads(_last_line(command))["num_env_steps"])


def peers(seed: int) -> int:
    """The same of Stable-Baselines3, in a process of its own."""
    return int(_last_line([sys.executable, __file__, "--peer", str(seed)]))


def _last_line(command: list[str]) -> str:
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


def train_peer(seed: int) -> int:
    """Steps that Stable-Baselines3 takes."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env

    stop = EvalCallback(
        make_vec_env(ENV, 1, seed=10_000 + seed),
        StopTrainingOnRewardThreshold(RETURN, verbose=0),
        n_eval_episodes=EPISODES,
        eval_freq=INTERVAL,
        verbose=0,
    )
    model = SAC(
        "MlpPolicy",
        ENV,
        learning_starts=WARM_UP_STEPS,
        batch_size=BATCH_SIZE,
        buffer_size=MAX_STEPS,
        learning_rate=RATE,
        policy_kwargs={"net_arch": list(HIDDEN_SIZES)},
        seed=seed,
        device="cpu",
    )
    model.learn(MAX_STEPS, callback=stop)
    return int(model.num_timesteps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--num-seeds", type=int, default=10)
    parser.add_argument("--peer", type=int, help="train Stable-Baselines3 with this seed, and print its steps")
    arguments = parser.parse_args()
    if arguments.peer is not None:
        print(train_peer(arguments.peer))
        return
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = {
            name: [pool.submit(side, seed) for seed in range(arguments.num_seeds)]
            for name, side in (("RelayRL", ours), ("Stable-Baselines3", peers))
        }
        print("| SAC on Pendulum-v1 | steps to −200, each seed | mean ± std | median |\n|---|---|--:|--:|")
        for name, futures in running.items():
            steps = [future.result() for future in futures]
            each = ", ".join(f"{one:,}" for one in steps)
            mean = f"{statistics.mean(steps):,.0f} ± {statistics.stdev(steps):,.0f}"
            print(f"| {name} | {each} | {mean} | {statistics.median(steps):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
