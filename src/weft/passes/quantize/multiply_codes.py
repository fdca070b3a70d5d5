"""Multiply the codes of quantized tensors, and scale the sums: matmuls and convolutions of 8-bit integers.

A quantized tensor is `(codes - zero) * scale`, in f32, or `codes - zero`, in i32. With frozen weights the codes are
multiplied as they lie in memory, four at a time where a processor can, sums are exact, and zeros become a vector over
columns that `hoist_constants` computes once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import product
from weft.ir.types import f32, i8, i32, tensor_of, u8
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot
from weft.ops.windows.convolution import Convolution
from weft.passes.convolution.convolve_by_matmul import Geometry, geometry_of
from weft.passes.simplify.constant_values import fixed_values, made_by, number_of

_LARGEST_SUM = 2**31 - 1
_RANGE = {i8: (-128, 127), u8: (0, 255)}


@dataclass(frozen=True)
class MultiplyCodes(ModulePass):
    """Weights of one scale for each column:

    %x = graph.mul (graph.cast (graph.sub (graph.cast %p), %zero)), %s       (f32, of u8 codes %p)
    %w = graph.mul (graph.cast %q), %t                                       (f32, of i8 codes %q)
    %y = graph.dot %x, %w
                                            →
    %d = graph.dot %p, %q to i32
    %e = graph.sub %d, (graph.mul %zero, (graph.sum %q over K))
    %y = graph.mul (graph.cast %e to f32), (graph.mul %s, %t)

    Convolutions likewise, where `convolve_by_matmul` takes them; those whose channels do not mix read codes, too, and
    sum up in f32. Weights of u8 are shifted to i8; where they have zeros, those times the sums of rows are taken off
    as well.
    """

    name: ClassVar[str] = "multiply_codes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "constants" in function.attributes:
                _Multiplying(function).run()


@dataclass(frozen=True)
class _Codes:
    """A quantized tensor; its zero and its scale, of f32, broadcast to it. None stands for 0 and 1."""

    codes: SSAValue
    zero: SSAValue | None
    scale: SSAValue | None

    @property
    def is_zero_free(self) -> bool:
        return self.zero is None or number_of(self.zero) == 0

    @property
    def widest(self) -> int:
        """The most that a code differs from the zero, which is a code itself where it is not known."""
        low, high = _RANGE[tensor_of(self.codes.type).dtype]
        zero = 0 if self.zero is None else number_of(self.zero)
        return high - low if zero is None else max(int(zero) - low, high - int(zero))


class _Multiplying:
    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self.fixed = fixed_values(function)

    def run(self) -> None:
        for op in list(self.function.block.ops):
            if not isinstance(op, Dot | Convolution) or "dtype" in op.params or op.operands[1] not in self.fixed:
                continue
            self.b = GraphBuilder(self.function.block, op.location, before=op)
            x, w = (self._codes(value) for value in op.operands)
            if x is None or w is None or (x.scale is None) != (w.scale is None) or op.operands[0] in self.fixed:
                continue
            made = self._dot(op, x, w) if isinstance(op, Dot) else self._convolution(op, x, w)
            if made is not None:
                op.results[0].replace_all_uses_with(made)
                op.detach()
                op.erase()

    # -- operands --------------------------------------------------------------------------------------------------

    def _codes(self, value: SSAValue) -> _Codes | None:
        """The codes that a tensor is computed of, if it is a quantized one."""
        dtype = tensor_of(value.type).dtype
        if dtype in (f32, i32) and (view := made_by(value, "graph.permute", "graph.reshape")) is not None:
            return self._viewed(view, value)
        if dtype == f32:
            return self._scaled(value)
        return self._shifted(value) if dtype == i32 else None

    def _scaled(self, value: SSAValue) -> _Codes | None:
        if (op := made_by(value, "graph.mul")) is None:
            return None
        for wide, scale in (op.operands, reversed(op.operands)):
            cast = made_by(wide, "graph.cast")
            if cast is None or tensor_of(wide.type).shape != tensor_of(value.type).shape:
                continue
            found = self._shifted(cast.operands[0])
            if found is not None:
                return replace(found, scale=scale)
        return None

    def _viewed(self, view: Operation, value: SSAValue) -> _Codes | None:
        """A view of a tensor that has one zero and one scale is the view of its codes; a permuted one always is."""
        found = self._codes(view.operands[0])
        if found is None:
            return None
        shape = tensor_of(value.type).shape
        if all(_is_one(each) for each in (found.zero, found.scale)):
            codes = self._again(view, found.codes)
            return _Codes(
                codes, *(None if each is None else self.b.reshape(each, shape=()) for each in (found.zero, found.scale))
            )
        if view.name != "graph.permute":
            return None
        rank = len(shape)
        sides = [
            None if each is None else self._again(view, self._ranked(each, rank)) for each in (found.zero, found.scale)
        ]
        return _Codes(self._again(view, found.codes), *sides)

    def _again(self, view: Operation, value: SSAValue) -> SSAValue:
        params = view.params  # type: ignore[attr-defined]
        return self.b.permute(value, **params) if view.name == "graph.permute" else self.b.reshape(value, **params)

    def _ranked(self, value: SSAValue, rank: int) -> SSAValue:
        shape = tensor_of(value.type).shape
        return self.b.reshape(value, shape=(*(1 for _ in range(rank - len(shape))), *shape))

    def _shifted(self, value: SSAValue) -> _Codes | None:
        """`codes - zero` in i32, or codes that were never widened."""
        zero: SSAValue | None = None
        whole = tensor_of(value.type)
        op = made_by(value, "graph.sub") if whole.dtype == i32 else None  # in 8 bits it would wrap around
        if op is not None and tensor_of(op.operands[0].type).shape == whole.shape:
            value, zero = op.operands
        if (op := made_by(value, "graph.cast")) is not None and tensor_of(value.type).dtype == i32:
            value = op.operands[0]
        if tensor_of(value.type).dtype not in (i8, u8):
            return None
        return _Codes(value, zero, None)

    def _signed(self, w: _Codes) -> _Codes:
        """Weights whose codes are i8."""
        if tensor_of(w.codes.type).dtype == i8:
            return w
        b = self.b
        wrapped = b.cast(w.codes, dtype=i8)
        codes = b.add(wrapped, b.full_like(wrapped, -128))  # 128 less, as 8 bits wrap around
        zero = w.zero if w.zero is not None else b.full(value=0, shape=(), dtype=i32)
        number = number_of(zero)
        shape = tensor_of(zero.type).shape
        known = None if number is None else b.full(value=int(number) - 128, shape=shape, dtype=i32)
        return _Codes(codes, known if known is not None else b.sub(zero, b.full_like(zero, 128)), w.scale)

    # -- products --------------------------------------------------------------------------------------------------

    def _dot(self, op: Dot, x: _Codes, w: _Codes) -> SSAValue | None:
        b, (_, depth) = self.b, (tensor_of(x.codes.type).shape[-2:])
        rank = tensor_of(w.codes.type).rank
        if not isinstance(depth, int) or not _is_one(x.zero) or not _is_one(x.scale):
            return None
        if not all(each is None or self._varies_along(each, rank, rank - 1) for each in (w.zero, w.scale)):
            return None
        if not _has_room(depth, x, w):
            return None
        w = self._signed(w)
        total = b.dot(x.codes, w.codes, dtype=i32)
        columns: SSAValue | None = None
        if not x.is_zero_free:
            columns = b.sum(b.cast(w.codes, dtype=i32), dims=(rank - 2,), keep=True)
            if not w.is_zero_free and w.zero is not None:
                columns = b.sub(columns, b.mul(w.zero, b.full_like(w.zero, depth)))
        rows = None if w.is_zero_free else b.sum(b.cast(x.codes, dtype=i32), dims=(rank - 1,), keep=True)
        return self._finished(total, x, w, columns, rows)

    def _convolution(self, op: Convolution, x: _Codes, w: _Codes) -> SSAValue | None:
        b, params = self.b, op.params
        tensors = [tensor_of(each.type) for each in (x.codes, w.codes, op.results[0])]
        geometry = geometry_of(*tensors, **params, dtype=i32)
        if geometry is None or not _is_one(x.zero) or not _is_one(x.scale):
            return None
        if geometry.groups != 1:
            return self._depthwise(op, x, w)
        rank, depth = tensors[1].rank, geometry.channels * prod(geometry.window)
        if not all(each is None or self._varies_along(each, rank, 0) for each in (w.zero, w.scale)):
            return None
        if not _has_room(depth, x, w):
            return None
        fill = 0 if x.zero is None else number_of(x.zero)
        padded = any(map(any, geometry.padding))
        w = self._signed(w)
        codes = params | {"dtype": i32, "fill": int(fill or 0)}
        total = b.convolution(x.codes, w.codes, **codes)
        columns: SSAValue | None = None
        if not x.is_zero_free:
            shifted = b.cast(w.codes, dtype=i32)
            if not w.is_zero_free and w.zero is not None:
                shifted = b.sub(shifted, w.zero)
            if fill is None and padded:  # what a zero of every place but the padding gives, the same for all channels
                ones = b.full(value=1, shape=(1, 1, *tensors[0].shape[2:]), dtype=i32)
                columns = b.convolution(ones, b.sum(shifted, dims=(1,), keep=True), **params)
            else:
                columns = b.sum(shifted, dims=tuple(range(1, rank)), keep=False)
                columns = b.reshape(columns, shape=(geometry.outputs, *(1 for _ in geometry.window)))
        rows = None if w.is_zero_free else self._window_sums(x.codes, params, geometry, int(fill or 0) if padded else 0)
        sides = [None if each is None else self._over_channels(each, rank) for each in (w.zero, w.scale)]
        return self._finished(total, x, _Codes(w.codes, *sides), columns, rows)

    def _window_sums(self, codes: SSAValue, params: dict[str, Any], geometry: Geometry, fill: int) -> SSAValue:
        """The sum of what each window covers, padding of `fill` included: of its channels first, as that leaves one."""
        b = self.b
        summed = b.sum(b.cast(codes, dtype=i32), dims=(1,), keep=True)
        if fill:
            summed = b.sub(summed, b.full_like(summed, fill * geometry.channels))
        made = b.convolution(summed, b.full(value=1, shape=(1, 1, *geometry.window), dtype=i32), **params)
        return b.add(made, b.full_like(made, fill * geometry.channels * prod(geometry.window))) if fill else made

    def _depthwise(self, op: Convolution, x: _Codes, w: _Codes) -> SSAValue | None:
        """Channels that do not mix: sums of so few codes are exact in f32, whose products take one instruction."""
        b, rank = self.b, tensor_of(w.codes.type).rank
        fill = 0 if x.zero is None else number_of(x.zero)
        if fill is None or x.scale is None or w.scale is None or not self._varies_along(w.scale, rank, 0):
            return None
        codes = self._signed(w)
        if not codes.is_zero_free:
            return None
        params = op.params | {"dtype": f32, "fill": int(fill)}
        total = b.convolution(x.codes, b.cast(codes.codes, dtype=f32), **params)
        if fill:
            columns = b.sum(b.cast(codes.codes, dtype=f32), dims=tuple(range(1, rank)), keep=False)
            total = b.sub(total, self._over_channels(b.mul(columns, b.full_like(columns, float(fill))), rank))
        return b.mul(total, b.mul(self._over_channels(w.scale, rank), b.reshape(x.scale, shape=())))

    def _over_channels(self, value: SSAValue, rank: int) -> SSAValue:
        """One number for each weight's first dimension, as the result's channels are: [O, 1, ...]."""
        return self.b.reshape(value, shape=(product(tensor_of(value.type).shape), *(1 for _ in range(rank - 2))))

    def _finished(
        self, total: SSAValue, x: _Codes, w: _Codes, columns: SSAValue | None, rows: SSAValue | None
    ) -> SSAValue:
        """Take off what zeros have added to the sums of codes, and scale them.

        `columns` are sums of the weights less their zero, `rows` those of the codes of x.
        """
        b = self.b
        x_zero = None if x.zero is None else b.reshape(x.zero, shape=())
        if columns is not None and x_zero is not None:
            total = b.sub(total, b.mul(columns, x_zero))
        if rows is not None and w.zero is not None:
            total = b.sub(total, b.mul(rows, w.zero))
        if x.scale is None or w.scale is None:
            return total
        return b.mul(b.cast(total, dtype=f32), b.mul(w.scale, b.reshape(x.scale, shape=())))

    def _varies_along(self, value: SSAValue, rank: int, dim: int) -> bool:
        """Whether a tensor beside one of so many dimensions is the same along all but one of them."""
        shape = tensor_of(value.type).shape
        return all(size == 1 for d, size in enumerate(shape, rank - len(shape)) if d != dim)


def _has_room(depth: int, x: _Codes, w: _Codes) -> bool:
    """Whether i32 holds a sum of so many products; without scales sums are i32 anyway, and wrap around."""
    return x.scale is None or depth * x.widest * w.widest <= _LARGEST_SUM


def _is_one(value: SSAValue | None) -> bool:
    """Whether a tensor has one element."""
    return value is None or all(size == 1 for size in tensor_of(value.type).shape)
