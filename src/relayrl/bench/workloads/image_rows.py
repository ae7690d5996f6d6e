"""Learning from pixels, beside Stable-Baselines3's CnnPolicy with the same work in the same process and run.

Each takes the better of one and two threads. Ours has its default of one encoder for actor and critic, as theirs has for PPO;
for SAC theirs has one each, which is its default. Environments: a film of random frames always, Breakout where ale-py is
installed, CarRacing where Box2D is. CarRacing's own step takes most of the time, so that it is also measured with two workers
of ours, beside their default of one process and beside a process for each environment (`SubprocVecEnv`). A replay of stacked
frames is measured in bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.bench.rows import Row
from relayrl.bench.workloads.off_policy_rows import steps_per_s_of_learning
from relayrl.bench.workloads.ppo_rows import (
    CLIP,
    EPOCHS,
    LEARNING_RATE,
    MINIBATCHES,
    PEER,
    ROLLOUT_STEPS,
    UNIT,
    steps_per_s,
    workload_settings,
)
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.training.replay.joint_replay import JointReplay

NUM_ENVS, WORKERS = 8, 2
SAC_WARM_UP, SAC_STEPS, SAC_BATCH = 70, 40, 64
REPETITIONS, THREADS = 3, (1, 2)
REPLAYED = 20_000
TARGETS = {"film": 1.3, "Breakout": 1.3, "CarRacing": 1.5}
SAC_TARGET, REPLAY_TARGET = 1.3, 3.0
SIDE, STACK = 84, 4


class Film(gymnasium.Env[Any, Any]):
    """Stacks of four random frames, as Atari's are; nothing to be learned, and nothing to be waited for."""

    observation_space = spaces.Box(0, 255, (SIDE, SIDE, STACK), np.uint8)

    def __init__(self, *, is_continuous: bool = False) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32) if is_continuous else spaces.Discrete(4)
        frames = np.random.default_rng(0).integers(0, 256, (64, SIDE, SIDE), np.uint8)
        self._stacks = [np.stack([frames[(i + k) % 64] for k in range(STACK)], -1) for i in range(64)]
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._stacks[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        return self._stacks[self._num_steps % 64], 1.0, self._num_steps >= 200, False, {}


def breakout() -> gymnasium.Env[Any, Any]:
    """Breakout as DQN has it: every fourth frame, grey, 84x84, four of them."""
    gymnasium.register_envs(importlib.import_module("ale_py"))
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    prepared: gymnasium.Env[Any, Any] = gymnasium.wrappers.AtariPreprocessing(env, scale_obs=False)
    return gymnasium.wrappers.FrameStackObservation(prepared, STACK)


def car_racing() -> gymnasium.Env[Any, Any]:
    """CarRacing's own picture of 96x96 pixels in colour; three continuous actions."""
    return gymnasium.make("CarRacing-v3")


def image_rows() -> list[Row]:
    """PPO on each environment that there is, SAC, and the memory of replay."""
    rows = [_ppo_row("film", Film)]
    if _has("ale_py", "cv2"):
        rows.append(_ppo_row("Breakout", breakout))
    has_box2d = _has("Box2D", "pygame")
    if has_box2d:
        rows += [
            _ppo_row("CarRacing", car_racing),
            _ppo_row("CarRacing", car_racing, WORKERS),
            _ppo_row("CarRacing", car_racing, WORKERS, in_processes=True),
        ]
    return [
        *rows,
        _sac_row("CarRacing" if has_box2d else "film", car_racing if has_box2d else _continuous_film),
        replay_row(),
    ]


def _has(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


def _continuous_film() -> gymnasium.Env[Any, Any]:
    return Film(is_continuous=True)


def _ppo_row(
    name: str, make: Callable[[], gymnasium.Env[Any, Any]], workers: int = 0, *, in_processes: bool = False
) -> Row:
    """`workers` are ours, `in_processes` theirs."""

    def ours(threads: int) -> float:
        return steps_per_s(ppo_settings(make, threads, workers=workers))

    def theirs(threads: int) -> float:
        return _sb3_ppo(make, threads, in_processes=in_processes)

    where = f" in {workers} workers" if workers else ""
    work, against = f"PPO from pixels, {name}, {NUM_ENVS} environments{where}", "SubprocVecEnv" if in_processes else ""
    return _row(work, ours, theirs, TARGETS[name], against)


def _sac_row(name: str, make: Callable[[], gymnasium.Env[Any, Any]]) -> Row:
    def ours(threads: int) -> float:
        return steps_per_s_of_learning(sac_settings(make, threads), SAC_WARM_UP, SAC_STEPS)

    return _row(f"SAC from pixels, {name}, batch {SAC_BATCH}", ours, lambda n: _sb3_sac(make, n), SAC_TARGET)


def _row(
    name: str, ours: Callable[[int], float], theirs: Callable[[int], float], target: float, against: str = ""
) -> Row:
    """The better number of threads of each, measured in turn; `against` says more of the peer."""
    if not _has("stable_baselines3"):
        own = max(ours(threads) for threads in THREADS)
        return Row(name, own, UNIT, f"{PEER} is not installed: pip install 'relayrl[peers]'", None, None, target)
    rates: dict[tuple[int, int], list[float]] = {(side, n): [] for n in THREADS for side in (0, 1)}
    for _ in range(REPETITIONS):
        for threads in THREADS:
            rates[0, threads].append(ours(threads))
            rates[1, threads].append(theirs(threads))
    best = [max(statistics.median(rates[side, n]) for n in THREADS) for side in (0, 1)]
    peer = f"{PEER}, CnnPolicy" + (f", {against}" if against else "")
    return Row(name, best[0], UNIT, peer, best[1], best[0] / best[1], target)


def ppo_settings(
    make: Callable[[], gymnasium.Env[Any, Any]], threads: int, num_updates: int = 1, *, workers: int = 0
) -> RunSettings:
    """W1's work with images: 128 steps an environment, 4 epochs of 4 minibatches, Nature's encoder with 512 features."""
    settings = workload_settings(_name(make), NUM_ENVS, num_updates * NUM_ENVS * ROLLOUT_STEPS, workers=workers)
    network = settings.network.model_copy(update={"hidden_sizes": ()})
    return settings.model_copy(update={"threads": threads, "network": network})


def sac_settings(make: Callable[[], gymnasium.Env[Any, Any]], threads: int) -> RunSettings:
    """A gradient step after each environment step, Nature's encoder, two layers of 256."""
    flags = {
        "algo": "sac",
        "threads": threads,
        "environment.num_envs": 1,
        "trainer.max_steps": SAC_WARM_UP + SAC_STEPS,
        "network.hidden_sizes": (256, 256),
        "network.activation": "relu",
        "evaluation.episodes": 0,
        "params": {"batch_size": SAC_BATCH, "buffer_size": 1_000, "learning_starts": SAC_WARM_UP},
    }
    return build_run_settings(_name(make), None, flags, [])


def _name(make: Callable[[], Any]) -> str:
    return f"{make.__module__}:{make.__name__}"


def _sb3_ppo(make: Callable[[], gymnasium.Env[Any, Any]], threads: int, *, in_processes: bool) -> float:
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(threads)
    envs = make_vec_env(make, n_envs=NUM_ENVS, seed=1, vec_env_cls=SubprocVecEnv if in_processes else DummyVecEnv)
    model = sb3.PPO(
        "CnnPolicy",
        envs,
        n_steps=ROLLOUT_STEPS,
        batch_size=NUM_ENVS * ROLLOUT_STEPS // MINIBATCHES,
        n_epochs=EPOCHS,
        learning_rate=lambda left: LEARNING_RATE * left,
        gae_lambda=0.95,
        clip_range=CLIP,
        clip_range_vf=CLIP,
        ent_coef=0.01,
        seed=1,
        device="cpu",
    )
    start = time.perf_counter()
    model.learn(NUM_ENVS * ROLLOUT_STEPS)
    seconds = time.perf_counter() - start
    envs.close()
    return float(model.num_timesteps / seconds)


def _sb3_sac(make: Callable[[], gymnasium.Env[Any, Any]], threads: int) -> float:
    import stable_baselines3 as sb3
    import torch

    torch.set_num_threads(threads)
    model = sb3.SAC(
        "CnnPolicy",
        make(),
        learning_starts=SAC_WARM_UP,
        train_freq=1,
        gradient_steps=1,
        batch_size=SAC_BATCH,
        buffer_size=1_000,
        policy_kwargs={"net_arch": [256, 256]},
        seed=1,
        device="cpu",
    )
    model.learn(SAC_WARM_UP)
    start = time.perf_counter()
    model.learn(SAC_STEPS, reset_num_timesteps=False)
    return SAC_STEPS / (time.perf_counter() - start)


def replay_row() -> Row:
    """Bytes of a transition of stacked frames, beside what Stable-Baselines3 allocates for as many."""
    name, unit, against = (
        f"replay of {REPLAYED:,} transitions of 4 stacked frames",
        "bytes/transition",
        f"{PEER}'s ReplayBuffer",
    )
    replay = JointReplay(REPLAYED, 1)
    film, steps = Film(), 500
    while len(replay) < REPLAYED:
        replay.add({"agent": _filmed(film, steps)})
    own = replay.num_bytes() / REPLAYED
    if not _has("stable_baselines3"):
        return Row(name, own, unit, f"{PEER} is not installed", None, None, REPLAY_TARGET)
    from stable_baselines3.common.buffers import ReplayBuffer

    theirs = ReplayBuffer(REPLAYED, Film.observation_space, spaces.Discrete(4))
    columns = (
        theirs.observations,
        theirs.next_observations,
        theirs.actions,
        theirs.rewards,
        theirs.dones,
        theirs.timeouts,
    )
    peer = sum(column.nbytes for column in columns) / REPLAYED
    return Row(name, own, unit, against, peer, peer / own, REPLAY_TARGET)


def _filmed(film: Film, num_steps: int) -> Rollout:
    """A block in which episodes of 200 steps end."""
    obs, finals, ended = [film.reset()[0]], [], np.zeros((num_steps, 1), bool)
    for t in range(num_steps):
        seen, _, ended[t], _, _ = film.step(0)
        if ended[t] or t == num_steps - 1:
            finals.append((t, seen))
            seen = film.reset()[0]
        obs.append(seen)
    no, where = np.zeros((num_steps, 1), bool), np.array([t for t, _ in finals])
    following = np.stack([final for _, final in finals])
    return Rollout(
        header=LaneHeader("agent", (UUID(int=0),), ("agent",), film.observation_space, film.action_space),
        obs=np.stack(obs[:-1])[:, None],
        action=np.zeros((num_steps, 1), np.int64),
        reward=np.ones((num_steps, 1), np.float32),
        terminated=ended,
        truncated=no,
        valid=~no,
        failed=no,
        policy_version=np.zeros((num_steps, 1), np.int64),
        first_episode=np.zeros(1, np.int64),
        first_step=np.zeros(1, np.int64),
        successors=Successors(where, np.zeros(len(where), np.int64), following),
    )
