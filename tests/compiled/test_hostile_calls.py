"""No call of the kernels, however wrong, ends the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from relayrl.compiled import loader


@pytest.mark.skipif(loader.kernels() is None, reason="needs the compiled kernels")
def test_hostile_calls_are_refused_and_end_no_process() -> None:
    program = Path(__file__).with_name("hostile_calls.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5_000
