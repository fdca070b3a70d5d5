"""The suite `memory`: work bound by memory, in bf16 and some in f32, against a copy that moves the same bytes.

Bytes count every input read once and every output written once.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn import functional as F

from weft.testing.bench.benchmark import Call, Contender, own_code
from weft.testing.bench.benchmark_ops import rope
from weft.testing.gpu.case import BF16_ERROR, F32_ERROR, GpuCase, Place, Work
from weft.testing.gpu.peers import eager, inductors

BF16, F32 = torch.bfloat16, torch.float32
SHAPES = ((16384, 4096), (8192, 8192), (32768, 1024))
SOFTMAX_COLUMNS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SOFTMAX_ELEMENTS = 1 << 28
VOCABULARY = 128256


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    return (wide * scale).to(x.dtype) * weight, total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def swiglu(both: Tensor) -> Tensor:
    half = both.shape[-1] // 2
    return F.silu(both[:, :half]) * both[:, half:]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="none")


def dropout_residual(x: Tensor, residual: Tensor) -> Tensor:
    return residual + F.dropout(x, 0.1, training=True)


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def transpose(x: Tensor) -> Tensor:
    return x.t().contiguous()


def bytes_of(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


Make = Callable[[Place], Sequence[Tensor]]


def mapping(function: Callable[..., Any], make: Make, allowed: float | None = BF16_ERROR) -> Callable[[Place], Work]:
    """Work that is one call of the function; its bytes are those of its inputs and of what it gives."""

    def build(place: Place) -> Work:
        inputs = make(place)
        with torch.no_grad():
            moved = bytes_of(list(inputs)) + bytes_of(function(*inputs))

        def start(contender: Contender) -> Call:
            run = contender.compile(own_code(function))
            return lambda: run(*inputs)

        peers = [eager(), *inductors(place)]
        return Work(start, peers, "TB/s", moved, bytes=moved, allowed=allowed)

    return build


def optimizing(sizes: Sequence[int], dtype: torch.dtype) -> Callable[[Place], Work]:
    """Work that is one step of AdamW over many tensors; eager's is torch's fused one."""

    def build(place: Place) -> Work:
        values = [place.normal(place.rows(size), dtype=dtype) for size in sizes]
        # Parameter, gradient and two moments are read; all but the gradient are written.
        moved = 7 * bytes_of(values)

        def start(contender: Contender) -> Call:
            parameters = [nn.Parameter(value.clone()) for value in values]
            for parameter, value in zip(parameters, values, strict=True):
                parameter.grad = value * 0.1
            alone = contender.name == eager().name
            optimizer = torch.optim.AdamW(
                parameters, lr=1e-3, fused=True if alone else None, capturable=not alone and place.device.name != "cpu"
            )

            def step() -> None:
                optimizer.step()

            run = contender.compile(own_code(step))

            def call() -> list[nn.Parameter]:
                run()
                return parameters

            return call

        return Work(start, [eager(), *inductors(place)], "TB/s", moved, bytes=moved)

    return build


def row_inputs(rows: int, columns: int, whole: int, lines: int = 0, dtype: torch.dtype = BF16) -> Make:
    """Inputs: `whole` tensors of rows and columns, and `lines` vectors of the columns."""

    def make(place: Place) -> list[Tensor]:
        tensors = [place.normal(place.rows(rows), columns, dtype=dtype) for _ in range(whole)]
        return tensors + [place.normal(columns, dtype=dtype) for _ in range(lines)]

    return make


def _rope_inputs(place: Place) -> list[Tensor]:
    heads, length, depth = 32, place.rows(4096), 128
    angles = torch.outer(torch.arange(length) * 1.0, 500_000.0 ** (-torch.arange(depth) / depth))
    tables = [table.to(place.device.name, BF16) for table in (angles.cos(), angles.sin())]
    return [place.normal(4, heads, length, depth), *tables]


def logits_and_labels(place: Place) -> list[Tensor]:
    rows = place.rows(8192)
    return [place.normal(rows, VOCABULARY), place.integers(VOCABULARY, rows)]


def _square(place: Place) -> list[Tensor]:
    return [place.normal(place.size(16384), place.size(16384))]


def named(name: str, rows: int, columns: int, dtype: torch.dtype) -> str:
    """The name of a case."""
    return f"{name}_{rows}x{columns}_{'bf16' if dtype == BF16 else 'f32'}"


def _norms(dtype: torch.dtype, shapes: Sequence[tuple[int, int]]) -> list[GpuCase]:
    allowed = BF16_ERROR if dtype == BF16 else F32_ERROR
    cases: list[GpuCase] = []
    for rows, columns in shapes:
        residual = mapping(add_rms_norm, row_inputs(rows, columns, 2, 1, dtype), allowed)
        cases.append(GpuCase("memory", named("add_rms_norm", rows, columns, dtype), residual))
        norm = mapping(layer_norm, row_inputs(rows, columns, 1, 2, dtype), allowed)
        cases.append(GpuCase("memory", named("layer_norm", rows, columns, dtype), norm))
    return cases


def _softmax(columns: int, dtype: torch.dtype) -> GpuCase:
    rows = SOFTMAX_ELEMENTS // columns
    work = mapping(softmax, row_inputs(rows, columns, 1, dtype=dtype), BF16_ERROR if dtype == BF16 else F32_ERROR)
    return GpuCase("memory", named("softmax", rows, columns, dtype), work)


def memory_cases() -> list[GpuCase]:
    """The suite `memory`. AdamW's tensors are those of some layers of a transformer: many small, some large."""
    layer = [4096 * 4096] * 4 + [4096 * 14336] * 3 + [4096] * 9
    return [
        *_norms(BF16, SHAPES),
        *(_softmax(columns, BF16) for columns in SOFTMAX_COLUMNS),
        GpuCase("memory", "swiglu_16384x28672_bf16", mapping(swiglu, row_inputs(16384, 28672, 1))),
        GpuCase("memory", "rope_4x32x4096x128_bf16", mapping(rope, _rope_inputs)),
        GpuCase("memory", "cross_entropy_8192x128256_bf16", mapping(cross_entropy, logits_and_labels)),
        GpuCase(
            "memory", "dropout_residual_16384x8192_bf16", mapping(dropout_residual, row_inputs(16384, 8192, 2), None)
        ),
        GpuCase("memory", "gelu_bias_16384x8192_bf16", mapping(gelu_bias, row_inputs(16384, 8192, 1, 1))),
        GpuCase("memory", "transpose_16384x16384_bf16", mapping(transpose, _square)),
        GpuCase("memory", "adamw_layers_bf16", optimizing(layer, BF16)),
        GpuCase("memory", "adamw_layers_f32", optimizing(layer, F32)),
        *_norms(F32, SHAPES[:1]),
        _softmax(4096, F32),
    ]
