"""`inline_dequantization`: memory holds codes, where what reads them later works element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.ir import SSAValue

from weft.backends.reference.graph import run
from weft.ir.types import Tensor, f32, i32, tensor_of, u8
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp
from weft.passes.grouping.build_groups import INLINED
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.quantize.inline_dequantization import InlineDequantization

ARGUMENTS = {"x": Tensor(f32, (6, 8)), "w": Tensor(f32, (8, 8)), "v": Tensor(f32, (8, 8))}


def codes(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.cast(b.clamp(b.round(x), low=0.0, high=255.0), dtype=u8)


def numbers(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """What codes stand for."""
    shifted = b.sub(b.cast(x, dtype=i32), b.full(value=7, shape=(), dtype=i32))
    return b.mul(b.cast(shifted, dtype=f32), b.full(value=0.25, shape=(), dtype=f32))


def changed(passes: Any, body: Callable[..., Any]) -> FuncOp:
    """The function after the pass, which gives the same bits."""
    module = passes.built(ARGUMENTS, body)
    function = passes.function(module)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 3, (6, 8)).astype(np.float32), *rng.normal(0, 3, (2, 8, 8)).astype(np.float32)]
    expected = run(function, arrays)
    InlineDequantization().apply(Context(), module)
    module.verify()
    for found, wanted in zip(run(function, arrays), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    GroupIntoKernels().apply(Context(), module)
    return function


def written(function: FuncOp) -> list[str]:
    """The types of what kernels leave in memory."""
    groups = [op for op in function.block.ops if isinstance(op, GroupOp)]
    return [str(tensor_of(result.type).dtype) for group in groups for result in group.results]


def test_a_residual_is_kept_as_codes(passes: Any) -> None:
    """The second matmul adds what the first gave, which a third reads as well: nothing of f32 but the result."""

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> SSAValue:
        first = codes(b, b.dot(x, w))
        second = codes(b, b.dot(x, v))
        return codes(b, b.add(numbers(b, first), numbers(b, second)))

    assert written(changed(passes, body)) == ["ui8", "ui8"]


def test_what_joins_the_kernel_of_the_codes_is_left_there(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> SSAValue:
        return b.tanh(numbers(b, codes(b, b.dot(x, w))))

    function = changed(passes, body)
    assert written(function) == ["f32"]
    assert not any(INLINED in op.attributes for op in function.walk())


def test_what_is_in_memory_as_floats_is_read_so(passes: Any) -> None:
    """A matmul reads its operand several times: it finds it in memory, and so does the sum."""

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> tuple[SSAValue, SSAValue]:
        wide = numbers(b, codes(b, b.dot(x, w)))
        return b.dot(wide, v), b.sum(wide, dims=(1,), keep=False)

    assert written(changed(passes, body)) == ["f32", "f32", "f32"]


def test_codes_that_are_in_memory_anyway_are_read_where_they_can_be(passes: Any) -> None:
    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
        made = codes(b, b.dot(x, w))
        wide = numbers(b, made)
        return made, b.dot(wide, v), b.sum(wide, dims=(1,), keep=False)

    function = changed(passes, body)
    assert sorted(written(function)) == ["f32", "f32", "f32", "ui8"]
    assert any(INLINED in op.attributes for op in function.walk())
