"""Hints on a few tensors become the program of a rank, which computes what the whole one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from weft.backends.reference.graph import run
from weft.backends.reference.ranks import part_of, run_ranks, whole_of
from weft.errors import ParseError, ShardingError
from weft.ir.expr import symbol
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import Tensor, f32, i64, tensor_of
from weft.ops.base import View
from weft.ops.collectives import AllGather, Collective, Wait
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.passes.differentiate import value_and_vjp_function
from weft.passes.registry import read_pipeline
from weft.passes.sharding.annotations import ARGS, RESULTS, set_late_axes, set_mesh, set_shardings, shardings_at
from weft.passes.sharding.counts import count_program
from weft.passes.sharding.reshard import Resharder
from weft.passes.sharding.schedule_collectives import schedule
from weft.passes.split_joint import split_joint
from weft.pipelines import sharding_passes
from weft.tile.text import functions_of, parse_program, print_program

Body = Callable[..., SSAValue]


def program(arguments: dict[str, Tensor], body: Body, gradients: Sequence[int] = ()) -> FuncOp:
    function = FuncOp.make("f", arguments)
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([body(b, *function.block.args)]))
    return value_and_vjp_function(function, gradients) if gradients else function


def partitioned(
    function: FuncOp, mesh: Mesh, hints: dict[str, str], late: str | None = None, results: Sequence[str] = ()
) -> FuncOp:
    """The program of a rank; its text is parsed back, and what all ranks compute is compared with the whole."""
    names = [name.data for name in function.arg_names or ()]
    shardings = [Sharding.parse(hints[name]) if name in hints else None for name in names]
    set_mesh(function, mesh)
    set_shardings(function, ARGS, shardings)
    if results:
        set_shardings(function, RESULTS, [Sharding.parse(text) for text in results])
    if late:
        set_late_axes(function, [[late] if name.startswith("w") else [] for name in names])
    rng = np.random.default_rng(0)
    arrays = [_drawn(rng, tensor_of(value.type)) for value in function.block.args]
    expected = run(function, arrays)
    module = module_of(function)
    for each in sharding_passes():
        each.apply(Context(), module)
        module.verify()
    text = print_program(module)
    assert print_program(parse_program(text)) == text
    (made,) = functions_of(module)
    placed = [each or Sharding(()) for each in shardings_at(made, ARGS, len(arrays))]
    got = run_ranks(made, mesh, partial(_parts, arrays, placed, mesh))
    for number, (array, sharding) in enumerate(zip(expected, shardings_at(made, RESULTS, len(expected)), strict=True)):
        assert sharding is not None
        actual = whole_of([parts[number] for parts in got], sharding, mesh)
        np.testing.assert_allclose(actual, array, rtol=1e-4, atol=1e-4)
    return made


def _drawn(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    if tensor.dtype == i64:
        return rng.integers(0, 8, tensor.shape)
    return rng.standard_normal(tensor.shape).astype(np.float32)


def _parts(arrays: list[np.ndarray], shardings: list[Sharding], mesh: Mesh, rank: int) -> list[np.ndarray]:
    return [part_of(array, sharding, mesh, rank) for array, sharding in zip(arrays, shardings, strict=True)]


def collectives(function: FuncOp) -> dict[str, int]:
    return dict(Counter(op.name.removeprefix("graph.") for op in function.block.ops if isinstance(op, Collective)))


MLP = {"x": Tensor(f32, (4, 8, 16)), "w1": Tensor(f32, (16, 64)), "w2": Tensor(f32, (64, 16))}
COLUMNS_AND_ROWS = {"w1": "[{}, {tp}]", "w2": "[{tp}, {}]"}


def mlp(b: Any, x: SSAValue, w1: SSAValue, w2: SSAValue) -> SSAValue:
    h = b.silu(b.dot(b.reshape(x, shape=(32, 16)), w1))
    return b.add(b.reshape(b.dot(h, w2), shape=(4, 8, 16)), x)


def test_columns_and_rows_take_one_reduction() -> None:
    made = partitioned(program(MLP, mlp), Mesh.of(tp=4), COLUMNS_AND_ROWS)
    assert collectives(made) == {"all_reduce": 1}


def test_a_split_sequence_is_gathered_and_scattered() -> None:
    made = partitioned(program(MLP, mlp), Mesh.of(dp=2, tp=2), {"x": "[{dp}, {tp}, {}]", **COLUMNS_AND_ROWS})
    assert collectives(made) == {"all_gather": 1, "reduce_scatter": 1}


def test_gradients_of_whole_weights_are_summed_in_one_message() -> None:
    joint = program(MLP, mlp, gradients=[1, 2])
    whole = ["[{}, {}, {}]", "[{}, {}]", "[{}, {}]"]
    made = partitioned(joint, Mesh.of(dp=4), {"x": "[{dp}, {}, {}]", "grad0": "[{dp}, {}, {}]"}, results=whole)
    assert collectives(made) == {"all_gather": 1, "all_reduce": 1}


def test_late_hints_save_memory_alone() -> None:
    joint = program(MLP, mlp, gradients=[1, 2])
    hints = {"x": "[{dp}, {}, {}]", "grad0": "[{dp}, {}, {}]", "w1": "[{dp}, {}]", "w2": "[{dp}, {}]"}
    results = ["[{dp}, {}, {}]", "[{dp}, {}]", "[{dp}, {}]"]
    made = partitioned(joint, Mesh.of(dp=4), hints, late="dp", results=results)
    assert collectives(made).keys() == {"all_gather", "reduce_scatter"}
    assert collectives(made)["reduce_scatter"] == 2


def test_parameters_are_gathered_again_in_the_backward() -> None:
    joint = program(MLP, mlp, gradients=[1, 2])
    hints = {"x": "[{dp}, {}, {}]", "grad0": "[{dp}, {}, {}]", "w1": "[{dp}, {}]", "w2": "[{dp}, {}]"}
    made = partitioned(joint, Mesh.of(dp=4), hints, late="dp", results=["[{dp}, {}, {}]", "[{dp}, {}]", "[{dp}, {}]"])
    split = split_joint(made, results=1, seeds=1)
    kept = [tensor_of(value.type).shape for value in list(split.forward.returned.operands)[1:]]
    assert (16, 64) not in kept and (64, 16) not in kept
    assert collectives(split.backward)["all_gather"] >= 1


def test_sums_stay_pending_through_what_is_linear() -> None:
    both = {"x": Tensor(f32, (4, 8)), "w": Tensor(f32, (8, 6)), "v": Tensor(f32, (8, 6))}
    made = partitioned(
        program(both, lambda b, x, w, v: b.add(b.dot(x, w), b.neg(b.dot(x, v)))),
        Mesh.of(tp=2),
        {"w": "[{tp}, {}]", "v": "[{tp}, {}]"},
    )
    assert collectives(made) == {"all_reduce": 1}


def test_an_axis_that_moves_takes_an_all_to_all() -> None:
    made = partitioned(
        program({"x": Tensor(f32, (4, 8))}, lambda b, x: b.exp(x)),
        Mesh.of(tp=2),
        {"x": "[{tp}, {}]"},
        results=["[{}, {tp}]"],
    )
    assert collectives(made) == {"all_to_all": 1}


def test_blocks_of_a_packed_weight_split_within() -> None:
    def gated(b: Any, x: SSAValue, w: SSAValue, v: SSAValue) -> SSAValue:
        packed = b.dot(x, w)
        gate = b.slice(packed, starts=(0, 0), shape=(4, 8), steps=(1, 1))
        up = b.slice(packed, starts=(0, 8), shape=(4, 8), steps=(1, 1))
        return b.dot(b.mul(b.silu(gate), up), v)

    tensors = {"x": Tensor(f32, (4, 6)), "w": Tensor(f32, (6, 16)), "v": Tensor(f32, (8, 6))}
    made = partitioned(program(tensors, gated), Mesh.of(tp=4), {"w": "[{}, {tp/2}]", "v": "[{tp}, {}]"})
    assert collectives(made) == {"all_reduce": 1}


LAYOUTS = ["[{}]", "[{dp}]", "[{tp}]", "[{dp, tp}]", "[{tp, dp}]", "[{tp/4}]", "[{tp/2, dp}]", "[{tp/4, dp/4}]"]


@pytest.mark.parametrize("now", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_every_layout_becomes_every_other(now: str, target: str) -> None:
    mesh, array = Mesh.of(dp=2, tp=2), np.arange(16, dtype=np.float32)
    here, there = Sharding.parse(now), Sharding.parse(target)
    function = FuncOp.make("f", {"x": here.local(Tensor(f32, array.shape), mesh)})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([Resharder(b, mesh)(function.block.args[0], here, there)]))
    got = run_ranks(function, mesh, lambda rank: [part_of(array, here, mesh, rank)])
    for rank, (part,) in enumerate(got):
        np.testing.assert_array_equal(part, part_of(array, there, mesh, rank))


def test_an_embedding_table_is_updated_by_the_sum_of_all_ranks() -> None:
    table = {"x": Tensor(f32, (9, 4)), "ids": Tensor(i64, (8,)), "g": Tensor(f32, (8, 4))}
    made = partitioned(
        program(table, lambda b, x, ids, g: b.index_put(x, ids, g, dims=(0,), position=0, accumulate=True)),
        Mesh.of(dp=2),
        {"ids": "[{dp}]", "g": "[{dp}, {}]"},
    )
    assert collectives(made) == {"all_reduce": 1}


def test_collectives_start_early_and_are_awaited_late() -> None:
    def body(b: Any, x: SSAValue, w: SSAValue) -> SSAValue:
        summed = b.dot(x, w)
        return b.add(summed, b.exp(b.sin(b.cos(w))))

    square = {"x": Tensor(f32, (8, 8)), "w": Tensor(f32, (8, 8))}
    made = partitioned(program(square, body), Mesh.of(tp=2), {"x": "[{}, {tp}]"})
    names = [op.name for op in made.block.ops]
    between = names[names.index("graph.all_reduce") + 1 : names.index("graph.wait")]
    assert {"graph.cos", "graph.sin", "graph.exp"} <= set(between)


LAYERS = 6


def layers(b: Any, x: SSAValue, *weights: SSAValue) -> SSAValue:
    for weight in weights:
        x = b.silu(b.dot(x, b.permute(weight, dims=(1, 0))))
    return x


def whole_at_once(function: FuncOp) -> int:
    """How many gathered parameters are there, or under way, at one time."""
    places = {op: place for place, op in enumerate(function.block.ops)}

    def last_read(op: Operation) -> int:
        readers = [use.operation for result in op.results for use in result.uses]
        return max(last_read(each) if isinstance(each, Wait | View) else places[each] for each in readers)

    spans = [(places[op], last_read(op)) for op in places if isinstance(op, AllGather)]
    return max(sum(start <= place < end for start, end in spans) for place in places.values())


def test_gathered_parameters_are_there_only_shortly_before_they_are_read() -> None:
    weights = {f"w{n}": Tensor(f32, (16, 16)) for n in range(LAYERS)}
    joint = program({"x": Tensor(f32, (8, 16)), **weights}, layers, gradients=range(1, LAYERS + 1))
    split = {"x": "[{dp}, {}]", "grad0": "[{dp}, {}]"} | dict.fromkeys(weights, "[{dp}, {}]")
    made = partitioned(joint, Mesh.of(dp=4), split, late="dp", results=["[{dp}, {}]"] * (LAYERS + 1))
    functions = split_joint(made, results=1, seeds=1)
    for function in (functions.forward, functions.backward):
        schedule(function)
        module_of(function).verify()
        assert collectives(function)["all_gather"] >= LAYERS - 1
        assert whole_at_once(function) <= 3
        ops = list(function.block.ops)
        gathers = [op for op in ops if isinstance(op, AllGather)]
        for gather in gathers[2:]:  # the others start with the program
            (wait,) = (use.operation for use in gather.results[0].uses)
            between = ops[ops.index(gather) : ops.index(wait)]
            assert any(op.name == "graph.dot" for op in between), "it is gathered while the rank computes"


def test_counts_are_those_of_a_rank() -> None:
    whole = count_program(program(MLP, mlp))
    made = partitioned(program(MLP, mlp), Mesh.of(tp=4), COLUMNS_AND_ROWS)
    counts = count_program(made)
    assert whole.flops == 2 * 2 * 32 * 16 * 64 and counts.flops * 4 == whole.flops
    (reduced,) = counts.collectives
    assert (reduced.kind, reduced.axes, reduced.ranks, reduced.calls) == ("all_reduce", ("tp",), 4, 1)
    assert reduced.bytes == 4 * 8 * 16 * 4


def test_the_passes_have_names() -> None:
    text = "propagate_shardings,partition,combine_collectives{bytes=1024},schedule_collectives,specialize_rank{rank=1}"
    module = ModuleOp([])
    function = program(MLP, mlp)
    set_mesh(function, Mesh.of(tp=2))
    module.body.block.add_op(function)
    for each in read_pipeline(text, {}):
        each.apply(Context(), module)
    module.verify()


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("[{tp}, {}, {}]", "4 is not a multiple of 3"),
        ("[{}, {}]", "has 3 dimensions"),
        ("[{}, {dp}, {}]", "has no axis dp"),
        ("[{}, {tp}, {tp}]", "uses an axis twice"),
    ],
)
def test_a_hint_that_does_not_fit_is_refused(hint: str, said: str) -> None:
    with pytest.raises(ShardingError, match=said):
        partitioned(program(MLP, mlp), Mesh.of(tp=3), {"x": hint})


def test_a_symbolic_size_is_not_split() -> None:
    function = program({"x": Tensor(f32, (symbol("s0"), 4))}, lambda b, x: b.exp(x))
    set_mesh(function, Mesh.of(dp=2))
    set_shardings(function, ARGS, [Sharding.parse("[{dp}, {}]")])
    with pytest.raises(ShardingError, match="symbolic"):
        sharding_passes()[2].apply(Context(), module_of(function))


@pytest.mark.parametrize("text", ["[{dp}, {}, {tp}]", "[{dp, tp/4}, {?}]", "[] sum {tp}", "[{}] sum {dp} max {tp}"])
def test_shardings_print_as_they_are_read(text: str) -> None:
    assert str(Sharding.parse(text)) == text


@pytest.mark.parametrize("text", ["{dp}", "[dp]", "[{dp}] mean {tp}", "[{1}]"])
def test_what_is_no_sharding_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        Sharding.parse(text)
