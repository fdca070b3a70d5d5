"""The suite `attention`: forward and backward against cuDNN and FlashAttention 2, masked forms, and decoding.

FLOPs are 4·B·H·S²·D, half of it where the mask is causal, and 2.5 times as many backward.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.bench.benchmark import Call, Contender, own_code
from weft.testing.gpu.case import GpuCase, Place, Work
from weft.testing.gpu.peers import CUDNN, attention_libraries, eager, inductors
from weft.testing.gpu.repeated_backward import repeated_backward

LENGTHS = ((4, 32, 2048), (4, 32, 4096), (2, 32, 8192), (1, 32, 16384))
DEPTHS = (128, 64)
WINDOW, SINKS = 1024, 4
CONTEXT = 8192


def full(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def windowed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def _name(kind: str, shape: tuple[int, ...], masked: bool) -> str:
    batch, heads, length, depth = shape
    return f"{kind}_{batch}x{heads}x{length}x{depth}_{'causal' if masked else 'full'}"


def _operands(place: Place, shape: tuple[int, ...]) -> tuple[list[Tensor], int]:
    batch, heads, length, depth = shape
    sides = (batch, heads if place.shrink == 1 else 2, place.size(length), depth)
    batch, heads, length, depth = sides
    return [place.normal(*sides) for _ in range(3)], 4 * batch * heads * length * length * depth


def _forward(shape: tuple[int, ...], masked: bool) -> GpuCase:
    function = causal if masked else full

    def build(place: Place) -> Work:
        inputs, flops = _operands(place, shape)
        flops = flops // 2 if masked else flops

        def start(contender: Contender) -> Call:
            run = contender.compile(own_code(function))
            return lambda: run(*inputs)

        moved = 4 * inputs[0].nbytes
        return Work(start, attention_libraries(place), "TFLOP/s", flops, moved, flops, judge=CUDNN, own=True)

    return GpuCase("attention", _name("forward", shape, masked), build)


def _backward(shape: tuple[int, ...], masked: bool) -> GpuCase:
    function = causal if masked else full

    def build(place: Place) -> Work:
        inputs, flops = _operands(place, shape)
        flops = int(2.5 * flops) // (2 if masked else 1)
        cotangent = torch.randn_like(inputs[0])

        def start(contender: Contender) -> Call:
            return repeated_backward(contender.compile(own_code(function)), inputs, lambda _: cotangent)

        moved = 8 * inputs[0].nbytes
        return Work(start, attention_libraries(place), "TFLOP/s", flops, moved, flops, judge=CUDNN, own=True)

    return GpuCase("attention", _name("backward", shape, masked), build, training=True)


def _windowed(shape: tuple[int, ...], first: int) -> GpuCase:
    """A window of keys behind each row, and perhaps the first keys: a mask in memory."""

    def build(place: Place) -> Work:
        inputs, _ = _operands(place, shape)
        batch, heads, length, depth = inputs[0].shape
        window = min(WINDOW, length)
        rows = torch.arange(length, device=place.device.name)
        behind = rows[:, None] - rows[None, :]
        mask = (behind >= 0) & ((behind < window) | (rows < first))
        flops = 4 * batch * heads * depth * int(mask.sum().item())

        def start(contender: Contender) -> Call:
            run = contender.compile(own_code(windowed))
            return lambda: run(*inputs, mask)

        peers = [eager(), *inductors(place)]
        return Work(start, peers, "TFLOP/s", flops, 4 * inputs[0].nbytes, flops)

    batch, heads, length, depth = shape
    kind = f"window_{WINDOW}" if first == 0 else f"sinks_{first}_window_{WINDOW}"
    return GpuCase("attention", f"{kind}_{batch}x{heads}x{length}x{depth}", build)


def _decoding(batch: int) -> GpuCase:
    """One query for each of 64 heads, eight of which share keys and values of the whole context."""

    def build(place: Place) -> Work:
        length = place.size(CONTEXT)
        query = place.normal(batch, 64, 1, 128)
        key, value = (place.normal(batch, 8, length, 128) for _ in range(2))
        moved = key.nbytes + value.nbytes + 2 * query.nbytes

        def start(contender: Contender) -> Call:
            run: Callable[..., Any] = contender.compile(own_code(grouped))
            return lambda: run(query, key, value)

        return Work(start, [eager(), *inductors(place)], "TB/s", moved, moved)

    return GpuCase("attention", f"decode_{batch}_context_{CONTEXT}", build)


def attention_cases() -> list[GpuCase]:
    """The suite `attention`."""
    shapes = [(*length, depth) for depth in DEPTHS for length in LENGTHS]
    return [
        *(_forward(shape, masked) for shape in shapes for masked in (False, True)),
        *(_backward(shape, masked) for shape in shapes for masked in (False, True)),
        *(_windowed((4, 32, 4096, 128), first) for first in (0, SINKS)),
        *(_decoding(batch) for batch in (1, 8, 64)),
    ]
