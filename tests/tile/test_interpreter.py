"""The NumPy meaning of the tile dialect, and that lowered groups mean what their graph ops do."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Block, Operation, Region, SSAValue

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.reference.tile import AccessError, run_kernel
from weft.errors import ShapeError
from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, ceildiv, minimum, symbol
from weft.ir.types import DType, bf16, boolean, element_type, f32, f64, i64
from weft.ops.base import REGISTRY, Elementwise, Movement, OpSpec, Reduction, Scan, Scatter
from weft.testing.kernels import run_interpreted
from weft.testing.op_cases import op_cases
from weft.tile import dialect as tile

d0 = symbol("d0")


class Writer:
    """Writes a kernel op by op: pointers p0, p1, ... and one symbolic size n."""

    def __init__(self, *dtypes: DType) -> None:
        self.block = Block(arg_types=[*(tile.PointerType(element_type(d)) for d in dtypes), IndexType()])
        *self.pointers, self.n = self.block.args

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0] if op.results else op  # type: ignore[return-value]

    def program(self, axis: int = 0) -> SSAValue:
        return self.add(
            tile.ProgramOp.create(attributes={"axis": IntegerAttr(axis, i64_attr)}, result_types=[IndexType()])
        )

    def access(self, offset: Size, strides: Sequence[Size], extents: Sequence[Size]) -> dict[str, tile.Sizes]:
        return {
            "offset": tile.Sizes((offset,)),
            "strides": tile.Sizes(tuple(strides)),
            "extents": tile.Sizes(tuple(extents)),
        }

    def load(
        self,
        pointer: int,
        shape: Sequence[int],
        dtype: DType,
        *indices: SSAValue,
        offset: Size = 0,
        strides: Sequence[Size] = (1,),
        extents: Sequence[Size] | None = None,
    ) -> SSAValue:
        return self.add(
            tile.LoadOp.create(
                operands=[self.pointers[pointer], *indices],
                attributes=self.access(offset, strides, extents or shape),
                result_types=[tile.TileType.of(shape, dtype)],
            )
        )

    def store(
        self,
        value: SSAValue,
        pointer: int,
        *indices: SSAValue,
        offset: Size = 0,
        strides: Sequence[Size] = (1,),
        extents: Sequence[Size] | None = None,
    ) -> None:
        shape = tile.tile_type(value).sizes
        attributes = self.access(offset, strides, extents or shape)
        self.add(tile.StoreOp.create(operands=[value, self.pointers[pointer], *indices], attributes=attributes))

    def constant(self, value: float | int | bool, shape: Sequence[int], dtype: DType) -> SSAValue:
        return self.add(tile.ConstantOp.make(value, tile.TileType.of(shape, dtype)))

    def map(self, function: str, *args: SSAValue, dtype: DType | None = None) -> SSAValue:
        types = [tile.tile_type(arg) for arg in args]
        shape = [max(sizes) for sizes in zip(*(t.sizes for t in types), strict=True)]
        out = tile.TileType.of(shape, dtype or types[-1].dtype)
        return self.add(
            tile.MapOp.create(operands=args, attributes={"function": StringAttr(function)}, result_types=[out])
        )

    def reduce(self, kind: str, value: SSAValue, axis: int, dtype: DType | None = None) -> SSAValue:
        type_ = tile.tile_type(value)
        out = tile.TileType.of([1 if a == axis else n for a, n in enumerate(type_.sizes)], dtype or type_.dtype)
        attributes = {"kind": StringAttr(kind), "axis": IntegerAttr(axis, i64_attr)}
        return self.add(tile.ReduceOp.create(operands=[value], attributes=attributes, result_types=[out]))

    def run(self, buffers: Sequence[np.ndarray], n: int = 0, grid: Sequence[Size] = ()) -> None:
        self.block.add_op(tile.ReturnOp.create())
        kernel = tile.KernelOp.create(
            attributes={
                "sym_name": StringAttr("k"),
                "grid": tile.Sizes(tuple(grid)),
                "symbols": ArrayAttr([StringAttr("n")]),
            },
            regions=[Region(self.block)],
        )
        kernel.verify()
        run_kernel(kernel, buffers, [n])


def test_programs_meet_the_edge() -> None:
    k = Writer(f32, f32)
    p = k.program()
    extent = minimum(4, symbol("d1") - d0 * 4)
    x = k.load(0, [4], f32, p, k.n, offset=d0 * 4, extents=[extent])
    k.store(k.map("add", x, k.constant(1.0, [1], f32)), 1, p, k.n, offset=d0 * 4, extents=[extent])
    x, y = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    k.run([x, y], 10, [ceildiv(symbol("n"), 4)])
    np.testing.assert_array_equal(y, x + 1)


def test_a_constant_is_clipped_by_what_it_meets() -> None:
    k = Writer(f32, f32)
    x = k.load(0, [8], f32, k.n, extents=[d0])
    k.store(k.map("add", k.constant(2.0, [8], f32), x), 1, extents=[8])
    y = np.zeros(8, np.float32)
    k.run([np.ones(5, np.float32), y], 5)
    np.testing.assert_array_equal(y, [3, 3, 3, 3, 3, 0, 0, 0])


def test_an_axis_of_one_broadcasts_and_a_store_spreads() -> None:
    k = Writer(f32, f32, f32)
    column = k.load(0, [3, 1], f32, strides=[1, 0], extents=[3, 1])
    row = k.load(0, [1, 2], f32, strides=[0, 1], extents=[1, 2])
    k.store(k.map("add", column, row), 1, strides=[2, 1])
    k.store(row, 2, strides=[2, 1], extents=[3, 2])
    outer, spread = np.zeros(6, np.float32), np.zeros(6, np.float32)
    k.run([np.arange(3, dtype=np.float32), outer, spread])
    np.testing.assert_array_equal(outer.reshape(3, 2), [[0, 1], [1, 2], [2, 3]])
    np.testing.assert_array_equal(spread.reshape(3, 2), [[0, 1]] * 3)


def test_narrow_memory_is_held_as_f32() -> None:
    k = Writer(bf16, bf16, f32)
    x = k.load(0, [3], f32)
    third = k.map("div", x, k.constant(3.0, [1], f32))
    k.store(third, 1)
    k.store(third, 2)
    narrow, wide = np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, np.float32)
    k.run([np.ones(3, ml_dtypes.bfloat16), narrow, wide])
    np.testing.assert_array_equal(wide, np.full(3, 1 / 3, np.float32))
    np.testing.assert_array_equal(narrow, wide.astype(ml_dtypes.bfloat16))


def test_loops_carry_tiles() -> None:
    k = Writer(f64, f64)
    loop = tile.ForOp.make(tile.Sizes((0, d0, 2)), [k.n], [k.constant(0.0, [2], f64)])
    k.add(loop)
    outer, k.block = k.block, loop.block
    part = k.load(0, [2], f64, loop.block.args[0], k.n, offset=d0, extents=[minimum(2, symbol("d1") - d0)])
    k.block.add_op(tile.YieldOp.create(operands=[k.map("add", loop.block.args[1], part)]))
    k.block = outer
    k.store(k.reduce("sum", loop.results[0], 0), 1)
    y = np.zeros(1)
    k.run([np.arange(6.0), y], 6)
    assert y[0] == 15


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("max", [1.0, np.nan, 3.0], np.nan),
        ("prod", [2.0, 3.0], 6.0),
        ("argmax", [1.0, 3.0, 3.0], 1),
        ("argmax", [1.0, np.nan, np.inf], 1),
        ("argmin", [2.0, 1.0, 1.0], 1),
        ("sum", [], 0.0),
        ("max", [], -np.inf),
        ("argmin", [], -1),
    ],
)
def test_reductions_combine_what_is_there(kind: str, values: list[float], expected: float) -> None:
    result = i64 if kind.startswith("arg") else f64
    k = Writer(f64, result)
    k.store(k.reduce(kind, k.load(0, [4], f64, k.n, extents=[d0]), 0, result), 1)
    y = np.zeros(1, result.numpy)
    k.run([np.array(values), y], len(values))
    np.testing.assert_array_equal(y, [expected])


def test_gathers_do_not_read_where_the_mask_is_false() -> None:
    k = Writer(f32, i64, boolean, f32)
    value = tile.GatherOp.create(
        operands=[k.pointers[0], k.load(1, [3], i64), k.load(2, [3], boolean)],
        attributes={"other": to_attribute(-1.0)},
        result_types=[tile.TileType.of([3], f32)],
    )
    k.store(k.add(value), 3)
    y = np.zeros(3, np.float32)
    k.run([np.array([5, 6], np.float32), np.array([1, 99, 0]), np.array([True, False, True]), y])
    np.testing.assert_array_equal(y, [6, -1, 5])


@pytest.mark.parametrize(
    ("kind", "expected"), [("assign", [4, 3]), ("add", [11, 13]), ("mul", [80, 30]), ("max", [10, 10]), ("min", [2, 3])]
)
def test_scatters_go_in_order(kind: str, expected: list[int]) -> None:
    k = Writer(i64, i64, i64)
    operands = [k.load(0, [4], i64), k.pointers[2], k.load(1, [4], i64)]
    k.add(tile.ScatterOp.create(operands=operands, attributes={"kind": StringAttr(kind)}))
    start = np.array([10, 10])
    k.run([np.array([2, 3, -5, 4]), np.array([0, 1, 0, 0]), start] if kind == "add" else
          [np.array([2, 3, 1 if kind != "min" else 7, 4]), np.array([0, 1, 0, 0]), start])  # fmt: skip
    np.testing.assert_array_equal(start, expected)


def test_dot_adds_to_its_accumulator() -> None:
    k = Writer(f32, f32, f32)
    a = k.load(0, [4, 3], f32, k.n, strides=[3, 1], extents=[d0, 3])
    b = k.load(1, [3, 2], f32, strides=[2, 1])
    product = tile.DotOp.create(
        operands=[a, b, k.constant(1.0, [4, 2], f32)], result_types=[tile.TileType.of([4, 2], f32)]
    )
    k.store(k.add(product), 2, strides=[2, 1])
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3)).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
    out = np.zeros(8, np.float32)
    k.run([x.ravel(), y.ravel(), out], 2)
    np.testing.assert_allclose(out.reshape(4, 2), np.concatenate([x @ y + 1, np.zeros((2, 2))]), rtol=1e-6)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_nan_is_the_greatest(descending: bool) -> None:
    keys = np.array([7.0, 2, np.nan, 1, 2, np.nan, 0.0, -0.0, 9.0])
    k = Writer(f64, i64, f64, i64)
    k.add(
        tile.SortOp.create(
            operands=[*k.pointers, k.n],
            attributes={
                "offset": tile.Sizes((1,)),
                "count": tile.Sizes((d0,)),
                "first": tile.Sizes((d0,)),
                "descending": to_attribute(descending),
            },
        )
    )
    places = np.full(9, 99)
    k.run([keys, places, np.zeros(9), np.zeros(9, np.int64)], 7)
    order = [1, 4, 0, 3, 2, 5, 6] if descending else [5, 6, 2, 0, 3, 1, 4]
    np.testing.assert_array_equal(places, [99, *order, 99])
    assert (keys[0], keys[-1]) == (7.0, 9.0)


@pytest.mark.parametrize("offset", [-1, 3])
def test_an_access_outside_is_an_error_that_names_the_op(offset: int) -> None:
    k = Writer(f32, f32)
    k.store(k.load(0, [2], f32, offset=offset), 1)
    with pytest.raises(AccessError, match=r"tile\.load of k"):
        k.run([np.zeros(4, np.float32), np.zeros(4, np.float32)])


def test_a_buffer_of_another_type_is_an_error() -> None:
    with pytest.raises(AccessError, match="flat arrays of float32"):
        Writer(f32).run([np.zeros(4)])


LOWERED = [
    spec
    for spec in REGISTRY
    if issubclass(spec.cls, (Elementwise, Movement, Reduction, Scan, Scatter)) or spec.name in ("sort", "topk")
]
# All elementwise ops are one and the same to the lowering of symbolic sizes.
DYNAMIC = [spec for spec in LOWERED if not issubclass(spec.cls, Elementwise) or spec.name in ("add", "where", "cast")]


@pytest.mark.parametrize("spec", LOWERED, ids=lambda spec: spec.name)
def test_lowered_ops_mean_what_the_graph_says(spec: OpSpec) -> None:
    found = [case.complaint(run_interpreted(case.trial(), case.arrays())) for case in op_cases(spec)]
    assert not (wrong := [text for text in found if text]), "\n".join(wrong)


@pytest.mark.parametrize("spec", DYNAMIC, ids=lambda spec: spec.name)
def test_lowered_ops_of_symbolic_sizes_mean_what_the_graph_says(spec: OpSpec) -> None:
    found: list[str] = []
    for case in op_cases(spec, dynamic=True):
        if case.dtype != case.sample.dtypes[0]:
            continue
        try:
            trial = case.trial()
        except ShapeError:
            continue  # parameters like the shape of a reshape do not change with the operand's sizes
        found.append(case.complaint(run_interpreted(trial, case.arrays(), case.symbols)))
    assert not (wrong := [text for text in found if text]), "\n".join(wrong)
