"""Imitation from ten episodes: behavioral cloning, and PPO and SAC that are rewarded by GAIL alone.

    python benchmarks/imitation.py                              CartPole and Pendulum, seeds 0 to 2
    python benchmarks/imitation.py --envs Pendulum --methods gail --seeds 0

An expert is trained with PPO, and ten episodes of its most likely actions are recorded. Learners see the recording and no
reward. Every seed is listed, never the best: the mean return of 100 greedy episodes, that of the latest 100 training episodes,
and seconds.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import relayrl

EXPERT_STEPS = {"CartPole": 100_000, "Pendulum": 400_000}
GAIL_STEPS = {"CartPole": 200_000, "Pendulum": 300_000}
SEES_ACTIONS = {"CartPole": True, "Pendulum": False}
SAC_STEPS = {"Pendulum": 50_000}
"""SAC takes real actions alone."""
SAC_SETTINGS = {
    "environment.num_envs": 8,
    "network.hidden_sizes": [64, 64],
    "params.update_interval": 64,  # the discriminator learns as often
    "params.train_iters": 64,
    "params.batch_size": 128,
    "params.buffer_size": 8_000,  # a step keeps the reward of its day's discriminator: old ones mislead
    "params.actor_lr": 1e-3,
    "params.critic_lr": 1e-3,
    "params.temperature_lr": 1e-3,
}
SAC_GAIL = {"use_actions": True, "num_epochs": 4, "learning_rate": 1e-3}
METHODS = ("bc", "gail", "gail+vail", "sac+gail")
COMMON = {"evaluation.episodes": 100, "statistics.tensorboard": False}


def method_settings(env: str, method: str, demos: str) -> dict[str, Any]:
    """What a learner is given besides the environment."""
    if method == "bc":
        return {"learn_from": demos}
    options = {"demo_path": demos, "use_actions": SEES_ACTIONS[env], "use_vail": method.endswith("vail")}
    of_sac = SAC_SETTINGS if method == "sac+gail" else {}
    options |= SAC_GAIL if method == "sac+gail" else {}
    return {**of_sac, "reward_signals": {"extrinsic": {"strength": 0.0}, "gail": {"options": options}}}


def run_seed(env: str, method: str, seed: int, demos: str, folder: Path) -> str:
    """One row of the table."""
    run = relayrl.train(
        f"native:{env}",
        algo={"bc": "bc", "sac+gail": "sac"}.get(method, "ppo"),
        steps=SAC_STEPS[env] if method == "sac+gail" else GAIL_STEPS[env],
        seed=seed,
        run_dir=folder / f"{env}-{method}-{seed}",
        settings=COMMON | method_settings(env, method, demos),
        progress=False,
    )
    training = "" if method == "bc" else f"{run.result.train_return:.0f}"
    return f"| {env} | {method} | {seed} | {run.result.mean_return:.0f} | {training} | {run.result.seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", default=",".join(EXPERT_STEPS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    print("| environment | learner | seed | greedy return | training return | seconds |\n|---|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for env in args.envs.split(","):
            given = {"steps": EXPERT_STEPS[env], "run_dir": folder / f"{env}-expert", "progress": False}
            expert = relayrl.train(f"native:{env}", algo="ppo", seed=100, settings=COMMON, **given)
            demos = f"arrow:{folder}/{env}-demos"
            shown = relayrl.record_demonstrations(f"native:{env}", demos, policy=expert.path, episodes=10, seed=1)
            mean = sum(shown.returns) / len(shown.returns)
            print(f"| {env} | expert | 100 | {expert.result.mean_return:.0f} | | |")
            print(f"| {env} | the ten episodes | | {mean:.0f} | | |", flush=True)
            for method in args.methods.split(","):
                if method == "sac+gail" and env not in SAC_STEPS:
                    continue
                for seed in args.seeds.split(","):
                    print(run_seed(env, method, int(seed), demos, folder), flush=True)


if __name__ == "__main__":
    main()
