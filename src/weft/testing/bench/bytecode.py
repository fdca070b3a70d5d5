"""Bytecode of the packages that compilers are made of, written before anything is timed.

An installed package has its bytecode. A checkout, or an image whose packages were copied, has none where
`PYTHONDONTWRITEBYTECODE` is set: every process then compiles what it imports, and a first call seems to take seconds
longer, whoever compiles.
"""

from __future__ import annotations

import compileall
from collections.abc import Sequence
from importlib.util import find_spec

_COMPILERS = ("weft", "xdsl", "llvmlite", "torch", "triton", "sympy", "mpmath", "networkx")


def write_bytecode(packages: Sequence[str] = _COMPILERS) -> None:
    """Write what is missing, by all cores; folders that may not be written to stay as they are."""
    for name in packages:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            compileall.compile_dir(folder, quiet=2, workers=0)
