"""Fourier transforms against NumPy's in float64: any length, any dimensions, halves of real ones."""

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.config import Config
from weft.errors import ShapeError
from weft.frontends.text import compile_text
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, f64
from weft.ops.fourier import dft, frames, irfft, norm_scale, resized, rfft
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.passes.differentiate import vjp_function

LENGTHS = (1, 2, 3, 8, 17, 64, 67, 128, 243, 263, 1009, 1024, 1200)


def pair(shape, dims, dtype=f32, **options) -> FuncOp:
    function = FuncOp.make("dft", {"re": Tensor(dtype, shape), "im": Tensor(dtype, shape)})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make(dft(b, tuple(function.block.args), dims, **options)))
    return function


def close(found: np.ndarray, wanted: np.ndarray, bound: float) -> None:
    scale = max(np.abs(wanted).max(initial=0), 1e-30)
    assert np.abs(found - wanted).max(initial=0) <= bound * scale


@pytest.mark.parametrize("n", LENGTHS)
def test_any_length_in_float64(n):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((3, n)) + 1j * rng.standard_normal((3, n))
    for inverse, numpy in ((False, np.fft.fft), (True, np.fft.ifft)):
        function = pair((3, n), [1], f64, inverse=inverse, scale=1 / n if inverse else 1.0)
        real, imag = run(function, [x.real.copy(), x.imag.copy()])
        close(real + 1j * imag, numpy(x), 1e-12)


@pytest.mark.parametrize("n", (17, 67, 263, 1200))
def test_compiled_transforms_are_as_close_as_f32_allows(n):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((5, n)) + 1j * rng.standard_normal((5, n))).astype(np.complex64)
    compiled = compile_text(str(pair((5, n), [1])), config=Config(cache=False))
    real, imag = compiled(x.real.copy(), x.imag.copy())
    close(real + 1j * imag, np.fft.fft(x.astype(np.complex128)), 2e-6)


def test_several_dimensions_with_a_symbolic_one():
    rows = symbol("s0")
    compiled = compile_text(str(pair((rows, 6, 9), [1, 2])), config=Config(cache=False))
    for count in (4, 1, 0):
        x = np.random.default_rng(0).standard_normal((2, count, 6, 9)).astype(np.float32)
        real, imag = compiled(x[0], x[1])
        close(real + 1j * imag, np.fft.fft2((x[0] + 1j * x[1]).astype(np.complex128)), 2e-6)


@pytest.mark.parametrize("shape", [(4, 10), (4, 9), (3, 1), (2, 2), (5, 134)])
def test_real_numbers_have_halves_and_come_back(shape):
    function = FuncOp.make("rfft", {"x": Tensor(f64, shape)})
    b = GraphBuilder(function.block)
    half = rfft(b, function.block.args[0], (0, 1))
    count = shape[0] * shape[1]
    b.insert(ReturnOp.make([*half, irfft(b, half, shape[1], (0, 1), scale=1 / count)]))
    x = np.random.default_rng(1).standard_normal(shape)
    real, imag, back = run(function, [x])
    close(real + 1j * imag, np.fft.rfft2(x), 1e-12)
    close(back, x, 1e-12)


def test_gradients_are_the_transposed_transform():
    function = FuncOp.make("f", {"x": Tensor(f64, (2, 70))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make(rfft(b, function.block.args[0], (1,))))
    rng = np.random.default_rng(2)
    x, direction = rng.standard_normal((2, 2, 70))
    seeds = rng.standard_normal((2, 2, 36))
    (gradient,) = run(vjp_function(function), [x, *seeds])
    moved = run(function, [direction])
    np.testing.assert_allclose(
        (gradient * direction).sum(), sum((s * m).sum() for s, m in zip(seeds, moved, strict=True))
    )


def test_frames_overlap():
    function = FuncOp.make("f", {"x": Tensor(f64, (2, 11))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([frames(b, function.block.args[0], 4, 3)]))
    x = np.arange(22.0).reshape(2, 11)
    (found,) = run(function, [x])
    np.testing.assert_array_equal(found, np.stack([x[:, s : s + 4] for s in (0, 3, 6)], axis=1))


def test_norms_go_by_numpys_names():
    assert [norm_scale(norm, 4, inverse=False) for norm in (None, "backward", "ortho", "forward")] == [1, 1, 0.5, 0.25]
    assert [norm_scale(norm, 4, inverse=True) for norm in (None, "backward", "ortho", "forward")] == [
        0.25,
        0.25,
        0.5,
        1,
    ]
    with pytest.raises(ShapeError, match="sideways"):
        norm_scale("sideways", 4, inverse=False)


@pytest.mark.parametrize("given", (1, 3, 8, 11))
def test_what_only_a_call_tells_to_be_too_short_is_filled_up_with_zeros(given):
    function = FuncOp.make("resized", {"x": Tensor(f32, (symbol("s0"),))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([resized(b, function.block.args[0], 0, 8)]))
    (found,) = compile_text(str(function), config=Config(cache=False))(np.ones(given, np.float32))
    np.testing.assert_array_equal(found, [1.0] * min(given, 8) + [0.0] * (8 - min(given, 8)))
