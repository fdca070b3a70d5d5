"""The list of passes over kernels that is known by name."""

from __future__ import annotations

import pickle
import subprocess
import sys

from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.standard_passes import StandardPasses

SENDS = """
import pickle, sys
from weft.backends.nvidia.standard_passes import StandardPasses
assert len(pickle.dumps(StandardPasses())) < 200
assert "weft.backends.nvidia.kernel_pipeline" not in sys.modules
"""


def test_it_is_the_list() -> None:
    passes = StandardPasses()
    assert tuple(passes) == nvidia_kernel_passes()
    assert passes[0] == nvidia_kernel_passes()[0]
    assert passes[:2] == nvidia_kernel_passes()[:2]


def test_it_is_sent_to_workers_by_its_name() -> None:
    assert tuple(pickle.loads(pickle.dumps(StandardPasses()))) == nvidia_kernel_passes()
    done = subprocess.run([sys.executable, "-c", SENDS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
