"""The arithmetic of a kernel is what its products and elementwise ops amount to, over all programs and loops."""

from __future__ import annotations

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.ops.graph import FuncOp
from weft.pipelines import compile_nvidia
from weft.runtime.record import recording
from weft.tile.operations import Operations, count_operations
from weft.tile.text import functions_of, parse_program

PRODUCT = """\
"graph.func"() ({
^bb0(%a: tensor<512x256xbf16>, %b: tensor<256x1024xbf16>):
  %c = "graph.dot"(%a, %b) : (tensor<512x256xbf16>, tensor<256x1024xbf16>) -> tensor<512x1024xbf16>
  "graph.return"(%c) : (tensor<512x1024xbf16>) -> ()
}) {sym_name = "product"} : () -> ()
"""

GROWING = """\
"graph.func"() ({
^bb0(%x: tensor<?x64xf32, #graph.sizes<["n", "64"]>>):
  %y = "graph.exp"(%x) : (tensor<?x64xf32, #graph.sizes<["n", "64"]>>) -> tensor<?x64xf32, #graph.sizes<["n", "64"]>>
  "graph.return"(%y) : (tensor<?x64xf32, #graph.sizes<["n", "64"]>>) -> ()
}) {sym_name = "growing"} : () -> ()
"""


def function_of(text: str) -> FuncOp:
    (function,) = functions_of(parse_program(text, "test"))
    function.detach()
    return function


def operations(text: str, sizes: dict[str, int]) -> list[Operations]:
    with recording() as records:
        compile_nvidia(function_of(text), Config(strict=True), target_named("sm_90a"))
    return [count_operations(kernel, sizes) for kernel in records[0].tiles.values()]


def test_a_product_is_two_operations_for_each_pair() -> None:
    (found,) = operations(PRODUCT, {})
    assert found.products == 2 * 512 * 256 * 1024
    assert found.dtype is not None and found.dtype.bits == 16


def test_elementwise_work_grows_with_the_sizes() -> None:
    (few,), (many,) = operations(GROWING, {"n": 1 << 12}), operations(GROWING, {"n": 1 << 14})
    assert few.products == 0 and few.dtype is None
    assert few.others >= 64 << 12 and many.others == 4 * few.others


def test_no_programs_do_nothing() -> None:
    assert operations(GROWING, {"n": 0}) == [Operations()]
