"""The OpenMP pool of the process is the framework's, whatever other packages have loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from weft.runtime.openmp import loaded_libraries

_SCRIPT = """
import ctypes, sys
import torch
ctypes.CDLL(sys.argv[1])  # as scikit-learn's extension modules bring a copy of their own
from weft.runtime.openmp import pool_symbols, pool_threads

torch.set_num_threads(1)
assert pool_threads() == 1
torch.set_num_threads(2)
assert pool_threads() == 2
print(pool_symbols()["GOMP_parallel"], ctypes.cast(ctypes.CDLL(sys.argv[2]).GOMP_parallel, ctypes.c_void_p).value)
"""


def test_a_second_pool_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pools = loaded_libraries(r"^libgomp[.-]")
    if not pools:
        pytest.skip("torch is built with another OpenMP library than libgomp")
    # Sorted before the framework's by its path, and another library by its inode.
    copy = shutil.copy(pools[0], tmp_path / "libgomp-copy.so.1")
    done = subprocess.run([sys.executable, "-c", _SCRIPT, str(copy), pools[0]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    chosen, framework = done.stdout.split()
    assert chosen == framework
