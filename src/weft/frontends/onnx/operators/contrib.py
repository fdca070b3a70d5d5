"""Operators of `com.microsoft` that exporters and optimizers write in the place of several standard ones."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.matmul import product
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import i32, u8
from weft.ops import composites
from weft.ops.composites import narrowed, widened
from weft.ops.rules import iota

_DOMAIN = "com.microsoft"


@onnx_op("Gelu", "BiasGelu", domain=_DOMAIN)
def gelu(c: Call) -> Any:
    x = c.x(0)
    return c.b.gelu(c.b.add(x, c.x(1)) if c.has(1) else x, approximate="none")


@onnx_op("FastGelu", domain=_DOMAIN)
def fast_gelu(c: Call) -> Any:
    x = c.x(0)
    return c.b.gelu(c.b.add(x, c.x(1)) if c.has(1) else x, approximate="tanh")


@onnx_op("QuickGelu", domain=_DOMAIN)
def quick_gelu(c: Call) -> Any:
    x = c.x(0)
    return c.b.mul(x, c.b.sigmoid(c.b.mul(x, c.b.full_like(x, c.float("alpha", 1.702)))))


@onnx_op("FusedMatMul", domain=_DOMAIN)
def fused_matmul(c: Call) -> Any:
    x, y = (_exchanged(c, c.x(n), c.flag(f"transBatch{name}"), c.flag(f"trans{name}")) for n, name in enumerate("AB"))
    made, alpha = product(c, x, y), c.float("alpha", 1.0)
    return made if alpha == 1 else c.b.mul(made, c.b.full_like(made, alpha))


def _exchanged(c: Call, x: SSAValue, batch: bool, last: bool) -> SSAValue:
    """The first dimension behind those of the batch, if `batch`; and then the last two exchanged, if `last`."""
    rank = c.b.tensor(x).rank
    order = [*range(1, rank - 1), 0, rank - 1] if batch and rank > 2 else list(range(rank))
    if last and rank > 1:
        order[-2:] = order[:-3:-1]
    return x if order == list(range(rank)) else c.b.permute(x, dims=tuple(order))


def _root_mean_square(c: Call, x: SSAValue, scale: SSAValue, dims: tuple[int, ...], eps: float) -> tuple[Any, Any]:
    """`x` over the root of the mean of its squares, times a scale; and one over that root."""
    b, wide = c.b, widened(c.b, x)
    mean = composites.mean(b, b.mul(wide, wide), dims, keep=True)
    inverse = b.rsqrt(b.add(mean, b.full_like(mean, eps)))
    normal = b.mul(b.mul(wide, inverse), widened(b, scale))
    return narrowed(b, normal, b.tensor(x).dtype), inverse


@onnx_op("SimplifiedLayerNormalization")
def simplified_layer_normalization(c: Call) -> Any:
    rank = c.rank(0)
    dims = tuple(range(c.axis(c.int("axis", -1), rank), rank))
    return _root_mean_square(c, c.x(0), c.x(1), dims, c.float("epsilon", 1e-5))


@onnx_op("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_DOMAIN)
def skip_layer_normalization(c: Call) -> Any:
    b, simple = c.b, "Simplified" in c.node.op
    total = b.add(c.x(0), c.x(1))
    bias = 3 if simple else 4
    if c.has(bias):
        total = b.add(total, c.x(bias))
    dims, eps = (c.rank(0) - 1,), c.float("epsilon", 1e-12 if not simple else 1e-5)
    if simple:
        made, inverse = _root_mean_square(c, total, c.x(2), dims, eps)
        return made, None, inverse, total
    made, mean, inverse = composites.layer_norm(b, total, c.x(2), c.optional(3), dims, eps)
    return made, mean, inverse, total


@onnx_op("EmbedLayerNormalization", domain=_DOMAIN)
def embed_layer_normalization(c: Call) -> Any:
    """The sum of embeddings of words, positions and segments, normalized; and how many words of each row count."""
    b, (batch, length) = c.b, c.shape(0)
    positions = c.x(8) if c.has(8) else b.reshape(iota(b, length), shape=(1, length))
    total = b.add(b.take(c.x(2), c.x(0), dim=0), b.take(c.x(3), positions, dim=0))
    if c.has(1) and c.has(4):
        total = b.add(total, b.take(c.x(4), c.x(1), dim=0))
    made, _, _ = composites.layer_norm(b, total, c.x(5), c.optional(6), (2,), c.float("epsilon", 1e-12))
    counts = b.full(value=0, shape=(batch,), dtype=i32)
    if c.has(7):
        counts = b.sum(b.cast(c.x(7), dtype=i32), dims=(1,), keep=False)
    return made, counts, total


@onnx_op("MatMulNBits", domain=_DOMAIN)
def matmul_n_bits(c: Call) -> Any:
    """A product with weights of 4 or 8 bits, in blocks of which each has a factor and a zero."""
    b, depth, width = c.b, c.int("K"), c.int("N")
    bits, block = c.int("bits", 4), c.int("block_size", 32)
    if bits not in (4, 8) or block < 16 or depth < 1 or width < 1:
        raise c.unsupported(f"weights are of {bits} bits in blocks of {block}, expected 4 or 8 bits")
    if c.has(4):
        raise c.unsupported("an order of groups is not supported")
    blocks = -(-depth // block)
    if c.shape(1) != (width, blocks, block * bits // 8):
        raise ShapeError(f"{c.node}: weights are {list(c.shape(1))}, expected {[width, blocks, block * bits // 8]}")
    codes = b.reshape(_codes(c, c.x(1), bits), shape=(width, blocks, block))
    scales = b.reshape(widened(b, c.x(2)), shape=(width, blocks, 1))
    dtype = b.tensor(scales).dtype
    zeros: SSAValue = b.full(value=1 << (bits - 1), shape=(), dtype=dtype)
    if c.has(3):
        given = c.x(3)
        if b.tensor(given).dtype == u8:
            rows = b.reshape(given, shape=(width, -(-blocks * bits // 8)))
            found = b.slice(_codes(c, rows, bits), starts=(0, 0), shape=(width, blocks), steps=(1, 1))
            given = b.cast(found, dtype=dtype)
        zeros = b.reshape(narrowed(b, given, dtype), shape=(width, blocks, 1))
    weights = b.reshape(b.mul(b.sub(b.cast(codes, dtype=dtype), zeros), scales), shape=(width, blocks * block))
    weights = b.slice(weights, starts=(0, 0), shape=(width, depth), steps=(1, 1))
    x = c.x(0)
    made = product(c, x, b.permute(narrowed(b, weights, b.tensor(x).dtype), dims=(1, 0)))
    return b.add(made, c.x(5)) if c.has(5) else made


def _codes(c: Call, packed: SSAValue, bits: int) -> SSAValue:
    """Codes that lie packed in the last dimension: of two in a byte the lower bits are the first."""
    if bits == 8:
        return packed
    b, shape = c.b, static(c.b.tensor(packed))
    low = b.bitwise_and(packed, b.full_like(packed, 15))
    high = b.shr(packed, b.full_like(packed, 4))
    pair = [b.reshape(each, shape=(*shape, 1)) for each in (low, high)]
    return b.reshape(b.concat(*pair, dim=len(shape)), shape=(*shape[:-1], shape[-1] * 2))
