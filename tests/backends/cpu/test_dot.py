"""Matrix products as kernels: run on this machine against float64, and compiled for others to see their code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from tests.seeds import generator
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.microkernel import Blocking, blocking
from weft.backends.cpu.target import CpuTarget, compile_assembly, host_target
from weft.backends.llvm.builder import Module
from weft.errors import LoweringError
from weft.ir.expr import Size, symbol
from weft.ir.types import (
    DType,
    Tensor,
    bf16,
    contiguous_strides,
    dtype_of_numpy,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    tensor_of,
)
from weft.lower.dispatch import lower
from weft.lower.packing import PackedLayout, PackedPanels, packable
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted

Body = Callable[..., Any]
SIZES = [(1, 1, 1), (3, 5, 7), (1, 100, 33), (7, 1, 50), (8, 64, 64), (5, 17, 1000), (33, 40, 65), (130, 70, 300)]


def plain(b: Any, x: Any, y: Any) -> Any:
    return b.dot(x, y)


def by_transpose(b: Any, x: Any, y: Any) -> Any:
    return b.dot(x, b.permute(y, dims=(1, 0)))


def of_transpose(b: Any, x: Any, y: Any) -> Any:
    return b.dot(b.permute(x, dims=(1, 0)), y)


@dataclass(frozen=True)
class Product:
    """A group with a product in it, its operands, and what it should give in float64."""

    body: Body
    arrays: Sequence[np.ndarray]
    expected: np.ndarray
    shapes: Sequence[tuple[Size, ...]] | None = None
    symbols: tuple[tuple[str, int], ...] = ()

    def trial(self, name: str, *, packed: bool = False) -> Trial:
        shapes = self.shapes or [array.shape for array in self.arrays]
        tensors = [Tensor(dtype_of_numpy(a.dtype), s) for a, s in zip(self.arrays, shapes, strict=True)]
        group = group_of(tensors, self.body)
        return packed_trial(group, name) if packed else Trial.of(group, name)

    def error(self, result: np.ndarray) -> float:
        """The largest error, in units of the last place of the largest magnitude."""
        assert result.shape == self.expected.shape
        if not result.size:
            return 0.0
        scale = float(np.abs(self.expected).max()) or 1.0
        epsilon = float(ml_dtypes.finfo(result.dtype).eps)
        return float(np.abs(result.astype(np.float64) - self.expected).max()) / scale / epsilon


def packed_trial(group: GroupOp, name: str) -> Trial:
    packing = packable(group, blocking(host_target(), f32).columns)
    assert packing is not None
    inputs = [tensor_of(value.type) for value in group.block.args]
    outputs = [tensor_of(value.type) for value in group.yielded]
    layouts: list[StridedLayout] = [StridedLayout(contiguous_strides(t.shape)) for t in inputs]
    layouts[packing.operand] = PackedLayout.of(packing.panels)
    lowered = lower(group, name, layouts, [StridedLayout(contiguous_strides(t.shape)) for t in outputs])
    for call in lowered.calls:
        call.kernel.op.verify()
    inputs[packing.operand] = Tensor(packing.panels.dtype, packing.panels.shape)
    return Trial(lowered, tuple(inputs), tuple(outputs))


def packed_arrays(product: Product) -> list[np.ndarray]:
    group = group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in product.arrays], product.body)
    packing = packable(group, blocking(host_target(), f32).columns)
    assert packing is not None
    arrays = list(product.arrays)
    arrays[packing.operand] = packing.pack(arrays[packing.operand])
    return arrays


def random(*shape: int, dtype: DType = f32) -> np.ndarray:
    return generator().standard_normal(shape).astype(dtype.numpy)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def matmul(m: int, n: int, k: int, dtype: DType = f32) -> list[Product]:
    x, y = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
    expected = wide(x) @ wide(y)
    return [
        Product(plain, (x, y), expected),
        Product(by_transpose, (x, np.ascontiguousarray(y.T)), expected),
        Product(of_transpose, (np.ascontiguousarray(x.T), y), expected),
    ]


def check(products: Sequence[Product], bound: float = 16) -> None:
    trials = [product.trial(f"product{i}") for i, product in enumerate(products)]
    module = CpuModule(trials)
    for product, trial in zip(products, trials, strict=True):
        (result,) = module.run(trial, product.arrays, dict(product.symbols))
        assert product.error(result) <= bound, (
            trial.lowered.calls[0].kernel.schedule,
            [a.shape for a in product.arrays],
        )


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
def test_products_agree_with_float64(dtype: DType) -> None:
    check([product for size in SIZES for product in matmul(*size, dtype)])


def test_products_of_empty_matrices_are_empty_or_zero() -> None:
    check([product for size in [(3, 0, 4), (0, 3, 4), (3, 4, 0), (0, 0, 0)] for product in matmul(*size)], 0)


@pytest.mark.parametrize("dtype", [i8, i32, i64], ids=str)
def test_integers_wrap_around(dtype: DType) -> None:
    rng = generator()
    info = np.iinfo(dtype.numpy)
    for m, n, k in [(3, 5, 7), (20, 40, 33)]:
        x, y = (rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True) for shape in ((m, k), (k, n)))
        trial = Product(plain, (x, y), x @ y).trial("integers")
        (result,) = CpuModule([trial]).run(trial, [x, y])
        np.testing.assert_array_equal(result, x @ y)


def test_symbolic_sizes_of_all_kinds() -> None:
    m, n, k = (symbol(name) for name in "mnk")
    products: list[Product] = []
    for sizes in [(1, 1, 1), (5, 3, 2), (97, 259, 513), (8, 16, 257), (130, 40, 1)]:
        names = tuple(zip("mnk", sizes, strict=True))
        shapes = {plain: [(m, k), (k, n)], by_transpose: [(m, k), (n, k)], of_transpose: [(k, m), (k, n)]}
        products += [replace(p, shapes=shapes[p.body], symbols=names) for p in matmul(*sizes)]
    check(products)


def test_batches() -> None:
    x, y = random(2, 3, 9, 20), random(2, 3, 20, 33)
    expected = wide(x) @ wide(y)
    shared = random(20, 33)

    def by_shared(b: Any, left: Any, right: Any) -> Any:
        return b.dot(left, b.broadcast(right, shape=(2, 3, 20, 33)))

    def heads(b: Any, left: Any, right: Any) -> Any:  # [B, S, H, D] seen as [B, H, S, D]
        return b.dot(b.permute(left, dims=(0, 2, 1, 3)), b.permute(right, dims=(0, 2, 3, 1)))

    q, keys = random(2, 9, 3, 20), random(2, 11, 3, 20)
    scores = np.einsum("bshd,bthd->bhst", wide(q), wide(keys))
    check(
        [
            Product(plain, (x, y), expected),
            Product(by_shared, (x, shared), wide(x) @ wide(shared)),
            Product(heads, (q, keys), scores),
        ]
    )


def test_what_follows_the_product_is_computed_on_its_tiles() -> None:
    x, w, bias, other = random(6, 7, 40), random(50, 40), random(50), random(6, 7, 50)

    def body(b: Any, x: Any, w: Any, bias: Any, other: Any) -> Any:
        flat = b.dot(b.reshape(x, shape=(42, 40)), b.permute(w, dims=(1, 0)))
        sum_ = b.reshape(b.add(flat, bias), shape=(6, 7, 50))
        return b.add(b.relu(sum_), other)

    expected = np.maximum(wide(x) @ wide(w).T + wide(bias), 0) + wide(other)
    product = Product(body, (x, w, bias, other), expected)
    check([product])
    trial = product.trial("packed_epilogue", packed=True)
    (result,) = CpuModule([trial]).run(trial, packed_arrays(product))
    assert product.error(result) <= 16


def test_a_result_may_be_stored_by_heads() -> None:
    x, w = random(10, 32), random(32, 64)

    def body(b: Any, x: Any, w: Any) -> Any:
        return b.permute(b.reshape(b.dot(x, w), shape=(2, 5, 2, 32)), dims=(0, 2, 1, 3))

    expected = (wide(x) @ wide(w)).reshape(2, 5, 2, 32).transpose(0, 2, 1, 3)
    product = Product(body, (x, w), expected)
    check([product])
    trial = product.trial("packed_heads", packed=True)
    (result,) = CpuModule([trial]).run(trial, packed_arrays(product))
    assert product.error(result) <= 16


def test_what_comes_before_the_product_is_computed_on_the_operands_tiles() -> None:
    x, w, scale = random(20, 300), random(300, 48), random(48)
    small = generator().integers(-128, 128, (300, 48)).astype(np.int8)

    def gated(b: Any, x: Any, w: Any) -> Any:
        return b.dot(b.relu(x), w)

    def dequantized(b: Any, x: Any, w: Any, scale: Any) -> Any:
        return b.dot(x, b.mul(b.cast(w, dtype=f32), scale))

    def repeated(b: Any, x: Any, row: Any) -> Any:
        return b.dot(x, b.broadcast(row, shape=(300, 48)))

    check(
        [
            Product(gated, (x, w), np.maximum(wide(x), 0) @ wide(w)),
            Product(dequantized, (x, small, scale), wide(x) @ (wide(small) * wide(scale))),
            Product(repeated, (x, scale), wide(x) @ np.broadcast_to(wide(scale), (300, 48))),
        ],
        32,
    )


def test_few_rows_and_a_computed_matrix_take_little_memory() -> None:
    x, w = random(2, 9000), generator().integers(-128, 128, (9000, 300)).astype(np.int8)
    every = random(9000, 600)

    def dequantized(b: Any, x: Any, w: Any) -> Any:
        return b.dot(x, b.cast(w, dtype=f32))

    def strided(b: Any, x: Any, w: Any) -> Any:
        return b.dot(x, b.slice(w, starts=(0, 0), shape=(9000, 300), steps=(1, 2)))

    products = [
        Product(dequantized, (x, w), wide(x) @ wide(w)),
        Product(strided, (x, every), wide(x) @ wide(every)[:, ::2]),
    ]
    check(products)
    for product in products:
        module = Module(host_target().triple)
        emit_kernel(module, product.trial("few").lowered.calls[0].kernel.op, host_target())
        sizes = [4 * int(count) for count in re.findall(r"alloca float, i64 (\d+)", str(module))]
        assert sum(sizes) < 1 << 20


def test_strided_operands_are_read_where_they_lie() -> None:
    x = random(2, 30, 3, 16)  # what a projection to queries, keys and values gives

    def body(b: Any, x: Any) -> Any:
        merged = b.reshape(b.permute(x, dims=(0, 2, 1, 3)), shape=(6, 30, 16))
        return b.dot(merged, b.permute(merged, dims=(0, 2, 1)))

    merged = wide(x).transpose(0, 2, 1, 3).reshape(6, 30, 16)
    check([Product(body, (x,), merged @ merged.transpose(0, 2, 1))])


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
def test_packed_weights(dtype: DType) -> None:
    products = [matmul(*size, dtype)[kind] for size in SIZES if size[1] > 1 for kind in (0, 1)]
    trials = [product.trial(f"packed{i}", packed=True) for i, product in enumerate(products)]
    module = CpuModule(trials)
    for product, trial in zip(products, trials, strict=True):
        arrays = packed_arrays(product)
        (result,) = module.run(trial, arrays)
        assert product.error(result) <= 16
        (meant,) = run_interpreted(trial, arrays)
        x, y = (array.astype(np.float32) for array in product.arrays)
        by_numpy = (x @ (y if product.body is plain else y.T)).astype(meant.dtype)
        # NumPy's library multiplies there, which sums as it likes: a long row in one sum on some machines.
        assert product.error(meant) <= max(16, 2 * product.error(by_numpy))


def test_panels_hold_the_columns_side_by_side() -> None:
    matrix = np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5)
    panels = PackedPanels(3, 5, 4, f32, batch=2)
    packed = panels.pack(matrix)
    assert packed.shape == panels.shape == (2, 2, 3, 4)
    padded = np.pad(matrix, ((0, 0), (0, 0), (0, 3)))
    np.testing.assert_array_equal(packed, padded.reshape(2, 3, 2, 4).transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(panels.pack(matrix.transpose(0, 2, 1).copy().transpose(0, 2, 1)), packed)


def test_weights_that_something_else_reads_are_not_packed() -> None:
    group = group_of([Tensor(f32, (4, 4)), Tensor(f32, (4, 4))], lambda b, x, w: b.add(b.dot(x, w), w))
    assert packable(group, 16) is None


def test_an_output_that_is_not_the_products_is_refused() -> None:
    def body(b: Any, x: Any, y: Any) -> Any:
        return b.dot(x, y), b.exp(y)

    with pytest.raises(LoweringError, match="not the product's"):
        Trial.of(group_of([Tensor(f32, (4, 5)), Tensor(f32, (5, 6))], body), "two")


# -- other machines ----------------------------------------------------------------------------------------------------

X86 = "x86_64-unknown-linux-gnu"


@dataclass(frozen=True)
class WideTarget(CpuTarget):
    """This machine, with code as for one of wider registers."""

    width: int = 256

    @property
    def vector_bits(self) -> int:
        return self.width


@pytest.mark.parametrize("width", [256, 512])
def test_the_blocks_of_wider_registers_give_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_target()
    target = WideTarget(host.triple, host.cpu, host.features, width)
    monkeypatch.setattr("weft.testing.kernels.host_target", lambda: target)
    m, n, k = (symbol(name) for name in "mnk")
    products = [product for size in SIZES for product in matmul(*size)]
    x, y = random(107, 259), random(259, 70)
    names = (("m", 107), ("n", 70), ("k", 259))
    products.append(Product(plain, (x, y), wide(x) @ wide(y), [(m, k), (k, n)], names))
    check(products)


BLOCKS = {
    CpuTarget(X86, "skylake", ""): Blocking(6, 2, 8),
    CpuTarget(X86, "skylake-avx512", ""): Blocking(14, 2, 16),
    CpuTarget("aarch64-unknown-linux-gnu", "neoverse-n1", ""): Blocking(4, 4, 4),
}
FMA = {"skylake": r"vfmadd\w+ps.*%ymm", "skylake-avx512": r"vfmadd\w+ps.*%zmm", "neoverse-n1": r"fmla\s+v\d+\.4s"}
SPILLS = {"x86_64": r"\(%rsp\), %[xyz]mm|%[xyz]mm\d+, -?\d*\(%rsp\)", "aarch64": r"(ldr|str|ldp|stp)\s+q.*\[sp"}


@pytest.mark.parametrize("target", BLOCKS, ids=lambda target: target.cpu)
def test_micro_kernels_keep_their_block_in_registers(target: CpuTarget) -> None:
    assert blocking(target, f32) == BLOCKS[target]
    trial = Trial.of(group_of([Tensor(f32, (512, 768)), Tensor(f32, (768, 512))], plain), "square")
    module = Module(target.triple)
    emit_kernel(module, trial.lowered.calls[0].kernel.op, target)
    assembly = compile_assembly(str(module), target)
    block = BLOCKS[target]
    start = assembly.index(f"\nweft.panel.{block.rows}x{block.vectors}x{block.lanes}.f32.f32:")
    kernel = assembly[
        start : assembly.index(".cfi_endproc" if ".cfi_endproc" in assembly[start:] else ".Lfunc_end", start)
    ]
    loop = longest_loop(kernel)
    assert len(re.findall(FMA[target.cpu], loop)) >= 4 * block.rows * block.vectors
    assert len(re.findall(SPILLS[target.triple.split("-")[0]], loop)) <= 2, loop


def longest_loop(code: str) -> str:
    """The longest run of instructions between a label and a jump back to it."""
    found = ""
    for match in re.finditer(r"^(\.LBB\w+):", code, re.MULTILINE):
        end = re.search(rf"\sj\w+\s+{match[1]}\s*$|\sb\.?\w*\s+.*{match[1]}\s*$", code[match.end() :], re.MULTILINE)
        if end and end.end() > len(found):
            found = code[match.end() : match.end() + end.end()]
    return found
