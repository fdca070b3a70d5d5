"""Quantizes a graph of floats to 8-bit integers: an op at a time, with scales from a run on samples.

The result is an ordinary graph, so that running it on NumPy says what a machine has to compute. What it takes are
the graphs of transformers as the front ends make them: products by weights, biases, sums, attention, norms, gelu, silu,
rotated positions, and caches of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.backends.reference.graph import run_op
from weft.backends.target import argument_names
from weft.errors import UnsupportedError
from weft.ir.locations import line_of
from weft.ir.types import Tensor, i8, tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, ReturnOp
from weft.spatial.int8_transformer import TransformerBuilder
from weft.spatial.quantize.float_values import Activated, HeadView, Norm, Pending, Quantized, Rotary


@dataclass(frozen=True)
class Argument:
    """An argument or a result: floats of `shape` become integers of [rows, channels], and 1 stands for `scale`."""

    name: str
    shape: tuple[int, ...]
    scale: float
    heads: bool = False
    """Whether it is [1, heads, rows, d] as floats."""

    def integers(self, array: np.ndarray) -> np.ndarray:
        """Floats as the machine takes them."""
        flat = array.reshape(self.shape)
        flat = np.moveaxis(flat, -3, -2) if self.heads else flat
        rows = flat.reshape(-1, self.channels)
        return np.clip(np.rint(rows / self.scale), -128, 127).astype(np.int8)

    def floats(self, array: np.ndarray) -> np.ndarray:
        """What integers stand for."""
        if self.heads:
            split = array.reshape(array.shape[0], self.shape[-3], self.shape[-1]).transpose(1, 0, 2)
            return split.reshape(self.shape).astype(np.float32) * np.float32(self.scale)
        return array.reshape(self.shape).astype(np.float32) * np.float32(self.scale)

    @property
    def channels(self) -> int:
        return self.shape[-1] * (self.shape[-3] if self.heads else 1)


@dataclass(frozen=True)
class QuantizedGraph:
    """A graph of 8-bit integers, its constants, and how its arguments and results are floats."""

    function: FuncOp
    constants: dict[str, np.ndarray]
    arguments: Sequence[Argument]
    results: Sequence[Argument]


def quantize_graph(
    function: FuncOp, weights: Mapping[str, np.ndarray], samples: Mapping[str, np.ndarray]
) -> QuantizedGraph:
    """Quantize a function; arguments that are no weights have samples, whose run gives the scales."""
    names = argument_names(function)
    if missing := [name for name in names if name not in weights and name not in samples]:
        raise UnsupportedError(f"the argument {missing[0]} has neither weights nor a sample", hint="give an array for it")
    given = [np.asarray(weights[name] if name in weights else samples[name]) for name in names]
    seen: dict[SSAValue, np.ndarray] = dict(zip(function.block.args, given, strict=True))
    with np.errstate(all="ignore"):
        for op in function.block.ops:
            if not isinstance(op, ReturnOp):
                seen.update(zip(op.results, run_op(op, [seen[each] for each in op.operands], {}, None), strict=True))
    return _Quantizer(function, set(weights), seen).run()


@dataclass
class _Quantizer:
    function: FuncOp
    known: set[str]
    seen: dict[SSAValue, np.ndarray]
    values: dict[SSAValue, Any] = field(default_factory=dict[SSAValue, Any])
    roots: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Values that are another's elements in the same order."""

    def run(self) -> QuantizedGraph:
        taken, tensors = list[Argument](), dict[str, Tensor]()
        for name, value in zip(argument_names(self.function), self.function.block.args, strict=True):
            if name not in self.known:
                shape = self.seen[value].shape
                taken.append(Argument(name, shape, self._scale(value), heads=len(shape) == 4))
                rows = self.seen[value].size // taken[-1].channels
                tensors[name] = Tensor(i8, (rows, taken[-1].channels))
        self.build = TransformerBuilder(self.function.sym_name.data, tensors)
        by_name = {each.name: each for each in taken}
        for name, value in zip(argument_names(self.function), self.function.block.args, strict=True):
            if name in self.known:
                self.values[value] = self.seen[value]
            else:
                made = Quantized(self.build.argument(name), by_name[name].scale)
                self.values[value] = made
                if by_name[name].heads:
                    inner = self.build.argument(name)  # stands for the matrix behind the heads
                    self.values[inner], self.seen[inner] = made, _matrix(self.seen[value])
                    self.values[value] = HeadView(inner, by_name[name].shape[-3], "hsd")
        results: list[Argument] = []
        outputs: list[SSAValue] = []
        for op in self.function.block.ops:
            if isinstance(op, ReturnOp):
                for value in op.operands:
                    found = self.values.get(self._root(value))
                    inner = found.of if isinstance(found, HeadView) else value
                    made = self._quantized(op, inner)
                    heads = isinstance(found, HeadView) and found.axes == "hsd"
                    results.append(Argument(f"y{len(results)}", self.seen[value].shape, made.scale, heads))
                    outputs.append(made.value)
            else:
                self._read(op)
        function = self.build.finish(outputs)
        return QuantizedGraph(function, self.build.constants, taken, results)

    # Values

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
                made = self._rounded(pending, self._scale(value))
            case Norm(step="normed") as norm:
                made = self._normed(op, norm, self._scale(value))
            case Activated(of):
                gate, to = self._quantized(op, of), self._scale(value)
                ones = self.build.builder
                raise self._refusal(op, f"silu of {ones.tensor(gate.value)} alone, to {to}")
            case Rotary(part="whole") as rotary:
                return self._quantized(op, rotary.of)
            case found:
                raise self._refusal(op, f"{type(found).__name__} is used where a matrix is needed")
        self.values[value] = made
        return made

    def _rounded(self, pending: Pending, to: float) -> Quantized:
        build, b = self.build, self.build.builder
        value: SSAValue | None = None
        if pending.source is not None and pending.weights is not None:
            steps = np.maximum(np.abs(pending.weights).max(axis=0), 1e-12) / 127
            whole = np.clip(np.rint(pending.weights / steps), -127, 127).astype(np.int8)
            value = build.scaled(build.dot(pending.source.value, whole), steps * pending.source.scale / to)
        if pending.bias is not None and value is not None:
            value = build.add(value, (pending.bias / to).astype(np.float32))
        for each, factor in pending.beside:
            channels = int(b.tensor(each.value).shape[1])  # type: ignore[arg-type]
            term = build.scaled(each.value, np.broadcast_to(factor * each.scale / to, (channels,)))
            value = term if value is None else b.add(value, term)
        assert value is not None, "something is pending"
        if pending.bias is not None and pending.source is None:
            value = build.add(value, (pending.bias / to).astype(np.float32))
        return Quantized(build.to_int8(value), to)

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

    def _refusal(self, op: Operation, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{op.name}: {what}", location=line_of(op.location), hint="docs/spatial.md says what is quantized"
        )

    # Ops

    def _read(self, op: Operation) -> None:
        operands = [self._root(each) for each in op.operands]
        found = [self.values.get(each) for each in operands]
        result = op.results[0]
        if all(isinstance(each, np.ndarray) for each in found):
            self.values[result] = self.seen[result]
            return
        rule = getattr(self, f"_{op.name.removeprefix('graph.')}", None)
        made = rule(op, operands, found) if rule is not None and isinstance(op, GraphOp) else None
        if made is None:
            raise self._refusal(op, f"of {', '.join(type(each).__name__ for each in found)} is not quantized")
        if isinstance(made, SSAValue):
            self.roots[result] = made
        else:
            self.values[result] = made

    def _cast(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return operands[0]

    def _contiguous(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return operands[0]

    def _reshape(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        (x,), (value,) = operands, found
        shape = _shape(op.results[0])
        if isinstance(value, HeadView):
            return self._reshaped_heads(value, x, shape)
        before = self.seen[x].shape
        if shape[-1] == before[-1]:
            return x
        if len(shape) > 2 and shape[-1] * shape[-2] == before[-1]:
            return HeadView(x, shape[-2], "shd")
        return None

    def _reshaped_heads(self, view: HeadView, x: SSAValue, shape: tuple[int, ...]) -> Any:
        if view.axes == "shd":
            channels = self.seen[view.of].size // max(1, int(np.prod(shape[:-1])))
            return view.of if shape[-1] == channels and len(shape) < 4 else view
        if view.axes == "hrsd" and len(shape) < 5:
            return replace(view, axes="hsd")
        return view

    def _permute(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        dims, view = tuple(op.params["dims"]), found[0]
        if not isinstance(view, HeadView) or view.axes not in ("shd", "hsd"):
            return None
        if dims in ((0, 2, 1, 3), (1, 0, 2)):
            return replace(view, axes="hsd" if view.axes == "shd" else "shd")
        return None

    def _broadcast(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        view, shape = found[0], _shape(op.results[0])
        if shape == self.seen[operands[0]].shape:
            return operands[0] if not isinstance(view, HeadView) else view
        if isinstance(view, HeadView) and view.axes == "hsd" and len(shape) == 5:
            return replace(view, axes="hrsd", repeats=shape[2])
        return None

    def _concat(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        if all(isinstance(each, Rotary) for each in found):
            one, other = found
            return Rotary(one.of, "turned") if (one.part, other.part) == ("-1", "0") else None
        rank = len(_shape(op.results[0]))
        if not all(isinstance(each, HeadView) and each.axes == "hsd" for each in found) or op.params["dim"] != rank - 2:
            return None
        # What a cache holds and what is new have one scale: that of the cache.
        cache, new = found
        held = self._quantized(op, cache.of)
        root = self._root(new.of)
        if isinstance(self.values[root], Pending):
            self.values[root] = self._rounded(self.values[root], held.scale)
        elif isinstance(self.values[root], Rotary):
            self.values[root] = self._rotated(op, self.values[root], held.scale)
        fresh = self._quantized(op, root)
        if fresh.scale != held.scale:
            raise self._refusal(op, "the new rows have a scale of their own")
        joined = self.build.builder.concat(held.value, fresh.value, dim=0)
        self.values[joined], self.seen[joined] = Quantized(joined, held.scale), _matrix(self.seen[op.results[0]])
        return replace(cache, of=joined)

    def _dot(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        weights = found[1]
        if not isinstance(weights, np.ndarray) or weights.ndim != 2:
            return None
        return Pending(self._quantized(op, operands[0]), weights.astype(np.float64))

    def _add(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        for (x, one), other in zip(zip(operands, found, strict=True), found[::-1], strict=True):
            if isinstance(other, np.ndarray):
                return self._plus(op, x, one, other)
        if all(isinstance(each, Rotary) for each in found):
            one, other = found if found[0].part == "cosine" else found[::-1]
            return Rotary(one.of, "pair", np.stack([one.factors, other.factors]))
        if any(isinstance(each, HeadView) for each in found):
            return None
        pending = [self._pending(op, x) for x in operands]
        if pending[0].source is not None and pending[1].source is not None:
            made = self._quantized(op, operands[1])
            pending[1] = Pending(beside=((made, np.ones(1)),))
        one, other = pending
        bias = one.bias if other.bias is None else other.bias if one.bias is None else one.bias + other.bias
        product = one if one.source is not None else other
        return Pending(product.source, product.weights, bias, (*one.beside, *other.beside))

    def _plus(self, op: GraphOp, x: SSAValue, one: Any, constant: np.ndarray) -> Any:
        if isinstance(one, Norm) and one.step == "variance":
            return replace(one, step="variance", epsilon=one.epsilon + float(constant.reshape(-1)[0]))
        if isinstance(one, Norm) and one.step == "normed" and constant.ndim <= 1:
            return replace(one, beta=constant if one.beta is None else one.beta + constant)
        pending, channels = self._pending(op, x), self.seen[x].shape[-1]
        if constant.size not in (1, channels):
            return None
        bias = np.broadcast_to(constant.reshape(-1), (channels,))
        return replace(pending, bias=bias if pending.bias is None else pending.bias + bias)

    def _pending(self, op: Operation, x: SSAValue) -> Pending:
        found = self.values[self._root(x)]
        return found if isinstance(found, Pending) else Pending(beside=((self._quantized(op, x), np.ones(1)),))

    def _sub(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        mean = found[1]
        if isinstance(mean, Norm) and mean.step == "mean" and mean.of == operands[0]:
            return Norm(operands[0], "centred", True)
        return None

    def _mul(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        if operands[0] == operands[1]:
            centred = isinstance(found[0], Norm)
            return Norm(found[0].of if centred else operands[0], "square", centred)
        for (x, one), other in zip(zip(operands, found, strict=True), found[::-1], strict=True):
            made = self._times(op, x, one, other)
            if made is not None:
                return made
        one, other = found
        if isinstance(one, Activated) or isinstance(other, Activated):
            gate, up = (one.of, operands[1]) if isinstance(one, Activated) else (other.of, operands[0])
            first, second = self._quantized(op, gate), self._quantized(op, up)
            to = self._scale(op.results[0])
            return Quantized(self.build.gated_silu(first.value, second.value, first.scale, second.scale / to), to)
        return None

    def _times(self, op: GraphOp, x: SSAValue, one: Any, other: Any) -> Any:
        if isinstance(other, Norm) and other.step == "root":
            same = isinstance(one, Norm) and one.step == "centred" and one.of == other.of
            return replace(other, step="normed") if same or x == other.of else None
        if not isinstance(other, np.ndarray):
            return None
        if isinstance(one, Norm) and one.step in ("sum", "squares"):
            return _averaged(one)
        if isinstance(one, Norm) and one.step == "normed" and other.ndim <= 1:
            return replace(one, gamma=other if one.gamma is None else one.gamma * other)
        if isinstance(one, HeadView | Rotary) and other.ndim > 1:
            turned = isinstance(one, Rotary) and one.part == "turned"
            return Rotary(one.of, "sine" if turned else "cosine", other) if turned or isinstance(one, HeadView) else None
        if other.size in (1, self.seen[x].shape[-1]) and isinstance(one, Pending | Quantized):
            pending, factor = self._pending(op, x), other.reshape(-1).astype(np.float64)
            weights = None if pending.weights is None else pending.weights * factor
            bias = None if pending.bias is None else pending.bias * factor
            return Pending(pending.source, weights, bias, tuple((each, by * factor) for each, by in pending.beside))
        return None

    def _pow(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        square = isinstance(found[1], np.ndarray) and np.all(found[1] == 2)
        return Norm(operands[0], "square") if square and not isinstance(found[0], Norm) else None

    def _sum(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        if tuple(op.params["dims"]) != (len(self.seen[operands[0]].shape) - 1,):
            return None
        if isinstance(found[0], Norm) and found[0].step == "square":
            return replace(found[0], step="squares")
        return Norm(operands[0], "sum")

    def _div(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return _averaged(found[0]) if isinstance(found[0], Norm) and isinstance(found[1], np.ndarray) else None

    def _rsqrt(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return replace(found[0], step="root") if isinstance(found[0], Norm) and found[0].step == "variance" else None

    def _gelu(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        x, to = self._quantized(op, operands[0]), self._scale(op.results[0])
        return Quantized(self.build.gelu(x.value, x.scale, to), to)

    def _silu(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return Activated(operands[0])

    def _slice(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        view, shape = found[0], _shape(op.results[0])
        whole = self.seen[operands[0]]
        if not isinstance(view, HeadView) or 2 * shape[-1] != whole.shape[-1] or shape[:-1] != whole.shape[:-1]:
            return None
        first = np.array_equal(self.seen[op.results[0]], whole[..., : shape[-1]])
        return Rotary(operands[0], "0" if first else "1")

    def _neg(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return replace(found[0], part="-1") if isinstance(found[0], Rotary) and found[0].part == "1" else None

    def _rotated(self, op: Operation, rotary: Rotary, to: float) -> Quantized:
        raise self._refusal(op, "rotated positions")

    def _attention(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        views, masks = found[:3], found[3:]
        if not all(isinstance(each, HeadView) and each.axes == "hsd" for each in views):
            return None
        q, k, v = (self._quantized(op, each.of) for each in views)
        rows, keys = self.seen[operands[0]].shape[-2], self.seen[operands[1]].shape[-2]
        mask = np.ones((rows, keys), np.int8)
        if op.params["causal"]:
            mask = np.tril(mask)
        for given in masks:
            if not isinstance(given, np.ndarray):
                raise self._refusal(op, "a mask that is not constant")
            shown = given if given.dtype == np.bool_ else given > -1e4
            mask = mask * np.broadcast_to(shown.reshape(-1, *shown.shape[-2:])[0], (rows, keys)).astype(np.int8)
        one, other = (self.seen[each].astype(np.float64) for each in operands[:2])
        scale = float(op.params["scale"])
        scores = np.matmul(one, np.swapaxes(other, -1, -2)) * scale
        most = float(np.where(mask > 0, scores, -np.inf).max())
        to = self._scale(op.results[0])
        heads = views[0].heads
        shared = views[1].repeats
        made = self.build.attention(
            q.value,
            k.value,
            v.value,
            heads,
            heads // shared,
            scale * q.scale * k.scale,
            float(np.log(127)) - most,
            v.scale / to,
            None if mask.all() else mask,
        )
        self.values[made], self.seen[made] = Quantized(made, to), _matrix(self.seen[op.results[0]])
        return HeadView(made, heads, "hsd")


def _matrix(heads: np.ndarray) -> np.ndarray:
    """[..., H, S, d] as [S, H · d]."""
    moved = np.moveaxis(heads, -3, -2)
    return moved.reshape(-1, moved.shape[-2] * moved.shape[-1])


def _averaged(norm: Norm) -> Norm | None:
    after = {"sum": "mean", "squares": "variance"}.get(norm.step)
    return None if after is None else replace(norm, step=after)


def _shape(value: SSAValue) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor_of(value.type).shape)  # type: ignore[arg-type]
