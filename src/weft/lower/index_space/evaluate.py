"""Evaluates a group of graph ops at an index, through the ops' own rules.

`Evaluator` walks from a group's outputs to its inputs: elementwise ops map values, movements change the index,
reductions are left to the subclass. `AddressRecorder` evaluates without making code, to learn the addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.ir import OpResult, SSAValue

from weft.errors import LoweringError
from weft.ir.expr import Expr, Size, is_nonnegative, simplify, symbol, symbols_of
from weft.ir.locations import made_of, sourced
from weft.ir.types import DType, Tensor, boolean, i64, tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement, Reduction
from weft.ops.body import Operand, Value
from weft.ops.graph import YieldOp
from weft.ops.layouts import StridedLayout
from weft.tile.functions import COMBINERS, FUNCTIONS


@dataclass(frozen=True)
class Source:
    """A tensor that a rule may read: an input of the group or the result of one of its ops."""

    value: SSAValue
    tensor: Tensor


def broadcast_index(index: Sequence[Size], shape: Sequence[Size], operand: Sequence[Size]) -> list[Size]:
    """The operand's index for an element of the broadcast result."""
    offset = len(shape) - len(operand)
    return [0 if size == 1 else index[offset + d] for d, size in enumerate(operand)]


@dataclass
class Evaluator:
    """The part of a `Body` that does not depend on what is made of the values."""

    layouts: dict[SSAValue, StridedLayout]
    scopes: list[dict[Any, Value]] = field(default_factory=lambda: [{}])
    dynamic: dict[str, tuple[Value, Size]] = field(default_factory=dict[str, tuple[Value, Size]])
    given: dict[SSAValue, tuple[tuple[Size, ...], Value]] = field(
        default_factory=dict[SSAValue, tuple[tuple[Size, ...], Value]]
    )
    """Results that are there already, at the one index of this evaluation: those of a group's structured op."""
    reading: Value | None = None
    """The mask of what is being evaluated: where it is false, indices may lie outside, and nothing may be read."""

    def bounds(self) -> dict[str, Size]:
        raise NotImplementedError

    def load(
        self, value: SSAValue, address: Size, mask: Value | None, other: float | int | bool, inside: bool
    ) -> Value:
        """Read an operand. What is masked may be `inside`, where it can be read, in any case."""
        raise NotImplementedError

    def reduce(self, op: Reduction, index: Sequence[Size], operands: Sequence[Source]) -> Value:
        raise NotImplementedError

    def at(
        self, operand: Operand, index: Sequence[Size], mask: Value | None = None, other: float | int | bool = 0
    ) -> Value:
        assert isinstance(operand, Source)
        bounds = self.bounds()
        index = tuple(simplify(position, bounds) for position in index)
        within = self.both(self.reading, mask)
        key = (operand.value, index, within, other)
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key]
        if operand.value in self.given:
            place, result = self.given[operand.value]
            if tuple(simplify(position, bounds) for position in place) != index:
                reason = f"a kernel computes its {tuple(map(str, place))}, not {tuple(map(str, index))}"
                return self.refuse(reason, operand.tensor.dtype)
            return self._as_kept(operand.value, result)
        if operand.value in self.layouts:
            always = within is not None and self._is_inside(index, operand.tensor.shape)
            result = self.load(operand.value, self.layouts[operand.value].address(index), within, other, always)
        else:
            outer, self.reading = self.reading, within
            result = self._as_kept(operand.value, self.evaluate(operand.value, index))
            self.reading = outer
            if mask is not None:
                result = self.where(mask, result, self.constant(other, result.dtype))
        self.scopes[-1][key] = result
        return result

    def _is_inside(self, index: Sequence[Size], shape: Sequence[Size]) -> bool:
        """Whether an index is one of a tensor's, and the tensor has elements, whatever masks say."""
        bounds = self.bounds()
        return all(
            isinstance(size, int) and size > 0 and is_nonnegative(position, bounds)
            for position, size in zip(index, shape, strict=True)
        ) and all(is_nonnegative(size - 1 - position, bounds) for position, size in zip(index, shape, strict=True))

    def _as_kept(self, value: SSAValue, result: Value) -> Value:
        """A result that is stored, too, is to the ops after it what is stored: what a caller sees is consistent."""
        dtype = tensor_of(value.type).dtype
        if not dtype.is_float or dtype.bits >= 32:
            return result
        stored = [isinstance(use.operation, YieldOp) for use in value.uses]
        return self.rounded(result, dtype) if any(stored) and not all(stored) else result

    def know(self, operand: Source, index: Sequence[Size], value: Value) -> None:
        """Note what an operand is at an index: whoever asks for it in this scope gets the value."""
        bounds = self.bounds()
        self.scopes[-1][operand.value, tuple(simplify(position, bounds) for position in index), None, 0] = value

    def evaluate(self, value: SSAValue, index: Sequence[Size]) -> Value:
        """An element of an op's result, by the op's rule."""
        assert isinstance(value, OpResult) and isinstance(value.op, GraphOp)
        op = value.op
        operands = [Source(v, tensor_of(v.type)) for v in op.operands]
        with sourced(made_of(op)):
            return self._by_rule(op, tensor_of(value.type), index, operands)

    def _by_rule(self, op: GraphOp, result: Tensor, index: Sequence[Size], operands: Sequence[Source]) -> Value:
        rule: Any = type(op)
        match op:
            case Elementwise():
                values = [self.at(o, broadcast_index(index, result.shape, o.tensor.shape)) for o in operands]
                return rule.tile(self, *values, **op.params)
            case Movement():
                return rule.pull(self, index, *operands, **op.params)
            case Reduction():
                return self.reduce(op, index, operands)
            case _:
                return self.refuse(f"{op.name} cannot stand inside a group", result.dtype)

    def refuse(self, reason: str, dtype: DType) -> Value:
        """What a group's lowering cannot compute. It is found when addresses are recorded, before there is code."""
        raise LoweringError(reason)

    # -- what rules may say ----------------------------------------------------------------------------------------

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        raise NotImplementedError

    def math(self, function: str, *values: Value) -> Value:
        raise NotImplementedError

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.math("select", condition, yes, no)

    def rounded(self, value: Value, dtype: DType) -> Value:
        raise NotImplementedError

    def position(self, index: Size, dtype: DType) -> Value:
        raise NotImplementedError

    def index(self, value: Value, size: Size) -> Expr:
        name = f"t{len(self.dynamic)}"
        self.dynamic[name] = (value, size)
        return symbol(name)

    def inside(self, index: Size, size: Size) -> Value | None:
        bounds = self.bounds()
        index = simplify(index, bounds)
        low = None
        if not is_nonnegative(index, bounds):
            low = self.math("ge", self.position(index, i64), self.constant(0, i64))
        high = None
        if not is_nonnegative(size - 1 - index, bounds):
            high = self.math("lt", self.position(index, i64), self.position(size, i64))
        return self.both(low, high)

    def both(self, a: Value | None, b: Value | None) -> Value | None:
        if a is None or b is None:
            return b if a is None else a
        return self.math("and", a, b)


@dataclass(frozen=True)
class Dummy:
    """A value of the dry evaluation: only its type is known."""

    dtype: DType


@dataclass(frozen=True)
class Loaded(Dummy):
    """What is read from memory, and is used as it is."""


@dataclass(frozen=True)
class Address:
    """A recorded address; `store` and `position` say what it is for.

    Of a `looked_up` one the kernel computes where it is, from data or from positions.
    """

    expr: Size
    purpose: str
    bytes: int = 4
    looked_up: bool = False


@dataclass
class AddressRecorder(Evaluator):
    """Evaluates a group without making code and keeps every address it meets, and what no kernel could compute."""

    space: dict[str, Size] = field(default_factory=dict[str, Size])
    columns: Sequence[Size] = ()
    addresses: list[Address] = field(default_factory=list[Address])
    refusals: list[str] = field(default_factory=list[str])

    def refuse(self, reason: str, dtype: DType) -> Value:
        self.refusals.append(reason)
        return Dummy(dtype)

    def bounds(self) -> dict[str, Size]:
        return self.space | {name: size for name, (_, size) in self.dynamic.items()}

    def load(
        self, value: SSAValue, address: Size, mask: Value | None, other: float | int | bool, inside: bool
    ) -> Value:
        tensor, place = tensor_of(value.type), simplify(address, self.bounds())
        looked_up = bool(symbols_of(place) & self.dynamic.keys())
        self.addresses.append(Address(place, "load", tensor.dtype.bytes, looked_up))
        return Loaded(tensor.dtype)

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        return Dummy(dtype)

    def math(self, function: str, *values: Value) -> Value:
        return Dummy(boolean if FUNCTIONS[function].result == "bool" else values[-1].dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        return Dummy(dtype)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        return Dummy(dtype)

    def rounded(self, value: Value, dtype: DType) -> Value:
        return Dummy(dtype)

    def position(self, index: Size, dtype: DType) -> Value:
        self.addresses.append(Address(simplify(index, self.bounds()), "position"))
        return Dummy(dtype)

    def reduce(self, op: Reduction, index: Sequence[Size], operands: Sequence[Source]) -> Value:
        rule: Any = type(op)
        result = tensor_of(op.results[0].type).dtype
        columns = frozenset[str]().union(*map(symbols_of, self.columns))
        if any(symbols_of(position) & columns for position in index):
            return self.refuse(f"{op.name} is read at an index that it is reducing over", result)
        if len(self.columns) != len(rule.ranges(*(o.tensor for o in operands), **op.params)):
            return self.refuse(f"{op.name} is not reduced over the group's columns", result)
        element = rule.element(self, index, self.columns, *operands, **op.params)
        combined = Dummy(COMBINERS[rule.KIND].result_dtype(element.dtype))
        return finish(self, op, combined, index, operands)


def finish(body: Any, op: Reduction, value: Value, index: Sequence[Size], operands: Sequence[Source]) -> Value:
    """Apply a reduction's `finish` rule, where it has one."""
    rule: Any = type(op)
    return rule.finish(body, value, index, *operands, **op.params) if hasattr(rule, "finish") else value
