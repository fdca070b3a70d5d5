"""The gradients of attention: the tile kernels give the right numbers; what is made of them assembles."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.backends.nvidia.ir.wgmma import WgmmaWaitOp
from weft.backends.nvidia.target import target_named
from weft.errors import LoweringError
from weft.ir.types import DType, Tensor, bf16, f16, f32
from weft.lower.machine import CPU, Machine, gpu_machine
from weft.ops.base import REGISTRY
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted

from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
Shape = tuple[int, ...]
WIDE: list[tuple[Shape, Shape, bool]] = [
    ((1, 1, 4, 131, 192), (1, 1, 143, 192), True),
    ((1, 1, 4, 71, 256), (1, 1, 131, 256), True),
    ((1, 1, 2, 70, 160), (1, 1, 75, 160), False),
    ((1, 1, 1, 67, 208), (1, 1, 73, 208), True),
]
SHAPES: list[tuple[Shape, Shape, bool]] = [
    ((1, 2, 1, 256, 64), (1, 2, 256, 64), False),
    ((1, 2, 1, 300, 64), (1, 2, 333, 64), True),
    ((1, 2, 2, 200, 128), (1, 2, 333, 128), True),
    ((1, 1, 3, 333, 96), (1, 1, 200, 96), False),
    ((2, 1, 2, 70, 16), (2, 1, 500, 16), True),
    *WIDE,
]


def tensors(query: Shape, key: Shape, dtype: DType) -> list[Tensor]:
    rows = Tensor(f32, query[:-1])
    return [Tensor(dtype, query), Tensor(dtype, query), Tensor(dtype, key), Tensor(dtype, key), rows, rows]


def gradients(
    query: Shape, key: Shape, *, causal: bool, dtype: DType = bf16, machine: Machine | None = None, name: str = "g"
) -> Trial:
    """Gradients for query heads in groups: [..., members, rows, width] of [..., keys, width]."""
    scale = query[-1] ** -0.5
    group = group_of(
        tensors(query, key, dtype), lambda b, *operands: b.attention_gradients(*operands, causal=causal, scale=scale)
    )
    return Trial.of(group, name, machine or gpu_machine())


def drawn(query: Shape, key: Shape, dtype: DType) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(t.shape).astype(t.dtype.numpy) for t in tensors(query, key, dtype)]  # type: ignore[arg-type]
    arrays[4] += 4
    return arrays


def errors(found: list[np.ndarray], arrays: list[np.ndarray], causal: bool) -> list[float]:
    wide = [array.astype(np.float64) for array in arrays]
    exact = REGISTRY["attention_gradients"].cls.reference(*wide, causal=causal, scale=arrays[1].shape[-1] ** -0.5)
    return [
        float(np.linalg.norm(a.astype(np.float64) - e) / np.linalg.norm(e)) for a, e in zip(found, exact, strict=True)
    ]


@pytest.mark.parametrize(("query", "key", "causal"), SHAPES)
@pytest.mark.parametrize("machine", [CPU, gpu_machine()], ids=["cpu", "gpu"])
def test_the_tile_kernels_give_the_gradients(query: Shape, key: Shape, causal: bool, machine: Machine) -> None:
    arrays = drawn(query, key, bf16)
    found = run_interpreted(gradients(query, key, causal=causal, machine=machine), arrays)
    assert max(errors(found, arrays, causal)) < 4e-3


def test_machine_code_of_a_processor_gives_the_gradients() -> None:
    single = ((2, 3, 1, 5), (2, 1, 5), True)  # a query, and a key
    cases = [
        (shapes, gradients(*shapes[:2], causal=shapes[2], dtype=f32, machine=CPU, name=f"g{number}"))
        for number, shapes in enumerate([*SHAPES[1:4], single])
    ]
    module = CpuModule([trial for _, trial in cases])
    for (query, key, causal), trial in cases:
        arrays = drawn(query, key, f32)
        assert max(errors(module.run(trial, arrays), arrays, causal)) < 1e-5


@needs_ptxas
@pytest.mark.parametrize("width", [64, 128, 192, 256])
@pytest.mark.parametrize(("causal", "dtype"), [(False, bf16), (True, f16)])
def test_the_gradients_assemble_without_spills(width: int, causal: bool, dtype: DType) -> None:
    for call in gradients((4, 8, 4, 4000, width), (4, 8, 4096, width), causal=causal, dtype=dtype).lowered.calls:
        name = call.kernel.op.sym_name.data
        code = compile_kernels({name: call.kernel.op}, TARGET).ptx
        assert ("wgmma.mma_async" in code) == (name not in ("g_rows", "g_sums"))
        found = assemble(code, TARGET.arch)
        assert not found.error and not found.advice
        assert found.kernels[name].spilled == 0


@pytest.mark.parametrize(("causal", "members"), [(False, 1), (True, 2)])
def test_a_block_is_brought_once_for_both_of_its_products(causal: bool, members: int) -> None:
    lowered = gradients((1, 2, members, 700, 64), (1, 2, 700, 64), causal=causal).lowered
    for call in lowered.calls[1:3]:
        kernel, _ = annotate(call.kernel.op, TARGET)
        (roles,) = [op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)]
        # Two tiles are held, two are brought each turn, though they are factors of three products or four.
        assert len(roles.rings) == 4
        assert all(len(ring.slots) == 1 for ring in roles.rings)
        assert 1 in [op.pending.value.data for op in kernel.walk() if isinstance(op, WgmmaWaitOp)]
        for block in range(3):
            check(protocol_of(kernel, block=block, blocks=3), runs=5)


@pytest.mark.parametrize(("heads", "causal", "persistent"), [(8, True, False), (8, False, True), (2, True, True)])
def test_few_programs_of_unequal_length_go_to_whichever_multiprocessor_is_free(
    heads: int, causal: bool, persistent: bool
) -> None:
    shape = (4, heads, 1024, 64)
    lowered = gradients((4, heads, 1, 1024, 64), shape, causal=causal).lowered
    assert [annotate(call.kernel.op, TARGET)[1].persistent for call in lowered.calls[1:]] == [persistent] * 2


@pytest.mark.parametrize(
    ("query", "key", "causal", "parts"),
    [
        ((1, 1, 4, 90, 128), (1, 1, 130, 128), True, 4),
        ((1, 1, 8, 35, 192), (1, 1, 70, 192), False, 8),
        ((64, 2, 8, 1024, 64), (64, 2, 1024, 64), True, 1),
    ],
)
def test_heads_that_share_few_keys_are_summed_up_in_parts(query: Shape, key: Shape, causal: bool, parts: int) -> None:
    trial = gradients(query, key, causal=causal)
    assert [tensor.shape[-3] for tensor in trial.lowered.scratch[2:]] == ([parts] * 2 if parts > 1 else [])
    assert (trial.lowered.calls[-1].kernel.op.sym_name.data == "g_sums") == (parts > 1)
    if parts > 1:
        arrays = drawn(query, key, bf16)
        found = run_interpreted(trial, arrays)
        assert max(errors(found, arrays, causal)) < 4e-3
        again = run_interpreted(trial, arrays)
        assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize(("width", "across"), [(192, 128), (128, 64)])
def test_values_may_be_narrower_than_keys_whose_heads_are_in_parts(width: int, across: int) -> None:
    query, key = (1, 1, 4, 75, width), (1, 1, 83, width)
    given = [
        Tensor(t.dtype, (*t.shape[:-1], across)) if place in (0, 3) else t
        for place, t in enumerate(tensors(query, key, bf16))
    ]
    group = group_of(given, lambda b, *operands: b.attention_gradients(*operands, causal=True, scale=0.1))
    trial = Trial.of(group, "g", gpu_machine())
    names = [call.kernel.op.sym_name.data for call in trial.lowered.calls]
    assert names == ["g_rows", *["g_values"][: width > 128], "g_keys", "g_queries", "g_keys_sums", "g_values_sums"]
    arrays = drawn(query, key, bf16)
    arrays = [np.ascontiguousarray(a[..., :across]) if place in (0, 3) else a for place, a in enumerate(arrays)]
    exact = REGISTRY["attention_gradients"].cls.reference(
        *(a.astype(np.float64) for a in arrays), causal=True, scale=0.1
    )
    for found, wanted in zip(run_interpreted(trial, arrays), exact, strict=True):
        assert np.linalg.norm(found.astype(np.float64) - wanted) < 4e-3 * np.linalg.norm(wanted)


def test_parts_are_of_what_is_asked_for() -> None:
    def body(b, *operands):  # type: ignore[no-untyped-def]
        return b.attention_gradients(*operands, causal=False, scale=0.1)[2]

    query, key = (1, 1, 4, 130, 64), (1, 1, 150, 64)
    trial = Trial.of(group_of(tensors(query, key, bf16), body), "g", gpu_machine())
    assert [call.kernel.op.sym_name.data for call in trial.lowered.calls] == ["g_rows", "g_keys", "g_sums"]
    arrays = drawn(query, key, bf16)
    exact = REGISTRY["attention_gradients"].cls.reference(
        *(each.astype(np.float64) for each in arrays), causal=False, scale=0.1
    )
    (found,) = run_interpreted(trial, arrays)
    assert np.linalg.norm(found - exact[2]) < 4e-3 * np.linalg.norm(exact[2])


@pytest.mark.parametrize(("query", "key", "causal"), WIDE)
def test_keys_and_values_of_wide_heads_are_apart(query: Shape, key: Shape, causal: bool) -> None:
    calls = gradients(query, key, causal=causal).lowered.calls
    names = [call.kernel.op.sym_name.data for call in calls]
    assert names[:4] == ["g_rows", "g_values", "g_keys", "g_queries"]
    for call in calls[1:4]:
        kernel, _ = annotate(call.kernel.op, TARGET)
        check(protocol_of(kernel, block=1, blocks=3), runs=5)


def test_nothing_follows_the_gradients_in_their_kernels() -> None:
    def body(b, *operands):  # type: ignore[no-untyped-def]
        return b.neg(b.attention_gradients(*operands, causal=False, scale=1.0)[0])

    with pytest.raises(LoweringError, match="after attention_gradients"):
        Trial.of(group_of(tensors((1, 8, 4), (8, 4), f32), body), "g", CPU)


def test_gradients_that_nobody_needs_have_no_kernel() -> None:
    def body(b, *operands):  # type: ignore[no-untyped-def]
        return b.attention_gradients(*operands, causal=False, scale=1.0)[0]

    trial = Trial.of(group_of(tensors((1, 8, 4), (8, 4), f32), body), "g", CPU)
    assert [call.kernel.op.sym_name.data for call in trial.lowered.calls] == ["g_rows", "g_queries"]
