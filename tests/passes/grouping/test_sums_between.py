"""Sums between other dimensions, as gradients of a modulated norm are: what they read is narrow, and read once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.ir.types import Tensor, bf16, f32, tensor_of
from weft.ops.graph import GroupOp
from weft.passes.grouping.build_groups import INLINED
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.grouping.widen_beside_sums import WidenBesideSums

B, T, C = 4, 128, 128
FULL, ROW, EACH = Tensor(bf16, (B, T, C)), Tensor(f32, (B, T, 1)), Tensor(f32, (B, 1, C))
A, W = Tensor(bf16, (B * T, 8)), Tensor(bf16, (8, C))
ARGUMENTS = {"a": A, "w": W, "x": FULL, "y": FULL, "mean": ROW, "rstd": ROW, "scale": EACH}


def groups(passes: Any, body: Callable[..., Any]) -> list[tuple[list[str], list[str]]]:
    """The groups of a program: their ops, and the types of what they write."""
    chosen = [WidenBesideSums(), GroupIntoKernels(column_sums=True)]
    module = passes.apply(chosen, passes.built(ARGUMENTS, body), rtol=1e-2)
    found = [op for op in passes.function(module).block.ops if isinstance(op, GroupOp)]
    return [
        (
            [op.name.removeprefix("graph.") for op in g.body.block.ops],
            [f"{tensor_of(r.type).dtype} {tensor_of(r.type).shape}" for r in g.results],
        )
        for g in found
    ]


def modulated(b: Any, a: Any, w: Any, x: Any, y: Any, mean: Any, rstd: Any, scale: Any) -> Any:
    """The gradient of `norm(x) * scale + shift`, and of a gate of what is behind it."""
    wide = b.cast(b.reshape(b.dot(a, w), shape=(B, T, C)), dtype=f32)
    shift = b.cast(b.sum(wide, dims=(1,), keep=True), dtype=bf16)
    normal = b.mul(b.sub(b.cast(x, dtype=f32), mean), rstd)
    scaling = b.cast(b.sum(b.mul(wide, normal), dims=(1,), keep=True), dtype=bf16)
    inner = b.mul(wide, scale)
    mean_of = b.sum(inner, dims=(2,), keep=True)
    other = b.sum(b.mul(inner, normal), dims=(2,), keep=True)
    gradient = b.cast(b.mul(b.sub(b.sub(inner, mean_of), b.mul(normal, other)), rstd), dtype=bf16)
    gate = b.sum(b.mul(b.cast(gradient, dtype=f32), b.cast(y, dtype=f32)), dims=(1,), keep=True)
    return [shift, scaling, gradient, b.cast(gate, dtype=bf16)]


def test_gradients_of_a_modulated_norm_write_nothing_wide(passes: Any) -> None:
    found = groups(passes, modulated)
    written = [each for _, results in found for each in results]
    assert not any(each.startswith("f32") for each in written), found
    assert len(found) == 4, found  # the product, the two sums of the modulation, the norm, and the gate's sum
    sums = [results for ops, results in found if ops.count("sum") == 2 and len(results) == 2]
    assert sums == [[f"bf16 ({B}, 1, {C})"] * 2], found


def test_what_is_narrow_or_returned_is_computed_once(passes: Any) -> None:
    """Of a copy in f32 that is a result, or as many bytes as it is made of, no kernel makes its own."""

    def returned(b: Any, a: Any, w: Any, x: Any, y: Any, mean: Any, rstd: Any, scale: Any) -> Any:
        wide = b.cast(x, dtype=f32)
        return [wide, b.sum(wide, dims=(1,), keep=True), b.sum(wide, dims=(2,), keep=True)]

    module = passes.apply(WidenBesideSums(), passes.built(ARGUMENTS, returned))
    assert not any(INLINED in op.attributes for op in passes.function(module).block.ops)

    def of_two(b: Any, a: Any, w: Any, x: Any, y: Any, mean: Any, rstd: Any, scale: Any) -> Any:
        both = b.mul(b.cast(x, dtype=f32), b.cast(y, dtype=f32))
        return [b.sum(both, dims=(1,), keep=True), b.sum(both, dims=(2,), keep=True)]

    module = passes.apply(WidenBesideSums(), passes.built(ARGUMENTS, of_two))
    (product,) = [op for op in passes.function(module).block.ops if op.name == "graph.mul"]
    assert INLINED not in product.attributes


def test_sums_of_one_kind_are_left_as_they_are(passes: Any) -> None:
    """Where all reductions are along the same dimensions, one kernel reads a copy, and makes it."""

    def body(b: Any, a: Any, w: Any, x: Any, y: Any, mean: Any, rstd: Any, scale: Any) -> Any:
        wide = b.cast(x, dtype=f32)
        return [b.sum(wide, dims=(1,), keep=True), b.sum(b.mul(wide, wide), dims=(1,), keep=True)]

    module = passes.apply(WidenBesideSums(), passes.built(ARGUMENTS, body))
    assert not any(INLINED in op.attributes for op in passes.function(module).block.ops)


def test_of_what_is_made_of_wide_values_the_narrow_one_is_written(passes: Any) -> None:
    """A product in bf16 of two tensors in f32 behind a norm: it is written, no wide copy of it."""

    def body(b: Any, a: Any, w: Any, x: Any, y: Any, mean: Any, rstd: Any, scale: Any) -> Any:
        wide = b.cast(x, dtype=f32)
        normal = b.div(wide, b.sum(b.mul(wide, wide), dims=(2,), keep=True))
        other = b.exp(normal)
        product = b.cast(b.mul(normal, other), dtype=bf16)
        return [normal, other, b.sum(b.cast(product, dtype=f32), dims=(1,), keep=True)]

    full = f"({B}, {T}, {C})"
    assert [results for _, results in groups(passes, body)] == [
        [f"f32 {full}", f"f32 {full}", f"bf16 {full}"],
        [f"f32 ({B}, 1, {C})"],
    ]
