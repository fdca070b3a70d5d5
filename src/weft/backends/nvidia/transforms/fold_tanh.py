"""1 + tanh x, as activations have it, in a third of the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.ir.op_facts import loses_digits
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute
from weft.ir.types import f32
from weft.tile import dialect as tile


@dataclass(frozen=True)
class FoldTanh(KernelPass):
    """1 + tanh x, as activations have it, is 2 / (1 + e^-2x): a third of the instructions, and no digits cancel.

    %t = tile.map tanh(%x)                       %s = tile.map sigmoid(tile.map mul(%x, 2))
    %y = tile.map add(%t, 1)              →      %y = tile.map mul(%s, 2)

    Only where the result is narrowed to 16 bits: there sigmoids may be rough.
    """

    name: ClassVar[str] = "fold_tanh"

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for op in list(kernel.walk()):
            if not isinstance(op, tile.MapOp) or op.function.data != "add" or tile.tile_type(op.out).dtype != f32:
                continue
            for number, value in enumerate(op.args):
                tanh = value.owner
                if isinstance(tanh, tile.MapOp) and tanh.function.data == "tanh" and _is_one(op.args[1 - number]):
                    if value.has_one_use() and loses_digits(op.out, summed=False):
                        _replace(op, tanh)
                    break


def _is_one(value: SSAValue) -> bool:
    return isinstance(value.owner, tile.ConstantOp) and from_attribute(value.owner.value) == 1


def _replace(op: tile.MapOp, tanh: tile.MapOp) -> None:
    block, (x,) = op.parent_block(), tanh.args
    assert block is not None
    two = tile.ConstantOp.make(2.0, tile.TileType.of((1,) * len(tile.tile_type(x).sizes), f32))
    doubled = _map("mul", [x, two.out])
    rising = _map("sigmoid", [doubled.out])
    result = _map("mul", [rising.out, two.out])
    block.insert_ops_before([two, doubled, rising, result], op)
    op.out.replace_all_uses_with(result.out)
    for old in (op, tanh):
        old.detach()
        old.erase()


def _map(function: str, args: Sequence[SSAValue]) -> tile.MapOp:
    return tile.MapOp.create(
        operands=list(args), attributes={"function": StringAttr(function)}, result_types=[args[0].type]
    )
