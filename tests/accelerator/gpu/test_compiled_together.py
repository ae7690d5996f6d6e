"""Kernels are compiled by several processes, for a GPU that need not be there; one that cannot be compiled raises."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

START = """
import os, sys
from types import SimpleNamespace
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime._async_compile import active_mode
from relayrl.accelerator.gpu.compilation import compiling
from relayrl.accelerator.gpu.compilation.compiling import compile_together
from relayrl.accelerator.gpu.compilation.rehearsal import Kernel

main, folder = os.getpid(), os.environ["TRITON_CACHE_DIR"]
compiling.num_cores = lambda: 3
driver.set_active(SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
    launcher_cls=lambda src, metadata: open(f"{folder}/{metadata.hash}.launcher", "a").write(str(os.getpid() == main)),
))

@Kernel
def double_kernel(X, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(X + i, 2.0 * tl.load(X + i, mask=i < n, other=0.0), mask=i < n)

@Kernel
def wrong_kernel(X, BLOCK: tl.constexpr):
    tl.store(X + tl.arange(0, BLOCK), not_defined_anywhere)

x, were_there = torch.ones(64), []
triton.knobs.compilation.listener = lambda **found: were_there.append(found["cache_hit"])
"""


def start(code, folder):
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(folder)}
    file = folder / "program.py"  # Triton reads the source of kernels
    file.write_text(START + code)
    return subprocess.Popen([sys.executable, str(file)], env=environ, stdout=subprocess.PIPE, text=True)


def lines_of(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.splitlines()


def run(code, folder):
    return lines_of(start(code, folder))


def test_each_kernel_is_compiled_once_with_what_launches_it(tmp_path):
    code = """
def work():
    for block in (16, 32, 16, 32, 64):
        double_kernel[(4,)](x, 64, BLOCK=block)

print(compile_together(work, []), were_there)
print(sorted(len(cache[0]) for cache in double_kernel.function.device_caches.values()))
print(compile_together(work, []), len(were_there), x.eq(1.0).all().item())
print([open(f"{folder}/{name}").read() for name in os.listdir(folder) if name.endswith(".launcher")])
"""
    assert run(code, tmp_path) == ["3 [True, True, True]", "[3]", "0 3 True", "['False', 'False', 'False']"]


def test_where_no_process_can_begin_kernels_are_compiled_one_after_the_other(tmp_path):
    code = """
def work():
    for block in (16, 32):
        double_kernel[(4,)](x, 64, BLOCK=block)

def fork():
    raise BlockingIOError("no place for a process")

os.fork = fork
print(compile_together(work, []), were_there)
"""
    assert run(code, tmp_path) == ["2 [False, False]"]


def test_a_kernel_that_cannot_be_compiled_raises_as_its_launch_would(tmp_path):
    code = """
def work():
    double_kernel[(4,)](x, 64, BLOCK=16)
    wrong_kernel[(1,)](x, BLOCK=16)

for _ in range(2):
    try:
        compile_together(work, [])
    except triton.CompilationError as error:
        print("not_defined_anywhere" in str(error), active_mode.get())
print(compile_together(lambda: double_kernel[(4,)](x, 64, BLOCK=32), []))
"""
    assert run(code, tmp_path) == ["True None", "True None", "1"]


def test_who_is_interrupted_while_kernels_are_compiled_waits_for_nothing(tmp_path):
    code = """
def interrupted(*_):
    raise KeyboardInterrupt

compiling.do_in_forks, compile_all = interrupted, compiling.do_in_forks
try:
    compile_together(lambda: double_kernel[(4,)](x, 64, BLOCK=16), [])
except KeyboardInterrupt:
    print("interrupted", active_mode.get())
compiling.do_in_forks = compile_all
print(compile_together(lambda: double_kernel[(4,)](x, 64, BLOCK=16), []))
"""
    assert run(code, tmp_path) == ["interrupted None", "1"]


def test_processes_share_a_cache_also_with_one_that_was_killed(tmp_path):
    code = """
def work():
    for block in (16, 32, 64, 128):
        double_kernel[(4,)](x, 64, BLOCK=block)

print("begins", flush=True)
print(compile_together(work, []), sorted(len(cache[0]) for cache in double_kernel.function.device_caches.values()))
"""
    killed = start(code, tmp_path)
    assert killed.stdout.readline() == "begins\n"
    killed.kill()
    killed.communicate()
    both = [start(code, tmp_path) for _ in range(2)]
    assert [lines_of(each) for each in both] == [["begins", "4 [4]"]] * 2
