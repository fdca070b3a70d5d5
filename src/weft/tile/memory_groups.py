"""Which of a kernel's pointers may point to the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from xdsl.ir import SSAValue

from weft.ir.attributes import from_attribute
from weft.tile import dialect as tile


@dataclass(frozen=True)
class MemoryGroups:
    """Pointers of different groups never meet; in a `written` kernel, one that is made from a number (no group) meets
    all."""

    groups: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    written: bool = False

    @classmethod
    def of_kernel(cls, kernel: tile.KernelOp) -> MemoryGroups:
        if "groups" not in kernel.attributes:
            return MemoryGroups()
        numbers = cast(tuple[int, ...], from_attribute(kernel.attributes["groups"]))
        pairs = zip(kernel.block.args, numbers, strict=False)
        return MemoryGroups({argument: number for argument, number in pairs if number >= 0}, written=True)

    def meet(self, a: SSAValue, b: SSAValue) -> bool:
        """Whether two pointers may point to the same memory."""
        if a is b or not self.written or a not in self.groups or b not in self.groups:
            return a is b or self.written
        return self.groups[a] == self.groups[b]
