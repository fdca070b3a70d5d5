"""The OpenMP pool of the process is the framework's, whatever other packages have loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import ctypes, os, shutil, sys
import torch
from weft.runtime.openmp import loaded_libraries, pool_symbols, pool_threads

pools = loaded_libraries(r"^libgomp[.-]")
if not pools:
    sys.exit(77)
# As scikit-learn's extension modules bring a copy of their own: another library by its inode.
copy = ctypes.CDLL(shutil.copy(pools[0], sys.argv[1]))
copy.omp_set_num_threads(3)

def file_of(address):
    for line in open("/proc/self/maps"):
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[-1].strip()

chosen = file_of(pool_symbols()["GOMP_parallel"])
assert not os.path.samefile(chosen, sys.argv[1]), chosen
for threads in (1, 2):
    torch.set_num_threads(threads)
    assert pool_threads() == ctypes.CDLL(chosen).omp_get_max_threads() == threads, chosen
assert copy.omp_get_max_threads() == 3
"""


def test_a_second_pool_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # Sorted before the framework's by its path. The tests' own process may have loaded copies of other packages.
    copy = tmp_path / "libgomp-copy.so.1"
    done = subprocess.run([sys.executable, "-c", _SCRIPT, str(copy)], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("torch is built with another OpenMP library than libgomp")
    assert done.returncode == 0, done.stderr


_FORKED_PRODUCT = """
import os, signal, sys
import torch
import numpy as np
from weft.config import Config
from weft.frontends.text import compile_text
from weft.lower.steps import DotStep
from weft.runtime.openmp import pool_symbols

matrix = "tensor<256x256xf32>"
function = compile_text(f'''
"graph.func"() ({{
^bb0(%x: {matrix}, %w: {matrix}):
  %0 = "graph.dot"(%x, %w) : ({matrix}, {matrix}) -> {matrix}
  "graph.return"(%0) : ({matrix}) -> ()
}}) {{sym_name = "f", arg_names = ["x", "w"]}} : () -> ()
''', config=Config(cache=False))
if not pool_symbols() or not any(isinstance(step, DotStep) for step in function.executor.executable.plan.steps):
    sys.exit(77)
if sys.argv[1] == "asked of the library":
    torch.set_num_threads(2)
x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
(expected,) = function(x, x)
child = os.fork()
if not child:
    signal.alarm(60)  # which ends it, if it waits for threads that have stayed in the parent
    (found,) = function(x, x)
    os._exit(0 if np.allclose(found, expected, rtol=1e-4, atol=1e-4) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("threads", ["by default", "asked of the library"])
def test_a_forked_child_without_the_framework_may_call_its_blas(threads: str) -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", _FORKED_PRODUCT, threads], capture_output=True, text=True, timeout=600)
    if done.returncode == 77:
        pytest.skip("no BLAS that runs on an OpenMP pool")
    assert done.returncode == 0, (done.returncode, done.stderr)
