"""Kernels that are scheduled for a GPU compute what their groups say, whatever the schedule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

import weft.ops  # noqa: F401  (fills the registry)
from weft.errors import ShapeError
from weft.ir.expr import Size, product, symbol
from weft.ir.types import Tensor, bf16, dtype_of_numpy, f32
from weft.lower.machine import Machine, gpu_machine
from weft.ops.base import REGISTRY, Elementwise, GraphOp, Movement, OpSpec, Reduction, Scan, Scatter
from weft.ops.graph import GraphBuilder, GroupOp
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.op_cases import judge, op_cases

GPU = gpu_machine()
SMALL = replace(gpu_machine(2, clusters=False), tile_elements=64, row_elements=128, lanes=8)
"""A GPU on which small tensors are large."""

OPS = [spec for spec in REGISTRY if issubclass(spec.cls, Elementwise | Movement | Reduction | Scan | Scatter)]
DYNAMIC = [
    spec for spec in OPS if not issubclass(spec.cls, Elementwise) or spec.name in ("add", "exp", "where", "cast")
]


@pytest.mark.parametrize("machine", [GPU, SMALL], ids=["gpu", "small"])
@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_ops(spec: OpSpec, machine: Machine) -> None:
    if machine is SMALL and issubclass(spec.cls, Elementwise):
        pytest.skip("all elementwise ops are the same to a schedule")
    cases = op_cases(spec)
    found = [case.complaint(run_interpreted(case.trial(machine), case.arrays())) for case in cases]
    assert not (wrong := [text for text in found if text]), "\n".join(wrong)


@pytest.mark.parametrize("machine", [GPU, SMALL], ids=["gpu", "small"])
@pytest.mark.parametrize("spec", DYNAMIC, ids=lambda spec: spec.name)
def test_ops_of_symbolic_sizes(spec: OpSpec, machine: Machine) -> None:
    for case in op_cases(spec, dynamic=True):
        try:
            trial = case.trial(machine)
        except ShapeError:
            continue  # parameters like the shape of a reshape do not change with the operand's sizes
        assert not case.complaint(run_interpreted(trial, case.arrays(), case.symbols))


# -- groups ----------------------------------------------------------------------------------------------------------


def mean(b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], count: int) -> SSAValue:
    return b.mul(b.sum(x, dims=dims, keep=True), b.full(value=1 / count, shape=(), dtype=f32))


def softmax(b: GraphBuilder, x: SSAValue, dim: int = 1) -> SSAValue:
    e = b.exp(b.sub(x, b.max(x, dims=(dim,), keep=True)))
    return b.div(e, b.sum(e, dims=(dim,), keep=True))


def softmax_over_rows(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return softmax(b, x, 0)


def normalized(b: GraphBuilder, x: SSAValue) -> list[SSAValue]:
    """Two stages, outputs of rows and of all."""
    scaled = b.mul(x, b.full(value=2.0, shape=(), dtype=f32))
    m = b.sum(scaled, dims=(1,), keep=True)
    d = b.sub(scaled, m)
    v = b.sum(b.mul(d, d), dims=(1,), keep=True)
    return [scaled, b.mul(d, b.rsqrt(v)), v, b.neg(m)]


def sums_and_more(b: GraphBuilder, x: SSAValue) -> list[SSAValue]:
    y = b.exp(x)
    return [y, b.sum(y, dims=(0,), keep=False), b.max(x, dims=(0,), keep=False)]


def all_of_it(b: GraphBuilder, x: SSAValue) -> list[SSAValue]:
    return [b.sum(x, dims=(0, 1), keep=False), b.prod(b.abs(x), dims=(0, 1), keep=False)]


def bytes_sum(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.sum(b.cast(x, dtype=bf16), dims=(0, 1), keep=False)


def first_best(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.argmax(b.floor(x), dims=(1,), keep=False)


def best_row(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.argmin(b.floor(x), dims=(0,), keep=True)


def best_of_all(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.argmax(b.floor(x), dims=(0, 1), keep=False)


def turned(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.exp(b.permute(x, dims=(1, 0)))


def constant_rows(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """What is summed is the same along a row."""
    first = b.slice(x, starts=(0, 0), shape=(b.tensor(x).shape[0], 1), steps=(1, 1))
    return b.sum(b.broadcast(first, shape=b.tensor(x).shape), dims=(1,), keep=False)


BODIES: list[Callable[..., Any]] = [
    softmax,
    softmax_over_rows,
    normalized,
    sums_and_more,
    all_of_it,
    bytes_sum,
    first_best,
    best_row,
    best_of_all,
    turned,
    constant_rows,
]
SHAPES = [(5, 7), (1, 1000), (700, 3), (33, 200), (300, 70), (2, 5000)]


def oracle(group: GroupOp, arrays: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each result, by the meaning of the graph ops, and with all floats in float64."""
    both: list[list[np.ndarray]] = []
    for wide in (False, True):
        values: dict[SSAValue, np.ndarray] = {}
        for argument, array in zip(group.block.args, arrays, strict=True):
            values[argument] = array.astype(np.float64) if wide and array.dtype == np.float32 else array
        for op in group.block.ops:
            if not isinstance(op, GraphOp):
                continue
            params = dict(op.params)
            if wide and params.get("dtype") in (f32, bf16):
                params["dtype"] = dtype_of_numpy(np.dtype(np.float64))
            rule: Any = type(op)
            made = rule.reference(*(values[operand] for operand in op.operands), **params)
            results = made if isinstance(made, tuple) else (made,)
            values.update(zip(op.results, map(np.asarray, results), strict=True))
        both.append([values[value] for value in group.yielded])
    return list(zip(*both, strict=True))


def check(body: Callable[..., Any], shape: tuple[int, int], machine: Machine, dynamic: bool) -> Trial:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32) * 4
    if body is all_of_it:
        x = 1 + x / 1e5
    told: tuple[Size, ...] = (symbol("n"), symbol("m")) if dynamic else shape
    trial = Trial.of(group_of([Tensor(f32, told)], body), body.__name__, machine)
    found = run_interpreted(trial, [x], {"n": shape[0], "m": shape[1]})
    plain = group_of([Tensor(f32, shape)], body)
    for actual, (reference, wide) in zip(found, oracle(plain, [x]), strict=True):
        assert not judge(actual, reference, wide), (judge(actual, reference, wide), trial.lowered.calls[0].kernel.op)
    return trial


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_groups(body: Callable[..., Any], shape: tuple[int, int]) -> None:
    check(body, shape, GPU, dynamic=False)
    check(body, shape, SMALL, dynamic=False)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_groups_of_symbolic_sizes(body: Callable[..., Any], shape: tuple[int, int]) -> None:
    check(body, shape, GPU, dynamic=True)
    check(body, shape, SMALL, dynamic=True)


@pytest.mark.parametrize(("rows", "columns", "programs"), [(512, 32, 128), (96, 8, 6), (4, 32, 1), (5, 128, 5)])
def test_short_rows_share_a_warp(rows: int, columns: int, programs: int) -> None:
    """Lanes would else have nothing to do; longer rows are a program each while there are few."""
    trial = Trial.of(group_of([Tensor(f32, (rows, columns))], softmax), "rows", GPU)
    assert product(trial.lowered.calls[0].kernel.op.grid.data) == programs
