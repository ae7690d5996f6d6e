"""The start of a run: torch does not mind that its libraries were loaded before, and nothing is loaded for nothing."""

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_torch_works_after_its_libraries_were_loaded():
    code = (
        "import sys, threading\n"
        "from relayrl.engines.torch_preload import preload_torch\n"
        "preload_torch(); preload_torch()\n"
        "print([t.name for t in threading.enumerate()].count('torch-preload') <= 1, 'torch' in sys.modules)\n"
        "import torch\n"
        "print(float(torch.linalg.inv(torch.tensor([[2.0]]))[0, 0]), torch.get_num_threads() >= 1)\n"
    )
    assert run(code).split() == ["True", "False", "0.5", "True"]


def test_a_process_that_ends_at_once_ends_well():
    assert run("from relayrl.engines.torch_preload import preload_torch; preload_torch(); print('done')") == "done"


def test_a_session_module_loads_nothing_heavy():
    heavy = "('torch', 'numpy', 'pydantic', 'gymnasium', 'pyarrow')"
    assert run(f"import sys, relayrl.engines.sessions; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_a_run_that_records_nothing_loads_no_arrow():
    assert run("import sys, relayrl.engines.local.local_engine; print('pyarrow' in sys.modules)") == "False"


def test_a_run_on_the_cpu_neither_loads_triton_nor_rehearses(tmp_path):
    code = (
        "import sys, relayrl\n"
        "from relayrl.engines.device import resident_pace\n"
        "def never(*_): raise SystemExit('it was rehearsed')\n"
        "resident_pace.compile_kernels_of = never\n"
        "settings = {'trainer.time_horizon': 4, 'params.num_minibatches': 1, 'evaluation.episodes': 0}\n"
        "given = {'steps': 16, 'num_envs': 2, 'device': 'cpu:0', 'settings': settings, 'progress': False}\n"
        f"relayrl.train('native:CartPole', run_dir={str(tmp_path / 'run')!r}, **given)\n"
        "print('triton' in sys.modules)\n"
    )
    assert run(code) == "False"
