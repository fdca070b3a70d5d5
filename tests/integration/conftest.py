"""What the tests of compiled functions as users call them share: a cache of their own, the comparison with eager."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

from weft.runtime import stored_programs
from weft.runtime.record import CompilationRecord, recording

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Path]:
    """An empty disk cache for each test, and no compiled function or setting from the test before."""
    root = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE_DIR", str(root))
    stored_programs.disk_cache.cache_clear()
    torch.compiler.reset()
    # Before torch 2.13 functions with `dynamic=True` that are called from several threads may leave it switched on.
    with torch._dynamo.config.patch(assume_static_by_default=True):
        yield root
    stored_programs.disk_cache.cache_clear()


@pytest.fixture
def records() -> Generator[list[CompilationRecord]]:
    """The compilations of the test."""
    with recording() as compilations:
        yield compilations


class Check:
    """Runs a function eagerly and compiled, on copies of the same arguments, and compares all that a caller can see."""

    def __call__(self, function: Function, *arguments: Any, exact: bool = False, **options: Any) -> Any:
        compiled = torch.compile(function, backend="weft", **options)
        return self.agree(function, compiled, *arguments, exact=exact)

    def agree(self, function: Function, compiled: Function, *arguments: Any, exact: bool = False) -> Any:
        """The compiled function's results, after comparing: values, strides, dtypes, and what is left in arguments."""
        # Copies have the same strides, offsets and sharing of memory.
        theirs, mine = copy.deepcopy(arguments), copy.deepcopy(arguments)
        expected = (function(*theirs), theirs)
        with recording() as compilations:
            actual = (compiled(*mine), mine)
        assert not [record.error for record in compilations if record.source == "torch"]
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(actual, expected, equal_nan=True, check_stride=True, **tolerance)
        for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
            if isinstance(e, torch.Tensor):
                assert a.requires_grad == e.requires_grad
                assert a.storage_offset() == e.storage_offset()
        assert aliases(actual) == aliases(expected)
        return actual[0]


def aliases(value: Any) -> list[int]:
    """For each tensor among the leaves, the first leaf that lies in the same memory."""
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.numel()]
    storages = [leaf.untyped_storage().data_ptr() for leaf in leaves]
    return [storages.index(storage) for storage in storages]


@pytest.fixture
def check() -> Check:
    return Check()


@pytest.fixture
def python(tmp_path: Path, cache_root: Path) -> Callable[..., str]:
    """`python(code)` runs a program in a fresh process, which shares the test's cache, and gives what it prints."""

    def run(code: str, *, timeout: float = 600, **environment: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(code)
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "WEFT_CACHE_DIR": str(cache_root), **environment},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run
