"""`update_in_place`: results are written over operands that nobody reads any more, and over nothing else."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from xdsl.context import Context

from tests.seeds import generator
from weft.config import Config
from weft.ir.attributes import to_attribute
from weft.ir.expr import symbol
from weft.ir.types import Tensor, bf16, f32, i64
from weft.lower.refusal import Refusal
from weft.lower.shared_kernels import SharedKernels
from weft.lower.steps import KernelStep
from weft.ops.graph import FuncOp, GroupOp
from weft.passes.choose_layouts import ChooseLayouts
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.tensor_slices import TensorSlice, reads_of
from weft.passes.update_in_place import UpdateInPlace, in_place_of
from weft.pipelines import compile_cpu
from weft.runtime.arrays import run_arrays
from weft.runtime.executable import Executable

X = Tensor(f32, (5, 7))


def marked(passes: Any, body: Any, arguments: dict[str, Tensor], **attributes: Any) -> list[dict[int, int]]:
    """What each group writes in place."""
    module = passes.built(arguments, body)
    function: FuncOp = passes.function(module)
    function.attributes.update({name: to_attribute(value) for name, value in attributes.items()})
    for each in (GroupIntoKernels(), ChooseLayouts(), UpdateInPlace()):
        each.apply(Context(), module)
        module.verify()
    return [dict(in_place_of(op)) for op in function.block.ops if isinstance(op, GroupOp)]


def assert_same_in_place(passes: Any, body: Any, arguments: dict[str, Tensor], **attributes: Any) -> None:
    """The compiled program computes what it does where nothing replaces an argument."""
    pytest.importorskip("torch")  # it brings the BLAS library for products
    rng = generator()
    arrays = [
        rng.integers(0, 8, shape) if each.dtype == i64 else rng.standard_normal(shape).astype(np.float32)
        for each in arguments.values()
        if (shape := cast("Any", each.shape))
    ]
    results: list[list[np.ndarray]] = []
    for given in (attributes, {}):
        function: FuncOp = passes.function(passes.built(arguments, body))
        function.attributes.update({name: to_attribute(value) for name, value in given.items()})
        compiled = compile_cpu(function, Config(cache=False))
        copies = [each.copy() for each in arrays]
        results.append(run_arrays(Executable(compiled.plan, compiled.code, compiled.prepare), copies))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def step(b: Any, p: Any, g: Any) -> Any:
    return b.sub(p, b.mul(g, b.full(value=0.5, shape=(), dtype=f32)))


def test_an_argument_that_is_replaced(passes: Any) -> None:
    assert marked(passes, step, {"p": X, "g": X}, replaced=((0, 0),)) == [{0: 0}]


def test_an_argument_of_symbolic_sizes(passes: Any) -> None:
    s, t = symbol("s"), symbol("t")
    x = Tensor(f32, (s, t, 2 * t))
    assert marked(passes, step, {"p": x, "g": x}, replaced=((0, 0),)) == [{0: 0}]
    turned = (1, 2 * s * t, s)
    assert marked(passes, step, {"p": x, "g": x}, replaced=((0, 0),), arg_strides=(turned, None)) == [{}]
    same = {"arg_strides": (turned, None), "result_strides": (turned,)}
    assert marked(passes, step, {"p": x, "g": x}, replaced=((0, 0),), **same) == [{0: 0}]
    for strides in ((t, 2 * t, 1), (2 * t * t, t, 1), (2 * t * t, 2 * t, 0)):
        overlapping = {"arg_strides": (strides, None), "result_strides": (strides,)}
        assert marked(passes, step, {"p": x, "g": x}, replaced=((0, 0),), **overlapping) == [{}]


def test_other_arguments_stay(passes: Any) -> None:
    assert marked(passes, step, {"p": X, "g": X}) == [{}]


def test_an_argument_that_is_donated_holds_temporaries_and_results(passes: Any) -> None:
    assert marked(passes, step, {"p": X, "g": X}, donated=(0,)) == [{0: 0}]
    assert marked(passes, step, {"p": X, "g": X}, donated=(1,)) == [{0: 1}]

    def product(b: Any, p: Any, g: Any, w: Any) -> Any:
        return b.dot(step(b, p, g), w)

    arguments = {"p": X, "g": X, "w": Tensor(f32, (7, 3))}
    assert marked(passes, product, arguments, donated=(0,))[0] == {0: 0}
    assert_same_in_place(passes, product, arguments, donated=(0,))

    def both(b: Any, p: Any, g: Any, w: Any) -> Any:
        return b.dot(p, w), step(b, p, g)

    assert_same_in_place(passes, both, arguments, donated=(0, 1))


@pytest.mark.parametrize("attributes", [{"donated": (0,)}, {"replaced": ((0, 0),)}])
def test_a_group_that_is_refused_still_writes_where_it_was_to(
    passes: Any, attributes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut into its ops, and groups after it write over what it made."""

    def chained(b: Any, p: Any, g: Any, w: Any) -> Any:
        one = step(b, p, g)
        return step(b, one, b.dot(b.dot(one, w), w))

    lower, refused = SharedKernels.lower, list[GroupOp]()

    def refuse(self: SharedKernels, op: GroupOp, inputs: Any, outputs: Any) -> Any:
        if in_place_of(op) and not refused:
            refused.append(op)
            return Refusal("for a test"), ""
        return lower(self, op, inputs, outputs)

    square = Tensor(f32, (7, 7))
    monkeypatch.setattr(SharedKernels, "lower", refuse)
    assert_same_in_place(passes, chained, {"p": square, "g": square, "w": square}, **attributes)
    assert refused


def test_another_layout(passes: Any) -> None:
    assert marked(passes, step, {"p": X, "g": X}, replaced=((0, 0),), arg_strides=((1, 5), None)) == [{}]
    turned = {"arg_strides": ((1, 5), None), "result_strides": ((1, 5),)}
    assert marked(passes, step, {"p": X, "g": X}, replaced=((0, 0),), **turned) == [{0: 0}]
    repeated = {"arg_strides": ((0, 1), None), "result_strides": ((0, 1),)}
    assert marked(passes, step, {"p": X, "g": X}, replaced=((0, 0),), **repeated) == [{}]


def test_a_later_reader(passes: Any) -> None:
    """The sum over rows is a kernel of its own, which reads the old value when the new one is written."""

    def body(b: Any, p: Any, w: Any) -> Any:
        new = b.exp(p)
        return [new, b.sum(b.mul(p, b.sum(b.dot(new, w), dims=(0, 1), keep=False)), dims=(0, 1), keep=False)]

    assert not any(marked(passes, body, {"p": X, "w": Tensor(f32, (7, 3))}, replaced=((0, 0),)))


@pytest.mark.parametrize("how", ["permute", "reverse", "broadcast"])
def test_elements_from_elsewhere(passes: Any, how: str) -> None:
    square = Tensor(f32, (4, 4))

    def body(b: Any, p: Any) -> Any:
        match how:
            case "permute":
                other = b.permute(p, dims=(1, 0))
            case "reverse":
                other = b.slice(p, starts=(3, 0), shape=(4, 4), steps=(-1, 1))
            case _:
                other = b.broadcast(b.slice(p, starts=(0, 0), shape=(1, 4), steps=(1, 1)), shape=(4, 4))
        return b.add(p, other)

    assert not any(marked(passes, body, {"p": square}, replaced=((0, 0),)))


def test_a_cache_that_takes_rows(passes: Any) -> None:
    cache, rows, at = Tensor(f32, (16, 4)), Tensor(f32, (2, 4)), Tensor(i64, (2,))

    def body(b: Any, cache: Any, rows: Any, at: Any) -> Any:
        return b.index_put(cache, at, rows, dims=(0,), position=0, accumulate=False)

    assert marked(passes, body, {"cache": cache, "rows": rows, "at": at}, replaced=((0, 0),)) == [{0: 0}]


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_cache_of_narrow_floats(passes: Any, accumulate: bool) -> None:
    cache, rows, at = Tensor(bf16, (16, 4)), Tensor(bf16, (2, 4)), Tensor(i64, (2,))

    def body(b: Any, cache: Any, rows: Any, at: Any) -> Any:
        return b.index_put(cache, at, rows, dims=(0,), position=0, accumulate=accumulate)

    assert marked(passes, body, {"cache": cache, "rows": rows, "at": at}, replaced=((0, 0),)) == [{0: 0}]


def test_memory_with_gaps(passes: Any) -> None:
    gaps = {"arg_strides": ((20, 2), None), "result_strides": ((20, 2),)}
    assert marked(passes, step, {"p": X, "g": X}, replaced=((0, 0),), **gaps) == [{0: 0}]
    overlapping = {"arg_strides": ((3, 1), None), "result_strides": ((3, 1),)}
    assert marked(passes, step, {"p": X, "g": X}, replaced=((0, 0),), **overlapping) == [{}]


def test_a_slice_that_is_updated(passes: Any) -> None:
    def body(b: Any, p: Any, g: Any) -> Any:
        new = b.mul(g, b.slice(p, starts=(1, 0), shape=(2, 7), steps=(1, 1)))
        return b.update_slice(p, new, starts=(2, 0), steps=(1, 1))

    arguments = {"p": X, "g": Tensor(f32, (2, 7))}
    assert marked(passes, body, arguments, replaced=((0, 0),)) == [{}, {0: 0}]


@pytest.mark.parametrize("other", ["g", "p"])
def test_a_slice_that_comes_from_the_argument(passes: Any, other: str) -> None:
    def body(b: Any, p: Any, g: Any) -> Any:
        rows = b.slice(p, starts=(0, 0), shape=(2, 7), steps=(1, 1))
        return b.update_slice(g if other == "g" else p, rows, starts=(2, 0), steps=(1, 1))

    assert not any(marked(passes, body, {"p": X, "g": X}, replaced=((0, 0),)))


def test_temporaries_are_written_over(passes: Any) -> None:
    def body(b: Any, x: Any, at: Any, rows: Any) -> Any:
        return b.index_put(b.cumsum(b.exp(x), dim=0), at, rows, dims=(0,), position=0, accumulate=True)

    arguments = {"x": X, "at": Tensor(i64, (2,)), "rows": Tensor(f32, (2, 7))}
    # The scan has memory to write over. The scatter's result is the function's, so it has memory of its own.
    assert marked(passes, body, arguments) == [{}, {0: 0}, {}]
    found = marked(passes, lambda b, *args: b.cumsum(body(b, *args), dim=1), arguments)
    assert found == [{}, {0: 0}, {0: 0}, {}]


def test_compiled_programs_compute_the_same(passes: Any) -> None:
    def body(b: Any, p: Any, m: Any, g: Any) -> Any:
        moment = b.add(b.mul(m, b.full(value=0.9, shape=(), dtype=f32)), g)
        return [b.sub(p, b.mul(moment, b.exp(p))), moment]

    rng = generator()
    arrays = [rng.standard_normal((5, 7)).astype(np.float32) for _ in range(3)]
    results: list[list[np.ndarray]] = []
    for replaced in (((0, 0), (1, 1)), ()):
        module = passes.built({"p": X, "m": X, "g": X}, body)
        function: FuncOp = passes.function(module)
        function.attributes["replaced"] = to_attribute(replaced)
        compiled = compile_cpu(function, Config(cache=False))
        assert compiled.plan.replacing == tuple(result for _, result in replaced)
        results.append(run_arrays(Executable(compiled.plan, compiled.code, compiled.prepare), arrays))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_only_the_slice_is_written(passes: Any) -> None:
    def body(b: Any, p: Any, g: Any) -> Any:
        return b.update_slice(p, g, starts=(3, 1), steps=(-2, 2))

    rng = generator()
    p, g = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((2, 3)).astype(np.float32)
    module = passes.built({"p": X, "g": Tensor(f32, (2, 3))}, body)
    function: FuncOp = passes.function(module)
    function.attributes["replaced"] = to_attribute(((0, 0),))
    compiled = compile_cpu(function, Config(cache=False))
    (step,) = compiled.plan.steps
    assert compiled.plan.replacing == (0,) and isinstance(step, KernelStep) and step.buffers == (0, 1, 0)
    (found,) = run_arrays(Executable(compiled.plan, compiled.code, compiled.prepare), [p, g])
    p[3::-2, 1:7:2] = g
    np.testing.assert_array_equal(found, p)


def test_parts_that_have_nothing_in_common() -> None:
    n = symbol("n")
    rows = TensorSlice((2, 0), (1, 1), (3, 7))
    assert rows.is_apart_from(TensorSlice((5, 0), (1, 1), (1, 7))) and TensorSlice(
        (5, 0), (1, 1), (1, 7)
    ).is_apart_from(rows)
    assert not rows.is_apart_from(TensorSlice((4, 0), (1, 1), (2, 7)))
    assert rows.is_apart_from(TensorSlice((1, 0), (-1, 1), (2, 7))) and not rows.is_apart_from(
        TensorSlice((6, 0), (-2, 1), (2, 7))
    )
    assert TensorSlice((0, 0), (1, 1), (n, 7)).is_apart_from(TensorSlice((n, 0), (1, 1), (n, 7)))
    assert not TensorSlice((0, 0), (1, 1), (n, 7)).is_apart_from(rows)


CHAIN = {"c": Tensor(f32, (8, 8)), "a": Tensor(f32, (1, 8)), "d": Tensor(f32, (1, 8)), "w": Tensor(f32, (8, 8))}


def row(b: Any, value: Any, number: int) -> Any:
    return b.slice(value, starts=(number, 0), shape=(1, 8), steps=(1, 1))


@pytest.mark.parametrize("late", [1, 2])
def test_a_later_reader_of_what_the_chain_began_with(passes: Any, late: int) -> None:
    """The first update leaves row 1 of the old value to its reader, but the second one replaces it."""

    def body(b: Any, c: Any, a: Any, d: Any, w: Any) -> Any:
        first = b.update_slice(c, a, starts=(0, 0), steps=(1, 1))
        given = b.mul(d, b.dot(row(b, first, 0), w))
        second = b.update_slice(first, given, starts=(1, 0), steps=(1, 1))
        return [second, b.add(row(b, c, late), b.dot(row(b, second, 1), w))]

    found = marked(passes, body, CHAIN, replaced=((0, 0),))
    assert found.count({0: 0}) == (0 if late == 1 else 2), found
    assert_same_in_place(passes, body, CHAIN, replaced=((0, 0),))


@pytest.mark.parametrize("late", [1, 2])
def test_a_later_reader_of_what_a_chain_of_temporaries_began_with(passes: Any, late: int) -> None:
    def body(b: Any, c: Any, a: Any, d: Any, w: Any) -> Any:
        start = b.cumsum(c, dim=0)
        first = b.update_slice(start, a, starts=(0, 0), steps=(1, 1))
        given = b.mul(d, b.dot(row(b, first, 0), w))
        second = b.update_slice(first, given, starts=(1, 0), steps=(1, 1))
        return [b.dot(second, w), b.add(row(b, start, late), b.dot(row(b, second, 1), w))]

    found = marked(passes, body, CHAIN)
    assert found.count({0: 0}) == (1 if late == 1 else 2), found
    assert_same_in_place(passes, body, CHAIN)


@pytest.mark.parametrize("late", [1, 2])
def test_a_scatter_and_a_later_reader_of_what_the_chain_began_with(passes: Any, late: int) -> None:
    """The scatter into row 1 may be done there only where nobody reads the oldest row 1 before it is replaced."""
    arguments = {**CHAIN, "at": Tensor(i64, (1,))}

    def body(b: Any, c: Any, a: Any, d: Any, w: Any, at: Any) -> Any:
        first = b.update_slice(c, a, starts=(0, 0), steps=(1, 1))
        value = b.slice(b.mul(d, b.dot(row(b, first, 0), w)), starts=(0, 0), shape=(1, 1), steps=(1, 1))
        scattered = b.index_put(row(b, first, 1), at, value, dims=(1,), position=1, accumulate=False)
        old = b.dot(b.add(row(b, c, late), b.dot(scattered, w)), w)
        return [b.update_slice(first, scattered, starts=(1, 0), steps=(1, 1)), old]

    found = marked(passes, body, arguments, replaced=((0, 0),))
    assert found.count({0: 0}) == (2 if late == 1 else 3), found
    assert_same_in_place(passes, body, arguments, replaced=((0, 0),))


def test_a_later_slice_of_a_view(passes: Any) -> None:
    """The slice without row 0 is one of the turned value: it has elements of the row that is replaced."""

    def body(b: Any, c: Any, a: Any, d: Any, w: Any) -> Any:
        turned = b.permute(c, dims=(1, 0))
        new = b.update_slice(c, b.add(b.dot(d, turned), a), starts=(0, 0), steps=(1, 1))
        given = b.slice(b.dot(row(b, new, 0), w), starts=(0, 0), shape=(1, 7), steps=(1, 1))
        return [new, b.dot(given, b.slice(turned, starts=(1, 0), shape=(7, 8), steps=(1, 1)))]

    assert not any(marked(passes, body, CHAIN, replaced=((0, 0),)))
    assert_same_in_place(passes, body, CHAIN, replaced=((0, 0),))


def test_which_parts_are_read(passes: Any) -> None:
    """A slice tells it of the value that it is a slice of, and what is below it reads no more."""

    def body(b: Any, c: Any) -> Any:
        turned = b.slice(b.permute(c, dims=(1, 0)), starts=(1, 0), shape=(6, 5), steps=(1, 1))
        flat = b.slice(b.reshape(c, shape=(35,)), starts=(7,), shape=(28,), steps=(1,))
        rows = b.slice(c, starts=(1, 0), shape=(4, 7), steps=(1, 1))
        return [turned, flat, b.slice(b.permute(rows, dims=(1, 0)), starts=(1, 0), shape=(6, 4), steps=(1, 1))]

    (c,) = passes.function(passes.built({"c": X}, body)).block.args
    found = [(reader.name.removeprefix("graph."), part) for reader, part in reads_of(c)]
    part = TensorSlice((1, 0), (1, 1), (4, 7))
    known = [("slice", part), ("permute", part), ("slice", part), ("return", part)]
    unknown = [(name, None) for name in ("permute", "slice", "return", "reshape", "slice", "return")]
    assert sorted(found, key=str) == sorted([*known, *unknown], key=str)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_writes_over_what_it_has_read(passes: Any, dim: int) -> None:
    def body(b: Any, x: Any) -> Any:
        return b.sin(b.cumsum(b.exp(x), dim=dim))

    assert marked(passes, body, {"x": X}) == [{}, {0: 0}, {}]
    assert_same_in_place(passes, body, {"x": X})


def test_a_scan_whose_operand_is_read_again_writes_elsewhere(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.exp(x)
        return b.mul(b.cumsum(y, dim=1), y)

    assert {} in marked(passes, body, {"x": X})[1:2]
    assert_same_in_place(passes, body, {"x": X})
