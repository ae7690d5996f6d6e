"""A game of Atari by RelayRL and by Stable-Baselines3, at equal settings and in the same environment, with a record of both.

    python benchmarks/atari.py --steps 200000                    Pong, both sides, seed 0
    python benchmarks/atari.py --game Breakout --side ours --steps 10000000 --seeds 0,1,2
    python benchmarks/atari.py --env PongNoFrameskip-v4 --side ours --steps 5000000 --set device=cuda --run-dir runs/pong

`--set` changes settings of our side; the record names them. With `--run-dir` the run is kept there, and the same command goes
on with it where it was stopped; `seconds` and steps/s are then those since.

Both learn by PPO from the stack `atari` (`docs/wrappers.md`) with the settings of the preset: 8 environments, 128 steps, 4
passes in batches of 256, learning rate 2.5e-4 to zero, clipping at 0.1. `scores` are those of whole games in training,
`evaluation` is the mean score of greedy games afterwards. A line of `atari_records.jsonl` is written for each run. Needs
`relayrl[atari,peers]`.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml

import relayrl

RECORDS = Path(__file__).parent / "atari_records.jsonl"
LAST_GAMES = 20
NUM_ENVS, NUM_STEPS, NUM_EPOCHS, BATCH_SIZE = 8, 128, 4, 256


def ours(
    env_id: str,
    steps: int,
    seed: int,
    games: int,
    threads: int,
    changed: dict[str, Any] | None = None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """`relayrl train ENV --steps N --seed S`, by its preset."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "threads": threads,
            "evaluation.episodes": games,
            "statistics.tensorboard": False,
            **(changed or {}),
        }
        run_dir = kept or Path(folder) / "run"
        began = time.perf_counter()
        if (run_dir / "config.yaml").exists():
            run = relayrl.train(run_dir=run_dir, resume=True, progress=False)
        else:
            run = relayrl.train(
                env_id, algo="ppo", steps=steps, seed=seed, run_dir=run_dir, settings=settings, progress=False
            )
        seconds = time.perf_counter() - began
        result, scores = run.result, run.history.get("episode/return_mean", [])
        known = [score for score in scores if np.isfinite(score)]
        return {
            "env_steps_per_s": round(result.env_steps_per_s, 1),
            "seconds": round(seconds, 1),
            "scores": round(known[-1], 2) if known else None,
            "evaluation": round(result.mean_return, 2) if games else None,
            **({"settings": changed, "curve": _tenths(scores)} if changed else {}),
        }


def _tenths(scores: Sequence[float]) -> list[float]:
    """The score of games at each tenth of training."""
    places = np.linspace(0, len(scores) - 1, 11)[1:].astype(int) if len(scores) else []
    return [round(float(scores[place]), 1) for place in places]


class Scores(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sums the rewards of whole games, whatever learning takes for an end."""

    def __init__(self, env: gymnasium.Env[Any, Any], scores: list[float]) -> None:
        super().__init__(env)
        self._scores, self._sum = scores, 0.0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._sum += float(reward)
        if (terminated or truncated) and not info.get("life_lost", False):
            self._scores.append(self._sum)
            self._sum = 0.0
        return obs, reward, terminated, truncated, info


def game(env_id: str, scores: list[float]) -> gymnasium.Env[Any, Any]:
    """One environment with the stack `atari`, of Gymnasium's wrappers where RelayRL applies its own to all at once."""
    from relayrl.envs.adapters.gymnasium_adapter import find
    from relayrl.envs.wrappers.atari_game import AtariGame

    env: Any = AtariGame(find(env_id)(frameskip=1, obs_type="grayscale"))
    env = gymnasium.wrappers.FrameStackObservation(Scores(env, scores), 4)
    return gymnasium.wrappers.ClipReward(env, -1.0, 1.0)


def theirs(env_id: str, steps: int, seed: int, games: int, threads: int) -> dict[str, Any]:
    """`PPO("CnnPolicy")` of Stable-Baselines3."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(threads)
    scores: list[float] = []
    envs = DummyVecEnv([lambda: game(env_id, scores)] * NUM_ENVS)
    model = PPO(
        "CnnPolicy",
        envs,
        n_steps=NUM_STEPS,
        n_epochs=NUM_EPOCHS,
        batch_size=BATCH_SIZE,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=0.1,
        ent_coef=0.01,
        seed=seed,
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - began
    played: list[float] = []
    env = game(env_id, played)
    obs, _ = env.reset(seed=seed + 1_000)
    while len(played) < games:
        obs, _, terminated, truncated, _ = env.step(int(model.predict(obs, deterministic=True)[0]))
        if terminated or truncated:
            obs, _ = env.reset()
    envs.close()
    return {
        "env_steps_per_s": round(steps / seconds, 1),
        "seconds": round(seconds, 1),
        "scores": round(float(np.mean(scores[-LAST_GAMES:])), 2) if scores else None,
        "evaluation": round(float(np.mean(played)), 2) if played else None,
    }


def parsed(assignments: list[str]) -> dict[str, Any]:
    return {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in assignments)}


SIDES = {"ours": ours, "theirs": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--env", help="an id instead of ALE/GAME-v5")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--side", choices=[*SIDES, "both"], default="both")
    parser.add_argument("--games", type=int, default=10, help="greedy games after training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--set", action="append", default=[], help="key=value, a setting of our side; repeatable")
    parser.add_argument("--run-dir", type=Path, help="where our run of one seed is kept")
    asked = parser.parse_args()
    env_id = asked.env or f"ALE/{asked.game}-v5"
    for seed in map(int, asked.seeds.split(",")):
        for side in SIDES if asked.side == "both" else (asked.side,):
            own = (parsed(asked.set), asked.run_dir) if side == "ours" else ()
            found = SIDES[side](env_id, asked.steps, seed, asked.games, asked.threads, *own)
            record = {
                "side": side,
                "env": env_id,
                "steps": asked.steps,
                "seed": seed,
                "threads": asked.threads,
                **found,
            }
            record |= {"machine": platform.machine(), "torch": torch.__version__}
            with asked.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
