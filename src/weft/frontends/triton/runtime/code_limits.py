"""What a launch in Triton's language allows its code on a GPU, beside `num_warps`.

matmul[grid](a, b, c, num_stages=2, maxnreg=128)     →     tile.kernel @matmul {nvidia.stages = 2, nvidia.maxnreg = 128}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from weft.backends.nvidia.ir.dialect import MAX_REGISTERS, MOST_STAGES, set_integer
from weft.tile.dialect import KernelOp


@dataclass(frozen=True)
class Limits:
    """What a launch allows its code on a GPU; None where Weft chooses."""

    stages: int | None = None
    """Of operands on their way to shared memory: 1 for no pipeline."""
    registers: int | None = None
    """Of a thread."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Limits:
        """The limits among the options of a launch."""
        stages, registers = options.get("num_stages"), options.get("maxnreg")
        return cls(
            None if stages is None else max(1, index(stages)),
            None if registers is None else index(registers),
        )

    @property
    def text(self) -> str:
        """For keys; empty where there are none."""
        return "".join(
            f" {name} {value}"
            for name, value in (("stages", self.stages), ("registers", self.registers))
            if value is not None
        )

    def mark(self, kernel: KernelOp) -> None:
        """Have a kernel state these limits and no others."""
        for name, value in ((MOST_STAGES, self.stages), (MAX_REGISTERS, self.registers)):
            kernel.attributes.pop(name, None)
            if value is not None:
                set_integer(kernel, name, value)
