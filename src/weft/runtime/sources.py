"""A digest of Weft's own code: a changed compiler must not find what an older one stored."""

# llvmlite has no types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import hashlib
import os
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
    root = str(Path(weft.__file__).parent)
    # Plain strings: a thousand `Path`s take longer than reading the files.
    found = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(".py")]
    for path in sorted(found):
        digest.update(path[len(root) :].encode())
        with open(path, "rb", buffering=0) as file:
            digest.update(file.read())
    return digest.hexdigest()


def versions() -> tuple[str, ...]:
    """The versions of Weft and of what shapes the code that it makes."""
    return weft.__version__, llvmlite.__version__, str(xdsl.__version__), numpy.__version__
