"""`multiply_codes`: quantized operands are multiplied as integers, and what comes out is what the floats give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.ir import SSAValue

from weft.backends.reference.graph import run
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, Tensor, f32, i8, i32, tensor_of, u8
from weft.ops.graph import FuncOp, GraphBuilder, module_of
from weft.ops.matmul.dot import Dot
from weft.ops.windows.convolution import Convolution, plain_params
from weft.passes.quantize.multiply_codes import MultiplyCodes
from weft.passes.simplify.eliminate_dead import EliminateDead

RANGE = {i8: (-128, 128), u8: (0, 256)}


def numbers(b: GraphBuilder, codes: SSAValue, zero: SSAValue, scale: SSAValue) -> SSAValue:
    """What codes stand for."""
    whole = b.sub(b.cast(codes, dtype=i32), zero)
    return b.mul(b.cast(whole, dtype=f32), scale)


def compared(passes: Any, arguments: dict[str, Tensor], constants: tuple[int, ...], body: Callable[..., Any]) -> FuncOp:
    """The function after the pass; both give the same within the rounding of floats."""
    module = passes.built(arguments, body)
    function = passes.function(module)
    function.attributes["constants"] = to_attribute(constants)
    rng = np.random.default_rng(1)
    arrays = [
        rng.uniform(0.001, 0.1, [*map(int, t.shape)]).astype(np.float32)
        if t.dtype == f32
        else rng.integers(*RANGE.get(t.dtype, (-100, 100)), [*map(int, t.shape)]).astype(t.dtype.numpy)
        for t in arguments.values()
    ]
    (expected,) = run(function, arrays)
    MultiplyCodes().apply(Context(), module)
    module.verify()
    (found,) = run(function, arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4 * np.abs(expected).max())
    return function


def of_codes(function: FuncOp) -> list[tuple[DType, DType]]:
    """The types of the operands of products whose sums are i32."""
    ops = [op for op in function.block.ops if isinstance(op, Dot | Convolution) and op.params.get("dtype") == i32]
    return [(tensor_of(op.operands[0].type).dtype, tensor_of(op.operands[1].type).dtype) for op in ops]


@pytest.mark.parametrize("rows", [i8, u8])
@pytest.mark.parametrize("weights", [i8, u8])
@pytest.mark.parametrize("channels", [(), (1, 7)])
@pytest.mark.parametrize("zeros", [False, True])
def test_products(passes: Any, rows: DType, weights: DType, channels: tuple[int, ...], zeros: bool) -> None:
    arguments = {"x": Tensor(rows, (5, 33)), "w": Tensor(weights, (33, 7)), "s": Tensor(f32, channels)}
    arguments["z"] = Tensor(i32, channels)

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, s: SSAValue, z: SSAValue) -> SSAValue:
        middle = b.full(value=128 if weights == u8 else 0, shape=(), dtype=i32)
        wide = numbers(b, w, z if zeros else middle, s)
        zero, scale = b.full(value=9, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
        return b.dot(numbers(b, x, zero, scale), wide)

    assert of_codes(compared(passes, arguments, (1, 2, 3), body)) == [(rows, i8)]


def test_weights_are_widened_once(passes: Any) -> None:
    """To be summed: their codes become signed in 8 bits, and zeros are taken off sums. Weights are large."""
    arguments = {"x": Tensor(u8, (5, 33)), "w": Tensor(u8, (33, 7)), "q": Tensor(i32, (1, 7))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, q: SSAValue) -> SSAValue:
        zero, scale = b.full(value=9, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
        return b.dot(numbers(b, x, zero, scale), numbers(b, w, q, scale))

    function = compared(passes, arguments, (1, 2), body)
    EliminateDead().apply(Context(), module_of(function))
    widened = [r for op in function.block.ops for r in op.results if tensor_of(r.type) == Tensor(i32, (33, 7))]
    assert len(widened) == 1


def test_views_are_looked_through(passes: Any) -> None:
    """Weights are transposed, and rows reshaped, between what dequantizes them and the product."""
    arguments = {"x": Tensor(i8, (2, 3, 16)), "w": Tensor(i8, (4, 16)), "s": Tensor(f32, (4, 1))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, s: SSAValue) -> SSAValue:
        none, scale = b.full(value=0, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
        rows = b.reshape(numbers(b, x, none, scale), shape=(6, 16))
        return b.dot(rows, b.permute(numbers(b, w, none, s), dims=(1, 0)))

    assert of_codes(compared(passes, arguments, (1, 2), body)) == [(i8, i8)]


@pytest.mark.parametrize("known", [True, False], ids=["number", "argument"])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("rows", [i8, u8])
@pytest.mark.parametrize("weights", [i8, u8])
@pytest.mark.parametrize("zeros", [None, (), (4, 1, 1, 1)], ids=["none", "one", "each"])
def test_convolutions(
    passes: Any, known: bool, padding: int, rows: DType, weights: DType, zeros: tuple[int, ...] | None
) -> None:
    """Padding stands for zero, whatever its code: also where that is not known, and where weights have zeros."""
    arguments = {"x": Tensor(rows, (2, 3, 6, 5)), "w": Tensor(weights, (4, 3, 3, 3)), "s": Tensor(f32, (4, 1, 1, 1))}
    arguments |= {"q": Tensor(i32, zeros or ()), "z": Tensor(i32, ())}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, s: SSAValue, q: SSAValue, z: SSAValue) -> SSAValue:
        zero = b.full(value=77, shape=(), dtype=i32) if known else z
        middle = b.full(value=128 if weights == u8 else 0, shape=(), dtype=i32)
        scale = b.full(value=0.25, shape=(), dtype=f32)
        params = plain_params() | {"padding": ((padding, padding), (padding, 0))}
        return b.convolution(numbers(b, x, zero, scale), numbers(b, w, middle if zeros is None else q, s), **params)

    assert of_codes(compared(passes, arguments, (1, 2, 3), body)) == [(rows, i8)]


def test_what_a_zero_gives_at_borders_is_convolved_once_for_all_channels(passes: Any) -> None:
    """The zero is one number: weights are summed over channels first, and the image has one."""
    arguments = {"x": Tensor(u8, (2, 6, 7, 5)), "w": Tensor(i8, (4, 6, 3, 3)), "z": Tensor(i32, ())}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, z: SSAValue) -> SSAValue:
        none, scale = b.full(value=0, shape=(), dtype=i32), b.full(value=0.25, shape=(), dtype=f32)
        params = plain_params() | {"padding": ((1, 1), (1, 0))}
        return b.convolution(numbers(b, x, z, scale), numbers(b, w, none, scale), **params)

    function = compared(passes, arguments, (1, 2), body)
    convolutions = [op for op in function.block.ops if isinstance(op, Convolution)]
    assert {tensor_of(op.operands[0].type).shape[1] for op in convolutions} == {1, 6}


def test_weights_that_a_call_brings_stay_floats(passes: Any) -> None:
    arguments = {"x": Tensor(i8, (5, 16)), "w": Tensor(i8, (16, 4))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
        none, scale = b.full(value=0, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
        return b.dot(numbers(b, x, none, scale), numbers(b, w, none, scale))

    assert of_codes(compared(passes, arguments, (), body)) == []


def test_a_scale_for_each_of_k_stays_floats(passes: Any) -> None:
    """Sums of codes that have different scales are no sums of the numbers."""
    arguments = {"x": Tensor(i8, (5, 16)), "w": Tensor(i8, (16, 4)), "s": Tensor(f32, (16, 1))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, s: SSAValue) -> SSAValue:
        none, scale = b.full(value=0, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
        return b.dot(numbers(b, x, none, scale), numbers(b, w, none, s))

    assert of_codes(compared(passes, arguments, (1, 2), body)) == []


@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize(
    ("weights", "zero", "largest"),
    [(i8, 0, 255 * 128), (i8, 1, 255 * 129), (u8, 128, 255 * 128), (u8, 0, 255 * 255), (u8, None, 255 * 255)],
)
def test_sums_that_i32_has_no_room_for_stay_floats(
    passes: Any, weights: DType, zero: int | None, largest: int, convolves: bool
) -> None:
    """The largest products of codes less their zeros, as many as just fit, and one more."""
    fits = (2**31 - 1) // largest
    for depth in (fits, fits + 1):
        sizes = ((1, depth, 1, 1), (1, depth, 1, 1)) if convolves else ((1, depth), (depth, 1))
        arguments = {"x": Tensor(u8, sizes[0]), "w": Tensor(weights, sizes[1]), "z": Tensor(i32, ())}

        def body(b: GraphBuilder, x: SSAValue, w: SSAValue, z: SSAValue) -> SSAValue:
            none, scale = b.full(value=0, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
            middle = z if zero is None else b.full(value=zero, shape=(), dtype=i32)
            rows, columns = numbers(b, x, none, scale), numbers(b, w, middle, scale)
            return b.convolution(rows, columns, **plain_params()) if convolves else b.dot(rows, columns)

        module = passes.built(arguments, body)
        function = passes.function(module)
        function.attributes["constants"] = to_attribute((1, 2))
        MultiplyCodes().apply(Context(), module)
        assert len(of_codes(function)) == (depth == fits)
        code = 255 if weights == u8 and not zero else RANGE[weights][0]
        x, w = np.full(sizes[0], 255, np.uint8), np.full(sizes[1], code, weights.numpy)
        (found,) = run(function, [x, w, np.array(0, np.int32)])
        np.testing.assert_allclose(
            found.item(), depth * 255 * (code - (zero or 0)) / 4, rtol=1e-6 if depth == fits else 1e-3
        )


@pytest.mark.parametrize("weights", [i8, u8])
def test_sums_of_integers_wrap_around_at_any_depth(passes: Any, weights: DType) -> None:
    depth = 70_000
    arguments = {"x": Tensor(u8, (2, depth)), "w": Tensor(weights, (depth, 3))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
        return b.dot(b.cast(x, dtype=i32), b.cast(w, dtype=i32))

    module = passes.built(arguments, body)
    function = passes.function(module)
    function.attributes["constants"] = to_attribute((1,))
    MultiplyCodes().apply(Context(), module)
    assert of_codes(function) == [(u8, i8)]
    x, w = np.full((2, depth), 255, np.uint8), np.full((depth, 3), RANGE[weights][1] - 1, weights.numpy)
    (found,) = run(function, [x, w])
    expected = (x.astype(np.int64) @ w.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rows", [i8, u8])
@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("weights", [i8, u8])
def test_channels_that_do_not_mix_are_summed_in_floats(passes: Any, rows: DType, zero: int, weights: DType) -> None:
    """A code is 8 bits, and a product of two takes 15: sums of a window are exact in f32."""
    arguments = {"x": Tensor(rows, (2, 6, 5, 4)), "w": Tensor(weights, (6, 1, 3, 3)), "s": Tensor(f32, (6, 1, 1, 1))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, s: SSAValue) -> SSAValue:
        middle = b.full(value=128 if weights == u8 else 0, shape=(), dtype=i32)
        place, scale = b.full(value=zero, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
        params = plain_params() | {"padding": ((1, 1), (0, 2)), "groups": 6}
        return b.convolution(numbers(b, x, place, scale), numbers(b, w, middle, s), **params)

    function = compared(passes, arguments, (1, 2), body)
    (op,) = (op for op in function.block.ops if isinstance(op, Convolution))
    assert tensor_of(op.operands[0].type).dtype == rows and op.params["dtype"] == f32 and op.params["fill"] == zero


def test_channels_that_do_not_mix_with_zeros_of_weights_stay_floats(passes: Any) -> None:
    arguments = {"x": Tensor(u8, (1, 4, 5, 4)), "w": Tensor(i8, (4, 1, 3, 3)), "s": Tensor(f32, (4, 1, 1, 1))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue, s: SSAValue) -> SSAValue:
        place, scale = b.full(value=3, shape=(), dtype=i32), b.full(value=0.5, shape=(), dtype=f32)
        return b.convolution(numbers(b, x, place, scale), numbers(b, w, place, s), **plain_params() | {"groups": 4})

    function = compared(passes, arguments, (1, 2), body)
    (op,) = (op for op in function.block.ops if isinstance(op, Convolution))
    assert "dtype" not in op.params


@pytest.mark.parametrize("rows", [i8, u8])
def test_differences_that_wrap_around_in_8_bits_are_codes_themselves(passes: Any, rows: DType) -> None:
    """A zero that is taken off before codes are widened is no zero of theirs."""
    arguments = {"x": Tensor(rows, (5, 33)), "w": Tensor(i8, (33, 7))}

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
        less = b.sub(x, b.full_like(x, 100))
        scale = b.full(value=0.5, shape=(), dtype=f32)
        return b.dot(*(b.mul(b.cast(codes, dtype=f32), scale) for codes in (less, w)))

    compared(passes, arguments, (1,), body)


@pytest.mark.parametrize("turned", [False, True])
def test_views_of_integers_are_looked_through(passes: Any, turned: bool) -> None:
    """ONNX's MatMulInteger over three dimensions, whose rows are brought together before the product."""

    def body(b: GraphBuilder, p: SSAValue, zero: SSAValue, q: SSAValue) -> SSAValue:
        whole = b.sub(b.cast(p, dtype=i32), zero)
        rows = b.reshape(b.permute(whole, dims=(1, 0, 2)) if turned else whole, shape=(15, 8))
        return b.dot(rows, b.cast(q, dtype=i32))

    arguments = {"p": Tensor(u8, (3, 5, 8)), "zero": Tensor(i32, ()), "q": Tensor(i8, (8, 6))}
    assert of_codes(compared(passes, arguments, (2,), body)) == [(u8, i8)]
