"""`eliminate_common` and `eliminate_dead`: equal things once, unread things never, effects always."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context

from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, f32
from weft.ops.graph import OpaqueOp
from weft.passes.simplify.eliminate_common import EliminateCommon
from weft.passes.simplify.eliminate_dead import EliminateDead

X = Tensor(f32, (2, 3))


def test_equal_ops_become_one(passes: Any) -> None:
    passes.rewrites_text(
        EliminateCommon(),
        """
        "graph.func"() ({
        ^bb0(%x: tensor<3xf32>):
          %0 = "graph.exp"(%x) : (tensor<3xf32>) -> tensor<3xf32>
          %1 = "graph.exp"(%x) : (tensor<3xf32>) -> tensor<3xf32>
          %2 = "graph.neg"(%0) : (tensor<3xf32>) -> tensor<3xf32>
          %3 = "graph.neg"(%1) : (tensor<3xf32>) -> tensor<3xf32>
          %4 = "graph.add"(%2, %3) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
          "graph.return"(%4) : (tensor<3xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<3xf32>):
          %0 = "graph.exp"(%x) : (tensor<3xf32>) -> tensor<3xf32>
          %1 = "graph.neg"(%0) : (tensor<3xf32>) -> tensor<3xf32>
          %2 = "graph.add"(%1, %1) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
          "graph.return"(%2) : (tensor<3xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
    )


def test_parameters_tell_ops_apart(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        zeros = b.full(value=0.0, shape=(), dtype=f32), b.full(value=-0.0, shape=(), dtype=f32)
        return [b.sum(x, dims=(0,), keep=True), b.sum(x, dims=(0,), keep=False), *zeros]

    passes.rewrites(EliminateCommon(), {"x": X}, body, body)


def test_unread_ops_go(passes: Any) -> None:
    passes.rewrites(EliminateDead(), {"x": X}, lambda b, x: [x, b.exp(b.exp(x))][:1], lambda b, x: x)


def calls(passes: Any, *, pure: bool, read: bool) -> list[str]:
    def body(b: Any, x: Any) -> Any:
        made = [OpaqueOp.make("demo::f", [x], "[]", [X]) for _ in range(2)]
        for op in made:
            if not pure:
                op.attributes["pure"] = to_attribute(False)
            b.insert(op)
        return b.add(*(op.results[0] for op in made)) if read else x

    module = passes.built({"x": X}, body)
    for each in (EliminateCommon(), EliminateDead()):
        each.apply(Context(), module)
        module.verify()
    return [op.name for op in passes.function(module).block.ops]


@pytest.mark.parametrize(("read", "left"), [(True, 1), (False, 0)])
def test_pure_calls_are_shared_and_dropped(passes: Any, read: bool, left: int) -> None:
    assert calls(passes, pure=True, read=read).count("graph.opaque") == left


@pytest.mark.parametrize("read", [True, False])
def test_calls_with_effects_stay(passes: Any, read: bool) -> None:
    assert calls(passes, pure=False, read=read).count("graph.opaque") == 2
