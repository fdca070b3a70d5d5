"""Rows that go to their experts' ranks and come back are what they are where all experts are."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.context import Context

from weft.backends.reference.graph import run_op
from weft.backends.reference.ranks import part_of, run_ranks, whole_of
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import Tensor, f32, i64
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.passes.sharding.annotations import ARGS, set_mesh, set_shardings
from weft.passes.sharding.counts import count_program
from weft.passes.sharding.dispatch_experts import DispatchExperts
from weft.pipelines import sharding_passes

EXPERTS, WIDE, INNER = 8, 6, 10


def experts(rows: int, *, bias: bool) -> FuncOp:
    """Two matrices for each row, its expert's, with an activation between them, and perhaps a bias behind."""
    types = {
        "x": Tensor(f32, (rows, WIDE)),
        "chosen": Tensor(i64, (rows,)),
        "up": Tensor(f32, (EXPERTS, INNER, WIDE)),
        "down": Tensor(f32, (EXPERTS, WIDE, INNER)),
        "bias": Tensor(f32, (EXPERTS, WIDE)),
    }
    function = FuncOp.make("experts", types)
    b = GraphBuilder(function.block)
    x, chosen, up, down, biases = function.block.args
    column = b.reshape(x, shape=(rows, WIDE, 1))
    inner = b.silu(b.dot(b.take(up, chosen, dim=0), column))
    y = b.reshape(b.dot(b.take(down, chosen, dim=0), inner), shape=(rows, WIDE))
    y = b.add(y, b.take(biases, chosen, dim=0)) if bias else y
    b.insert(ReturnOp.make([b.mul(y, y)]))
    return function


def arrays(rows: int, chosen: np.ndarray) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    shapes = (EXPERTS, INNER, WIDE), (EXPERTS, WIDE, INNER), (EXPERTS, WIDE)
    return [
        rng.standard_normal((rows, WIDE), np.float32),
        chosen.astype(np.int64),
        *(rng.standard_normal(shape, np.float32) for shape in shapes),
    ]


def whole(function: FuncOp, arguments: list[np.ndarray]) -> np.ndarray:
    values = dict(zip(function.block.args, arguments, strict=True))
    for op in function.block.ops:
        if isinstance(op, ReturnOp):
            return values[op.operands[0]]
        values.update(zip(op.results, run_op(op, [values[v] for v in op.operands], {}, None), strict=True))
    raise AssertionError("it returns")


def hinted(function: FuncOp, mesh: Mesh, rows: str) -> list[Sharding]:
    texts = (f"[{{{rows}}}, {{}}]", f"[{{{rows}}}]", "[{ep}, {}, {}]", "[{ep}, {}, {}]", "[{ep}, {}]")
    shardings = [Sharding.parse(text) for text in texts]
    set_mesh(function, mesh)
    set_shardings(function, ARGS, shardings)
    return shardings


def choices(kind: str, rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "all to one":
        return np.full(rows, EXPERTS - 1)
    return rng.integers(0, EXPERTS, rows) if kind == "even" else np.minimum(rng.geometric(0.4, rows) - 1, EXPERTS - 1)


@pytest.mark.parametrize("kind", ["even", "skewed", "all to one"])
@pytest.mark.parametrize(
    ("mesh", "rows"), [(Mesh.of(ep=2), "ep"), (Mesh.of(ep=4), "ep"), (Mesh.of(dp=2, ep=2), "dp, ep")]
)
@pytest.mark.parametrize("bias", [False, True])
def test_no_row_is_lost(mesh: Mesh, rows: str, kind: str, bias: bool) -> None:
    arguments = arrays(16, choices(kind, 16))
    expected = whole(experts(16, bias=bias), arguments)
    function = experts(16, bias=bias)
    shardings = hinted(function, mesh, rows)
    module = module_of(function)
    for each in (DispatchExperts(), *sharding_passes()):
        each.apply(Context(), module)
    made = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    results = run_ranks(
        made,
        mesh,
        lambda rank: [part_of(a, s, mesh, rank) for a, s in zip(arguments, shardings, strict=True)],
    )
    found = whole_of([result[0] for result in results], Sharding.parse(f"[{{{rows}}}, {{}}]"), mesh)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    counts = count_program(made)
    assert counts.calls("all_to_all") == 3, "what each row is, whose matrix it takes, and what comes of it"
    assert not any(each.kind == "all_gather" and each.bytes >= 4 * EXPERTS * WIDE for each in counts.collectives)


@pytest.mark.parametrize("rows", [6, 0])
def test_rows_that_do_not_divide_stay_where_they_are(rows: int) -> None:
    function = experts(rows, bias=False)
    hinted(function, Mesh.of(ep=4), "")
    before = [op.name for op in function.block.ops]
    DispatchExperts().apply(Context(), module_of(function))
    assert [op.name for op in function.block.ops] == before


def test_a_lookup_without_a_matmul_stays() -> None:
    function = FuncOp.make("lookup", {"table": Tensor(f32, (8, 4)), "ids": Tensor(i64, (8,))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.exp(b.take(*function.block.args, dim=0))]))
    set_mesh(function, Mesh.of(ep=2))
    set_shardings(function, ARGS, [Sharding.parse("[{ep}, {}]"), Sharding.parse("[{}]")])
    DispatchExperts().apply(Context(), module_of(function))
    assert [op.name for op in function.block.ops] == ["graph.take", "graph.exp", "graph.return"]
