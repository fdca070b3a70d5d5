"""Random numbers of tests: each test draws the same ones in every run, and others with `--seed N`."""

from __future__ import annotations

import random
import sys
import zlib

import numpy as np

_LARGEST = 2**32 - 1


def sow(test: str, seed: int) -> None:
    """Begin the sequences of Python, NumPy and torch, where it is loaded, anew for a test, or a module of tests."""
    own = (zlib.crc32(test.encode()) + seed) & _LARGEST
    random.seed(own)
    np.random.seed(own)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(own)


def generator() -> np.random.Generator:
    """A generator that goes on from the test's own numbers: a second one draws others."""
    return np.random.default_rng(random.randrange(_LARGEST))
