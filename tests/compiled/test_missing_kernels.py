"""Kernels that are not there, or get numbers wrong, are reported once with what to do, and torch does their work."""

import json
import os
import subprocess
import sys

import pytest

from relayrl.compiled import loader, self_check

RUN = """
import sys
from types import SimpleNamespace
{prepare}
import relayrl
settings = {{"network.hidden_sizes": [4], "evaluation.episodes": 1, "params.train_pi_iters": 2, "params.train_vf_iters": 2}}
for name in ("one", "other"):
    run = relayrl.train("native:CartPole", steps=512, num_envs=8, run_dir=name, settings=settings, progress=False)
    print(run.result.computed_by)
"""
ABSENT = 'sys.modules["relayrl.compiled._kernels"] = None'
WRONG = """
from relayrl.compiled import _kernels as k
def half(network, *given):
    k.MLP.forward(network, *given)
    given[1][...] *= 0.5
class Wrong(SimpleNamespace):
    def __init__(self, *given):
        self.own = k.MLP(*given)
        self.choose = self.own.choose
        self.forward = lambda *given: half(self.own, *given)
module = SimpleNamespace(**{**vars(k), "MLP": Wrong, "Tape": lambda p, kept: k.Tape(p.own, kept)})
sys.modules["relayrl.compiled._kernels"] = module
import relayrl.compiled
relayrl.compiled._kernels = module
"""


def output_of(prepare: str, folder, **variables: str) -> subprocess.CompletedProcess[str]:
    code = RUN.format(prepare=prepare)
    environment = os.environ | variables
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment, check=True
    )


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (ABSENT, "there are no compiled kernels in this installation"),
        (WRONG, "are not used: outputs of one row of a network with tanh differ from NumPy's"),
    ],
)
def test_two_runs_warn_once_with_what_to_do_and_log_it(prepare, why, tmp_path):
    done = output_of(prepare, tmp_path)
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("relayrl:")]
    assert why in warning
    assert "pip install --force-reinstall --no-cache-dir --no-deps relayrl" in warning
    assert all(line.startswith("torch (") and why in line for line in done.stdout.splitlines())
    assert all(why in (tmp_path / name / "run.log").read_text() for name in ("one", "other"))


def test_whoever_switches_the_kernels_off_is_not_warned(tmp_path):
    done = output_of("", tmp_path, RELAYRL_COMPILED="off")
    assert "relayrl:" not in done.stderr
    assert done.stdout.splitlines() == ["torch (RELAYRL_COMPILED=off)"] * 2


def test_the_command_line_keeps_standard_output_clean(tmp_path):
    command = "import sys\n" + ABSENT + "\nfrom relayrl.cli.main import main\nmain()"
    arguments = "train native:CartPole --num-envs 8 --steps 2048 --run-dir r --quiet --json --set evaluation.episodes=1"
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments.split()], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["num_env_steps"] == 2048
    assert done.stderr.count("there are no compiled kernels") == 1


@pytest.mark.skipif(loader.kernels() is None, reason="needs the compiled kernels")
def test_every_instruction_set_passes_its_own_check():
    module = loader.kernels()
    try:
        for name in module.instruction_sets():
            module.use_instruction_set(name)
            assert self_check.fault_of(module) is None, name
    finally:
        module.use_instruction_set(os.environ.get(loader.VARIABLE) or module.instruction_sets()[0])
