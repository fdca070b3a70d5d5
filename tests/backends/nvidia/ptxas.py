"""What tests take of the assembler, and a mark for those that need it."""

from __future__ import annotations

import pytest

from weft.backends.nvidia.driver.assembler import Assembly, assemble, parse, tool

__all__ = ["Assembly", "assemble", "needs_ptxas", "parse"]

needs_ptxas = pytest.mark.skipif(
    tool("ptxas") is None, reason="no ptxas: pip install nvidia-cuda-nvcc, or put it on PATH"
)
