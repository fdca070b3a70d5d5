"""Rounds what a graph of floats computes to 8-bit integers: products and their biases, norms, rotated positions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.errors import UnsupportedError
from weft.ir.locations import line_of
from weft.ops.graph import FuncOp
from weft.spatial.int8_transformer import TransformerBuilder
from weft.spatial.quantize.float_values import Activated, Norm, Pending, PixelWindow, Quantized, Rotary, Softmax


@dataclass
class Rounding:
    """The values of a graph, as integers or not yet, and the graph of integers that is being built."""

    function: FuncOp
    ops: list[Operation]
    known: set[str]
    seen: dict[SSAValue, np.ndarray]
    values: dict[SSAValue, Any] = field(default_factory=dict[SSAValue, Any])
    roots: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Values that are another's elements in the same order."""
    rounded: dict[SSAValue, Pending] = field(default_factory=dict[SSAValue, Pending])
    """What values were before they were rounded."""
    build: TransformerBuilder = field(default_factory=lambda: TransformerBuilder("empty", {}))

    def _root(self, value: SSAValue) -> SSAValue:
        while value in self.roots:
            value = self.roots[value]
        return value

    def _scale(self, value: SSAValue) -> float:
        return max(float(np.abs(self.seen[value]).max(initial=0.0)), 1e-6) / 127

    def _quantized(self, op: Operation, value: SSAValue) -> Quantized:
        """A value as integers; what was pending is rounded here, once for all that use it."""
        value = self._root(value)
        match self.values.get(value):
            case Quantized() as made:
                return made
            case Pending() as pending:
                made, self.rounded[value] = self._rounded(pending, self._scale(value)), pending
            case Norm(step="normed") as norm:
                made = self._normed(op, norm, self._scale(value))
            case Rotary(part="pair") as rotary:
                made = self._rotated(op, rotary, self._scale(value))
            case Softmax(step="weights") as softmax:
                made = self._soft(op, softmax, self._scale(value))
            case Activated(of):
                x, to = self._quantized(op, of), self._scale(value)
                made = Quantized(self.build.silu(x.value, x.scale, to), to)
            case found:
                raise self._refusal(op, f"{type(found).__name__} is used where a matrix is needed")
        made = self._as_row(value, made)
        self.values[value] = made
        return made

    def _as_row(self, value: SSAValue, made: Quantized) -> Quantized:
        """One pixel as a row, where the graph of floats has a row."""
        b = self.build.builder
        if b.tensor(made.value).rank != 4 or self.seen[value].ndim == 4:
            return made
        return Quantized(b.reshape(made.value, shape=self.seen[value].shape), made.scale)

    def _with_function(self, op: Operation, x: SSAValue, function: str) -> Pending:
        return replace(self._pending(op, x), function=function)

    def _pending(self, op: Operation, x: SSAValue) -> Pending:
        """What a value is before it is rounded; what is rounded already, or has a function, is a tensor beside."""
        found = self.values[self._root(x)]
        open_ = isinstance(found, Pending) and not found.function
        return found if open_ else Pending(beside=((self._quantized(op, x), np.ones(1)),))

    def _rounded(self, pending: Pending, to: float) -> Quantized:
        build = self.build
        match pending.function:
            case "relu":
                return Quantized(build.to_int8(build.builder.relu(self._sum_of(pending, to))), to)
            case "tanh":
                return Quantized(build.to_int8(build.tanh(self._sum_of(pending, 1.0), 1 / to)), to)
            case "sigmoid":
                return Quantized(build.to_int8(build.sigmoid(self._sum_of(pending, 2.0), 1 / to)), to)
            case _:
                return Quantized(build.to_int8(self._sum_of(pending, to)), to)

    def _sum_of(self, pending: Pending, to: float) -> SSAValue:
        """A product, its bias and tensors beside it, in units of `to`."""
        build, b = self.build, self.build.builder
        value: SSAValue | None = None
        if pending.source is not None and pending.weights is not None:
            # Beside rows a product that is one pixel is a row too.
            row = pending.window is not None and any(b.tensor(each.value).rank == 2 for each, _ in pending.beside)
            value = self._product(pending.source, pending.weights, pending.window, to, row)
        if pending.bias is not None and value is not None:
            value = build.add(value, (pending.bias / to).astype(np.float32))
        for each, factor in pending.beside:
            channels = int(b.tensor(each.value).shape[1])  # type: ignore[arg-type]
            term = build.scaled(each.value, np.broadcast_to(factor * each.scale / to, (channels,)))
            value = term if value is None else b.add(value, term)
        assert value is not None, "something is pending"
        if pending.bias is not None and pending.source is None:
            value = build.add(value, (pending.bias / to).astype(np.float32))
        return value

    def _product(
        self, x: Quantized, weights: np.ndarray, window: PixelWindow | Literal["all"] | None, to: float, row: bool
    ) -> SSAValue:
        """A product by weights of 8 bits, each channel with a scale of its own, in units of `to`."""
        build = self.build
        if window == "all":
            return build.scaled(self._pixel_as_row(build.pixel_sum(x.value), row), weights * x.scale / to)
        channel = -1 if window is None else 0
        others = tuple(axis for axis in range(weights.ndim) if axis != channel % weights.ndim)
        steps = np.maximum(np.abs(weights).max(axis=others, keepdims=True), 1e-12) / 127
        whole = np.clip(np.rint(weights / steps), -127, 127).astype(np.int8)
        if window is None:
            product = build.dot(x.value, whole)
        else:
            product = self._pixel_as_row(build.convolution(x.value, whole, window.strides, window.padding), row)
        return build.scaled(product, steps.reshape(-1) * x.scale / to)

    def _pixel_as_row(self, product: SSAValue, row: bool) -> SSAValue:
        """[1, N, 1, 1] as [1, N], where that is asked for."""
        b = self.build.builder
        return b.reshape(product, shape=b.tensor(product).shape[:2]) if row else product

    def _soft(self, op: Operation, softmax: Softmax, to: float) -> Quantized:
        """Powers in 8 bits, the greatest of the sample 127, by their sum over the row."""
        x, most = self._quantized(op, softmax.of), float(self.seen[self._root(softmax.of)].max())
        return Quantized(self.build.softmax(x.value, x.scale, float(np.log(127)) - most, 1 / to), to)

    def _normed(self, op: Operation, norm: Norm, to: float) -> Quantized:
        x = self._quantized(op, norm.of)
        floats = self.seen[self._root(norm.of)].astype(np.float64)
        floats = floats.reshape(-1, floats.shape[-1])
        channels = floats.shape[1]
        scale = x.scale
        if norm.centred:
            floats = floats - floats.mean(axis=1, keepdims=True)
            scale = max(float(np.abs(floats).max()), 1e-6) / 127
        spread = float(np.sqrt((floats**2).mean())) / scale
        squared = 127 / min(127.0, max(5 * spread, 11.0)) ** 2
        gamma = np.ones(channels) if norm.gamma is None else np.broadcast_to(norm.gamma, (channels,))
        gamma = gamma * np.sqrt(channels * squared) / to
        beta = None if norm.beta is None else np.broadcast_to(norm.beta, (channels,)) / to
        epsilon = max(norm.epsilon * channels * squared / scale**2, 1e-3)
        if norm.centred:
            shift = np.zeros(channels) if beta is None else beta
            made = self.build.layer_norm(x.value, gamma, shift, epsilon, x.scale / scale, squared)
        else:
            made = self.build.rms_norm(x.value, gamma, beta, epsilon, squared)
        return Quantized(made, to)

    def _refusal(
        self, op: Operation, what: str, hint: str = "docs/spatial.md says what is quantized"
    ) -> UnsupportedError:
        return UnsupportedError(f"{op.name}: {what}", location=line_of(op.location), hint=hint)

    def _rotated(self, op: Operation, rotary: Rotary, to: float) -> Quantized:
        x, root = self._quantized(op, rotary.of), self._root(rotary.of)
        before = self.rounded.get(root)
        whole = before is not None and not before.beside and not before.function
        if before is None or not whole or before.source is None or before.weights is None or rotary.factors is None:
            raise self._refusal(op, "positions are rotated of what is no product by weights")

        def turn(values: np.ndarray) -> np.ndarray:
            split = values.reshape(*values.shape[:-1], rotary.heads, 2, -1)
            return np.stack([-split[..., 1, :], split[..., 0, :]], axis=-2).reshape(values.shape)

        bias = None if before.bias is None else turn(before.bias)
        turned = self._rounded(Pending(before.source, turn(before.weights), bias), x.scale)
        cosine, sine = np.rint(rotary.factors * 127).astype(np.int8)
        return Quantized(self.build.rotate(x.value, turned.value, cosine, sine, x.scale / (127 * to)), to)
