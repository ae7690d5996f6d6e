"""The start of a run: nothing is loaded for nothing."""

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_session_module_loads_nothing_heavy():
    heavy = "('torch', 'numpy', 'pydantic', 'gymnasium', 'pyarrow')"
    assert run(f"import sys, relayrl.engines.sessions; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_a_run_that_records_nothing_loads_no_arrow():
    assert run("import sys, relayrl.engines.local.local_engine; print('pyarrow' in sys.modules)") == "False"
