"""`pack_loop_weights`, and what plans make of it: weights that all turns of a loop read are packed before the first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.ir import SSAValue

from tests.seeds import generator
from weft.config import Config
from weft.frontends.text import compile_text
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, Tensor, bf16, f32
from weft.lower.steps import KernelStep, LoopStep, Step
from weft.ops.control import LoopOp, loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.ops.matmul.dot import Dot
from weft.passes.dot.pack_loop_weights import PackLoopWeights
from weft.passes.grouping.build_groups import PACKED_BEFORE
from weft.passes.outline_regions import OutlineRegions
from weft.pipelines import cpu_passes, run_passes
from weft.runtime.record import CompilationRecord, recording


def chain(
    turns: int, *, rows: int = 3, width: int = 37, copied: bool = True, nested: int = 1, dtype: DType = f32
) -> FuncOp:
    """`h = tanh(h @ w.T)` in every turn, in a loop of loops where these are nested."""
    function = FuncOp.make("f", {"h": Tensor(dtype, (rows, width)), "w": Tensor(dtype, (width, width))})
    b = GraphBuilder(function.block)
    h, w = function.block.args
    turned = b.permute(w, dims=(1, 0))
    weights = b.copy(turned) if copied else turned

    def turn(
        b: GraphBuilder, _: SSAValue, states: Sequence[SSAValue], __: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        return [b.tanh(b.dot(states[0], weights))], []

    def turns_of(
        b: GraphBuilder, _: SSAValue, states: Sequence[SSAValue], __: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        return list(loop(b, turn, states, trip_count=turns)[0]), []

    finals = turns_of(b, h, [h], [])[0] if nested == 1 else loop(b, turns_of, [h], trip_count=nested)[0]
    b.insert(ReturnOp.make(finals))
    return function


def marked(function: FuncOp, *, matrix_tiles: bool = False) -> list[bool]:
    module = module_of(function)
    for each in (OutlineRegions(), PackLoopWeights(matrix_tiles)):
        each.apply(Context(), module)
    module.verify()
    dots = [op for op in module.walk() if isinstance(op, Dot)]
    return [PACKED_BEFORE in dot.attributes for dot in dots]


@pytest.mark.parametrize(("turns", "packed"), [(11, True), (10, False)])
def test_a_copy_for_a_loop_alone_is_left_out(turns: int, packed: bool) -> None:
    function = chain(turns)
    assert marked(function) == [packed]
    (runner,) = (op for op in function.block.ops if isinstance(op, LoopOp))
    assert list(runner.captures) == [function.block.args[1]]


@pytest.mark.parametrize(
    ("made", "packed"),
    [
        (chain(11, copied=False), True),
        (chain(10, copied=False), False),
        (chain(4, rows=100, copied=False), True),
        (chain(31, rows=1, copied=False), False),
        (chain(8, rows=129), True),
        (chain(8, rows=513), False),
    ],
)
def test_where_it_pays(made: FuncOp, packed: bool) -> None:
    assert marked(made) == [packed]


@pytest.mark.parametrize("tiles", [True, False])
def test_halves_are_packed_for_matrix_tiles(tiles: bool) -> None:
    assert marked(chain(36, dtype=bf16), matrix_tiles=tiles) == [tiles]
    assert marked(chain(36), matrix_tiles=tiles) == [True]


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (19, 64), (3, 37), (20, 200)])
def test_packed_products_of_halves(rows: int, width: int) -> None:
    function = chain(36, rows=rows, width=width, dtype=bf16)
    rng = generator()
    h = rng.standard_normal((rows, width)).astype(bf16.numpy)
    w = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(bf16.numpy)
    wanted = h.astype(np.float64)
    for _ in range(36):
        wanted = np.tanh(wanted @ w.T.astype(np.float64)).astype(bf16.numpy).astype(np.float64)
    (found,) = compile_text(str(function), config=Config(cache=False, verify=True))(h, w)
    np.testing.assert_allclose(np.asarray(found).astype(np.float64), wanted, rtol=0, atol=0.05)


def test_constants_are_packed_when_a_program_is_loaded() -> None:
    function = chain(4)
    function.attributes["constants"] = to_attribute((1,))
    module = module_of(function)
    run_passes(module, cpu_passes(Config()), CompilationRecord("f"))
    assert not any("weft.claim" in op.attributes for op in module.walk() if isinstance(op, Dot))


@pytest.mark.parametrize(("rows", "width", "nested"), [(1, 37, 1), (3, 32, 1), (16, 7, 1), (3, 37, 2)])
def test_packed_products_against_float64(rows: int, width: int, nested: int) -> None:
    function = chain(36, rows=rows, width=width, nested=nested)
    rng = generator()
    h = rng.standard_normal((rows, width)).astype(np.float32)
    w = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
    wanted = h.astype(np.float64)
    for _ in range(36 * nested):
        wanted = np.tanh(wanted @ w.T.astype(np.float64))
    with recording() as records:
        compiled = compile_text(str(function), config=Config(cache=False, verify=True))
    (found,) = compiled(h, w)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * width)
    plan = records[0].plan
    assert plan is not None
    body: Sequence[Step] = plan.steps
    for _ in range(nested):
        (turns,) = (step for step in body if isinstance(step, LoopStep))
        body = turns.body
    # What a turn multiplies by lies in panels, which were filled before the outermost loop.
    read = {number for step in body if isinstance(step, KernelStep) for number in step.buffers}
    (panels,) = (number for number in read if plan.buffers[number].tensor.rank == 4)
    assert plan.buffers[panels].tensor.shape[2] == width
    assert any(isinstance(step, KernelStep) and panels in step.buffers for step in plan.steps)
