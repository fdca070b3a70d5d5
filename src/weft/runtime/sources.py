"""A digest of Weft's own code: a changed compiler must not find what an older one stored."""

# llvmlite has no types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import llvmlite
import numpy
import xdsl

import weft


@lru_cache(maxsize=1)
def source_digest() -> str:
    """The digest of every file of Weft."""
    digest = hashlib.sha256()
    root = Path(weft.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def versions() -> tuple[str, ...]:
    """The versions of Weft and of what shapes the code that it makes."""
    return weft.__version__, llvmlite.__version__, str(xdsl.__version__), numpy.__version__
