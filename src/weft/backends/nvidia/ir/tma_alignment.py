"""Why TMA cannot bring the operands of a dot, where the reason is how their rows lie: for those who read why not.

TMA asks that a tensor begins, and that its rows begin, at multiples of 16 bytes. Of a kernel in Triton's language this
is known of arguments that are specialized on it: a launch does so with integers that are multiples of 16.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import OpResult, SSAValue

from weft.backends.nvidia.ir.alignment import argument_divisor, divisor_of, pointer_dtype
from weft.ir.expr import Size, addends, substitute, symbol, symbols_of
from weft.tile import collective_ops
from weft.tile import dialect as tile
from weft.tile.affine import Affines
from weft.tile.axis_facts import DIVISORS
from weft.tile.view_axes import turns_matrix

_TMA_ALIGNMENT = 16
_MUST = f"rows must begin at multiples of {_TMA_ALIGNMENT} bytes"


def why_unaligned(kernel: tile.KernelOp, operands: Sequence[SSAValue]) -> str | None:
    """What is not known to be aligned of the operands of dots, and what to do; None where it is not that."""
    affines = Affines()
    said = [each for value in operands if (each := _why(kernel, affines, _source(value))) is not None]
    arguments = sorted({number for numbers, _ in said for number in numbers})
    if arguments:
        several, listed = len(arguments) > 1, ", ".join(map(str, arguments))
        named = f"argument{'s' if several else ''} {listed} (from 0 on), of which they are computed,"
        given = "pass multiples of 16, which launches specialize on (`i32:16` in a --signature)"
        return f"{_MUST}, and {named} {'are' if several else 'is'} not known to be divisible by 16; {given}"
    return next((f"{_MUST}, and {text}" for _, text in said), None)


def _source(value: SSAValue) -> tile.GatherOp | tile.LoadOp | None:
    """The access that gives a value, perhaps turned."""
    op = value.op if isinstance(value, OpResult) else None
    if isinstance(op, collective_ops.ViewOp) and turns_matrix(op):
        op = op.value.owner
    return op if isinstance(op, tile.GatherOp | tile.LoadOp) else None


def _why(
    kernel: tile.KernelOp, affines: Affines, op: tile.GatherOp | tile.LoadOp | None
) -> tuple[list[int], str] | None:
    """The numbers of the arguments of a written kernel that could be anything, or what is known of a graph's tensor."""
    if op is None:
        return None
    dtype = pointer_dtype(op)
    if isinstance(op, tile.LoadOp):
        far = [stride for stride in op.strides.data if stride not in (0, 1)]
        apart = [stride for stride in far if divisor_of(stride, op.indices) * dtype.bytes % _TMA_ALIGNMENT]
        return ([], f"are {apart[0]} elements of {dtype.name} apart") if apart else None
    form = affines.of(op.offsets)
    numbers: dict[SSAValue, int] = {value: number for number, value in enumerate(kernel.block.args)}
    if form is None or DIVISORS not in kernel.attributes or op.pointer not in numbers:
        return None
    known = {name: numbers[value] for name, value in affines.symbols.items() if value in numbers}
    arguments = dict.fromkeys([] if argument_divisor(op.pointer) % _TMA_ALIGNMENT == 0 else [numbers[op.pointer]])
    multiples: dict[str, Size] = {
        name: argument_divisor(kernel.block.args[number]) * symbol(name) for name, number in known.items()
    }
    for term in (term for size in (*form.steps, form.start) for term in addends(size)):
        if divisor_of(substitute(term, multiples)) * dtype.bytes % _TMA_ALIGNMENT:
            arguments |= dict.fromkeys(known[name] for name in symbols_of(term) if name in known)
    return (list(arguments), "") if arguments else None
