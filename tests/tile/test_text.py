"""Programs as text, and text that is no program: an error that says where, soon, whatever the text."""

from __future__ import annotations

import random
import time
from io import StringIO

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr, UnitAttr, i32
from xdsl.ir import Block, Region
from xdsl.printer import Printer

from weft.errors import ParseError, WeftError
from weft.ops.dialect import parse_module
from weft.tile.text import parse_program, print_program

PROGRAM = """
"graph.func"() ({
^bb0(%x: tensor<4x3xf32>, %y: tensor<3xf32>):
  %0 = "graph.add"(%x, %y) : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
  %1 = "graph.max"(%0) {dims = [1 : i64], keep = true} : (tensor<4x3xf32>) -> tensor<4x1xf32>
  %2 = "graph.sub"(%0, %1) : (tensor<4x3xf32>, tensor<4x1xf32>) -> tensor<4x3xf32>
  "graph.return"(%2) : (tensor<4x3xf32>) -> ()
}) {sym_name = "main"} : () -> ()
"tile.kernel"() ({
^bb0(%0: !tile.ptr<f32>):
  %1 = "tile.program"() {axis = 0 : i64} : () -> index
  %2 = "tile.load"(%0, %1) {offset = #tile.sizes<["d0*4"]>, strides = #tile.sizes<["1"]>, extents = #tile.sizes<["4"]>} : (!tile.ptr<f32>, index) -> !tile.tile<[4 : i64], f32>
  "tile.return"() : () -> ()
}) {sym_name = "kernel", grid = #tile.sizes<["2"]>, symbols = [], schedule = ""} : () -> ()
"""  # noqa: E501
PIECES = '"%#<>(){}[]:,=!-0123456789abcxyzf.^\\@ \n'


@pytest.mark.parametrize("parse", [parse_program, parse_module])
def test_a_string_without_an_end_is_refused_at_once(parse: object) -> None:
    assert callable(parse)
    for text in ('"' + "a" * 5000, '"graph.func"() {name = "' + "b" * 5000):
        start = time.process_time()
        with pytest.raises(ParseError, match="closing string literal"):
            parse(text)
        assert time.process_time() - start < 5


@pytest.mark.parametrize("seed", [range(40), pytest.param(range(40, 4000), marks=pytest.mark.slow)])
def test_changed_programs_parse_or_are_refused_with_a_place(seed: range) -> None:
    assert parse_program(PROGRAM)
    for number in seed:
        try:
            parse_program(_changed(random.Random(number)), "changed")
        except WeftError as error:
            assert isinstance(error, ParseError) and error.location and error.location.startswith("changed")


def _changed(draw: random.Random) -> str:
    text = PROGRAM
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(text))
        match draw.randrange(4):
            case 0:
                text = text[:place] + text[place + draw.randint(1, 12) :]
            case 1:
                text = text[:place] + draw.choice(PIECES) + text[place + 1 :]
            case 2:
                other = draw.randrange(len(text))
                text = text[:place] + text[other : other + 8] + text[place:]
            case _:
                text = text[:place] + str(draw.choice([-1, 0, 10**20, 2**63, 1e9])) + text[place + 4 :]
    return text


def test_programs_print_as_by_xdsl() -> None:
    """Whatever is written out at once: strings with signs in them, several results, none, and functions as results."""
    one = FunctionType.from_lists([i32], [])
    strings = {"plain": StringAttr("d0*4 + 1"), "quoted": StringAttr('a "b" \\ c\n\té'), "empty": StringAttr("")}
    first = test.TestOp(result_types=[i32, one], attributes=strings)
    alone = test.TestOp(operands=first.results, result_types=[one], attributes={"unit": UnitAttr(), "one word": i32})
    module = ModuleOp(
        [first, alone, test.TestOp(operands=alone.results), test.TestOp(regions=[Region(Block([test.TestOp()]))])]
    )
    stream = StringIO()
    Printer(stream).print_op(module)
    assert print_program(module) == stream.getvalue() + "\n"
