"""`recognize_attention`: what it takes for attention, what not, and that results stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from tests.seeds import generator
from weft.backends.reference.graph import run
from weft.ir.expr import symbol
from weft.ir.types import DType, Tensor, bf16, boolean, f16, f32, i64, tensor_of
from weft.ops import composites
from weft.ops.matmul.attention import Attention
from weft.passes.attention.recognize_attention import RecognizeAttention
from weft.passes.simplify.eliminate_common import EliminateCommon
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.fold_constants import FoldConstants
from weft.passes.simplify.simplify import Simplify

PASSES = (FoldConstants(), Simplify(), RecognizeAttention(), Simplify(), EliminateDead())
B, H, L, S, E, V = 2, 3, 5, 7, 4, 6
s0 = symbol("s0")
QKV = {"q": Tensor(f32, (B, H, L, E)), "k": Tensor(f32, (B, H, S, E)), "v": Tensor(f32, (B, H, S, V))}


def number(b: Any, x: Any, value: float) -> Any:
    return b.full_like(x, value)


def scores(b: Any, q: Any, k: Any) -> Any:
    return b.dot(q, b.permute(k, dims=(0, 1, 3, 2)))


def attend(b: Any, x: Any, v: Any) -> Any:
    return b.dot(composites.softmax(b, x, 3), v)


def test_as_text(passes: Any) -> None:
    passes.rewrites_text(
        (RecognizeAttention(), EliminateDead()),
        """
        "graph.func"() ({
        ^bb0(%q: tensor<2x5x4xf32>, %k: tensor<2x7x4xf32>, %v: tensor<2x7x6xf32>, %m: tensor<5x7xf32>):
          %0 = "graph.permute"(%k) {dims = [0, 2, 1]} : (tensor<2x7x4xf32>) -> tensor<2x4x7xf32>
          %1 = "graph.dot"(%q, %0) : (tensor<2x5x4xf32>, tensor<2x4x7xf32>) -> tensor<2x5x7xf32>
          %2 = "graph.full"() {value = 0.5 : f64, shape = [], dtype = f32} : () -> tensor<f32>
          %3 = "graph.mul"(%1, %2) : (tensor<2x5x7xf32>, tensor<f32>) -> tensor<2x5x7xf32>
          %4 = "graph.max"(%3) {dims = [2], keep = true} : (tensor<2x5x7xf32>) -> tensor<2x5x1xf32>
          %5 = "graph.sub"(%3, %4) : (tensor<2x5x7xf32>, tensor<2x5x1xf32>) -> tensor<2x5x7xf32>
          %6 = "graph.exp"(%5) : (tensor<2x5x7xf32>) -> tensor<2x5x7xf32>
          %7 = "graph.sum"(%6) {dims = [2], keep = true} : (tensor<2x5x7xf32>) -> tensor<2x5x1xf32>
          %8 = "graph.div"(%6, %7) : (tensor<2x5x7xf32>, tensor<2x5x1xf32>) -> tensor<2x5x7xf32>
          %9 = "graph.dot"(%8, %v) : (tensor<2x5x7xf32>, tensor<2x7x6xf32>) -> tensor<2x5x6xf32>
          "graph.return"(%9) : (tensor<2x5x6xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
        """
        "graph.func"() ({
        ^bb0(%q: tensor<2x5x4xf32>, %k: tensor<2x7x4xf32>, %v: tensor<2x7x6xf32>, %m: tensor<5x7xf32>):
          %0 = "graph.attention"(%q, %k, %v) {causal = false, scale = 0.5 : f64}
            : (tensor<2x5x4xf32>, tensor<2x7x4xf32>, tensor<2x7x6xf32>) -> tensor<2x5x6xf32>
          "graph.return"(%0) : (tensor<2x5x6xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
        rtol=1e-5,
    )


def test_heads_that_torch_merges_for_its_products(passes: Any) -> None:
    """`matmul` of four dimensions comes as views around a product of three."""

    def before(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        flat = b.reshape(q, shape=(B * H, L, E))
        turned = b.reshape(b.permute(k, dims=(0, 1, 3, 2)), shape=(B * H, E, S))
        x = b.reshape(b.dot(flat, turned), shape=(B, H, L, S))
        x = b.add(b.div(x, number(b, x, math.sqrt(3))), mask)
        weights = b.reshape(composites.softmax(b, x, 3), shape=(B * H, L, S))
        return b.reshape(b.dot(weights, b.reshape(v, shape=(B * H, S, V))), shape=(B, H, L, V))

    tensors = {**QKV, "mask": Tensor(f32, (B, 1, 1, S))}
    module = passes.apply(PASSES, passes.built(tensors, before), rtol=1e-5)
    assert count(module)["graph.attention"] == 1 and "undefined = true" in str(module)
    assert not {"graph.dot", "graph.exp", "graph.where"} & count(module).keys()


def count(module: Any) -> dict[str, int]:
    names = [op.name for op in module.walk()]
    return {name: names.count(name) for name in names if name != "graph.full"}


def test_scaled_operands(passes: Any) -> None:
    """The decomposition of torch's own attention scales both operands by the root."""

    def before(b: Any, q: Any, k: Any, v: Any) -> Any:
        turned = b.permute(k, dims=(0, 1, 3, 2))
        return attend(b, b.dot(b.mul(q, number(b, q, 0.5)), b.mul(turned, number(b, k, 0.5))), v)

    passes.rewrites(PASSES, QKV, before, lambda b, q, k, v: b.attention(q, k, v, causal=False, scale=0.25), rtol=1e-5)


def repeated(b: Any, x: Any, times: int) -> Any:
    """Keys or values of each head as often as heads of queries share it."""
    batch, heads, *rest = b.tensor(x).shape
    spread = b.broadcast(b.reshape(x, shape=(batch, heads, 1, *rest)), shape=(batch, heads, times, *rest))
    return b.reshape(spread, shape=(batch, heads * times, *rest))


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize("rows", [1, 5])
def test_shared_heads_that_torch_widens_and_scales(passes: Any, rows: int, dtype: DType) -> None:
    """What torch makes of attention with shared heads and a mask, which no library takes."""

    def before(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        q, k, v = (b.cast(x, dtype=f32) for x in (q, k, v))
        k, v = repeated(b, k, 2), repeated(b, v, 2)
        q = b.reshape(b.mul(q, number(b, q, 0.5)), shape=(B * 4, rows, 8))
        turned = b.permute(k, dims=(0, 1, 3, 2))
        turned = b.reshape(b.mul(turned, number(b, k, 0.5)), shape=(B * 4, 8, S))
        x = b.reshape(b.dot(q, turned), shape=(B, 4, rows, S))
        low = b.full(value=-math.inf, shape=(), dtype=dtype)
        mask = b.where(m, b.full(value=0.0, shape=(), dtype=dtype), low)
        x = b.add(x, b.cast(mask, dtype=f32))
        low = number(b, x, -math.inf)
        seen = b.any(b.logical_not(b.eq(x, low)), dims=(3,), keep=True)
        weights = b.where(b.logical_not(seen), number(b, x, 0), composites.softmax(b, x, 3))
        weights = b.reshape(weights, shape=(B * 4, rows, S))
        out = b.dot(weights, b.reshape(v, shape=(B * 4, S, 8)))
        return b.cast(b.reshape(out, shape=(B, 4, rows, 8)), dtype=dtype)

    def after(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        return b.attention(q, repeated(b, k, 2), repeated(b, v, 2), m, causal=False, scale=0.25)

    tensors = {
        "q": Tensor(dtype, (B, 4, rows, 8)),
        **{name: Tensor(dtype, (B, 2, S, 8)) for name in "kv"},
        "m": Tensor(boolean, (B, 1, 1, S)),
    }
    found = (FoldConstants(), Simplify(), RecognizeAttention(narrow=True), Simplify(), EliminateDead())
    passes.rewrites(found, tensors, before, after, rtol=0.02)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_sinks(passes: Any, dtype: DType, first: bool) -> None:
    """A column of scores that is dropped when it was counted, with the greatest score taken away once more."""

    def before(b: Any, q: Any, k: Any, v: Any, sinks: Any) -> Any:
        x = b.mul(scores(b, q, k), number(b, q, 0.5))
        x = b.where(causal_mask(b, L, S), x, number(b, x, -math.inf))
        column = b.broadcast(b.reshape(sinks, shape=(1, H, 1, 1)), shape=(B, H, L, 1))
        x = b.concat(*((column, x) if first else (x, column)), dim=3)
        x = b.cast(b.sub(x, b.max(x, dims=(3,), keep=True)), dtype=f32)
        weights = b.cast(composites.softmax(b, x, 3), dtype=dtype)
        starts = (0, 0, 0, int(first))
        return b.dot(b.slice(weights, starts=starts, shape=(B, H, L, S), steps=(1,) * 4), v)

    def after(b: Any, q: Any, k: Any, v: Any, sinks: Any) -> Any:
        return b.attention(q, k, v, b.reshape(sinks, shape=(1, H, 1, 1)), causal=True, scale=0.5, sinks=True)

    tensors = {**{name: Tensor(dtype, tensor.shape) for name, tensor in QKV.items()}, "sinks": Tensor(dtype, (H,))}
    passes.rewrites(PASSES, tensors, before, after, rtol=1e-5 if dtype == f32 else 0.02)


@pytest.mark.parametrize("cut", [0, 1])
def test_columns_that_are_no_sinks(passes: Any, cut: int) -> None:
    """A column that is kept, or another one that is dropped."""

    def body(b: Any, q: Any, k: Any, v: Any, sinks: Any) -> Any:
        x = b.concat(scores(b, q, k), b.broadcast(sinks, shape=(B, H, L, 2)), dim=3)
        weights = b.slice(composites.softmax(b, x, 3), starts=(0, 0, 0, cut), shape=(B, H, L, S), steps=(1,) * 4)
        return b.dot(weights, v)

    module = passes.built({**QKV, "sinks": Tensor(f32, (L, 2))}, body)
    assert "graph.attention" not in str(passes.apply(PASSES, module))


@pytest.mark.parametrize("masked", [False, True])
def test_soft_caps(passes: Any, masked: bool) -> None:
    def before(b: Any, q: Any, k: Any, v: Any) -> Any:
        x = b.mul(scores(b, q, k), number(b, q, 0.5))
        x = b.mul(b.tanh(b.div(x, number(b, x, 4.0))), number(b, x, 4.0))
        if masked:  # as `masked_fill` does
            hidden = b.lt(b.iota(shape=(L, 1), dim=0, dtype=i64), b.iota(shape=(1, S), dim=1, dtype=i64))
            x = b.where(hidden, number(b, x, -math.inf), x)
        return attend(b, x, v)

    passes.rewrites(
        PASSES,
        QKV,
        before,
        lambda b, q, k, v: b.attention(q, k, v, causal=masked, scale=0.5, softcap=4.0),
        rtol=1e-5,
    )


def causal_mask(b: Any, rows: Any, columns: Any) -> Any:
    row, column = b.iota(shape=(rows, 1), dim=0, dtype=i64), b.iota(shape=(1, columns), dim=1, dtype=i64)
    return b.ge(row, column)


@pytest.mark.parametrize("form", ["where", "masked fill", "added", "computed"])
def test_causal_masks(passes: Any, form: str) -> None:
    def before(b: Any, q: Any, k: Any, v: Any) -> Any:
        x = scores(b, q, k)
        low = number(b, x, -math.inf)
        keep = causal_mask(b, L, S)
        if form == "where":
            x = b.where(keep, x, low)
        elif form == "masked fill":
            x = b.where(b.logical_not(keep), low, x)
        elif form == "added":
            mask = b.where(keep, number(b, x, 0), low)
            x = b.add(b.broadcast(mask, shape=(B, 1, L, S)), x)
        else:
            ones = b.full(value=1.0, shape=(L, S), dtype=f32)
            keep = b.ne(b.where(keep, ones, b.full_like(ones, 0)), b.full_like(ones, 0))
            x = b.where(keep, x, low)
        return attend(b, x, v)

    passes.rewrites(PASSES, QKV, before, lambda b, q, k, v: b.attention(q, k, v, causal=True, scale=1.0), rtol=1e-5)


def test_causal_masks_of_symbolic_size(passes: Any) -> None:
    tensors = {name: Tensor(f32, (B, H, s0, E)) for name in "qkv"}

    def before(b: Any, q: Any, k: Any, v: Any) -> Any:
        x = scores(b, q, k)
        return attend(b, b.where(causal_mask(b, s0, s0), x, number(b, x, -math.inf)), v)

    passes.rewrites(
        PASSES, tensors, before, lambda b, q, k, v: b.attention(q, k, v, causal=True, scale=1.0), rtol=1e-5, s0=9
    )


MASKED: dict[str, tuple[Tensor, Callable[..., Any]]] = {
    "booleans": (Tensor(boolean, (B, 1, 1, S)), lambda b, x, m: b.where(m, x, number(b, x, -math.inf))),
    "negated booleans": (Tensor(boolean, (L, S)), lambda b, x, m: b.where(m, number(b, x, -math.inf), x)),
    "numbers": (Tensor(f32, (B, 1, L, S)), lambda b, x, m: b.add(x, m)),
    "the least number": (
        Tensor(boolean, (B, 1, L, S)),
        lambda b, x, m: b.where(m, x, number(b, x, float(np.finfo(np.float32).min))),
    ),
    "the least number, added": (
        Tensor(boolean, (B, 1, L, S)),
        lambda b, x, m: b.add(x, b.where(m, number(b, x, 0), number(b, x, float(np.finfo(np.float32).min)))),
    ),
    "booleans and a causal one": (
        Tensor(boolean, (B, 1, 1, S)),
        lambda b, x, m: b.where(b.bitwise_and(m, causal_mask(b, L, S)), x, number(b, x, -math.inf)),
    ),
    "booleans, then numbers": (
        Tensor(boolean, (B, 1, 1, S)),
        lambda b, x, m: b.add(b.where(m, x, number(b, x, -math.inf)), b.iota(shape=(L, S), dim=1, dtype=f32)),
    ),
}


@pytest.mark.parametrize("case", MASKED)
def test_masks(passes: Any, case: str) -> None:
    tensor, masked = MASKED[case]

    def before(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        return attend(b, masked(b, scores(b, q, k), m), v)

    module = passes.built({**QKV, "m": tensor}, before)
    original = passes.function(module.clone())
    for each in PASSES:
        each.apply(Context(), module)
    module.verify()
    assert count(module)["graph.attention"] == 1 and "graph.dot" not in count(module)
    rng = generator()
    arrays = [rng.standard_normal([*t.shape]).astype(np.float32) for t in QKV.values()]
    shape = [int(size) for size in tensor.shape]
    if tensor.dtype == boolean:
        mask = rng.random(shape) < 0.6
        mask[0] = "negated" in case  # a row without any key
        mask[-1, ..., 0] = True
    else:
        mask = np.where(rng.random(shape) < 0.4, -np.inf, rng.standard_normal(shape)).astype(np.float32)
        mask[0, :, 1] = -np.inf
    (wanted,), (found,) = (run(f, [*arrays, mask]) for f in (original, passes.function(module)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert np.isnan(wanted).any() == ("least" not in case)


def test_the_safe_softmax_gives_zeros(passes: Any) -> None:
    def before(b: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        x = scores(b, q, k)
        low = number(b, x, -math.inf)
        x = b.where(m, x, low)
        hidden = b.all(b.eq(x, low), dims=(3,), keep=True)
        return b.dot(b.where(hidden, number(b, x, 0), composites.softmax(b, x, 3)), v)

    passes.rewrites(
        PASSES,
        {**QKV, "m": Tensor(boolean, (B, 1, 1, S))},
        before,
        lambda b, q, k, v, m: b.attention(q, k, v, m, causal=False, scale=1.0),
        rtol=1e-5,
    )


def test_narrow_floats_with_a_wide_softmax(passes: Any) -> None:
    tensors = {name: Tensor(bf16, tensor.shape) for name, tensor in QKV.items()}
    passes.rewrites(
        PASSES,
        tensors,
        lambda b, q, k, v: attend(b, scores(b, q, k), v),
        lambda b, q, k, v: b.attention(q, k, v, causal=False, scale=1.0),
        rtol=0.02,
    )


REFUSED: dict[str, Callable[..., Any]] = {
    "weights that are read": lambda b, q, k, v: [
        weights := composites.softmax(b, scores(b, q, k), 3),
        b.dot(weights, v),
    ],
    "scores that are read": lambda b, q, k, v: [x := scores(b, q, k), attend(b, x, v)],
    "a softmax over rows": lambda b, q, k, v: b.dot(composites.softmax(b, scores(b, q, k), 2), v),
    "a mask that is scaled": lambda b, q, k, v: attend(
        b,
        b.mul(
            b.add(x := scores(b, q, k), b.iota(shape=(L, S), dim=0, dtype=f32)),
            number(b, x, 0.3),
        ),
        v,
    ),
    "a number that does not hide": lambda b, q, k, v: attend(
        b, b.where(causal_mask(b, L, S), x := scores(b, q, k), number(b, x, -10.0)), v
    ),
    "a mask below a soft cap": lambda b, q, k, v: attend(
        b, b.tanh(b.where(causal_mask(b, L, S), x := scores(b, q, k), number(b, x, -math.inf))), v
    ),
    "no product": lambda b, q, k, v: attend(
        b, b.concat(q, b.slice(q, starts=(0,) * 4, shape=(B, H, L, 3), steps=(1,) * 4), dim=3), v
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_attention_stays(passes: Any, case: str) -> None:
    module = passes.apply(PASSES, passes.built(QKV, REFUSED[case]))
    assert "graph.attention" not in str(module)


def test_the_mask_of_an_op(passes: Any) -> None:
    def before(b: Any, q: Any, k: Any, v: Any) -> Any:
        keep = b.bitwise_and(causal_mask(b, L, S), b.full(value=True, shape=(B, 1, 1, S), dtype=boolean))
        mask = b.where(keep, number(b, q, 0), number(b, q, -math.inf))
        return b.attention(q, k, v, b.broadcast(mask, shape=(B, H, L, S)), causal=False, scale=0.5)

    passes.rewrites(PASSES, QKV, before, lambda b, q, k, v: b.attention(q, k, v, causal=True, scale=0.5))


@pytest.mark.parametrize(("rows", "width"), [(300, 264), (3, 640)])
def test_heads_that_no_tile_holds_stay(passes: Any, rows: int, width: int) -> None:
    tensors = {name: Tensor(bf16, (1, 1, rows, width)) for name in "qkv"}
    module = passes.built(tensors, lambda b, q, k, v: attend(b, scores(b, q, k), v))
    assert "graph.attention" not in str(passes.apply(RecognizeAttention(narrow=True), module))


@pytest.mark.parametrize("rounded", [True, False])
def test_narrow_attention_is_what_is_rounded_in_the_end(passes: Any, rounded: bool) -> None:
    def body(b: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (b.cast(x, dtype=f32) for x in (q, k, v))
        scores = b.dot(q, b.permute(k, dims=(0, 2, 1)))
        powers = b.exp(b.sub(scores, b.max(scores, dims=(2,), keep=True)))
        out = b.dot(b.div(powers, b.sum(powers, dims=(2,), keep=True)), v)
        return b.cast(out, dtype=bf16) if rounded else out

    tensors = {name: Tensor(bf16, (2, 8, 16)) for name in "qkv"}
    module = passes.apply(RecognizeAttention(narrow=True), passes.built(tensors, body), rtol=2e-2)
    assert ("graph.attention" in str(module)) == rounded


@pytest.mark.parametrize("low", [-math.inf, -3e38])
@pytest.mark.parametrize("shifted", [False, True])
def test_a_further_score_of_each_row(passes: Any, low: float, shifted: bool) -> None:
    """What models learn for each head: it has a share of the weights, and no value."""

    def before(b: Any, q: Any, k: Any, v: Any, sink: Any) -> Any:
        x = scores(b, q, k)
        row, column = b.iota(shape=(L, 1), dim=0, dtype=i64), b.iota(shape=(1, S), dim=1, dtype=i64)
        seen = b.gt(row, column)  # the first row sees nothing
        x = b.add(x, b.where(seen, b.full(value=0.0, shape=(), dtype=f32), b.full(value=low, shape=(), dtype=f32)))
        sinks = b.emit("broadcast", b.reshape(sink, shape=(1, H, 1, 1)), shape=(B, H, L, 1))
        x = b.concat(x, sinks, dim=3)
        if shifted:
            x = b.sub(x, b.max(x, dims=(3,), keep=True))
        weights = composites.softmax(b, x, 3)
        cut = b.slice(weights, starts=(0, 0, 0, 0), shape=(B, H, L, S), steps=(1, 1, 1, 1))
        return b.dot(cut, v)

    module = passes.apply(PASSES, passes.built({**QKV, "sink": Tensor(f32, (H,))}, before), rtol=1e-5)
    assert "graph.attention" in str(module) and "sinks = true" in str(module)
    assert "graph.dot" not in str(module) and "graph.concat" not in str(module)


@pytest.mark.parametrize("form", ["two", "other column", "read twice"])
def test_no_further_score(passes: Any, form: str) -> None:
    def before(b: Any, q: Any, k: Any, v: Any, sink: Any) -> Any:
        count = 2 if form == "two" else 1
        x = scores(b, q, k)
        x = b.concat(x, b.emit("broadcast", b.reshape(sink, shape=(1, H, 1, 1)), shape=(B, H, L, count)), dim=3)
        weights = composites.softmax(b, x, 3)
        starts = (0, 0, 0, 1 if form == "other column" else 0)
        cut = b.slice(weights, starts=starts, shape=(B, H, L, S), steps=(1, 1, 1, 1))
        out = b.dot(cut, v)
        return b.add(out, b.sum(weights, dims=(3,), keep=True)) if form == "read twice" else out

    module = passes.apply(PASSES, passes.built({**QKV, "sink": Tensor(f32, (H,))}, before), rtol=1e-5)
    assert "graph.attention" not in str(module)


def segments(b: Any, numbers: Any, rows: bool) -> Any:
    """The number of each row's or key's sequence, where several are one after the other."""
    place = b.iota(shape=(1, S, 1) if rows else (1, 1, S), dim=1 if rows else 2, dtype=i64)
    return b.index(numbers, b.iota(shape=(B, 1, 1), dim=0, dtype=i64), place, dims=(0, 1), position=0)


OWN: dict[str, tuple[bool, Callable[..., Any]]] = {
    "window": (True, lambda b, row, key, n: b.gt(key, b.sub(row, number(b, row, 3)))),
    "window without the row": (False, lambda b, row, key, n: b.gt(key, row)),
    "sequences": (True, lambda b, row, key, n: b.eq(segments(b, n, True), segments(b, n, False))),
    "sequences as lines": (
        True,
        lambda b, row, key, n: b.eq(b.reshape(n, shape=(B, S, 1)), b.reshape(n, shape=(B, 1, S))),
    ),
    "other numbers": (False, lambda b, row, key, n: b.eq(segments(b, n, True), key)),
    "numbers of keys": (False, lambda b, row, key, n: b.eq(b.reshape(n, shape=(B, 1, S)), number(b, key, 1))),
}


@pytest.mark.parametrize("case", OWN)
def test_lowest_numbers_hide_where_every_row_sees_its_own_place(passes: Any, case: str) -> None:
    sees, condition = OWN[case]

    def before(b: Any, q: Any, k: Any, v: Any, n: Any) -> Any:
        row, key = b.iota(shape=(S, 1), dim=0, dtype=i64), b.iota(shape=(1, S), dim=1, dtype=i64)
        seen = b.bitwise_and(b.le(key, row), condition(b, row, key, n))
        if tensor_of(seen.type).rank == 3:
            seen = b.reshape(seen, shape=(B, 1, S, S))
        zero, low = (b.full(value=value, shape=(), dtype=f32) for value in (0.0, -3e38))
        return attend(b, b.add(scores(b, q, k), b.where(seen, zero, low)), v)

    tensors = {name: Tensor(f32, (B, H, S, E)) for name in "qkv"}
    built = passes.built({**tensors, "n": Tensor(i64, (B, S))}, before)
    module = passes.apply((EliminateCommon(), *PASSES), built, rtol=1e-5)
    assert ("f32" in str(tensor_of(attention_of(module).masks[0].type))) == (not sees)


def attention_of(module: Any) -> Attention:
    (found,) = [op for op in module.walk() if isinstance(op, Attention)]
    return found


@pytest.mark.parametrize("hidden", [False, True])
def test_lowest_numbers_hide_where_every_row_sees_a_key(passes: Any, hidden: bool) -> None:
    """Rows that see none are even over all keys, which is what numbers that are added give."""

    def before(b: Any, q: Any, k: Any, v: Any) -> Any:
        keep = causal_mask(b, L, S)
        zero, low = (b.full(value=number, shape=(), dtype=f32) for number in (0.0, -3e38))
        mask = b.where(keep, low, zero) if hidden else b.where(keep, zero, low)
        return attend(b, b.add(scores(b, q, k), mask), v)

    module = passes.apply(PASSES, passes.built(QKV, before), rtol=1e-5)
    assert ("causal = true" in str(module)) == (not hidden)
    assert "graph.attention" in str(module) and "graph.any" not in str(module)
