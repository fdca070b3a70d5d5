"""The suite `kernels`: the same Triton kernels compiled by Weft and by Triton itself, each with its best configuration.

Both try the same configurations, by a short measurement of each, and keep the fastest: neither tuner is what counts.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.frontends.triton.enable import enable
from weft.testing.bench.benchmark import EAGER, WEFT, Call, Contender
from weft.testing.gpu.case import GpuCase, Place, Work
from weft.testing.gpu.peers import eager

TRITON = "triton"
SOURCE = Path(__file__).with_name("kernel_source.py")
TRIES = 5

Config = Mapping[str, int]
ROWS = [{"num_warps": warps} for warps in (4, 8, 16)]
ADD = [{"BLOCK": block, "num_warps": warps} for block in (1024, 4096) for warps in (4, 8)]
MATMUL = [
    {"BM": bm, "BN": bn, "BK": bk, "num_warps": warps, "num_stages": stages}
    for bm, bn, bk, warps, stages in (
        (128, 256, 64, 8, 3),
        (128, 128, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (64, 256, 64, 4, 4),
        (256, 128, 64, 8, 3),
        (128, 64, 64, 4, 4),
    )
]
ATTENTION = [
    {"BM": bm, "BN": bn, "num_warps": warps, "num_stages": stages}
    for bm, bn, warps, stages in ((128, 64, 4, 3), (128, 128, 8, 3), (128, 64, 8, 3), (64, 64, 4, 3))
]


def kernels_by(name: str) -> ModuleType:
    """The file of kernels, loaded with `triton` as Weft or as itself."""
    spec = importlib.util.spec_from_file_location(f"weft_bench_kernels_{name}", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with enable() if name == WEFT else nullcontext():
        spec.loader.exec_module(module)
    return module


def triton_is_there() -> bool:
    return importlib.util.find_spec(TRITON) is not None


Make = Callable[[Place], tuple[list[Tensor], Tensor]]


def _case(
    name: str,
    launcher: str,
    configs: Sequence[Config],
    make: Make,
    operator: Callable[..., Tensor],
    flops: Callable[[Sequence[Tensor]], int] | None = None,
) -> GpuCase:
    def build(place: Place) -> Work:
        inputs, out = make(place)
        moved = sum(tensor.nbytes for tensor in inputs) + out.nbytes

        def start(contender: Contender) -> Call:
            if contender.name not in (WEFT, TRITON):
                return lambda: operator(*inputs)
            result = torch.full_like(out, float("nan"))
            launch: Callable[..., None] = getattr(kernels_by(contender.name), launcher)
            config = _best(place, configs, lambda config: launch(*inputs, result, **config))

            def call() -> Tensor:
                launch(*inputs, result, **config)
                return result

            return call

        peer = eager(TRITON if triton_is_there() else EAGER)
        if flops is None:
            return Work(start, [peer], "TB/s", moved, moved, judge=peer.name)
        count = flops(inputs)
        return Work(start, [peer], "TFLOP/s", count, moved, count, judge=peer.name)

    return GpuCase("kernels", name, build)


def _best(place: Place, configs: Sequence[Config], launch: Callable[[Config], None]) -> Config:
    """The configuration that is fastest here; one that does not fit the device is passed over, unless all are."""
    seconds: list[tuple[float, int]] = []
    failed: Exception | None = None
    for number, config in enumerate(configs if place.shrink == 1 else configs[:1]):

        def call(config: Config = config) -> None:
            launch(config)

        try:
            call()
            seconds.append((min(place.device.kernel_seconds(call) for _ in range(TRIES)), number))
        except Exception as error:  # out of shared memory, say, each compiler in its own words
            failed = error
    if not seconds:
        assert failed is not None
        raise failed
    return configs[min(seconds)[1]]


def _vectors(place: Place) -> tuple[list[Tensor], Tensor]:
    x, y = (place.normal(place.rows(1 << 28)) for _ in range(2))
    return [x, y], torch.empty_like(x)


def _matrix(rows: int, columns: int, lines: int = 0) -> Make:
    def make(place: Place) -> tuple[list[Tensor], Tensor]:
        x = place.normal(place.rows(rows), columns)
        return [x, *(place.normal(columns) for _ in range(lines))], torch.empty_like(x)

    return make


def _square(side: int) -> Make:
    def make(place: Place) -> tuple[list[Tensor], Tensor]:
        n = side if place.shrink == 1 else 128
        a, b = place.normal(n, n), place.normal(n, n, scale=n**-0.5)
        return [a, b], torch.empty_like(a)

    return make


def _heads(depth: int) -> Make:
    def make(place: Place) -> tuple[list[Tensor], Tensor]:
        shape = (4, 32, 4096, depth) if place.shrink == 1 else (1, 1, 128, 64)
        inputs = [place.normal(*shape) for _ in range(3)]
        return inputs, torch.empty_like(inputs[0])

    return make


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def _matmul_flops(inputs: Sequence[Any]) -> int:
    return 2 * inputs[0].shape[0] ** 3


def _attention_flops(inputs: Sequence[Any]) -> int:
    batch, heads, length, depth = inputs[0].shape
    return 4 * batch * heads * length * length * depth


def _causal_flops(inputs: Sequence[Any]) -> int:
    return _attention_flops(inputs) // 2


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def kernel_cases() -> list[GpuCase]:
    """The suite `kernels`: what Triton's tutorials teach, in bf16."""
    return [
        _case("add_2e28", "add", ADD, _vectors, torch.add),
        *(
            _case(f"softmax_{rows}x{columns}", "softmax", ROWS, _matrix(rows, columns), _softmax)
            for rows, columns in ((65536, 1024), (16384, 8192))
        ),
        _case("layer_norm_16384x4096", "layer_norm", ROWS, _matrix(16384, 4096, 2), _layer_norm),
        *(
            _case(f"matmul_{side}", "matmul", MATMUL, _square(side), torch.matmul, _matmul_flops)
            for side in (2048, 4096, 8192)
        ),
        *(
            _case(f"{launcher}_4x32x4096x{depth}", launcher, ATTENTION, _heads(depth), operator, flops)
            for depth in (128, 64)
            for launcher, operator, flops in (
                ("attention", F.scaled_dot_product_attention, _attention_flops),
                ("causal_attention", _causal_attention, _causal_flops),
            )
        ),
    ]
