"""Convolutions → a copy of all windows and a matrix product, or sums over windows where channels do not mix.

    %y = graph.convolution %x, %w        @windows  c[n, (ci, kh, kw), (oh, ow)] = x[n, ci, oh*s + kh, ow*s + kw]
    %z = graph.relu %y              →    @dot      z[n, o, (oh, ow)] = relu(w[o, :] · c[n, :, (oh, ow)])

The product does almost all of the work, at the speed of products. A convolution of one element a window needs no copy.
Where windows are few and rows many (the gradient of weights), the rows' windows lie side by side in one wide product.
Depthwise and transposed convolutions are plain reductions: there is little to multiply, or most of it is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition

from weft.ir.expr import Size, floordiv, mod, product
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.lower.dot import lower_dot
from weft.lower.kernels import lower_group
from weft.lower.lowered import Argument, KernelCall, Lowered, whole
from weft.lower.regroup import regroup
from weft.ops.base import Movement
from weft.ops.body import Body, Operand, Value
from weft.ops.convolution import Convolution
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import Layout, contiguous
from weft.ops.window import Padding, window_counts, window_place

_LEAST_OUTPUTS = 8
"""Output channels a group of a product that is worth its copy of windows."""
_FEW_WINDOWS = 32
_MOST_BYTES = 1 << 30

_Body: TypeAlias = Callable[[GraphBuilder, SSAValue, SSAValue], SSAValue]


@irdl_op_definition
class WindowsOp(Movement):
    """All windows of [N, G*C, ...] as columns: [N, G, C * window, counts]."""

    name = "lower.windows"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        window, groups = params["window"], params["groups"]
        counts = window_counts(
            "convolution", x.shape[2:], window, params["strides"], params["padding"], params["dilation"]
        )
        depth = floordiv(x.shape[1], groups) * product(window)
        return Tensor(x.dtype, (x.shape[0], groups, depth, product(counts)))

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        window: tuple[Size, ...],
        groups: Size,
        strides: tuple[Size, ...],
        padding: Padding,
        dilation: tuple[Size, ...],
    ) -> Value:
        row, group, depth, column = index
        sizes = x.tensor.shape[2:]
        counts = window_counts("convolution", sizes, window, strides, padding, dilation)
        channel, *tap = _digits(depth, (floordiv(x.tensor.shape[1], groups), *window))
        place, mask = window_place(body, _digits(column, counts), tap, sizes, strides, padding, dilation)
        return body.at(x, [row, group * floordiv(x.tensor.shape[1], groups) + channel, *place], mask)


def _digits(number: Size, sizes: Sequence[Size]) -> list[Size]:
    """The index into a shape of the element at a row-major position."""
    digits: list[Size] = []
    for d, size in enumerate(sizes):
        digit = floordiv(number, product(sizes[d + 1 :]))
        digits.append(digit if d == 0 else mod(digit, size))
    return digits


def lower_convolution(group: GroupOp, name: str, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> Lowered:
    """Lower a group with a convolution, with what is computed before and after it."""
    convolution = next(op for op in group.block.ops if isinstance(op, Convolution))
    problem = _Problem(group, convolution, name, inputs, outputs)
    if not problem.is_product():
        return whole(lower_group(group, name, inputs, outputs), len(inputs), len(outputs))
    return problem.lower()


@dataclass
class _Problem:
    """A convolution [N, C, ...] * [O, C/G, ...] as products [O/G, K] x [K, P], for all rows and groups."""

    group: GroupOp
    convolution: Convolution
    name: str
    inputs: Sequence[Layout]
    outputs: Sequence[Layout]
    scratch: list[Tensor] = field(default_factory=list[Tensor])

    def __post_init__(self) -> None:
        x, w = (tensor_of(value.type) for value in self.convolution.operands)
        params = self.convolution.params
        self.geometry = {key: params[key] for key in ("groups", "strides", "padding", "dilation")}
        self.window = w.shape[2:]
        self.groups: Size = params["groups"]
        self.result = tensor_of(self.convolution.results[0].type)
        self.rows, self.outputs_per_group = x.shape[0], floordiv(w.shape[0], self.groups)
        self.depth, self.columns = product(w.shape[1:]), product(self.result.shape[2:])
        self.windows = WindowsOp.infer(x, window=self.window, **self.geometry) if not params["transposed"] else x
        self.side_by_side = isinstance(self.columns, int) and self.columns < _FEW_WINDOWS and self.rows != 1

    def is_product(self) -> bool:
        params, count = self.convolution.params, product(self.windows.shape)
        if params["transposed"] or self.result.dtype.is_integer or 0 in self.windows.shape:
            return False
        mixing = isinstance(self.outputs_per_group, int) and self.outputs_per_group >= _LEAST_OUTPUTS
        return mixing and (not isinstance(count, int) or count * self.windows.dtype.bytes <= _MOST_BYTES)

    def lower(self) -> Lowered:
        reads = [Argument("input", number) for number in range(len(self.inputs))]
        writes = [Argument("output", number) for number in range(len(self.outputs))]
        calls: list[KernelCall] = []
        columns: Argument | None = None
        if not self._is_plain():
            columns = self._take(self._columns_tensor())
            kernel = lower_group(
                self._windows_group(), f"{self.name}_windows", self.inputs, [contiguous(self._columns_tensor())]
            )
            calls.append(KernelCall(kernel, (*reads, columns)))
        held = [] if columns is None else [columns]
        layouts = [contiguous(self.scratch[argument.number]) for argument in held]
        if self.side_by_side:
            wide = Tensor(self.result.dtype, (self.groups, self.outputs_per_group, self.rows * self.columns))
            products = self._take(wide)
            made = self._group(held, self._wide_product, yields_product=True)
            (call,) = lower_dot(made, f"{self.name}_dot", [*self.inputs, *layouts], [contiguous(wide)]).calls
            calls.append(KernelCall(call.kernel, (*reads, *held, products)))
            finished = self._group([products], self._arranged)
            kernel = lower_group(finished, f"{self.name}_out", [*self.inputs, contiguous(wide)], self.outputs)
            calls.append(KernelCall(kernel, (*reads, products, *writes)))
        else:
            made = self._group(held, self._batched_product)
            (call,) = lower_dot(made, f"{self.name}_dot", [*self.inputs, *layouts], self.outputs).calls
            calls.append(KernelCall(call.kernel, (*reads, *held, *writes)))
        return Lowered(tuple(calls), tuple(self.scratch))

    def _take(self, tensor: Tensor) -> Argument:
        self.scratch.append(tensor)
        return Argument("scratch", len(self.scratch) - 1)

    def _is_plain(self) -> bool:
        """Whether the windows are the operand itself."""
        geometry = self.geometry
        whole_steps = all(size == 1 for size in (*self.window, *geometry["strides"]))
        return whole_steps and all(pair == (0, 0) for pair in geometry["padding"]) and not self.side_by_side

    def _columns_tensor(self) -> Tensor:
        if not self.side_by_side:
            return self.windows
        return Tensor(self.windows.dtype, (self.groups, self.depth, self.rows * self.columns))

    def _windows_group(self) -> GroupOp:
        """A group that gives all windows."""

        def windows(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            op = WindowsOp.make(_convolution_of(made).operands[0], window=self.window, **self.geometry)
            value = b.insert(op).results[0]
            if self.side_by_side:
                value = b.reshape(b.permute(value, dims=(1, 2, 0, 3)), shape=self._columns_tensor().shape)
            return [value]

        return regroup(self.group, windows)

    def _group(self, held: Sequence[Argument], body: _Body, *, yields_product: bool = False) -> GroupOp:
        """The group with the convolution replaced by what `body` makes of the weights and the columns."""

        def replaced(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            convolution = _convolution_of(made)
            b.before = convolution
            w = b.reshape(convolution.operands[1], shape=(self.groups, self.outputs_per_group, self.depth))
            if held:
                (number,) = (argument.number for argument in held)
                columns = made.block.insert_arg(tensor_type(self.scratch[number]), len(made.block.args))
            else:
                columns = b.reshape(convolution.operands[0], shape=self.windows.shape)
            value = body(b, w, columns)
            if yields_product:
                return [value]
            convolution.results[0].replace_all_uses_with(value)
            return list(made.yielded)

        return regroup(self.group, replaced)

    def _batched_product(self, b: GraphBuilder, w: SSAValue, columns: SSAValue) -> SSAValue:
        shape = (self.rows, self.groups, self.outputs_per_group, self.depth)
        return b.reshape(b.dot(b.broadcast(w, shape=shape), columns), shape=self.result.shape)

    def _wide_product(self, b: GraphBuilder, w: SSAValue, columns: SSAValue) -> SSAValue:
        return b.dot(w, columns)

    def _arranged(self, b: GraphBuilder, w: SSAValue, products: SSAValue) -> SSAValue:
        """[G, O/G, N * P] as [N, O, ...]."""
        outputs = self.groups * self.outputs_per_group
        apart = b.reshape(products, shape=(outputs, self.rows, self.columns))
        return b.reshape(b.permute(apart, dims=(1, 0, 2)), shape=self.result.shape)


def _convolution_of(group: GroupOp) -> Convolution:
    return next(op for op in group.block.ops if isinstance(op, Convolution))
