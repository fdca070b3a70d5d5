"""Tangents of attention in heads wider than 128: a kernel of attention, then one that makes its weights again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.seeds import generator
from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.warp_specialization import PingPongBarrierOp, WarpSpecializeOp
from weft.backends.nvidia.target import target_named
from weft.ir.expr import evaluate, product
from weft.ir.types import DTYPES, DType, Tensor, bf16, boolean, f16
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile import dialect as tile

from ..ptx_machine import Memory
from ..ptx_roles import Box, run_roles
from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
Shape = tuple[int, ...]


def tangents(
    heads: int,
    rows: int,
    keys: int,
    width: int,
    *,
    causal: bool,
    moved: str = "qkv",
    dtype: DType = bf16,
    mask: DType | None = None,
    shared: int = 1,
    across: int | None = None,
    undefined: bool = False,
    of: Any = tuple,
) -> Trial:
    """A group of attention with its tangent, in which so many heads share keys; it gives what `of` picks."""
    across = across or width
    lead = (heads // shared, shared)
    tensors = {
        "q": Tensor(dtype, (*lead, rows, width)),
        "k": Tensor(dtype, (lead[0], 1, keys, width)),
        "v": Tensor(dtype, (lead[0], 1, keys, across)),
    }
    given = [*tensors.values(), *(tensors[letter] for letter in moved)]
    given += [] if mask is None else [Tensor(mask, (rows, keys))]

    def body(b, *operands):  # type: ignore[no-untyped-def]
        def spread(x):  # type: ignore[no-untyped-def]
            tensor = b.tensor(x)
            return b.emit("broadcast", x, shape=(*lead, *tensor.shape[2:])) if tensor.rank == 4 else x

        every = {"causal": causal, "scale": width**-0.5, "moved": moved, **({"undefined": True} if undefined else {})}
        return of(b.attention_with_tangent(*map(spread, operands), **every))

    return Trial.of(group_of(given, body), "attention", gpu_machine())


def drawn(trial: Trial) -> list[np.ndarray]:
    draw = generator()
    arrays: list[np.ndarray] = []
    for tensor in trial.inputs:
        numbers = draw.standard_normal(tuple(map(int, tensor.shape)))
        arrays.append(numbers > 0 if tensor.dtype == boolean else numbers.astype(tensor.dtype.numpy))
    if len(trial.inputs[-1].shape) == 2:  # a row without any key
        arrays[-1][3] = False if trial.inputs[-1].dtype == boolean else -np.inf
    return arrays


def exact(arrays: list[np.ndarray], **params: Any) -> list[np.ndarray]:
    """What float64 gives, of operands whose heads have keys of their own."""
    lead = arrays[0].shape[:2]
    wide = [
        a if a.dtype == np.bool_ else np.broadcast_to(a, (*lead, *a.shape[2:]) if a.ndim == 4 else a.shape)
        for a in (a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays)
    ]
    rule = REGISTRY["attention_with_tangent"].cls.reference
    return list(rule(*wide, scale=arrays[0].shape[-1] ** -0.5, **params))


def are_close(found: list[np.ndarray], wanted: list[np.ndarray], dtype: DType) -> None:
    for one, other in zip(found, wanted, strict=True):
        seen = np.isfinite(other)
        assert np.array_equal(np.isfinite(one.astype(np.float64)), seen)
        error = np.linalg.norm(one.astype(np.float64)[seen] - other[seen])
        assert error <= (4e-3 if dtype == bf16 else 5e-4) * np.linalg.norm(other[seen])


def run_as_ptx(trial: Trial, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results by a machine of the CPU, on which persistent kernels have two blocks."""
    memory = Memory()

    def untouched(tensors: Any) -> list[tuple[int, np.ndarray]]:
        shapes = [tuple(map(int, tensor.shape)) for tensor in tensors]
        filled = [np.nan if tensor.dtype.is_float else 0xA5 for tensor in tensors]
        made = [np.full(s, f, t.dtype.numpy) for s, f, t in zip(shapes, filled, tensors, strict=True)]
        return [(memory.add(array), array) for array in made]

    outputs, scratch = untouched(trial.outputs), untouched(trial.lowered.scratch)
    places = {"input": [memory.add(array) for array in arrays]}
    places |= {"output": [place for place, _ in outputs], "scratch": [place for place, _ in scratch]}
    for call in trial.lowered.calls:
        name = call.kernel.op.sym_name.data
        code = compile_kernels({name: call.kernel.op}, TARGET)
        launch, words = code.launches[name], [places[each.role][each.number] for each in call.arguments]
        boxes = [
            Box(words[m.argument], tuple(map(int, m.sizes)), tuple(map(int, m.strides)), m.box, DTYPES[m.dtype].bytes)
            for m in launch.maps
        ]
        programs = evaluate(product(call.kernel.op.grid.data), {})
        blocks = min(2, programs) if launch.persistent else programs
        run_roles(code.ptx, name, launch.threads, launch.shared, memory, words, blocks, boxes)
    return [memory.read(place, like) for place, like in outputs]


CASES: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = [
    ((1, 133, 197, 192), {"causal": False}),
    ((4, 197, 197, 256), {"causal": True, "shared": 4, "dtype": f16}),
    ((2, 65, 100, 160), {"causal": True, "shared": 2}),
    ((1, 130, 197, 144), {"causal": False, "moved": "v"}),
    ((1, 130, 70, 208), {"causal": True, "moved": "q"}),
    ((1, 70, 66, 256), {"causal": False, "moved": "kv"}),
    ((1, 90, 170, 192), {"causal": False, "moved": "qk", "mask": bf16}),
    ((2, 150, 140, 256), {"causal": True, "mask": boolean}),
    ((1, 70, 90, 64), {"causal": False, "across": 200}),
    ((1, 130, 90, 256), {"causal": True, "across": 128}),
]


@pytest.mark.parametrize(("sizes", "given"), CASES)
def test_the_tile_kernels_are_attention_and_its_tangent(
    sizes: tuple[int, int, int, int], given: dict[str, Any]
) -> None:
    trial = tangents(*sizes, **given)
    names = [call.kernel.op.sym_name.data for call in trial.lowered.calls]
    assert names == ([] if given.get("across") == 128 else ["attention_values"]) + ["attention"]
    arrays = drawn(trial)
    wanted = exact(arrays, causal=given["causal"], moved=given.get("moved", "qkv"))
    are_close(run_interpreted(trial, arrays), wanted, given.get("dtype", bf16))


@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        ((2, 70, 101, 192), {"causal": True, "shared": 2}),
        ((1, 66, 99, 256), {"causal": False, "dtype": f16}),
        ((1, 67, 50, 208), {"causal": True, "mask": boolean}),
    ],
)
def test_their_machine_code_is_too(sizes: tuple[int, int, int, int], given: dict[str, Any]) -> None:
    trial = tangents(*sizes, **given)
    arrays = drawn(trial)
    are_close(run_as_ptx(trial, arrays), exact(arrays, causal=given["causal"], moved="qkv"), given.get("dtype", bf16))


def test_a_row_without_keys_may_be_undefined() -> None:
    trial = tangents(1, 70, 90, 192, causal=False, mask=boolean, undefined=True)
    arrays = drawn(trial)
    found = run_interpreted(trial, arrays)
    are_close(found, exact(arrays, causal=False, moved="qkv", undefined=True), bf16)
    assert all(np.isnan(each[..., 3, :] if each.ndim == 4 else each[..., 3]).all() for each in found[2:])


@pytest.mark.parametrize("asked", [(2,), (3, 2), (0, 2), (1, 0, 0)])
def test_what_nobody_asks_for_of_attention_is_kept_beside(asked: tuple[int, ...]) -> None:
    trial = tangents(1, 70, 90, 192, causal=True, of=lambda results: [results[number] for number in asked])
    assert len(trial.lowered.scratch) == len({0, 1} - set(asked))
    arrays = drawn(trial)
    wanted = exact(arrays, causal=True, moved="qkv")
    are_close(run_interpreted(trial, arrays), [wanted[number] for number in asked], bf16)


@needs_ptxas
@pytest.mark.parametrize("width", [192, 256])
@pytest.mark.parametrize(("causal", "dtype"), [(False, bf16), (True, f16)])
def test_they_assemble_without_spills(width: int, causal: bool, dtype: DType) -> None:
    calls = tangents(64, 4000, 4000, width, causal=causal, dtype=dtype, shared=4).lowered.calls
    assert len(calls) == 2
    for call in calls:
        name = call.kernel.op.sym_name.data
        code = compile_kernels({name: call.kernel.op}, TARGET).ptx
        assert "wgmma.mma_async" in code
        found = assemble(code, TARGET.arch)
        assert not found.error and not found.advice
        assert found.kernels[name].spilled == found.kernels[name].stack == 0


@pytest.mark.parametrize(("width", "causal", "stages"), [(192, True, [2, 2, 2, 1]), (256, False, [1, 1, 1, 1])])
def test_keys_and_values_come_by_rings_of_their_own(width: int, causal: bool, stages: list[int]) -> None:
    *_, call = tangents(2, 700, 700, width, causal=causal).lowered.calls
    kernel, launch = annotate(call.kernel.op, TARGET)
    assert launch.persistent and launch.threads == 384
    (roles,) = [op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)]
    assert [ring.count for ring in roles.rings if ring.stage_bytes < 128 * width * 2] == stages
    # Where a stage is the only one, no consumer waits for its turn, and no dot waits for the next iteration.
    assert not any(isinstance(op, PingPongBarrierOp) for op in kernel.walk())
    loops = [op for op in roles.consumer.block.walk() if isinstance(op, tile.ForOp) and op.initial]
    assert loops and all(len(loop.initial) == 2 for loop in loops)
    for block in range(3):
        check(protocol_of(kernel, block=block, blocks=3), runs=5)


@pytest.mark.parametrize("width", [320, 576])
def test_heads_wider_than_tiles_are_no_tile_of_tensor_cores(width: int) -> None:
    trial = tangents(1, 33, 50, width, causal=False)
    arrays = drawn(trial)
    are_close(run_interpreted(trial, arrays), exact(arrays, causal=False, moved="qkv"), bf16)
