"""Commands start quickly, and load torch only where they learn."""

import subprocess
import sys
import time

import pytest

HEAVY = {"torch", "onnxruntime", "matplotlib", "pyarrow", "tensorboard"}
LIGHT_COMMANDS = {
    "--help": HEAVY | {"gymnasium", "numpy", "yaml"},
    "train --help": HEAVY | {"gymnasium", "numpy", "yaml"},
    "--version": HEAVY | {"gymnasium", "numpy", "yaml"},
    "list algos": HEAVY,
    "list schema": HEAVY,
    "list presets": HEAVY,
    "train CartPole-v1 --print-config": HEAVY,
    "train CartPol-v1": HEAVY,
}
CODE = """
import sys
sys.argv = ["relayrl", *{arguments!r}]
from relayrl.cli.main import main
try:
    main()
except SystemExit:
    pass
print("loaded:", *sorted({heavy!r} & set(sys.modules)))
"""


@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_commands_load_only_what_they_need(command, tmp_path):
    code = CODE.format(arguments=command.split(), heavy=LIGHT_COMMANDS[command])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


def seconds_of(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "relayrl.cli.main", *arguments], capture_output=True, check=True)
    return time.perf_counter() - started


def bare_seconds() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import typer"], check=True)
    return time.perf_counter() - started


def test_help_takes_little_more_than_the_parser_itself():
    # 0.3 s on an idle machine; compared with the parser's own import, so that a busy one does not decide.
    parser = min(bare_seconds() for _ in range(3))
    ours = min(seconds_of("--help") for _ in range(3))
    assert ours < 0.3 or ours < 2.0 * parser


WORLD = """
import gymnasium, numpy, os, time

class Watch(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, "float32"), {}

    def step(self, action):
        print("CPU seconds:", time.process_time(), flush=True)
        os._exit(0)
"""


def test_the_first_step_comes_within_three_seconds_of_work(tmp_path):
    # Seconds of this process's work, so that a busy machine does not decide.
    (tmp_path / "watch.py").write_text(WORLD)
    command = [sys.executable, "-m", "relayrl.cli.main", "train", "watch:Watch", "--run-dir", "run", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert float(done.stdout.rsplit(" ", 1)[-1]) < 3.0
