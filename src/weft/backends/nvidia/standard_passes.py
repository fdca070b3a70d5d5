"""The passes over a kernel as a list that is known by name: their modules are imported by who looks into it.

Where workers write kernels, the process that they belong to never does: it sends them the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import overload

from weft.backends.nvidia.ir.kernel_passes import KernelPass


@dataclass(frozen=True)
class StandardPasses(Sequence[KernelPass]):
    """`nvidia_kernel_passes()`, of which nothing is imported before it is needed."""

    @overload
    def __getitem__(self, index: int) -> KernelPass: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[KernelPass, ...]: ...

    def __getitem__(self, index: int | slice) -> KernelPass | tuple[KernelPass, ...]:
        return _listed()[index]

    def __len__(self) -> int:
        return len(_listed())


@cache
def _listed() -> tuple[KernelPass, ...]:
    from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes

    return nvidia_kernel_passes()
