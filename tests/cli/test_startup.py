"""Commands load torch, and whatever else is heavy, only where they need it."""

import subprocess
import sys

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
