"""Tile IR of the kernels built last: configs that differ in their warps alone are built once.

Whoever asks holds `COMPILING`, and changes nothing of a kernel that outlasts its own compilation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from weft.tile.dialect import KernelOp

BuiltKernel: TypeAlias = tuple[KernelOp, tuple[tuple[str, str], ...], bool]
"""A kernel, the messages of its checks, and whether it is the same for any number of warps."""
_MOST = 32
"""So many are kept: configs of the same tiles stand near each other."""


class BuiltKernels:
    """Kernels by key, those used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, BuiltKernel] = OrderedDict()

    def get(self, key: str | None, build: Callable[[], BuiltKernel]) -> tuple[KernelOp, tuple[tuple[str, str], ...]]:
        """The kernel of a key, built if it is not known; without a key it is not kept."""
        found = self._kept.get(key) if key is not None else None
        if found is None:
            found = build()
        if key is not None and found[2]:
            self._kept[key] = found
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return found[:2]
