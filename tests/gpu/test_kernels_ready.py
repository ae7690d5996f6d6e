"""On a GPU: no kernel is compiled after a run's rehearsal, and a run that was rehearsed learns the same, bit for bit."""

import json
import os
import subprocess
import sys

import pytest
import torch

from relayrl.compiled.usable_cores import num_cores

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(num_cores() < 2, reason="kernels are compiled by other processes on several cores"),
]
PROGRAM = """
import json, sys
from pathlib import Path
import triton
import relayrl
from relayrl.engines.device import resident_pace

folder, env, is_rehearsed = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
if not is_rehearsed:
    resident_pace.compile_kernels_of = lambda work, generators: None
were_there = []
triton.knobs.compilation.listener = lambda **found: were_there.append(found["cache_hit"])
settings = {"trainer.time_horizon": 32, "params.num_minibatches": 4, "params.normalize_returns": True, "tf32": True}
settings |= {"network.normalize_observations": True}
run = relayrl.train(
    env, steps=64 * 32 * 4, num_envs=64, device="cuda", seed=3, settings=settings, run_dir=folder / "run", progress=False
)
learned = run.result.parameter_hash
print(json.dumps({"hash": learned, "num_there": were_there.count(True), "num": len(were_there)}))
"""


def trained(folder, env, is_rehearsed):
    environ = {**os.environ, "TRITON_CACHE_DIR": str(folder / "kernels")}
    folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(folder), env, str(is_rehearsed)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("env", ["native:CartPole", "native:Pendulum"])
def test_all_kernels_are_there_when_they_are_launched(tmp_path, env):
    ours, plain = trained(tmp_path / "rehearsed", env, True), trained(tmp_path / "plain", env, False)
    assert ours["hash"] == plain["hash"]
    assert (ours["num"], ours["num_there"], plain["num_there"]) == (plain["num"], plain["num"], 0)
