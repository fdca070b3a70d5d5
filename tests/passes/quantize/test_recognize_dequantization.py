"""Programs that widen weights of few bits are found however they say it, and others are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from weft.backends.reference.graph import run
from weft.ir.types import DType, Tensor, bf16, f8e4m3, f16, f32, i8, u8
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.matmul.quantized import Dequantize
from weft.passes.quantize.recognize_dequantization import RecognizeDequantization

N, K, G = 48, 128, 32


def nibbles(b: GraphBuilder, p: Any, *, order: int = 1, shape: tuple[int, ...] = (N, K)) -> Any:
    low, high = b.bitwise_and(p, b.full_like(p, 15)), b.shr(p, b.full_like(p, 4))
    apart = [b.reshape(each, shape=(N, K // 2, 1)) for each in (low, high)[::order]]
    return b.reshape(b.concat(*apart, dim=2), shape=shape)


def grouped(b: GraphBuilder, x: Any, p: Any, s: Any) -> Any:
    q = b.cast(nibbles(b, p, shape=(N, K // G, G)), dtype=bf16)
    w = b.mul(b.sub(q, b.full_like(q, 8.0)), b.reshape(s, shape=(N, K // G, 1)))
    return b.reshape(w, shape=(N, K))


def repeated(b: GraphBuilder, x: Any, p: Any, s: Any) -> Any:
    q = b.cast(nibbles(b, p), dtype=i8)
    wide = b.cast(b.sub(q, b.full_like(q, 8)), dtype=bf16)
    spread = b.broadcast(b.reshape(s, shape=(N, K // G, 1)), shape=(N, K // G, G))
    return b.mul(wide, b.reshape(spread, shape=(N, K)))


def with_zeros(b: GraphBuilder, x: Any, p: Any, s: Any, z: Any) -> Any:
    q = b.cast(nibbles(b, p, shape=(N, K // G, G)), dtype=f32)
    zeros = b.reshape(b.cast(z, dtype=f32), shape=(N, K // G, 1))
    w = b.mul(b.sub(q, zeros), b.cast(b.reshape(s, shape=(N, K // G, 1)), dtype=f32))
    return b.cast(b.reshape(w, shape=(N, K)), dtype=bf16)


def turned(b: GraphBuilder, x: Any, p: Any, s: Any) -> Any:
    q = b.cast(nibbles(b, p, shape=(N, K // G, G)), dtype=bf16)
    factors = b.permute(b.reshape(s, shape=(K // G, N)), dims=(1, 0))
    w = b.mul(b.sub(q, b.full_like(q, 8.0)), b.reshape(factors, shape=(N, K // G, 1)))
    return b.reshape(w, shape=(N, K))


def of_floats(b: GraphBuilder, x: Any, p: Any, s: Any) -> Any:
    q = nibbles(b, p, shape=(N, K // G, G))
    sizes = b.bitwise_and(q, b.full_like(q, 7))
    wide = b.cast(sizes, dtype=f32)
    large = b.where(b.eq(sizes, b.full_like(sizes, 7)), b.full_like(wide, 6.0), b.sub(wide, b.full_like(wide, 2.0)))
    value = b.where(b.lt(sizes, b.full_like(sizes, 5)), b.mul(wide, b.full_like(wide, 0.5)), large)
    value = b.cast(b.where(b.gt(q, b.full_like(q, 7)), b.neg(value), value), dtype=bf16)
    exponents = b.cast(s, dtype=f32)
    powers = b.cast(b.exp2(b.sub(exponents, b.full_like(exponents, 127.0))), dtype=bf16)
    return b.reshape(b.mul(value, b.reshape(powers, shape=(N, K // G, 1))), shape=(N, K))


def powers_turned(b: GraphBuilder, x: Any, p: Any, e: Any) -> Any:
    wide = b.cast(e, dtype=f32)
    powers = b.cast(b.exp2(b.sub(wide, b.full_like(wide, 127.0))), dtype=bf16)
    factors = b.reshape(b.permute(b.cast(powers, dtype=f32), dims=(1, 0)), shape=(N, K // G, 1))
    q = b.cast(nibbles(b, p, shape=(N, K // G, G)), dtype=f32)
    w = b.mul(b.sub(q, b.full_like(q, 8.0)), factors)
    return b.cast(b.reshape(w, shape=(N, K)), dtype=bf16)


def scaled(b: GraphBuilder, x: Any, w: Any, s: Any) -> Any:
    return b.mul(b.cast(w, dtype=bf16), s)


def unscaled(b: GraphBuilder, x: Any, w: Any) -> Any:
    return b.cast(w, dtype=bf16)


def swapped(b: GraphBuilder, x: Any, p: Any, s: Any) -> Any:
    q = b.cast(nibbles(b, p, order=-1), dtype=bf16)
    return b.mul(b.sub(q, b.full_like(q, 8.0)), s)


def off_by_one(b: GraphBuilder, x: Any, p: Any, s: Any) -> Any:
    q = b.cast(nibbles(b, p), dtype=bf16)
    return b.mul(b.sub(q, b.full_like(q, 7.0)), s)


def by_place(b: GraphBuilder, x: Any, p: Any, s: Any) -> Any:
    q = b.cast(nibbles(b, p), dtype=bf16)
    w = b.mul(b.sub(q, b.full_like(q, 8.0)), s)
    return b.where(b.eq(b.iota(shape=(N, K), dim=0, dtype=f32), b.full(value=17.0, shape=(), dtype=f32)), b.neg(w), w)


def one_less(b: GraphBuilder, x: Any, w: Any) -> Any:
    q = b.cast(w, dtype=bf16)
    return b.sub(q, b.full_like(q, 1.0))


def one_less_scaled(b: GraphBuilder, x: Any, w: Any, s: Any) -> Any:
    return b.mul(one_less(b, x, w), s)


def a_little_more(b: GraphBuilder, x: Any, w: Any, s: Any) -> Any:
    return b.mul(scaled(b, x, w, s), b.full(value=1.0078125, shape=(), dtype=bf16))


def without_least(b: GraphBuilder, x: Any, w: Any) -> Any:
    return b.cast(b.maximum(w, b.full_like(w, -127)), dtype=bf16)


def function_of(body: Callable[..., Any], tensors: list[Tensor]) -> FuncOp:
    names = {"x": Tensor(bf16, (3, K))} | {f"a{n}": tensor for n, tensor in enumerate(tensors)}
    function = FuncOp.make("f", names)
    b = GraphBuilder(function.block)
    weight = body(b, *function.block.args)
    function.block.add_op(ReturnOp.make([b.dot(function.block.args[0], b.permute(weight, dims=(1, 0)))]))
    return function


def arrays_of(tensors: list[Tensor]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    found = [rng.standard_normal((3, K)).astype(bf16.numpy)]
    for tensor in tensors:
        shape: Any = tensor.shape
        if tensor.dtype == u8:
            found.append(rng.integers(0, 256 if shape == (N, K // 2) else 16, shape).astype(np.uint8))
        elif tensor.dtype == i8:
            found.append(rng.integers(-128, 128, shape).astype(np.int8))
        else:
            found.append(rng.uniform(0.5, 2, shape).astype(tensor.dtype.numpy))
    return found


CODES, FACTORS = Tensor(u8, (N, K // 2)), Tensor(bf16, (N, K // G))


@pytest.mark.parametrize(
    ("body", "tensors", "form"),
    [
        (grouped, [CODES, FACTORS], "int4"),
        (repeated, [CODES, FACTORS], "int4"),
        (with_zeros, [CODES, Tensor(f16, (N, K // G)), Tensor(u8, (N, K // G))], "int4"),
        (turned, [CODES, Tensor(bf16, (K // G, N))], "int4"),
        (scaled, [Tensor(f8e4m3, (N, K)), Tensor(bf16, (N, 1))], "e4m3"),
        (scaled, [Tensor(f8e4m3, (N, K)), Tensor(bf16, ())], "e4m3"),
        (scaled, [Tensor(i8, (N, K)), Tensor(bf16, (N, 1))], "int8"),
        (unscaled, [Tensor(i8, (N, K))], "int8"),
        (of_floats, [CODES, Tensor(u8, (N, K // G))], "e2m1"),
        (powers_turned, [CODES, Tensor(u8, (K // G, N))], "int4"),
    ],
)
def test_codes_are_found(body: Callable[..., Any], tensors: list[Tensor], form: str) -> None:
    function, arrays = function_of(body, tensors), arrays_of(tensors)
    (before,) = run(function, arrays)
    RecognizeDequantization().apply(Context(), ModuleOp([function]))
    function.verify()
    (found,) = (op for op in function.block.ops if isinstance(op, Dequantize))
    assert found.params["form"] == form
    (after,) = run(function, arrays)
    before, after = (each.astype(np.float64) for each in (before, after))
    assert np.linalg.norm(after - before) < 2**-7 * np.linalg.norm(before)


@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        (swapped, [CODES, Tensor(bf16, (N, 1))]),
        (off_by_one, [CODES, Tensor(bf16, (N, 1))]),
        (by_place, [CODES, Tensor(bf16, (N, 1))]),
        (scaled, [Tensor(f8e4m3, (N, K)), Tensor(bf16, (1, K))]),
        (one_less, [Tensor(i8, (N, K))]),
        (one_less_scaled, [Tensor(i8, (N, K)), Tensor(bf16, (N, 1))]),
        (a_little_more, [Tensor(i8, (N, K)), Tensor(bf16, (N, 1))]),
        (without_least, [Tensor(i8, (N, K))]),
        (scaled, [Tensor(f8e4m3, (N, K)), Tensor(bf16, (N, K))]),
    ],
)
def test_what_only_looks_like_codes_stays(body: Callable[..., Any], tensors: list[Tensor]) -> None:
    function = function_of(body, tensors)
    RecognizeDequantization().apply(Context(), ModuleOp([function]))
    assert not any(isinstance(op, Dequantize) for op in function.block.ops)


@pytest.mark.parametrize("scale", [f16, f32, f8e4m3], ids=str)
@pytest.mark.parametrize(("dtype", "form"), [(f8e4m3, "e4m3"), (i8, "int8")])
def test_codes_are_found_in_f16(dtype: DType, form: str, scale: DType) -> None:
    function = FuncOp.make("f", {"x": Tensor(f16, (3, K)), "w": Tensor(dtype, (N, K)), "s": Tensor(scale, (N, 1))})
    b = GraphBuilder(function.block)
    x, w, s = function.block.args
    weight = b.cast(b.mul(b.cast(w, dtype=f32), b.cast(s, dtype=f32)), dtype=f16)
    function.block.add_op(ReturnOp.make([b.dot(x, b.permute(weight, dims=(1, 0)))]))
    RecognizeDequantization().apply(Context(), ModuleOp([function]))
    (found,) = (op for op in function.block.ops if isinstance(op, Dequantize))
    assert found.params["form"] == form
