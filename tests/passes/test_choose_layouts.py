"""`choose_layouts`: kernels write what calls to the framework read as these read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from xdsl.context import Context

from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, i64
from weft.ops.graph import FuncOp, GroupOp, OpaqueOp
from weft.ops.layouts import StridedLayout, is_dense
from weft.passes.choose_layouts import ChooseLayouts
from weft.passes.grouping.group_into_kernels import GroupIntoKernels

IMAGE = Tensor(f32, (2, 3, 4, 4))
LAST = (48, 1, 12, 3)


def call(b: Any, x: Any, *, reads: tuple[int, ...] | None = LAST, gives: tuple[int, ...] | None = LAST) -> Any:
    strides = {} if reads is None else {"strides": {"0": list(map(str, reads))}}
    made = OpaqueOp.make("demo::convolution", [x], json.dumps({"args": ["#0"], **strides}), [IMAGE])
    if gives is not None:
        made.attributes["result_strides"] = to_attribute((gives,))
    return b.insert(made).results[0]


def chosen(passes: Any, body: Any, arguments: dict[str, Tensor] | None = None, **attributes: Any) -> list[Any]:
    """The strides that each group's results are written in."""
    module = passes.built(arguments or {"x": IMAGE}, body)
    function: FuncOp = passes.function(module)
    function.attributes.update({name: to_attribute(value) for name, value in attributes.items()})
    for each in (GroupIntoKernels(), ChooseLayouts()):
        each.apply(Context(), module)
        module.verify()
    groups = [op for op in function.block.ops if isinstance(op, GroupOp)]
    return [
        from_attribute(g.attributes["result_strides"]) if "result_strides" in g.attributes else None for g in groups
    ]


def test_a_kernel_between_two_calls(passes: Any) -> None:
    assert chosen(passes, lambda b, x: call(b, b.relu(call(b, x))), result_strides=(LAST,)) == [(LAST,)]


def test_kernels_between_kernels_follow_what_they_read(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.relu(call(b, x))
        return b.sum_pool(y, window=(2, 2), strides=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1))

    assert chosen(passes, body) == [(LAST,), None]


RESIZED = {"dim": 2, "size": 2, "scale": 2.0, "kind": "linear", "coordinates": "half_pixel"}


def places(b: Any, *shape: int) -> Any:
    return b.iota(shape=shape, dim=0, dtype=i64, start=0, step=1)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (lambda b, x: b.resize_gradient(x, **RESIZED), (24, 1, 12, 3)),
        (lambda b, x: b.index(x, places(b, 2, 1), places(b, 3), dims=(2, 3), position=2), (18, 1, 9, 3)),
        (lambda b, x: b.index(x, places(b, 2, 3), dims=(3,), position=3), None),
        (lambda b, x: b.index(x, places(b, 2), places(b, 2), dims=(2, 3), position=2), None),
    ],
    ids=["resized", "chosen", "more_dimensions", "fewer_dimensions"],
)
def test_what_keeps_the_dimensions_keeps_their_order(
    passes: Any, kernel: Any, expected: tuple[int, ...] | None
) -> None:
    def body(b: Any, x: Any) -> Any:
        made = kernel(b, b.relu(call(b, x)))
        return b.sum_pool(made, window=(2,), strides=(1,), padding=((0, 0),), dilation=(1,))

    assert chosen(passes, body)[-2] == (None if expected is None else (expected,))


def test_views_in_between(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        return call(b, b.reshape(b.relu(x), shape=(2, 3, 4, 4)))

    assert chosen(passes, body, {"x": Tensor(f32, (2, 3, 16))}, result_strides=(LAST,)) == [((48, 1, 3),)]


@pytest.mark.parametrize("reader", ["another call", "a product", "a result", "gaps", "repetition"])
def test_where_row_major_stays(passes: Any, reader: str) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        y = b.relu(x)
        match reader:
            case "another call":
                return [call(b, y), call(b, y, reads=None)]
            case "a product":
                dot = b.dot(b.reshape(y, shape=(24, 4)), w)
                dot.owner.attributes["weft.claim"] = to_attribute("blas")
                return [call(b, y), dot]
            case "a result":
                return [call(b, y), y]
            case "gaps":
                return call(b, y, reads=(100, 1, 12, 3))
            case _:
                return call(b, y, reads=(48, 0, 12, 3))

    strides = chosen(passes, body, {"x": IMAGE, "w": Tensor(f32, (4, 5))})
    assert strides[0] is None


def test_arguments_with_gaps_are_followed_in_their_order(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        return b.cumsum(b.relu(x), dim=1)

    assert chosen(passes, body, arg_strides=((96, 1, 24, 6),)) == [((48, 1, 12, 3),), None]
    assert chosen(passes, body, arg_strides=(LAST,))[0] == (LAST,)


def test_what_is_dense() -> None:
    s0 = symbol("s0")
    assert is_dense(IMAGE, StridedLayout(LAST)) and is_dense(IMAGE, StridedLayout((48, 16, 4, 1)))
    assert not is_dense(IMAGE, StridedLayout((48, 16, 4, 2))) and not is_dense(IMAGE, StridedLayout((48, 0, 12, 3)))
    assert not is_dense(IMAGE, StridedLayout(LAST, 4))
    assert is_dense(Tensor(f32, (s0, 3, 5)), StridedLayout((15, 1, 3)))
    assert is_dense(Tensor(f32, (s0, 3, 5)), StridedLayout((1, s0, 3 * s0)))
    assert is_dense(Tensor(f32, (1, 3)), StridedLayout((77, 1)))
