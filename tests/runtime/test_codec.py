"""Plans as JSON and back; what does not fit is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weft.errors import ParseError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32
from weft.lower.steps import Buffer, CallStep, DotStep, KernelStep, Place, Plan
from weft.ops.layouts import StridedLayout
from weft.runtime.check_plan import check_plan
from weft.runtime.codec import decode, encode, table

CLASSES = table(Plan, Buffer, Place, KernelStep, CallStep, DotStep, StridedLayout, Tensor)
S = symbol("s0")
X = Tensor(f32, (S, 4))
PLAN = Plan(
    "main",
    (
        Buffer("input", X, StridedLayout((4, 1))),
        Buffer("temporary", X, StridedLayout((4, 1))),
        Buffer("output", X, StridedLayout((1, S))),
        Buffer("external", X, StridedLayout((4, 1))),
    ),
    (
        KernelStep("sin", (0, 1), ("s0",), S * 2, 10, False, "sin"),
        CallStep("aten::relu", "{}", (Place(1, X, StridedLayout((4, 1))),), (3,), "relu"),
        DotStep(*(Place(number, X, StridedLayout((4, 1))) for number in (3, 3, 2)), "dot"),
    ),
    (0,),
    (2, 3),
    ("s0",),
)


def changed(path: str, value: Any) -> Any:
    """The stored plan with one thing in it replaced."""
    data = encode(PLAN)
    *outer, last = path.split(".")
    place: Any = data
    for part in outer:
        place = place[int(part) if part.isdigit() else part]
    place[int(last) if last.isdigit() else last] = value
    return data


def test_a_plan_comes_back_equal_and_can_be_run() -> None:
    plan = decode(encode(PLAN), CLASSES)
    assert plan == PLAN
    check_plan(plan)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("steps.0.grid", "boom"),
        ("steps.0.grid", True),
        ("steps.0.serial", 1),
        ("outputs", ["x"]),
        ("outputs", 2),
        ("buffers.0", {"$": "StridedLayout", "strides": [1], "offset": 0}),
        ("buffers.0.tensor.shape", [[4]]),
        ("name", None),
    ],
)
def test_members_of_other_types_are_errors(path: str, value: Any) -> None:
    with pytest.raises(ParseError, match="does not fit"):
        decode(changed(path, value), CLASSES)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("buffers", [], "number 0 of 0"),
        ("buffers.1.role", "borrowed", "borrowed"),
        ("buffers.1.layout.strides", [1], "1 strides of 2"),
        ("buffers.1.tensor.shape", [-1, 4], "negative"),
        ("steps.0.symbols", ["s1"], "s1"),
        ("steps.0.grid", {"$": "size", "text": "s1*2"}, "s1"),
        ("steps.0.buffers", [0, 4], "number 4 of 4"),
        ("steps.1.results", [-1], "number -1 of 4"),
        ("steps.1.operands.0.buffer", 9, "number 9 of 4"),
        ("inputs", [1], "inputs that are none"),
        ("inputs", [0, 0], "inputs that are one"),
        ("outputs", [1], "not kept"),
        ("symbols", [], "nobody knows"),
        ("fixed", [7], "number 7 of 2"),
        ("replacing", [2], "number 2 of 2"),
        ("donated", [7], "number 7 of 1"),
    ],
)
def test_a_plan_that_refers_to_what_it_does_not_have(path: str, value: Any, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        check_plan(decode(changed(path, value), CLASSES))


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1.5])
def test_floats_that_json_has_no_word_for(number: float) -> None:
    text = json.dumps(encode((number,)), allow_nan=False)
    assert repr(decode(json.loads(text), {})) == repr((number,))
    with pytest.raises(ParseError):
        decode({"$": "number", "text": "1e400"}, {})
