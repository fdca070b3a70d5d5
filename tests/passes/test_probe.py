"""What a probe can evaluate at single places is known before it is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, i64
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.probe import Probe, is_placewise

Body = Callable[[GraphBuilder, SSAValue, SSAValue], SSAValue]


def built(body: Body, rows: Any = 4) -> tuple[SSAValue, SSAValue, SSAValue]:
    function = FuncOp.make("f", {"x": Tensor(f32, (rows, 6)), "places": Tensor(i64, (3,))})
    x, places = function.block.args
    return body(GraphBuilder(function.block), x, places), x, places


def test_moves_and_maps_are_evaluated_at_a_place() -> None:
    value, x, _ = built(lambda b, x, _: b.mul(b.reshape(b.permute(x, dims=(1, 0)), shape=(24,)), b.full_like(x, 2.0)))
    assert is_placewise(value, {x})
    probe = Probe({x: np.arange(3, dtype=np.float32)})
    np.testing.assert_array_equal(probe.value(value, (5,)), [0, 2, 4])
    assert probe.places == {x: {1 * 6 + 1}}


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (lambda b, x, places: b.take(x, places, dim=0), 4),
        (lambda b, x, places: b.sum(x, dims=(1,), keep=True), 4),
        (lambda b, x, places: b.exp(x), symbol("s0")),
        (lambda b, x, places: b.cast(places, dtype=f32), 4),
    ],
    ids=["data decides the place", "of many elements", "an unknown size", "a leaf that is not known"],
)
def test_what_has_no_single_places_is_told_apart(body: Body, rows: Any) -> None:
    value, x, _ = built(body, rows)
    assert not is_placewise(value, {x})
