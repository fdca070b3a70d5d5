"""Which products a library takes: by their type, their sizes, and whether what they multiply by can be packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.cpu.target import CpuTarget
from weft.config import Config
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, Tensor, bf16, f16, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.matmul.dot import Dot
from weft.passes.claim_libraries import ClaimLibraries
from weft.passes.grouping.build_groups import CLAIM
from weft.pipelines import cpu_passes, cpu_passes_for


def is_claimed(pass_: ClaimLibraries, dtype: DType, m: int, k: int, n: int, *, frozen: bool = False) -> bool:
    function = FuncOp.make("f", {"x": Tensor(dtype, (m, k)), "w": Tensor(dtype, (k, n))})
    if frozen:
        function.attributes["constants"] = to_attribute((1,))
    b: Any = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.dot(*function.block.args)]))
    pass_.apply(Context(), ModuleOp([function]))
    (dot,) = (op for op in function.block.ops if isinstance(op, Dot))
    return CLAIM in dot.attributes


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
def test_blas_takes_what_it_has_routines_for(dtype: DType) -> None:
    assert is_claimed(ClaimLibraries(), dtype, 256, 256, 256) == (dtype == f32)


def test_a_framework_with_matrix_tiles_takes_bf16_that_fills_them() -> None:
    tiles = ClaimLibraries(matrix_tiles=True)
    assert is_claimed(tiles, bf16, 256, 256, 256)
    assert not any(is_claimed(tiles, bf16, *sides) for sides in ((1, 256, 256), (256, 4, 256), (256, 256, 8)))
    assert not is_claimed(tiles, f16, 256, 256, 256) and is_claimed(tiles, f32, 256, 256, 256)


def test_a_call_of_the_framework_is_for_products_that_take_longer_than_it() -> None:
    tiles = ClaimLibraries(matrix_tiles=True)
    assert not is_claimed(tiles, bf16, 19, 64, 256)
    assert is_claimed(tiles, bf16, 128, 128, 128) and not is_claimed(tiles, bf16, 128, 128, 96)


def test_a_framework_with_matrix_tiles_takes_them_also_where_there_is_no_blas() -> None:
    config = Config()
    (tiles,) = (p for p in cpu_passes(config, blas=False, matrix_tiles=True) if isinstance(p, ClaimLibraries))
    assert is_claimed(tiles, bf16, 256, 256, 256) and not is_claimed(tiles, f32, 256, 256, 256)
    (none,) = (p for p in cpu_passes(config, blas=False) if isinstance(p, ClaimLibraries))
    assert not any(is_claimed(none, dtype, 256, 256, 256) for dtype in (f32, bf16))


@pytest.mark.parametrize(("cpu", "many"), [("x86-64-v4", False), ("x86-64-v3", True)])
def test_packed_weights_are_multiplied_by_own_kernels_up_to_as_many_rows_as_they_are_fast_for(
    cpu: str, many: bool
) -> None:
    target = CpuTarget("x86_64-unknown-linux-gnu", cpu, "")
    (claims,) = (p for p in cpu_passes_for(Config(), target) if isinstance(p, ClaimLibraries))
    claims = replace(claims, blas=True)
    assert not is_claimed(claims, f32, 128, 256, 256, frozen=True)
    assert is_claimed(claims, f32, 129, 256, 256, frozen=True) != many
    assert is_claimed(claims, f32, 129, 256, 256)
