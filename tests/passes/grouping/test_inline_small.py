"""What readers compute of their own: found by asking again only beside what was given up."""

from __future__ import annotations

import pytest

from weft.ir.types import Tensor, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.passes.grouping import inline_small
from weft.passes.grouping.inline_small import _is_inlined, _small


def test_a_chain_is_given_up_by_few_questions_for_each_of_its_ops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = FuncOp.make("f", {"x": Tensor(f32, (64, 64))})
    b = GraphBuilder(made.block)
    (x,) = made.block.args
    value = b.exp(x)
    for _ in range(40):
        value = b.add(value, x)
    made.block.add_op(ReturnOp.make([value]))
    asked: list[object] = []

    def counted(op: object, *known: object) -> bool:
        asked.append(op)
        return _is_inlined(op, *known)  # type: ignore[arg-type]

    monkeypatch.setattr(inline_small, "_is_inlined", counted)
    assert _small(made) == set()
    assert len(asked) <= 4 * len(list(made.block.ops))
