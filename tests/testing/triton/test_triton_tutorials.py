"""Of a tutorial only the kernels are taken, at their own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.testing.triton.triton_tutorials import TutorialError, kernel_text, kernels_of

TEXT = """import torch
import triton
import triton.profiler as proton

DEVICE = triton.runtime.driver.active.get_active_torch_device()


def metadata(grid, kernel, args):
    return {}


@triton.autotune(configs=[], key=[])
@triton.jit(launch_metadata=metadata)
def kernel(x):
    pass


print(kernel)
"""


def test_kernels_keep_their_lines() -> None:
    lines = kernel_text(TEXT).splitlines()
    kept = {number: line for number, line in enumerate(lines, 1) if line}
    assert kept == {
        2: "import triton",
        8: "def metadata(grid, kernel, args):",
        9: "    return {}",
        13: "@triton.jit(launch_metadata=metadata)",
        14: "def kernel(x):",
        15: "    pass",
    }


def test_a_folder_without_tutorials(tmp_path: Path) -> None:
    with pytest.raises(TutorialError, match="there is no"), kernels_of(tmp_path, "01-vector-add.py"):
        pass
