"""Every op's sharding rule holds: on parts of its operands it gives parts, or summands, of its results."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.reference.graph import run
from weft.backends.reference.ranks import part_of, run_ranks, whole_of
from weft.ir.sharding import Mesh, Sharding, Split
from weft.ir.types import Tensor, dtype_of_numpy, f32, i64
from weft.ops.base import REGISTRY, GraphOp, OpSpec
from weft.ops.collectives import AllGather, AllToAll
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.ops.samples import Sample
from weft.ops.sharding_rules import ShardingRule, rule_of, sharding_rule
from weft.passes.sharding.annotations import ARGS, OUT, RESULTS, set_mesh, set_shardings
from weft.passes.sharding.factor_splits import sharding_by
from weft.passes.sharding.partition import Partition

SAMPLES_OF_AN_OP = 4


def programs(spec: OpSpec) -> list[tuple[FuncOp, ShardingRule, list[np.ndarray]]]:
    """The op on some of its samples, those whose rules differ."""
    found: dict[str, Any] = {}
    for sample in spec.samples:
        function, arrays = program(spec, sample)
        op = next(op for op in function.block.ops if isinstance(op, GraphOp))
        rule = rule_of(op)
        if len(found) < SAMPLES_OF_AN_OP:
            found.setdefault(str(rule), (function, rule, arrays))
    return list(found.values())


def program(spec: OpSpec, sample: Sample) -> tuple[FuncOp, list[np.ndarray]]:
    dtype = sample.dtypes[0] if sample.dtypes else f32
    rng = np.random.default_rng(3)
    arrays = [source.array(rng, dtype) for source in sample.inputs]
    function = FuncOp.make("f", {f"x{n}": Tensor(dtype_of_numpy(x.dtype), x.shape) for n, x in enumerate(arrays)})
    b = GraphBuilder(function.block)
    made = b.emit(spec.name, *function.block.args, **sample.params)
    b.insert(ReturnOp.make(made if isinstance(made, tuple) else (made,)))
    return function, arrays


def parts_of(arrays: list[np.ndarray], shardings: list[Sharding], mesh: Mesh, rank: int) -> list[np.ndarray]:
    return [part_of(array, sharding, mesh, rank) for array, sharding in zip(arrays, shardings, strict=True)]


def divisor(size: Any) -> int | None:
    return next((n for n in (2, 3, 5, 7, 11) if isinstance(size, int) and size and size % n == 0), None)


@pytest.mark.parametrize("spec", list(REGISTRY), ids=lambda spec: spec.name)
def test_parts_of_operands_give_parts_of_results(spec: OpSpec) -> None:
    for whole, rule, arrays in programs(spec):
        expected = run(whole, arrays)
        for factor, size in rule.sizes.items():
            ranks = divisor(size)
            if ranks is None or factor in rule.fixed:
                continue
            function, mesh = whole.clone(), Mesh.of(x=ranks)
            split = {factor: (Split("x"),)}
            arguments = [sharding_by(split, dims, rule.sizes, mesh) for dims in rule.operands]
            results = [sharding_by(split, dims, rule.sizes, mesh) for dims in rule.results]
            set_mesh(function, mesh)
            set_shardings(function, ARGS, arguments)
            op = next(op for op in function.block.ops if isinstance(op, GraphOp))
            set_shardings(op, OUT, results)
            set_shardings(function, RESULTS, results)
            module = module_of(function)
            Partition().apply(Context(), module)
            module.verify()
            local = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
            assert not any(isinstance(op, AllGather | AllToAll) for op in local.block.ops), (factor, str(rule))
            got = run_ranks(local, mesh, partial(parts_of, arrays, arguments, mesh))
            for number, (array, sharding) in enumerate(zip(expected, results, strict=True)):
                actual = whole_of([parts[number] for parts in got], sharding, mesh)
                np.testing.assert_allclose(
                    actual.astype(np.float64) if actual.dtype.kind == "V" else actual,
                    array.astype(np.float64) if array.dtype.kind == "V" else array,
                    rtol=2e-2 if array.dtype.itemsize < 4 else 1e-5,
                    atol=1e-4,
                    err_msg=f"{factor} of {rule}",
                )


def of(name: str, *tensors: Tensor, **params: Any) -> str:
    cls = REGISTRY[name].cls
    results = cls.infer(*tensors, **params)
    return str(sharding_rule(cls, tensors, results if isinstance(results, tuple) else (results,), params))


def test_rules_are_read_off_index_maps() -> None:
    x, y = Tensor(f32, (6, 4)), Tensor(f32, (4, 8))
    assert of("dot", x, y) == "(m,k), (k,n) -> (m,n) sum k"
    assert of("permute", x, dims=(1, 0)) == "(i1,i0) -> (i0,i1)"
    assert of("take", x, Tensor(i64, (2, 3)), dim=0) == "(1,i2), (i0,i1) -> (i0,i1,i2)"
    assert of("sum", x, dims=(0,), keep=False) == "(k0,i0) -> (i0) sum k0"
    assert of("reshape", x, shape=(3, 2, 4)) == "(r0_0*r0_1,r1) -> (r0_0,r0_1,r1)"
    assert of("slice", y, starts=(0, 4), shape=(4, 4), steps=(1, 1)) == "(i0,b1*i1) -> (i0,i1)"
    assert of("roll", x, shifts=(1,), dims=(0,)) == "(1,i1) -> (1,i1)"


def test_an_update_that_is_added_is_a_sum() -> None:
    x, index, updates = Tensor(f32, (9, 4)), Tensor(i64, (6,)), Tensor(f32, (6, 4))
    params = {"dims": (0,), "position": 0}
    assert of("index_put", x, index, updates, accumulate=True, **params) == "(1,u1), (u0), (u0,u1) -> (1,u1) sum u0"
    assert of("index_put", x, index, updates, accumulate=False, **params) == "(1,u1), (1), (1,u1) -> (1,u1)"
