"""Quantizes a graph of floats to 8-bit integers: an op at a time, with scales from a run on samples.

The result is an ordinary graph, so that running it on NumPy says what a machine has to compute. What it takes are
the graphs of transformers and of networks of matrices and images as the front ends make them: products by weights,
biases, sums, attention, softmax, norms, relu, tanh, sigmoid, gelu, silu, rotated positions, caches of keys and values,
convolutions and pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.backends.reference.graph import run_op
from weft.backends.target import argument_names
from weft.errors import UnsupportedError
from weft.ir.types import Tensor, i8, tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, ReturnOp
from weft.spatial.int8_transformer import TransformerBuilder
from weft.spatial.quantize.activation_rules import ActivationRules
from weft.spatial.quantize.float_values import (
    Activated,
    Flattened,
    HeadView,
    Norm,
    Pending,
    Quantized,
    Rotary,
    Softmax,
    constant_of,
)
from weft.spatial.quantize.image_rules import ImageRules, is_image
from weft.spatial.quantize.quantized_graph import Argument, QuantizedGraph


def quantize_graph(
    function: FuncOp, weights: Mapping[str, np.ndarray], samples: Mapping[str, np.ndarray]
) -> QuantizedGraph:
    """Quantize a function; arguments that are no weights have samples, whose run gives the scales."""
    names = argument_names(function)
    if missing := [name for name in names if name not in weights and name not in samples]:
        raise UnsupportedError(
            f"the argument {missing[0]} has neither weights nor a sample", hint="give an array for it"
        )
    given = [np.asarray(weights[name] if name in weights else samples[name]) for name in names]
    seen: dict[SSAValue, np.ndarray] = dict(zip(function.block.args, given, strict=True))
    live = _live(function)
    with np.errstate(all="ignore"):
        for op in live:
            if not isinstance(op, ReturnOp):
                seen.update(zip(op.results, run_op(op, [seen[each] for each in op.operands], {}, None), strict=True))
    return _Quantizer(function, live, set(weights), seen).run()


def _live(function: FuncOp) -> list[Operation]:
    """The ops whose results are used."""
    kept: list[Operation] = []
    used: set[SSAValue] = set()
    for op in reversed(list(function.block.ops)):
        if isinstance(op, ReturnOp) or any(each in used for each in op.results):
            kept.append(op)
            used.update(op.operands)
    return kept[::-1]


class _Quantizer(ImageRules, ActivationRules):
    """Reads ops one after another."""

    def run(self) -> QuantizedGraph:
        taken, tensors = list[Argument](), dict[str, Tensor]()
        for name, value in zip(argument_names(self.function), self.function.block.args, strict=True):
            if name not in self.known:
                shape = self.seen[value].shape
                image = len(shape) == 4 and is_image(value)
                taken.append(Argument(name, shape, self._scale(value), len(shape) == 4 and not image, image))
                rows = self.seen[value].size // taken[-1].channels
                tensors[name] = Tensor(i8, shape if image else (rows, taken[-1].channels))
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
        for op in self.ops:
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

    # Ops

    def _read(self, op: Operation) -> None:
        operands = [self._root(each) for each in op.operands]
        found = [self.values.get(each) for each in operands]
        result = op.results[0]
        if all(constant_of(each) is not None for each in found):
            self.values[result] = self.seen[result]
            return
        rule = getattr(self, f"_{op.name.removeprefix('graph.')}", None)
        made = rule(op, operands, found) if rule is not None and isinstance(op, GraphOp) else None
        if made is None:
            of = ", ".join(
                f"{'a constant' if constant_of(known) is not None else 'a tensor'} {list(_shape(each))}"
                for each, known in zip(op.operands, found, strict=True)
            )
            raise self._refusal(op, f"of {of} is not quantized")
        if isinstance(made, SSAValue):
            self.roots[result] = made
        else:
            self.values[result] = made

    def _cast(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return operands[0]

    _contiguous = _cast

    def _reshape(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        (x,), (value,) = operands, found
        shape = _shape(op.results[0])
        if isinstance(value, HeadView):
            return self._reshaped_heads(value, x, shape)
        before = self.seen[x].shape
        if isinstance(value, Pending | Quantized) and len(before) == 4:
            return self._flattened(op, x, shape)
        if shape[-1] == before[-1] and len(shape) < 4:
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
        order = [dim for dim in dims if _shape(op.operands[0])[dim] != 1]
        if isinstance(view, Pending | Quantized) and order == sorted(order) and self.seen[operands[0]].ndim < 4:
            return operands[0]
        if not isinstance(view, HeadView) or sorted(view.axes) != sorted("hsd"):
            return None
        if len(dims) == 4 and dims[0] == 0:
            dims = tuple(dim - 1 for dim in dims[1:])
        return replace(view, axes="".join(view.axes[dim] for dim in dims)) if len(dims) == 3 else None

    def _broadcast(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        view, shape = found[0], _shape(op.results[0])
        if shape == self.seen[operands[0]].shape:
            return operands[0] if not isinstance(view, HeadView) else view
        if isinstance(view, HeadView) and view.axes == "hsd" and len(shape) == 5:
            return replace(view, axes="hrsd", repeats=shape[2])
        if isinstance(view, HeadView) and view.axes == "hsd" and len(shape) in (3, 4) and view.heads == 1:
            return replace(view, repeats=shape[-3])
        return None

    def _concat(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        if all(isinstance(each, Rotary) for each in found):
            one, other = found
            return replace(one, part="turned") if (one.part, other.part) == ("-1", "0") else None
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
        weights = constant_of(found[1])
        if weights is None or weights.ndim != 2:
            return None
        if isinstance(found[0], Flattened):
            return self._dot_of_image(op, found[0].of, weights)
        return Pending(self._quantized(op, operands[0]), weights.astype(np.float64))

    def _add(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        for (x, one), other in zip(zip(operands, found, strict=True), found[::-1], strict=True):
            if (constant := constant_of(other)) is not None:
                return self._plus(op, x, one, constant)
        if all(isinstance(each, Rotary) for each in found):
            one, other = found if found[0].part == "cosine" else found[::-1]
            if (one.part, other.part) != ("cosine", "sine") or one.of != other.of:
                return None
            # The first of the two stands for the matrix from here on.
            matrix, shape = operands[0], self.seen[op.results[0]].shape
            pair = [_matrix(np.broadcast_to(each.factors, shape)) for each in (one, other)]
            self.values[matrix] = Rotary(one.of, one.heads, "pair", np.stack(pair))
            self.seen[matrix] = _matrix(self.seen[op.results[0]])
            return HeadView(matrix, one.heads, "hsd")
        if any(isinstance(each, HeadView) for each in found):
            return None
        pending = [self._pending(op, x) for x in operands]
        if pending[0].source is not None and pending[1].source is not None:
            made = self._quantized(op, operands[1])
            pending[1] = Pending(beside=((made, np.ones(1)),))
        one, other = pending
        bias = one.bias if other.bias is None else other.bias if one.bias is None else one.bias + other.bias
        product = one if one.source is not None else other
        return Pending(product.source, product.weights, bias, (*one.beside, *other.beside), window=product.window)

    def _plus(self, op: GraphOp, x: SSAValue, one: Any, constant: np.ndarray) -> Any:
        if isinstance(one, Norm) and one.step == "variance":
            return replace(one, step="variance", epsilon=one.epsilon + float(constant.reshape(-1)[0]))
        if isinstance(one, Norm) and one.step == "normed" and constant.ndim <= 1:
            return replace(one, beta=constant if one.beta is None else one.beta + constant)
        bias = self._per_channel(x, constant)
        if bias is None or not isinstance(one, Pending | Quantized | Norm | Activated | Softmax | Rotary):
            return None
        pending = self._pending(op, x)
        return replace(pending, bias=bias if pending.bias is None else pending.bias + bias)

    def _sub(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        mean = found[1]
        if isinstance(mean, Norm) and mean.step == "mean" and mean.of == operands[0]:
            return Norm(operands[0], "centred", True)
        if isinstance(mean, Softmax):
            return Softmax(mean.of, "shifted") if (mean.step, mean.of) == ("max", operands[0]) else None
        if (constant := constant_of(mean)) is not None:
            return self._plus(op, operands[0], found[0], -constant)
        if any(not isinstance(each, Pending | Quantized) for each in found):
            return None
        made = self._quantized(op, operands[1])
        one = self._pending(op, operands[0])
        return replace(one, beside=(*one.beside, (made, -np.ones(1))))

    def _max(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        last = len(self.seen[operands[0]].shape) - 1
        return Softmax(operands[0], "max") if tuple(op.params["dims"]) == (last,) else None

    def _exp(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        shifted = isinstance(found[0], Softmax) and found[0].step == "shifted"
        return Softmax(found[0].of, "powers") if shifted else None

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

    def _times(self, op: GraphOp, x: SSAValue, one: Any, by: Any) -> Any:
        if isinstance(by, Norm) and by.step == "root":
            same = isinstance(one, Norm) and one.step == "centred" and one.of == by.of
            return replace(by, step="normed") if same or x == by.of else None
        other = constant_of(by)
        if other is None:
            return None
        if isinstance(one, Norm) and one.step in ("sum", "squares"):
            return _averaged(one)
        if isinstance(one, Norm) and one.step == "normed" and other.ndim <= 1:
            return replace(one, gamma=other if one.gamma is None else one.gamma * other)
        if isinstance(one, HeadView | Rotary) and other.ndim > 1:
            turned = isinstance(one, Rotary) and one.part == "turned"
            part = "sine" if turned else "cosine"
            return Rotary(one.of, one.heads, part, other) if turned or isinstance(one, HeadView) else None
        factor = self._per_channel(x, other) if isinstance(one, Pending | Quantized) else None
        return None if factor is None else self._pending(op, x).times(factor.astype(np.float64))

    def _pow(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        power = constant_of(found[1])
        square = power is not None and bool(np.all(power == 2))
        return Norm(operands[0], "square") if square and not isinstance(found[0], Norm) else None

    def _sum(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        if self.seen[operands[0]].ndim == 4 and isinstance(found[0], Pending | Quantized):
            return self._pixel_sum(op, operands[0])
        if tuple(op.params["dims"]) != (len(self.seen[operands[0]].shape) - 1,):
            return None
        if isinstance(found[0], Norm) and found[0].step == "square":
            return replace(found[0], step="squares")
        if isinstance(found[0], Softmax):
            return Softmax(found[0].of, "total") if found[0].step == "powers" else None
        return Norm(operands[0], "sum")

    def _div(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        one, other = found
        if isinstance(one, Softmax) and isinstance(other, Softmax):
            whole = (one.step, other.step, one.of) == ("powers", "total", other.of)
            return Softmax(one.of, "weights") if whole else None
        by = constant_of(other)
        if by is not None and isinstance(one, Pending | Quantized):
            return self._times(op, operands[0], one, np.asarray(1 / by.astype(np.float64)))
        return _averaged(one) if isinstance(one, Norm) and by is not None else None

    def _rsqrt(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return replace(found[0], step="root") if isinstance(found[0], Norm) and found[0].step == "variance" else None

    def _slice(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        view, shape = found[0], _shape(op.results[0])
        whole = self.seen[operands[0]]
        if not isinstance(view, HeadView) or 2 * shape[-1] != whole.shape[-1] or shape[:-1] != whole.shape[:-1]:
            return None
        first = np.array_equal(self.seen[op.results[0]], whole[..., : shape[-1]])
        return Rotary(view.of, view.heads, "0" if first else "1")

    def _neg(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return replace(found[0], part="-1") if isinstance(found[0], Rotary) and found[0].part == "1" else None

    def _attention(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        views, masks = found[:3], found[3:]
        if not all(isinstance(each, HeadView) and each.axes == "hsd" for each in views):
            return None
        q, k, v = (self._quantized(op, each.of) for each in views)
        rows, keys = self.seen[operands[0]].shape[-2], self.seen[operands[1]].shape[-2]
        mask = np.ones((rows, keys), np.int8)
        if op.params["causal"]:
            mask = np.tril(mask)
        for each in masks:
            if (given := constant_of(each)) is None:
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
