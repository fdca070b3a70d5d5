"""Passes that only a GPU's pipeline has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from weft.ir.expr import Size, symbol
from weft.ir.types import Tensor, bf16, f32, i64, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, OpaqueOp, ReturnOp
from weft.passes.choose_layouts import wanted_strides
from weft.passes.convolution.lay_out_convolutions import LayOutConvolutions
from weft.passes.grouping.build_groups import strides_of
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.grouping.inline_small import InlineSmall
from weft.passes.simplify.compare_indices import CompareIndices


@pytest.mark.parametrize("rows", [6, symbol("n")])
@pytest.mark.parametrize(("kind", "value"), [("assign", 0.5), ("add", 0.0)])
def test_one_element_a_line_is_compared(passes: Any, rows: Size, kind: str, value: float) -> None:
    def body(b: GraphBuilder, i: SSAValue, u: SSAValue) -> SSAValue:
        return b.scatter(b.full(value=value, shape=(rows, 4), dtype=f32), i, u, dim=1, kind=kind)

    module = passes.built({"i": Tensor(i64, (rows, 1)), "u": Tensor(f32, (rows, 1))}, body)
    text = str(passes.apply(CompareIndices(), module, n=6))
    assert "graph.where" in text and "graph.scatter" not in text


def test_sums_along_another_axis_stay(passes: Any) -> None:
    def body(b: GraphBuilder, i: SSAValue, u: SSAValue, w: SSAValue) -> SSAValue:
        line = b.scatter(b.full(value=0.0, shape=(5, 5), dtype=f32), i, u, dim=1, kind="assign")
        return b.sum(b.mul(line, w), dims=(1,), keep=False)

    arguments = {"i": Tensor(i64, (5, 1)), "u": Tensor(f32, (5, 1)), "w": Tensor(f32, (3, 5, 1))}
    passes.apply(CompareIndices(), passes.built(arguments, body), rtol=1e-6)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("shape", [(6, 1), (1, 1), (1,), ()])
def test_sums_of_lines_with_one_element_need_no_line(passes: Any, shape: tuple[int, ...], keep: bool) -> None:
    def body(b: GraphBuilder, i: SSAValue, u: SSAValue, w: SSAValue) -> list[SSAValue]:
        line = b.scatter(b.full(value=0.0, shape=(6, 4), dtype=f32), i, u, dim=1, kind="assign")
        scaled = b.mul(line, w)
        return [scaled, b.sum(scaled, dims=(1,), keep=keep), b.sum(line, dims=(1,), keep=keep)]

    arguments = {"i": Tensor(i64, (6, 1)), "u": Tensor(f32, (6, 1)), "w": Tensor(f32, shape)}
    assert "graph.sum" not in str(passes.apply(CompareIndices(), passes.built(arguments, body)))


def test_sums_of_rounded_lines_with_one_element_need_no_line(passes: Any) -> None:
    """Cross-entropy of 16-bit logits under autocast: the loss is one of f32, the softmax one of logits."""

    def body(b: GraphBuilder, i: SSAValue, u: SSAValue, w: SSAValue) -> list[SSAValue]:
        line = b.scatter(b.full(value=0.0, shape=(6, 4), dtype=f32), i, u, dim=1, kind="assign")
        rounded = b.cast(b.cast(b.mul(line, w), dtype=bf16), dtype=f32)
        return [rounded, b.sum(b.mul(rounded, w), dims=(1,), keep=True)]

    arguments = {"i": Tensor(i64, (6, 1)), "u": Tensor(f32, (6, 1)), "w": Tensor(f32, (6, 1))}
    assert "graph.sum" not in str(passes.apply(CompareIndices(), passes.built(arguments, body)))


@pytest.mark.parametrize(("value", "shape", "dim"), [(0.5, (6, 1), 1), (0.0, (1, 4), 1), (0.0, (6, 1), 0)])
def test_other_sums_stay(passes: Any, value: float, shape: tuple[int, ...], dim: int) -> None:
    def body(b: GraphBuilder, i: SSAValue, u: SSAValue, w: SSAValue) -> SSAValue:
        line = b.scatter(b.full(value=value, shape=(6, 4), dtype=f32), i, u, dim=1, kind="assign")
        return b.sum(b.mul(line, w), dims=(dim,), keep=True)

    arguments = {"i": Tensor(i64, (6, 1)), "u": Tensor(f32, (6, 1)), "w": Tensor(f32, shape)}
    assert "graph.sum" in str(passes.apply(CompareIndices(), passes.built(arguments, body)))


def test_several_updates_a_line_stay_a_scatter(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue, i: SSAValue, u: SSAValue) -> list[SSAValue]:
        zeros = b.full(value=0.0, shape=(6, 4), dtype=f32)
        one = b.slice(i, starts=(0, 0), shape=(6, 1), steps=(1, 1))
        update = b.slice(u, starts=(0, 0), shape=(6, 1), steps=(1, 1))
        return [
            b.scatter(zeros, i, u, dim=1, kind="assign"),
            b.scatter(b.full(value=0.5, shape=(6, 4), dtype=f32), one, update, dim=1, kind="add"),
            b.scatter(x, one, update, dim=1, kind="assign"),
        ]

    arguments = {"x": Tensor(f32, (6, 4)), "i": Tensor(i64, (6, 2)), "u": Tensor(f32, (6, 2))}
    assert str(passes.apply(CompareIndices(), passes.built(arguments, body))).count("graph.scatter") == 3


def scaled(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
    return b.mul(x, b.cast(w, dtype=f32))


@pytest.mark.parametrize(("rows", "groups"), [(64, 1), (2, 2), (symbol("n"), 1)])
def test_small_operands_are_computed_where_they_are_read(passes: Any, rows: Size, groups: int) -> None:
    module = passes.built({"x": Tensor(f32, (rows, 32)), "w": Tensor(bf16, (32,))}, scaled)
    text = str(passes.apply([InlineSmall(), GroupIntoKernels()], module, n=7))
    assert text.count("graph.group") == groups


def test_what_is_a_result_too_is_computed_once(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        wide = b.cast(w, dtype=f32)
        return [b.mul(x, wide), wide]

    module = passes.built({"x": Tensor(f32, (64, 32)), "w": Tensor(bf16, (32,))}, body)
    assert "weft.inlined" not in str(passes.apply(InlineSmall(), module))


def test_what_small_operands_are_made_of_is_computed_with_them(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue, v: SSAValue, w: SSAValue) -> SSAValue:
        wide = b.abs(b.cast(v, dtype=f32))
        return b.mul(x, b.mul(b.rsqrt(b.add(wide, b.full_like(wide, 1e-5))), b.cast(w, dtype=f32)))

    given = {"x": Tensor(f32, (64, 32)), "v": Tensor(bf16, (32,)), "w": Tensor(bf16, (32,))}
    text = str(passes.apply([InlineSmall(), GroupIntoKernels()], passes.built(given, body), rtol=1e-6))
    assert text.count("graph.group") == 1


def test_attention_computes_its_mask_but_reads_its_factors(passes: Any) -> None:
    def body(b: GraphBuilder, q: SSAValue, i: SSAValue, j: SSAValue) -> SSAValue:
        factor = b.reshape(b.mul(q, q), shape=(2, 4, 8))
        return b.attention(factor, factor, factor, b.eq(i, j), causal=False, scale=0.5, softcap=0.0)

    given = {"q": Tensor(f32, (8, 8)), "i": Tensor(i64, (4, 1)), "j": Tensor(i64, (1, 4))}
    text = str(passes.apply([InlineSmall(), GroupIntoKernels()], passes.built(given, body), rtol=1e-5))
    assert text.count("graph.group") == 2


@pytest.mark.parametrize(("keys", "within"), [(256, True), (4, False)])
def test_a_mask_is_made_of_what_is_far_smaller(passes: Any, keys: int, within: bool) -> None:
    def body(b: GraphBuilder, q: SSAValue, i: SSAValue, j: SSAValue) -> SSAValue:
        across, down = b.sum(i, dims=(0,), keep=True), b.sum(j, dims=(1,), keep=True)
        return b.attention(q, q, q, b.eq(across, down), causal=False, scale=0.5, softcap=0.0)

    given = {"q": Tensor(f32, (2, keys, 8)), "i": Tensor(i64, (3, keys)), "j": Tensor(i64, (keys, 3))}
    assert ("weft.inlined" in str(passes.apply(InlineSmall(), passes.built(given, body)))) == within


def called(arguments: str, shapes: dict[str, Tensor], result: Tensor, target: str = "aten::convolution") -> FuncOp:
    function = FuncOp.make("f", shapes)
    call = OpaqueOp.make(target, list(function.block.args), arguments, [result], None)
    function.block.add_ops([call, ReturnOp.make(call.results)])
    LayOutConvolutions().apply(Context(), ModuleOp([function]))
    return function


def convolution(groups: int = 1) -> str:
    args = ["#0", "#1", None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups]
    return json.dumps({"args": args, "kwargs": {}, "results": [0]})


IMAGES = {"x": Tensor(bf16, (2, 8, 5, 6)), "w": Tensor(bf16, (16, 8, 3, 3))}
RESULT = Tensor(bf16, (2, 16, 5, 6))


def test_a_library_convolves_over_channels_innermost() -> None:
    (call, _) = called(convolution(), IMAGES, RESULT).block.ops
    assert isinstance(call, OpaqueOp)
    assert wanted_strides(call) == {0: (240, 1, 48, 8), 1: (72, 1, 24, 8)}
    assert strides_of(call, "result_strides", 1) == ((480, 1, 96, 16),)


def test_a_library_convolves_each_channel_by_itself_over_channels_innermost() -> None:
    shapes = {"x": Tensor(bf16, (2, 16, 5, 6)), "w": Tensor(bf16, (16, 1, 3, 3))}
    (call, _) = called(convolution(groups=16), shapes, RESULT).block.ops
    assert isinstance(call, OpaqueOp)
    assert wanted_strides(call)[0] == (480, 1, 96, 16)
    assert strides_of(call, "result_strides", 1) == ((480, 1, 96, 16),)


@pytest.mark.parametrize(
    ("arguments", "dtype", "target"),
    [
        (convolution(groups=8), bf16, "aten::convolution"),
        (convolution(), f32, "aten::convolution"),
        (convolution(), bf16, "aten::linear"),
    ],
)
def test_other_calls_are_left_as_they_are(arguments: str, dtype: Any, target: str) -> None:
    shapes = {name: Tensor(dtype, tensor.shape) for name, tensor in IMAGES.items()}
    (call, _) = called(arguments, shapes, Tensor(dtype, RESULT.shape), target).block.ops
    assert isinstance(call, OpaqueOp)
    assert wanted_strides(call) == {} and strides_of(call, "result_strides", 1) == (None,)


def test_long_chains_are_walked_without_recursion(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue) -> SSAValue:
        for _ in range(1500):
            x = b.add(x, x)
        return x

    InlineSmall().apply(Context(), passes.built({"x": Tensor(f32, (4,))}, body))


def test_a_product_that_stays_is_widened_where_it_is_read(passes: Any) -> None:
    """The norm of a batch behind a convolution of one pixel: its gradient needs the product as it is."""

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        product = b.dot(x, w)
        wide = b.cast(product, dtype=f32)
        channels = b.permute(b.reshape(wide, shape=(8, 16, 24)), dims=(0, 2, 1))
        mean = b.mul(b.sum(channels, dims=(0, 2), keep=False), b.full(value=1 / 128, shape=(), dtype=f32))
        centred = b.sub(wide, mean)
        return [b.cast(centred, dtype=bf16), product]

    arguments = {"x": Tensor(bf16, (128, 32)), "w": Tensor(bf16, (32, 24))}
    module = passes.apply([InlineSmall(), GroupIntoKernels()], passes.built(arguments, body), rtol=0.02)
    groups = [op for op in passes.function(module).block.ops if isinstance(op, GroupOp)]
    stored = [tensor_of(result.type) for group in groups for result in group.results]
    assert not any(tensor.dtype == f32 and tensor.shape == (128, 24) for tensor in stored)
    assert sum("graph.cast" in {op.name for op in group.block.ops} for group in groups) == 2
