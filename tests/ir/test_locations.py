"""Where ops come from: what they inherit from what they are made of."""

from __future__ import annotations

from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, NameLoc, StringAttr

from weft.ir.locations import file_line, inherit_locations, line_of, made_of, op_named, sourced
from weft.ir.types import Tensor, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.passes.differentiate import vjp_function


def place(line: int) -> FileLineColLoc:
    return FileLineColLoc(StringAttr("model.py"), IntAttr(line), IntAttr(0))


def function() -> tuple[FuncOp, GraphBuilder]:
    made = FuncOp.make("f", {"x": Tensor(f32, (4, 8))})
    return made, GraphBuilder(made.block)


def test_an_op_made_while_a_source_is_stated_comes_from_there() -> None:
    made, b = function()
    with sourced(place(3)):
        inside = b.exp(made.block.args[0])
        with sourced(place(4)):
            nested = b.exp(inside)
        again = b.exp(nested)
    outside = b.exp(again)
    given = GraphBuilder(made.block, place(9))
    with sourced(place(3)):
        own = given.exp(outside)
    lines = [line_of(value.owner.location) for value in (inside, nested, again, outside, own)]
    assert lines == ["model.py:3", "model.py:4", "model.py:3", None, "model.py:9"]


def test_the_source_is_forgotten_where_lowering_fails() -> None:
    made, b = function()
    try:
        with sourced(place(3)):
            raise ValueError
    except ValueError:
        pass
    assert b.exp(made.block.args[0]).owner.location is UNKNOWN_LOC


def test_what_a_graph_op_is_lowered_to_names_it() -> None:
    made, b = function()
    b.location = place(5)
    op = b.exp(made.block.args[0]).owner
    location = made_of(op)
    assert isinstance(location, NameLoc)
    assert (op_named(location), line_of(location), file_line(location)) == ("graph.exp", "model.py:5", place(5))


def test_ops_without_a_place_take_that_of_the_next_which_has_one() -> None:
    made, b = function()
    first = b.exp(made.block.args[0])
    b.location = place(2)
    second = b.exp(first)
    b.location = None
    third = b.exp(second)
    b.insert(ReturnOp.make([third]))
    inherit_locations(made)
    assert [line_of(op.location) for op in (made, *made.block.ops)] == ["model.py:2"] * 5


def test_a_gradient_comes_from_what_it_is_the_gradient_of() -> None:
    made, b = function()
    b.location = place(2)
    e = b.exp(made.block.args[0])
    b.location = place(3)
    y = b.tanh(e)
    b.insert(ReturnOp.make([y]))
    derivative = vjp_function(made)
    lines = {(op.name, line_of(op.location)) for op in derivative.block.ops if op.name == "graph.mul"}
    assert lines == {("graph.mul", "model.py:2"), ("graph.mul", "model.py:3")}
    assert all(line_of(op.location) for op in derivative.block.ops if op.name != "graph.return")
