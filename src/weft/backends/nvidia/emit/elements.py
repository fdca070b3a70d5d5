"""What is computed element by element, in the registers of a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from weft.backends.llvm.cast import emit_bitcast, emit_cast, register_type, truncate_to
from weft.backends.llvm.values import V, const, i64
from weft.backends.nvidia.emit.block import fitted, wide
from weft.backends.nvidia.emit.dot.wgmma import in_own_registers
from weft.backends.nvidia.emit.dot.wgmma_dot import begins_dot, packed_for_dot
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.math import ROUGH, divide_all, emit_map, power_of_two, reciprocal, rough_exp
from weft.backends.nvidia.emit.memory.global_memory import rounded_pair, rounded_to
from weft.backends.nvidia.emit.packed_arithmetic import packed_arithmetic
from weft.backends.nvidia.ir.alignment import divisor_of
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.op_facts import loses_digits, narrowed_to
from weft.ir.attributes import from_attribute
from weft.ir.types import DType, bf16
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(tile.ConstantOp)
def emit_constant(codegen: KernelCodegen, op: tile.ConstantOp) -> None:
    type_ = tile.tile_type(op.out)
    value = const(from_attribute(op.value), register_type(type_.dtype))  # type: ignore[arg-type]
    codegen.tiles[op.out] = [value] * layout_of(op.out).count


@EMITTERS.register(tile.PositionOp)
def emit_position(codegen: KernelCodegen, op: tile.PositionOp) -> None:
    b, layout = codegen.b, layout_of(op.out)
    element = register_type(tile.tile_type(op.out).dtype)
    strides = [codegen.size(stride, op.indices) for stride in op.strides.data]
    base = codegen.size(op.offset.data[0], op.indices)
    for axis, stride in enumerate(strides):
        base = b.add(base, b.mul(wide(b, codegen.threads.place(layout, axis)), stride))
    values: list[V] = []
    for offset in layout.offsets:
        total = base
        for axis, stride in enumerate(strides):
            total = b.add(total, b.mul(i64(offset[axis]), stride))
        values.append(fitted(b, total, element))
    codegen.tiles[op.out] = values


@EMITTERS.register(tile.MapOp)
def emit_elements(codegen: KernelCodegen, op: tile.MapOp) -> None:
    if op.out in codegen.made:  # along with its operands
        return
    if (words := packed_for_dot(codegen, op)) is not None:
        codegen.tiles[op.out] = words
        return
    layout = layout_of(op.out)
    if (number := contracted(op)) is not None:
        codegen.tiles[op.out] = _contracted(codegen, op, number)
        return
    operands = [codegen.registers_of(arg, layout) for arg in op.args]
    if (bits := _shared_bits(op)) and (groups := _shared_by_neighbours(op.args[0], bits)) is not None:
        operands = [[values[first] for first in groups] for values in operands]
    if codegen.is_plain and (values := packed_arithmetic(codegen, op, operands)) is not None:
        codegen.tiles[op.out] = values
        return
    if _divides_many(op, operands):
        narrowed = all(narrowed_to(use.operation) is not None for use in op.out.uses)
        exact = not narrowed and tile.ROUGH not in op.attributes
        dividends, divisors = operands
        codegen.tiles[op.out] = _divided(codegen, dividends, divisors, exact)
        return
    if narrowed_to(op) == bf16 and len(operands[0]) % 2 == 0:
        pairs = zip(operands[0][::2], operands[0][1::2], strict=True)
        codegen.tiles[op.out] = [value for low, high in pairs for value in rounded_pair(codegen.b, low, high)]
        return
    known: dict[tuple[str, ...], V] = {}
    results: list[V] = []
    apply = _function_of(codegen, op, operands[0][0].type if operands[0] else "")
    for args in zip(*operands, strict=True):
        key = tuple([arg.name for arg in args])
        if key not in known:
            known[key] = apply(args)
        results.append(known[key])
    codegen.tiles[op.out] = in_own_registers(codegen.b, results) if begins_dot(op) else results


def _shared_bits(op: tile.MapOp) -> int:
    """How many bits of a position a shift drops."""
    amount = op.args[1].owner if op.function.data == "shr" else None
    if not isinstance(amount, tile.ConstantOp) or not isinstance(op.args[0].owner, tile.PositionOp):
        return 0
    value = from_attribute(amount.value)
    return value if isinstance(value, int) else 0


def _shared_by_neighbours(value: SSAValue, bits: int) -> list[int] | None:
    """For each register of a tile of positions, the first that is the same without its last bits.

    None if which these are depends on the thread. What is computed of the same registers is computed once.
    """
    op, layout, unit = value.owner, layout_of(value), 1 << bits
    assert isinstance(op, tile.PositionOp)
    strides = [stride for stride in op.strides.data if isinstance(stride, int)]
    modes = [mode for mode in (*layout.lanes, *layout.warps, *layout.blocks) if mode.axis is not None]
    if len(strides) != layout.rank or divisor_of(op.offset.data[0], op.indices) % unit:
        return None
    if any(mode.step * strides[mode.axis] % unit for mode in modes if mode.axis is not None):
        return None
    places = [sum(o * s for o, s in zip(offset, strides, strict=True)) >> bits for offset in layout.offsets]
    return [places.index(place) for place in places]


def _divides_many(op: tile.MapOp, operands: Sequence[list[V]]) -> bool:
    """Whether a thread divides several floats by the same."""
    if op.function.data != "div" or register_type(tile.tile_type(op.out).dtype) != "float":
        return False
    return len(set(operands[1])) * 2 <= len(operands[0])


def _divided(codegen: KernelCodegen, dividends: list[V], divisors: list[V], exact: bool) -> list[V]:
    results: dict[int, V] = {}
    for divisor in dict.fromkeys(divisors):
        places = [place for place, each in enumerate(divisors) if each == divisor]
        quotients = divide_all(codegen.b, [dividends[place] for place in places], divisor, exact)
        results.update(zip(places, quotients, strict=True))
    return [results[place] for place in range(len(dividends))]


def _function_of(codegen: KernelCodegen, op: tile.MapOp, kind: str) -> Callable[[Sequence[V]], V]:
    """What an op does to each element, whose first operand is of a `kind` of register: chosen once for all of them."""
    b, function = codegen.b, op.function.data
    if function in ("cast", "bitcast"):
        source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
        assert isinstance(source, DType) and isinstance(target, DType)
        if function == "bitcast":
            return lambda args: emit_bitcast(b, args[0], source, target)
        if "rounding" in op.attributes and source.is_float and target.is_float:
            return lambda args: truncate_to(b, args[0], target)
        if narrowed_to(op) is not None and kind == "float":
            return lambda args: rounded_to(b, args[0], target)
        return lambda args: emit_cast(b, args[0], source, target)
    if function == "exp2" and tile.FLUSHES in op.attributes and kind == "float":
        return lambda args: power_of_two(b, args[0])
    if function == "exp" and kind == "float" and loses_digits(op.out, _is_at_most_one(op)):
        return lambda args: rough_exp(b, args[0])
    if function == "mul" and tile.tile_type(op.out).dtype.is_float and not op.out.has_one_use():
        # Rounded for all that read it: in `x * y - mean(x * y)`, LLVM would else round one of the two products only.
        return lambda args: b.binary("fmul", args[0], args[1])
    if function == "div" and tile.FLUSHES in op.attributes and kind == "float":
        return lambda args: b.binary("fmul", args[0], reciprocal(b, args[1]))
    if function in ROUGH and kind == "float" and (tile.ROUGH in op.attributes or loses_digits(op.out, summed=False)):
        return lambda args: ROUGH[function](b, *args)
    dtype = tile.tile_type(op.args[-1]).dtype
    return lambda args: emit_map(b, function, args, dtype)


def _is_at_most_one(exp: tile.MapOp) -> bool:
    """Whether a maximum was subtracted: of the powers the large ones are then those of small arguments, and exact."""
    shift = exp.args[0].owner
    if not isinstance(shift, tile.MapOp) or shift.function.data != "sub":
        return False
    largest = shift.args[1].owner
    return isinstance(largest, tile.ReduceOp) and largest.kind.data == "max"


def contracted(op: tile.MapOp) -> int | None:
    """Which operand of a sum or difference is a product, of floats, that is not rounded first."""
    if op.function.data not in ("add", "sub") or register_type(tile.tile_type(op.out).dtype) != "float":
        return None
    owners = enumerate(arg.owner for arg in op.args)
    return next((n for n, o in owners if isinstance(o, tile.MapOp) and tile.CONTRACTS in o.attributes), None)


def _contracted(codegen: KernelCodegen, op: tile.MapOp, number: int) -> list[V]:
    """a * b + c, a * b - c or c - a * b."""
    b, layout, product = codegen.b, layout_of(op.out), op.args[number].owner
    assert isinstance(product, tile.MapOp)
    factors = [codegen.registers_of(arg, layout) for arg in (*product.args, op.args[1 - number])]
    if op.function.data == "sub":
        turned = 0 if number else 2
        factors[turned] = [b.emit("float", f"fneg {value}") for value in factors[turned]]
    return [b.intrinsic("fma", *args) for args in zip(*factors, strict=True)]
