"""Attention of `com.microsoft`: several heads in one tensor, caches of keys and values, and rotary positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.matmul import product
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import f32, i64
from weft.ops import composites
from weft.ops.rules import iota

_DOMAIN = "com.microsoft"
_FILTERED = -10000.0
"""What is added to the score of a key that a mask leaves out, unless the node says otherwise."""


@dataclass(frozen=True)
class Heads:
    """Queries [B, N, S, H], keys [B, N, T, H] and values [B, N, T, V]."""

    q: SSAValue
    k: SSAValue
    v: SSAValue


@onnx_op("Attention", domain=_DOMAIN)
def attention(c: Call) -> Any:
    """One product makes queries, keys and values of the input; what was there before comes in `past`."""
    b, count = c.b, c.int("num_heads")
    if c.flag("do_rotary") or c.flag("past_present_share_buffer"):
        raise c.unsupported("rotary positions and shared buffers are not supported in Attention")
    whole = product(c, c.x(0), c.x(1))
    width = static(b.tensor(whole))[-1]
    sizes = c.ints("qkv_hidden_sizes", (width // 3,) * 3)
    if sum(sizes) != width or len(sizes) != 3 or count < 1 or any(size % count for size in sizes):
        raise ShapeError(f"{c.node}: {width} columns are not {count} heads of {list(sizes)}")
    if c.has(2):
        whole = b.add(whole, c.x(2))
    q, k, v = (_split_heads(c, part, count) for part in _parts(c, whole, sizes))
    if c.has(4):
        past = c.x(4)
        before = [b.reshape(part, shape=static(b.tensor(part))[1:]) for part in _parts(c, past, (1, 1), 0)]
        k, v = (b.concat(old, new, dim=2) for old, new in zip(before, (k, v), strict=True))
    heads = Heads(q, k, v)
    bias = _total(c, _mask(c, 3, heads), c.optional(5))
    present = None
    if len(c.node.outputs) > 1 and c.node.outputs[1]:
        present = b.concat(*(b.reshape(each, shape=(1, *static(b.tensor(each)))) for each in (k, v)), dim=0)
    return _attended(c, heads, bias, c.flag("unidirectional")), present


@onnx_op("MultiHeadAttention", domain=_DOMAIN)
def multi_head_attention(c: Call) -> Any:
    b, count = c.b, c.int("num_heads")
    if c.has(8) or c.has(9):
        raise c.unsupported("shared buffers of past keys and beams are not supported")
    query = c.x(0)
    if c.rank(0) == 5:  # [B, S, N, 3, H]
        q, k, v = (_one_of(c, query, n) for n in range(3))
    elif c.has(1) and c.rank(1) == 5:  # [B, L, N, 2, H]
        q, k, v = query, *(_one_of(c, c.x(1), n) for n in range(2))
    else:
        q, k, v = query, c.x(1), c.x(2)
    if c.has(3):
        flat = [each if b.tensor(each).rank == 3 else _joined(c, each) for each in (q, k, v)]
        sizes = tuple(static(b.tensor(each))[-1] for each in flat)
        q, k, v = (b.add(each, part) for each, part in zip(flat, _parts(c, c.x(3), sizes), strict=True))
    q, k, v = (each if b.tensor(each).rank == 4 else _split_heads(c, each, count) for each in (q, k, v))
    if c.has(6):
        k, v = b.concat(c.x(6), k, dim=2), b.concat(c.x(7), v, dim=2)
    heads = Heads(q, k, v)
    bias = _total(c, _mask(c, 4, heads), c.optional(5))
    return _attended(c, heads, bias, c.flag("unidirectional")), k, v


@onnx_op("RotaryEmbedding", domain=_DOMAIN)
def rotary_embedding(c: Call) -> Any:
    b, cos, sin = c.b, c.x(2), c.x(3)
    if c.flag("is_packed_batching"):
        raise c.unsupported("packed batches are not supported")
    x, shape = c.x(0), c.shape(0)
    count = c.int("num_heads", 0)
    if len(shape) == 3:
        size = shape[-1] // count if count else c.shape(2)[1] * 2
        x = _split_heads(c, x, shape[-1] // max(size, 1))
    batch, _, length, _ = static(b.tensor(x))
    positions = c.x(1)
    if c.rank(1) == 1:
        positions = b.add(_row(c, length), b.reshape(positions, shape=(1, 1)))
        positions = b.broadcast(positions, shape=(batch, length))
    made = _rotated(c, x, positions, cos, sin, interleaved=c.flag("interleaved"))
    return _merged(c, made) if len(shape) == 3 else made


@onnx_op("GroupQueryAttention", domain=_DOMAIN)
def group_query_attention(c: Call) -> Any:
    """Causal attention of which several heads share keys, with caches whose rows are filled to different lengths."""
    b, count, shared = c.b, c.int("num_heads"), c.int("kv_num_heads")
    if any(map(c.has, (12, 13, 14, 15))) or not c.flag("causal", True) or c.flag("sliding_window_cache"):
        raise c.unsupported("quantized caches, norms of queries, and attention that is not causal are not supported")
    if shared < 1 or count % shared:
        raise ShapeError(f"{c.node}: {count} heads do not share {shared}")
    batch, length, width = c.shape(0)
    if c.has(1):
        q, k, v = c.x(0), c.x(1), c.x(2)
    else:
        size = width // (count + 2 * shared)
        q, k, v = _parts(c, c.x(0), (count * size, shared * size, shared * size))
    q, k, v = (_split_heads(c, each, n) for each, n in ((q, count), (k, shared), (v, shared)))
    total = int(c.known_scalar(6))
    ends = b.cast(b.reshape(c.x(5), shape=(batch, 1)), dtype=i64)
    # A prompt begins at 0, also where its rows are shorter than it is; a later token lies at the end of its row.
    begin = b.full(value=0, shape=(batch, 1), dtype=i64)
    first = begin if length == total else b.add(ends, b.full_like(ends, 1 - length))
    places = b.add(first, _row(c, length))
    if c.flag("do_rotary"):
        positions = places
        if c.has(9):
            stated = b.cast(c.x(9), dtype=i64)
            # Of a prompt's positions the first counts alone.
            start = b.slice(stated, starts=(0, 0), shape=(1, 1), steps=(1, 1))
            positions = b.add(places, start) if length == total else stated
        q, k = (
            _rotated(c, each, positions, c.x(7), c.x(8), interleaved=c.flag("rotary_interleaved")) for each in (q, k)
        )
    room = max(total, c.shape(3)[2] if c.has(3) else 0)
    keys, values = (_cached(c, new, c.optional(place), first, room) for new, place in ((k, 3), (v, 4)))
    column = b.reshape(_row(c, room), shape=(1, 1, room))
    row = b.reshape(places, shape=(batch, length, 1))
    seen = b.le(column, row)
    if (window := c.int("local_window_size", -1)) > 0:
        seen = b.logical_and(seen, b.gt(column, b.sub(row, b.full_like(row, window))))
    seen = b.reshape(seen, shape=(batch, 1, length, room))
    if c.has(10):
        given = _slice_last(c, composites.widened(b, c.x(10)), room)
        mask: SSAValue = b.where(seen, given, b.full_like(given, float("-inf")))
    else:
        mask = seen
    heads = Heads(q, *(_repeated(c, each, count // shared) for each in (keys, values)))
    sink = None
    if c.has(11):
        sink = b.reshape(c.x(11), shape=(1, count, 1, 1))
    elif c.flag("smooth_softmax"):
        sink = b.full(value=0.0, shape=(1, 1, 1, 1), dtype=b.tensor(q).dtype)
    made = _weighted(c, heads, [mask], c.float("softcap", 0.0), sink)
    return _merged(c, made), keys, values


def _cached(c: Call, new: SSAValue, past: SSAValue | None, first: SSAValue, room: int) -> SSAValue:
    """A cache [B, N, room, H]: what was there, with new rows from `first` [B, 1] on, and 0 behind them."""
    b = c.b
    batch, heads, length, size = static(b.tensor(new))
    if past is None and length == room:
        return new
    offset = b.sub(_row(c, room), first)
    inside = b.logical_and(b.ge(offset, b.full_like(offset, 0)), b.lt(offset, b.full_like(offset, length)))
    place = b.clamp(offset, low=0, high=length - 1)
    place = b.broadcast(b.reshape(place, shape=(batch, 1, room, 1)), shape=(batch, heads, room, size))
    moved = b.gather(new, place, dim=2)
    held = static(b.tensor(past))[2] if past is not None else 0
    if past is None or held == 0:
        before: SSAValue = b.full(value=0, shape=static(b.tensor(moved)), dtype=b.tensor(moved).dtype)
    else:
        before = past if held == room else b.pad(past, low=(0, 0, 0, 0), high=(0, 0, room - held, 0), value=0)
    old = b.reshape(b.lt(offset, b.full_like(offset, 0)), shape=(batch, 1, room, 1))
    kept = b.where(old, before, b.full_like(before, 0))
    return b.where(b.reshape(inside, shape=(batch, 1, room, 1)), moved, kept)


def _rotated(c: Call, x: SSAValue, positions: SSAValue, cos: SSAValue, sin: SSAValue, *, interleaved: bool) -> SSAValue:
    """The first elements of heads [B, N, S, H] turned in pairs by the angles of their positions [B, S]."""
    b = c.b
    batch, heads, length, size = static(b.tensor(x))
    half = static(b.tensor(cos))[1]
    if 2 * half > size:
        raise ShapeError(f"{c.node}: {2 * half} elements are turned of heads that have {size}")
    angles = [b.reshape(b.take(each, positions, dim=0), shape=(batch, 1, length, half)) for each in (cos, sin)]
    turned, *rest = _parts(c, x, (2 * half, size - 2 * half)) if size > 2 * half else (x,)
    if interleaved:
        pairs = b.reshape(turned, shape=(batch, heads, length, half, 2))
        ends = [b.reshape(each, shape=(batch, heads, length, half)) for each in _parts(c, pairs, (1, 1))]
    else:
        ends = list(_parts(c, turned, (half, half)))
    one, other = ends
    real = b.sub(b.mul(one, angles[0]), b.mul(other, angles[1]))
    imaginary = b.add(b.mul(one, angles[1]), b.mul(other, angles[0]))
    if interleaved:
        both = [b.reshape(each, shape=(batch, heads, length, half, 1)) for each in (real, imaginary)]
        made: SSAValue = b.reshape(b.concat(*both, dim=4), shape=(batch, heads, length, 2 * half))
    else:
        made = b.concat(real, imaginary, dim=3)
    return b.concat(made, *rest, dim=3) if rest else made


def _mask(c: Call, place: int, heads: Heads) -> SSAValue | None:
    """A mask of keys, in any of its forms, as what is added to scores [B, N, S, T]."""
    if not c.has(place):
        return None
    b = c.b
    batch, _, _, _ = static(b.tensor(heads.q))
    total = static(b.tensor(heads.k))[2]
    given, shape = b.cast(c.x(place), dtype=i64), c.shape(place)
    column = b.reshape(_row(c, total), shape=(1, total))
    if len(shape) == 1 and shape[0] in (batch, 2 * batch):
        ends = b.reshape(b.slice(given, starts=(0,), shape=(batch,), steps=(1,)), shape=(batch, 1))
        seen = b.lt(column, ends)
        if shape[0] == 2 * batch and batch:
            starts = b.reshape(b.slice(given, starts=(batch,), shape=(batch,), steps=(1,)), shape=(batch, 1))
            seen = b.logical_and(seen, b.ge(column, starts))
        seen = b.reshape(seen, shape=(batch, 1, 1, total))
    elif len(shape) in (2, 3) and shape[-1] == total:
        lead = (shape[0], 1, *(shape[1:-1] or (1,)))
        seen = b.gt(b.reshape(given, shape=(*lead, total)), b.full(value=0, shape=(), dtype=i64))
    else:
        raise c.unsupported(f"a mask of {list(shape)} is not one of lengths, of keys, or of rows and keys")
    left_out = b.full(value=c.float("mask_filter_value", _FILTERED), shape=(), dtype=f32)
    return b.where(seen, b.full_like(left_out, 0.0), left_out)


def _total(c: Call, mask: SSAValue | None, bias: SSAValue | None) -> SSAValue | None:
    if bias is not None:
        bias = composites.widened(c.b, bias)
    return bias if mask is None else mask if bias is None else c.b.add(mask, bias)


def _attended(c: Call, heads: Heads, bias: SSAValue | None, causal: bool) -> SSAValue:
    """The heads' sums of values, side by side; rows see keys up to their own, which is counted from the last."""
    b = c.b
    length, total = static(b.tensor(heads.q))[2], static(b.tensor(heads.k))[2]
    masks = [] if bias is None else [bias]
    if causal:
        row = b.reshape(_row(c, length, total - length), shape=(length, 1))
        seen = b.reshape(b.le(b.reshape(_row(c, total), shape=(1, total)), row), shape=(1, 1, length, total))
        never = b.full(value=float("-inf"), shape=(), dtype=f32)
        masks = [b.where(seen, bias, never)] if bias is not None else [seen]
    return _merged(c, _weighted(c, heads, masks))


def _weighted(
    c: Call, heads: Heads, masks: list[SSAValue], softcap: float = 0.0, sink: SSAValue | None = None
) -> SSAValue:
    b = c.b
    scale = c.float("scale", 0.0) or 1 / math.sqrt(static(b.tensor(heads.q))[-1])
    params: dict[str, Any] = {"softcap": softcap} if softcap else {}
    if sink is not None:
        params["sinks"] = True
        batch, count, length, _ = static(b.tensor(heads.q))
        masks = [*masks, b.broadcast(sink, shape=(batch, count, length, 1))]
    return b.attention(heads.q, heads.k, heads.v, *masks, causal=False, scale=scale, **params)


def _split_heads(c: Call, x: SSAValue, count: int) -> SSAValue:
    """[B, S, N·H] as [B, N, S, H]."""
    shape = static(c.b.tensor(x))
    if len(shape) != 3 or count < 1 or shape[-1] % count:
        raise ShapeError(f"{c.node}: {list(shape)} is not a sequence of {count} heads")
    return c.b.permute(c.b.reshape(x, shape=(*shape[:2], count, shape[2] // count)), dims=(0, 2, 1, 3))


def _merged(c: Call, x: SSAValue) -> SSAValue:
    """[B, N, S, H] as [B, S, N·H]."""
    batch, count, length, size = static(c.b.tensor(x))
    return c.b.reshape(c.b.permute(x, dims=(0, 2, 1, 3)), shape=(batch, length, count * size))


def _joined(c: Call, x: SSAValue) -> SSAValue:
    """[B, N, S, H] of an input that is split already, as [B, S, N·H]."""
    return _merged(c, x)


def _one_of(c: Call, packed: SSAValue, number: int) -> SSAValue:
    """Of [B, S, N, 3, H], or 2 in the place of 3, one as [B, S, N·H]."""
    batch, length, count, many, size = static(c.b.tensor(packed))
    part = list(_parts(c, packed, (1,) * many, 3))[number]
    return c.b.reshape(part, shape=(batch, length, count * size))


def _repeated(c: Call, x: SSAValue, times: int) -> SSAValue:
    """Heads that several share, each as often as it is shared."""
    if times == 1:
        return x
    batch, count, length, size = static(c.b.tensor(x))
    one = c.b.reshape(x, shape=(batch, count, 1, length, size))
    wide = c.b.broadcast(one, shape=(batch, count, times, length, size))
    return c.b.reshape(wide, shape=(batch, count * times, length, size))


def _slice_last(c: Call, x: SSAValue, size: int) -> SSAValue:
    shape = static(c.b.tensor(x))
    return c.b.slice(x, starts=(0,) * len(shape), shape=(*shape[:-1], size), steps=(1,) * len(shape))


def _parts(c: Call, x: SSAValue, sizes: tuple[int, ...], dim: int = -1) -> tuple[SSAValue, ...]:
    """Pieces one behind the other along a dimension."""
    shape = static(c.b.tensor(x))
    dim = dim % len(shape)
    found: list[SSAValue] = []
    start = 0
    for size in sizes:
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        part = (*shape[:dim], size, *shape[dim + 1 :])
        found.append(c.b.slice(x, starts=starts, shape=part, steps=(1,) * len(shape)))
        start += size
    return tuple(found)


def _row(c: Call, length: int, first: int = 0) -> SSAValue:
    """[1, length]: the numbers from `first` on."""
    row = c.b.reshape(iota(c.b, length), shape=(1, length))
    return c.b.add(row, c.b.full_like(row, first)) if first else row
