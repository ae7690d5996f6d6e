"""The kernels are right whichever compiler builds them: here clang, as the package `ziglang` brings it."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from relayrl.compiled import loader

ROOT = Path(__file__).parents[2]
KERNEL_TESTS = [
    "tests/models/test_compiled_acting.py",
    "tests/accelerator/test_compiled_tapes.py",
    "tests/compiled/test_thread_pool.py",
    "tests/envs/native/test_compiled_steps.py",
    "tests/accelerator/test_on_policy_kernels.py::test_steps_are_those_of_the_reference",
    "tests/accelerator/test_on_policy_kernels.py::test_any_depth_width_and_number_of_rows",
]


@pytest.fixture(scope="module")
def clang_build(tmp_path_factory) -> Path:
    """All sources with the flags of setup.py."""
    folder = tmp_path_factory.mktemp("clang")
    source = ROOT / "src/relayrl/compiled"
    flags = ast.literal_eval(re.search(r"extra_compile_args=(\[.*?\])", (ROOT / "setup.py").read_text())[1])
    command = [sys.executable, "-m", "ziglang", "cc", *flags, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    built = folder / f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "cache"), "ZIG_LOCAL_CACHE_DIR": str(folder / "cache")}
    subprocess.run([*command, *sorted(source.glob("*.c")), "-o", built], env=os.environ | caches, check=True)
    return built


@pytest.mark.slow
def test_what_clang_builds_passes_the_kernels_tests_on_every_instruction_set(clang_build):
    environment = os.environ | {"KERNELS_UNDER_TEST": str(clang_build)}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "preloaded_kernels", "-p", "no:cacheprovider", *KERNEL_TESTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-1_000:]
    assert "skipped" not in done.stdout
    assert loader.kernels() is not None
