"""What a product's kernel writes for others: nothing that they can make of something it writes anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.ir.types import Tensor, bf16, f32, tensor_of
from weft.ops.graph import GroupOp
from weft.passes.grouping.group_into_kernels import GroupIntoKernels

A, W, R = Tensor(bf16, (6, 5)), Tensor(bf16, (5, 4)), Tensor(bf16, (6, 4))
ARGUMENTS = {"a": A, "w": W, "r": R}


def groups(passes: Any, body: Callable[..., Any]) -> list[tuple[list[str], list[str]]]:
    """The groups of a program: their ops, and the types of what they write."""
    module = passes.apply(GroupIntoKernels(), passes.built(ARGUMENTS, body))
    found = [op for op in passes.function(module).block.ops if isinstance(op, GroupOp)]
    return [
        ([op.name.removeprefix("graph.") for op in g.body.block.ops], [str(tensor_of(r.type).dtype) for r in g.results])
        for g in found
    ]


def squares(b: Any, x: Any) -> Any:
    wide = b.cast(x, dtype=f32)
    return wide, b.sum(b.mul(wide, wide), dims=(1,), keep=True)


def test_wide_copies_and_squares_are_made_where_they_are_read(passes: Any) -> None:
    def body(b: Any, a: Any, w: Any, r: Any) -> Any:
        x = b.add(b.dot(a, w), r)
        wide, total = squares(b, x)
        return [x, b.mul(wide, b.rsqrt(total))]

    product, norm = groups(passes, body)
    assert product == (["dot", "add", "yield"], ["bf16"])
    assert norm[0][:3] == ["cast", "mul", "sum"] and norm[1] == ["f32"]


def test_a_narrower_value_is_written_instead_of_its_wide_copy(passes: Any) -> None:
    def body(b: Any, a: Any, w: Any, r: Any) -> Any:
        wide, total = squares(b, b.add(b.dot(a, w), r))
        return b.mul(wide, b.rsqrt(total))

    product, _ = groups(passes, body)
    assert product == (["dot", "add", "yield"], ["bf16"])


def test_what_is_returned_or_no_wider_stays(passes: Any) -> None:
    def returned(b: Any, a: Any, w: Any, r: Any) -> Any:
        wide, total = squares(b, b.add(b.dot(a, w), r))
        return [wide, total]

    assert groups(passes, returned)[0] == (["dot", "add", "cast", "yield"], ["f32"])

    def as_wide(b: Any, a: Any, w: Any, r: Any) -> Any:
        return b.sum(b.exp(b.dot(a, w)), dims=(1,), keep=True)

    assert groups(passes, as_wide)[0] == (["dot", "exp", "yield"], ["bf16"])


def test_two_readers_keep_it_where_it_is(passes: Any) -> None:
    def body(b: Any, a: Any, w: Any, r: Any) -> Any:
        wide = b.cast(b.dot(a, w), dtype=f32)
        return [b.sum(wide, dims=(1,), keep=True), b.max(wide, dims=(0,), keep=True)]

    assert groups(passes, body)[0] == (["dot", "cast", "yield"], ["f32"])
