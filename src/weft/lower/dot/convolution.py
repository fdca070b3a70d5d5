"""Convolutions → a copy of all windows and a matmul, or sums over windows where channels do not mix.

    %y = graph.convolution %x, %w        @windows  c[n, (ci, kh, kw), (oh, ow)] = x[n, ci, oh*s + kh, ow*s + kw]
    %z = graph.relu %y              →    @dot      z[n, o, (oh, ow)] = relu(w[o, :] · c[n, :, (oh, ow)])

The matmul does almost all of the work, at the speed of matmuls. A convolution of one element a window needs no copy.
Where windows are few and rows many (the gradient of weights), the rows' windows lie side by side in one wide matmul.
A transposed convolution needs its weights in another order, and has zeros in its windows where strides leave gaps.
Depthwise convolutions are plain reductions: there is little to multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition

from weft.ir.expr import Size, floordiv, mod, product
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.lower.dot.dot import lower_dot
from weft.lower.groups.kernels import lower_group, try_lower_group
from weft.lower.lowered import Argument, KernelCall, Lowered, whole
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal, accepted
from weft.lower.regroup import regroup
from weft.ops.base import Movement
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.windows.convolution import Convolution, spread_place
from weft.ops.windows.window import Padding, window_place

_LEAST_OUTPUTS = 8
"""Output channels a group of a matmul that is worth its copy of windows."""
_FEW_WINDOWS = 32
_MOST_BYTES = 1 << 30

_Body: TypeAlias = Callable[[GraphBuilder, SSAValue, SSAValue], SSAValue]


@irdl_op_definition
class WindowsOp(Movement):
    """All windows of [N, G*C, ...] as columns, `counts` of them: [N, G, C * window, counts].

    If `transposed`, a column has the elements whose windows an element of the result is in.
    """

    name = "lower.windows"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        (x,) = tensors
        groups = params["groups"]
        depth = floordiv(x.shape[1], groups) * product(params["window"])
        return Tensor(x.dtype, (x.shape[0], groups, depth, product(params["counts"])))

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        x: Operand,
        window: tuple[Size, ...],
        counts: tuple[Size, ...],
        groups: Size,
        strides: tuple[Size, ...],
        padding: Padding,
        dilation: tuple[Size, ...],
        transposed: bool,
    ) -> Value:
        row, group, depth, column = index
        channels = floordiv(x.tensor.shape[1], groups)
        channel, *tap = _digits(depth, (channels, *window))
        rule = spread_place if transposed else window_place
        place, mask = rule(body, _digits(column, counts), tap, x.tensor.shape[2:], strides, padding, dilation)
        return body.at(x, [row, group * channels + channel, *place], mask)


def _digits(number: Size, sizes: Sequence[Size]) -> list[Size]:
    """The index into a shape of the element at a row-major position."""
    digits: list[Size] = []
    for d, size in enumerate(sizes):
        digit = floordiv(number, product(sizes[d + 1 :]))
        digits.append(digit if d == 0 else mod(digit, size))
    return digits


def lower_convolution(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group with a convolution, with what is computed before and after it."""
    convolution = next(op for op in group.block.ops if isinstance(op, Convolution))
    problem = _Problem(group, convolution, name, inputs, outputs, machine)
    if not problem.is_product():
        kernel = try_lower_group(group, name, inputs, outputs, machine=machine)
        return kernel if isinstance(kernel, Refusal) else whole(kernel, len(inputs), len(outputs))
    return problem.lower()


@dataclass
class _Problem:
    """A convolution [N, C, ...] * [O, C/G, ...] as matmuls [O/G, K] x [K, P], for all rows and groups."""

    group: GroupOp
    convolution: Convolution
    name: str
    inputs: Sequence[StridedLayout]
    outputs: Sequence[StridedLayout]
    machine: Machine
    scratch: list[Tensor] = field(default_factory=list[Tensor])

    def __post_init__(self) -> None:
        x, w = (tensor_of(value.type) for value in self.convolution.operands)
        params = self.convolution.params
        self.transposed: bool = params["transposed"]
        self.result = tensor_of(self.convolution.results[0].type)
        self.geometry = {key: params[key] for key in ("groups", "strides", "padding", "dilation", "transposed")}
        self.geometry |= {"window": w.shape[2:], "counts": self.result.shape[2:]}
        self.groups: Size = params["groups"]
        self.rows, self.columns = x.shape[0], product(self.result.shape[2:])
        self.outputs_per_group = floordiv(self.result.shape[1], self.groups)
        self.windows = WindowsOp.infer(x, **self.geometry)
        self.weights = Tensor(w.dtype, (self.groups, self.outputs_per_group, self.windows.shape[2]))
        self.side_by_side = isinstance(self.columns, int) and self.columns < _FEW_WINDOWS and self.rows != 1

    def is_product(self) -> bool:
        count = product(self.windows.shape)
        if "dtype" in self.convolution.params or self.result.dtype.is_integer or 0 in self.windows.shape:
            return False
        mixing = isinstance(self.outputs_per_group, int) and self.outputs_per_group >= _LEAST_OUTPUTS
        return mixing and (not isinstance(count, int) or count * self.windows.dtype.bytes <= _MOST_BYTES)

    def lower(self) -> Lowered | Refusal:
        reads = [Argument("input", number) for number in range(len(self.inputs))]
        writes = [Argument("output", number) for number in range(len(self.outputs))]
        calls: list[KernelCall] = []

        def scratch(group: GroupOp, tensor: Tensor, part: str) -> Argument:
            kernel = lower_group(group, f"{self.name}_{part}", self.inputs, [contiguous(tensor)], machine=self.machine)
            argument = self._take(tensor)
            calls.append(KernelCall(kernel, (*reads, argument)))
            return argument

        weights = scratch(self._weights_group(), self.weights, "weights") if self.transposed else None
        columns = None if self._is_plain() else scratch(self._windows_group(), self._columns_tensor(), "windows")
        held = [argument for argument in (weights, columns) if argument is not None]
        layouts = [*self.inputs, *(contiguous(self.scratch[argument.number]) for argument in held)]
        if self.side_by_side:
            wide = Tensor(self.result.dtype, (self.groups, self.outputs_per_group, self.rows * self.columns))
            products = self._take(wide)
            made = self._group(weights, columns, self._wide_product, yields_product=True)
            lowered = accepted(lower_dot(made, f"{self.name}_dot", layouts, [contiguous(wide)], self.machine))
            (call,) = lowered.calls
            calls.append(KernelCall(call.kernel, (*reads, *held, products)))
            finished = self._group(None, products, self._arranged)
            read = [*self.inputs, contiguous(wide)]
            kernel = try_lower_group(finished, f"{self.name}_out", read, self.outputs, machine=self.machine)
            if isinstance(kernel, Refusal):
                return kernel
            calls.append(KernelCall(kernel, (*reads, products, *writes)))
        else:
            made = self._group(weights, columns, self._batched_product)
            lowered = lower_dot(made, f"{self.name}_dot", layouts, self.outputs, self.machine)
            if isinstance(lowered, Refusal):
                return lowered
            (call,) = lowered.calls
            calls.append(KernelCall(call.kernel, (*reads, *held, *writes)))
        return Lowered(tuple(calls), tuple(self.scratch))

    def _take(self, tensor: Tensor) -> Argument:
        self.scratch.append(tensor)
        return Argument("scratch", len(self.scratch) - 1)

    def _is_plain(self) -> bool:
        """Whether the windows are the operand itself."""
        geometry = self.geometry
        whole_steps = all(size == 1 for size in (*geometry["window"], *geometry["strides"]))
        return whole_steps and all(pair == (0, 0) for pair in geometry["padding"]) and not self.side_by_side

    def _columns_tensor(self) -> Tensor:
        if not self.side_by_side:
            return self.windows
        return Tensor(self.windows.dtype, (self.groups, self.windows.shape[2], self.rows * self.columns))

    def _windows_group(self) -> GroupOp:
        """A group that gives all windows."""

        def windows(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            op = WindowsOp.make(_convolution_of(made).operands[0], **self.geometry)
            value = b.insert(op).results[0]
            if self.side_by_side:
                value = b.reshape(b.permute(value, dims=(1, 2, 0, 3)), shape=self._columns_tensor().shape)
            return [value]

        return regroup(self.group, windows)

    def _weights_group(self) -> GroupOp:
        """A group that gives the weights of a transposed convolution, [C, O / G, ...], as rows of a matrix."""

        def arranged(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            w = _convolution_of(made).operands[1]
            inputs, outputs, *window = b.tensor(w).shape
            apart = b.reshape(w, shape=(self.groups, floordiv(inputs, self.groups), outputs, product(window)))
            return [b.reshape(b.permute(apart, dims=(0, 2, 1, 3)), shape=self.weights.shape)]

        return regroup(self.group, arranged)

    def _group(
        self, weights: Argument | None, columns: Argument | None, body: _Body, *, yields_product: bool = False
    ) -> GroupOp:
        """The group with the convolution replaced by what `body` makes of weights and columns (or of matmuls)."""

        def replaced(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
            convolution = _convolution_of(made)
            b.before = convolution
            x, w = convolution.operands

            def given(argument: Argument | None, value: SSAValue, tensor: Tensor) -> SSAValue:
                if argument is None:
                    return b.reshape(value, shape=tensor.shape)
                return made.block.insert_arg(tensor_type(self.scratch[argument.number]), len(made.block.args))

            value = body(b, given(weights, w, self.weights), given(columns, x, self.windows))
            if yields_product:
                return [value]
            convolution.results[0].replace_all_uses_with(value)
            return list(made.yielded)

        return regroup(self.group, replaced)

    def _batched_product(self, b: GraphBuilder, w: SSAValue, columns: SSAValue) -> SSAValue:
        shape = (self.rows, *self.weights.shape)
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
