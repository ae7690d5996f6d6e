"""`threads` is about speed: networks that the kernels or NumPy compute come out the same, bit for bit, whatever it is."""

import os
import subprocess
import sys

import pytest
import torch

import relayrl
from relayrl.compiled import loader
from relayrl.models.networks.observation_encoder import RunningNormalizer

THREADS = (1, 2, 3, 5, 8, 16)
"""Of torch and of the kernels, also where there are fewer cores."""
FEW_PASSES = {"params.train_pi_iters": 2, "params.train_vf_iters": 2}
NORMALIZED = {"network.normalize_observations": True}
REPLAY = {"params.learning_starts": 160, "params.batch_size": 1_100, **NORMALIZED}
RUNS = {
    "ppo": ("native:CartPole", 256, 16_384, FEW_PASSES),  # minibatches of 16,384 rows
    "ppo-wide": (
        "native:Pendulum",
        64,
        4_096,
        {**FEW_PASSES, **NORMALIZED, "params.num_minibatches": 3, "network.hidden_sizes": [300, 300]},
    ),
    "reinforce": ("native:CartPole", 64, 4_096, {"params.train_vf_iters": 2, "params.normalize_returns": True}),
    "td3": ("native:Pendulum", 8, 168, {**REPLAY, "network.hidden_sizes": [300, 300]}),
    "td3-few": ("native:Pendulum", 1, 180, {**REPLAY, "params.batch_size": 256}),  # rows that threads share as units
    "sac": ("native:Pendulum", 8, 168, REPLAY),
    "sac-few": ("native:Pendulum", 1, 180, {**REPLAY, "params.batch_size": 256}),
    "mappo": ("native:simple_spread", 32, 2_048, {**FEW_PASSES, **NORMALIZED}),
}


def parameter_hash(name: str, threads: int, folder) -> str:
    env, num_envs, steps, own = RUNS[name]
    settings = {"threads": threads, "evaluation.episodes": 0, "statistics.tensorboard": False, **own}
    loader.set_num_threads(threads)
    run = relayrl.train(
        env,
        algo=name.split("-")[0],
        seed=2,
        steps=steps,
        num_envs=num_envs,
        run_dir=folder / str(threads),
        settings=settings,
        progress=False,
    )
    return run.result.parameter_hash


@pytest.fixture(autouse=True)
def _as_many_threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    loader.set_num_threads(None)


@pytest.mark.parametrize("name", RUNS)
def test_any_number_of_threads_gives_the_same_parameters(name, tmp_path):
    assert len({parameter_hash(name, threads, tmp_path) for threads in THREADS}) == 1


@pytest.mark.slow
def test_so_it_does_without_the_kernels(tmp_path):
    code = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import test_threads_change_no_bit as t; " + (
        "print({t.parameter_hash('ppo-wide', n, pathlib.Path(sys.argv[2])) for n in t.THREADS})"
    )
    command = [sys.executable, "-c", code, os.path.dirname(__file__), str(tmp_path)]
    environment = os.environ | {"RELAYRL_COMPILED": "off"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.count("'") == 2, done.stdout


def test_moments_of_observations_are_added_up_alike():
    rows = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        moments = RunningNormalizer(3)
        moments.update(rows)
        assert torch.get_num_threads() == threads
        found.append((moments.mean.tolist(), moments.variance.tolist()))
    assert all(one == found[0] for one in found)
