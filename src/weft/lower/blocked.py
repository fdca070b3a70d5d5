"""Kernels of products (matrix products, attention): a group's arguments, and a grid of blocks of its index space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, symbol
from weft.ir.types import tensor_of
from weft.lower.domain import Domain, Run
from weft.lower.emit import KernelEmitter
from weft.lower.frame import KernelFrame
from weft.lower.kernels import group_symbols
from weft.ops.graph import GroupOp
from weft.ops.layouts import Layout


@dataclass
class BlockedKernel:
    """A kernel under construction: one pointer for each input and output of the group, tiles of two axes."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, Layout]
    outputs: Sequence[Layout]
    domain: Domain

    def __post_init__(self) -> None:
        arguments = self.group.block.args
        values = [*arguments, *self.group.yielded]
        symbols = group_symbols(self.group, [*self.layouts.values(), *self.outputs])
        self.frame = KernelFrame.of(self.name, [tensor_of(value.type).dtype for value in values], symbols)
        pointers = self.frame.pointers
        self.targets = pointers[len(arguments) :]
        self.emit = KernelEmitter(
            self.layouts,
            domain=self.domain,
            block=self.frame.block,
            pointers=dict(zip(arguments, pointers, strict=False)) | {target: target for target in self.targets},
            scalars=self.frame.scalars,
            rank=2,
        )

    def program(self, run: Run) -> None:
        """Let the grid walk a run, one program for each of its elements."""
        self.emit.scalars[run.name] = self.frame.program(run.size)

    def start_of(self, run: Run, capacity: int) -> Size:
        """Where this program's block of a run starts; adds a grid axis unless one block is all there is."""
        if isinstance(run.size, int) and 0 < run.size <= capacity:
            return 0
        name = f"{run.name}_block"
        self.emit.scalars[name] = self.frame.program(ceildiv(run.size, capacity))
        return symbol(name) * capacity
