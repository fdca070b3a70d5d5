"""Attention as one kernel: run on this machine and on the tile interpreter, against float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from tests.seeds import generator
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import CpuTarget, compile_assembly
from weft.backends.llvm.builder import Module
from weft.ir.expr import Size, symbol
from weft.ir.types import DType, Tensor, bf16, boolean, dtype_of_numpy, f16, f32, f64
from weft.ops.matmul.attention import Attention
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted
from weft.testing.op_cases import judge

Run: TypeAlias = Callable[[list[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Case:
    """Attention over [*lead, queries, width] and [*lead, keys, width]."""

    lead: tuple[int, ...]
    queries: int
    keys: int
    width: int
    out_width: int
    dtype: DType = f32
    causal: bool = False
    mask: np.ndarray | None = None

    def arrays(self) -> list[np.ndarray]:
        rng = generator()
        shapes = [(self.queries, self.width), (self.keys, self.width), (self.keys, self.out_width)]
        arrays = [rng.standard_normal((*self.lead, *shape)).astype(self.dtype.numpy) for shape in shapes]
        return arrays if self.mask is None else [*arrays, self.mask]

    @property
    def params(self) -> dict[str, Any]:
        return {"causal": self.causal, "scale": self.width**-0.5}

    def trial(self, name: str, arrays: list[np.ndarray], sizes: dict[int, Size] | None = None) -> Trial:
        def size(number: int) -> Size:
            return (sizes or {}).get(number, number)

        tensors = [Tensor(dtype_of_numpy(a.dtype), tuple(map(size, a.shape))) for a in arrays]
        return Trial.of(group_of(tensors, lambda b, *values: b.attention(*values, **self.params)), name)

    def check(self, run: Run, arrays: list[np.ndarray]) -> None:
        """The largest errors of two right results differ by chance, now and then by more than a factor of two (of a
        single query in a ninth of all draws): but not for four draws of the inputs."""
        draws = (arrays, *(self.arrays() for _ in range(3)))
        assert not all(self.trouble(run(each), each) for each in draws), self

    def trouble(self, result: np.ndarray, arrays: list[np.ndarray]) -> str:
        reference = Attention.reference(*arrays, **self.params)
        wide = [array if array.dtype == np.bool_ else array.astype(np.float64) for array in arrays]
        oracle = reference if self.dtype == f64 else Attention.reference(*wide, **self.params)
        return judge(result, reference, oracle)


def compiled(trial: Trial, module: CpuModule | None = None, sizes: dict[str, int] | None = None) -> Run:
    """The code of a trial as a function of its arrays."""
    loaded = module or CpuModule([trial])
    return lambda arrays: loaded.run(trial, arrays, sizes or {})[0]


def check(*cases: Case) -> None:
    arrays = [case.arrays() for case in cases]
    trials = [case.trial(f"attention{i}", values) for i, (case, values) in enumerate(zip(cases, arrays, strict=True))]
    module = CpuModule(trials)
    for case, trial, values in zip(cases, trials, arrays, strict=True):
        case.check(compiled(trial, module), values)


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
def test_element_types(dtype: DType) -> None:
    check(Case((2, 3), 5, 7, 4, 6, dtype), Case((2,), 70, 300, 64, 64, dtype), Case((2,), 33, 65, 80, 80, dtype, True))


@pytest.mark.parametrize("causal", [False, True])
def test_odd_sizes(causal: bool) -> None:
    check(
        Case((), 1, 1, 1, 1, causal=causal),
        Case((2,), 17, 33, 8, 6, causal=causal),
        Case((1, 2), 130, 257, 16, 256, causal=causal),
        Case((3,), 64, 512, 256, 16, causal=causal),
        Case((2,), 300, 20, 32, 48, causal=causal),  # more queries than keys
        Case((2,), 33, 1, 8, 8, causal=causal),
    )


def test_one_query() -> None:
    check(Case((1, 12), 1, 700, 64, 64), Case((3,), 1, 40, 128, 128, bf16), Case((2,), 1, 1, 16, 16))


def test_without_keys_all_is_zero_and_without_queries_nothing() -> None:
    check(Case((2,), 33, 0, 8, 6), Case((2,), 0, 5, 8, 6), Case((2, 0), 3, 4, 2, 2))


def test_masks_of_numbers_and_of_booleans() -> None:
    rng = generator()
    chosen = rng.random((40, 300)) < 0.5
    chosen[3] = False  # a row without any key
    chosen[7, :290] = False  # one whose first blocks are empty
    added = np.where(chosen, rng.standard_normal((2, 40, 300)), -np.inf).astype(np.float32)
    for causal in (False, True):
        check(
            Case((2,), 40, 300, 32, 32, causal=causal, mask=chosen),
            Case((2,), 40, 300, 32, 32, causal=causal, mask=added),
            Case((2, 2), 40, 300, 32, 32, causal=causal, mask=chosen[None, None, 7:8].copy()),
            Case((2,), 40, 300, 32, 32, causal=causal, mask=chosen[:, 5:6].copy()),
            Case((2,), 1, 300, 32, 32, mask=chosen[9:10].copy()),
            Case((2,), 40, 300, 32, 32, bf16, causal, np.where(chosen, 0, -np.inf).astype(bf16.numpy)),
        )


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_sinks_and_rows_without_keys(dtype: DType) -> None:
    rng = generator()
    chosen = rng.random((40, 300)) < 0.5
    chosen[3] = False
    sinks = (3 * rng.standard_normal((2, 1, 1))).astype(dtype.numpy)

    def trouble(others: list[np.ndarray], params: dict[str, Any]) -> str:
        arrays = [*Case((2,), 40, 300, 32, 32, dtype).arrays(), *others]
        types = [Tensor(dtype_of_numpy(array.dtype), array.shape) for array in arrays]
        trial = Trial.of(group_of(types, lambda b, *values: b.attention(*values, **params)), "forms")
        (found,) = CpuModule([trial]).run(trial, arrays)
        wide = [array if array.dtype == np.bool_ else array.astype(np.float64) for array in arrays]
        expected = Attention.reference(*wide, **params)
        assert np.isnan(expected).any() == ("undefined" in params)
        return judge(found, Attention.reference(*arrays, **params), expected)

    for others, extra in (
        ([sinks], {"sinks": True}),
        ([chosen, sinks], {"sinks": True, "softcap": 2.0}),
        ([chosen, np.full_like(sinks, -np.inf)], {"sinks": True}),
        ([chosen], {"undefined": True}),
    ):
        given = others, {"causal": False, "scale": 0.3, **extra}
        assert not (trouble(*given) and trouble(*given)), "by chance in one draw, not in two"


def test_not_a_number_stays() -> None:
    case = Case((1,), 9, 40, 8, 8)
    arrays = case.arrays()
    arrays[0][0, 4, 2] = np.nan
    trial = case.trial("nan", arrays)
    run = compiled(trial)
    case.check(run, arrays)
    assert np.flatnonzero(np.isnan(run(arrays)[0]).any(-1)).tolist() == [4]


@pytest.mark.parametrize("causal", [False, True])
def test_symbolic_lengths(causal: bool) -> None:
    for queries, keys in [(1, 9), (65, 130), (200, 700), (5, 2)]:
        case = Case((2, 3), queries, keys, 64, 64, causal=causal)
        arrays = case.arrays()
        trial = case.trial("symbolic", arrays, {2: symbol("b"), queries: symbol("q"), keys: symbol("k")})
        case.check(compiled(trial, sizes={"b": 2, "q": queries, "k": keys}), arrays)


def test_heads_are_read_and_written_where_they_lie() -> None:
    """Keys and values in one array [B, S, 2, H, D], two query heads to a key head, the result as [B, S, H * D]."""
    batch, length, heads, width = 2, 50, 4, 16
    projected = generator().standard_normal((batch, length, 2, heads, width)).astype(np.float32)
    queries = generator().standard_normal((batch, length, 2 * heads, width)).astype(np.float32)

    def body(b: Any, q: Any, kv: Any) -> Any:
        k, v = (
            b.reshape(
                b.broadcast(
                    b.permute(
                        b.slice(kv, starts=(0, 0, part, 0, 0), shape=(batch, length, 1, heads, width), steps=(1,) * 5),
                        dims=(0, 3, 2, 1, 4),
                    ),
                    shape=(batch, heads, 2, length, width),
                ),
                shape=(batch, 2 * heads, length, width),
            )
            for part in (0, 1)
        )
        y = b.attention(b.permute(q, dims=(0, 2, 1, 3)), k, v, causal=True, scale=0.25)
        return b.reshape(b.permute(y, dims=(0, 2, 1, 3)), shape=(batch, length, 2 * heads * width))

    group = group_of([Tensor(f32, queries.shape), Tensor(f32, projected.shape)], body)
    trial = Trial.of(group, "heads")
    (result,) = CpuModule([trial]).run(trial, [queries, projected])
    key, value = (np.repeat(projected[:, :, part].transpose(0, 2, 1, 3), 2, 1) for part in (0, 1))
    reference, oracle = (
        Attention.reference(
            *(x.astype(dtype) for x in (queries.transpose(0, 2, 1, 3), key, value)), causal=True, scale=0.25
        )
        .transpose(0, 2, 1, 3)
        .reshape(result.shape)
        for dtype in (np.float32, np.float64)
    )
    assert not judge(result, reference, oracle)


def test_the_kernels_meaning_is_attention() -> None:
    mask = generator().random((20, 30)) < 0.7
    for case in (
        Case((2,), 20, 30, 8, 8, causal=True),
        Case((2,), 20, 30, 8, 8, mask=mask),
        Case((2,), 1, 30, 8, 8, bf16),
    ):
        arrays = case.arrays()
        trial = case.trial("meaning", arrays)
        case.check(lambda values, trial=trial: run_interpreted(trial, values)[0], arrays)


def test_heads_of_any_size() -> None:
    check(Case((2,), 70, 40, 600, 530), Case((2,), 1, 40, 1000, 3))
    case = Case((), 9, 33, 70, 90)
    arrays = case.arrays()
    trial = case.trial("unknown", arrays, {70: symbol("e"), 90: symbol("v")})
    case.check(compiled(trial, sizes={"e": 70, "v": 90}), arrays)


@pytest.mark.parametrize(
    ("cpu", "instruction"), [("skylake", r"vfmadd\w+ps.*%ymm"), ("skylake-avx512", r"vfmadd\w+ps.*%zmm")]
)
def test_code_for_x86_multiplies_and_adds_vectors(cpu: str, instruction: str) -> None:
    target = CpuTarget("x86_64-unknown-linux-gnu", cpu, "")
    tensors = [Tensor(f32, (12, 512, 64))] * 3 + [Tensor(boolean, (512, 512))]
    trial = Trial.of(group_of(tensors, lambda b, *v: b.attention(*v, causal=True, scale=0.125)), "attention")
    module = Module(target.triple)
    emit_kernel(module, trial.lowered.calls[0].kernel.op, target)
    assembly = compile_assembly(str(module), target)
    assert len(re.findall(instruction, assembly)) > 100
    assert not re.findall(r"call\w*\s+.*(exp|fma|memcpy)", assembly)
