"""The emitters: the code of each kind of op, registered beside the function that writes it.

    @EMITTERS.register(tile.ReduceOp)
    def emit_reduce(codegen: KernelCodegen, op: tile.ReduceOp) -> None: …

`KernelCodegen.visit` looks them up; the modules that register them are listed in `emit/codegen.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.backends.nvidia.ir.op_interfaces import OpInterface
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

Emitter: TypeAlias = "Callable[[KernelCodegen, Any], None]"

EMITTERS: OpInterface[Emitter] = OpInterface("code")

EMITTERS.nothing_for("its number is made at the kernel's start", tile.ProgramOp)
EMITTERS.nothing_for("the op around it goes on with what it is given", tile.ReturnOp, tile.YieldOp)
EMITTERS.nothing_for("the dot that takes it widens codes as it needs them", tile.DequantizeOp)
EMITTERS.never_for("rows are sorted by torch", tile.SortOp)
