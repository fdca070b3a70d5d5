"""PTX inside kernels: what its instructions compute, how elements share registers, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.numpy_builder import NumpyBuilder
from weft.frontends.triton.errors import KernelError, KernelTypeError, KernelUnsupportedError, KernelValueError
from weft.frontends.triton.language.types import OF_STORED, block_type
from weft.frontends.triton.language.values import tensor
from weft.ir.types import dtype_of_numpy

RANDOM = np.random.default_rng(7)
FLOATS = RANDOM.standard_normal(64).astype(np.float32) * 8
WORDS = RANDOM.integers(0, 2**32, 64, np.uint32)
OTHERS = RANDOM.integers(0, 2**32, 64, np.uint32)

SOFTPLUS = """{
    .reg .pred p;   // as libraries of kernels write it
    setp.gt.f32  p, $1, 20.;
    @p  mov.f32  $0, $1;
    @!p mul.f32            $0, $1, 1.4426950408889634;
    @!p ex2.approx.ftz.f32 $0, $0;
    @!p add.f32            $0, $0, 1.0;
    @!p lg2.approx.ftz.f32 $0, $0;
    @!p mul.f32            $0, $0, 0.6931471805599453;
}"""


@pytest.fixture
def interpreted() -> Iterator[None]:
    token = builder.current.set(NumpyBuilder())
    yield
    builder.current.reset(token)


def run(asm: str, constraints: str, args: Sequence[np.ndarray], dtype: Any, pack: int = 1) -> Any:
    tiles = [tensor(x, block_type(OF_STORED[dtype_of_numpy(x.dtype)], x.shape)) for x in args]
    found = tl.inline_asm_elementwise(asm, constraints, tiles, dtype, True, pack)
    return [each.handle for each in found] if isinstance(dtype, tuple) else found.handle


def rotated(words: np.ndarray, count: int) -> np.ndarray:
    return (words << np.uint32(count)) | (words >> np.uint32(32 - count))


def bytes_of(words: np.ndarray) -> np.ndarray:
    return words.view(np.uint8).reshape(-1, 4)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("asm", "expected"),
    [
        ("add.u32 $0, $1, $2;", WORDS + OTHERS),
        ("mul.lo.u32 $0, $1, $2;", WORDS * OTHERS),
        ("mul.hi.u32 $0, $1, $2;", ((WORDS.astype(object) * OTHERS.astype(object)) >> 32).astype(np.uint32)),
        ("mad.lo.u32 $0, $1, $2, 7;", WORDS * OTHERS + np.uint32(7)),
        ("max.s32 $0, $1, $2;", np.maximum(WORDS.view(np.int32), OTHERS.view(np.int32)).view(np.uint32)),
        ("rem.u32 $0, $1, 1000;", WORDS % np.uint32(1000)),
        ("and.b32 $0, $1, 0xF0F0F0F0;", WORDS & np.uint32(0xF0F0F0F0)),
        ("not.b32 $0, $1;", ~WORDS),
        ("shl.b32 $0, $1, 32;", np.zeros_like(WORDS)),
        ("shr.s32 $0, $1, 40;", (WORDS.view(np.int32) >> 31).view(np.uint32)),
        ("shr.u32 $0, $1, 5;", WORDS >> np.uint32(5)),
        ("shf.l.wrap.b32 $0, $1, $1, 37;", rotated(WORDS, 5)),
        ("lop3.b32 $0, $1, $2, 0xFFFF, 0xE8;", (WORDS & OTHERS) | (WORDS & 0xFFFF) | (OTHERS & 0xFFFF)),
        ("lop3.b32 $0, $1, $2, 0, 0x3C;", WORDS ^ OTHERS),
        ("bfe.u32 $0, $1, 8, 12;", (WORDS >> np.uint32(8)) & np.uint32(0xFFF)),
        ("bfe.s32 $0, $1, 8, 12;", ((WORDS.view(np.int32) << 12) >> 20).view(np.uint32)),
        ("popc.b32 $0, $1;", np.array([bin(word).count("1") for word in WORDS], np.uint32)),
        (
            "prmt.b32 $0, $1, $2, 0x0E53;",
            np.stack(
                [
                    bytes_of(WORDS)[:, 3],
                    bytes_of(OTHERS)[:, 1],
                    np.where(bytes_of(OTHERS)[:, 2] > 127, 255, 0).astype(np.uint8),
                    bytes_of(WORDS)[:, 0],
                ],
                1,
            )
            .copy()
            .view(np.uint32)[:, 0],
        ),
        ("{ .reg .pred p; setp.lt.u32 p, $1, $2; selp.b32 $0, $1, $2, p; }", np.minimum(WORDS, OTHERS)),
        ("{ .reg .b16 h<2>; mov.b32 {h0, h1}, $1; mov.b32 $0, {h1, h0}; }", rotated(WORDS, 16)),
    ],
)  # fmt: skip
def test_integers(asm: str, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(run(asm, "=r,r,r", [WORDS, OTHERS], tl.uint32), expected)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("asm", "expected"),
    [
        (SOFTPLUS, np.logaddexp(0, FLOATS.astype(np.float64))),
        ("fma.rn.f32 $0, $1, 2.0, 0f3F800000;", FLOATS.astype(np.float64) * 2 + 1),
        ("{ add.sat.f32 $0, $1, 0.5; }", np.clip(FLOATS + 0.5, 0, 1)),
        ("rcp.approx.ftz.f32 $0, $1;", 1 / FLOATS.astype(np.float64)),
        ("tanh.approx.f32 $0, $1;", np.tanh(FLOATS.astype(np.float64))),
        ("copysign.f32 $0, $1, 2.0;", np.copysign(2, FLOATS)),
        ("{ .reg .s32 i; cvt.rni.s32.f32 i, $1; cvt.rn.f32.s32 $0, i; }", np.rint(FLOATS)),
        ("{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; cvt.f32.bf16 $0, h; }", FLOATS.astype(ml_dtypes.bfloat16)),
        ("{ .reg .b32 w; mov.b32 w, $1; and.b32 w, w, 0x7FFFFFFF; mov.b32 $0, w; }", np.abs(FLOATS)),
    ],
)
def test_floats(asm: str, expected: np.ndarray) -> None:
    np.testing.assert_allclose(
        run(asm, "=f,f", [FLOATS], tl.float32), expected.astype(np.float64), rtol=2e-6, atol=1e-7
    )


@pytest.mark.usefixtures("interpreted")
def test_comparisons_with_a_nan() -> None:
    x = np.array([1, np.nan, 3], np.float32)
    for comparison, expected in [("ne", [0, 0, 1]), ("neu", [0, 1, 1]), ("ltu", [0, 1, 0]), ("num", [1, 0, 1])]:
        asm = f"{{ .reg .pred p; setp.{comparison}.f32 p, $1, 1.0; selp.u32 $0, 1, 0, p; }}"
        np.testing.assert_array_equal(run(asm, "=r,f", [x], tl.uint32), expected)


@pytest.mark.usefixtures("interpreted")
def test_floats_that_are_too_large_for_an_integer() -> None:
    x = np.array([1e20, -1e20, np.nan, -3.7, 2.5], np.float32)
    asm = "cvt.rzi.s32.f32 $0, $1;"
    np.testing.assert_array_equal(run(asm, "=r,f", [x], tl.int32), [2**31 - 1, -(2**31), 0, -3, 2])


@pytest.mark.usefixtures("interpreted")
def test_bytes_share_a_register() -> None:
    x = RANDOM.integers(-128, 128, 64).astype(np.int8)
    asm = "and.b32 $0, $1, 0x1F1F1F1F; shl.b32 $0, $0, 3;"
    np.testing.assert_array_equal(run(asm, "=r,r", [x], tl.int8, pack=4), x << 3)


@pytest.mark.usefixtures("interpreted")
def test_bytes_become_floats_of_a_register_each() -> None:
    x, y = RANDOM.integers(0, 256, 64).astype(np.uint8), FLOATS
    asm = """{
        .reg .b8 t<4>;
        mov.b32 {t0, t1, t2, t3}, $8;
        cvt.rn.f32.u8 $0, t0; cvt.rn.f32.u8 $1, t1; cvt.rn.f32.u8 $2, t2; cvt.rn.f32.u8 $3, t3;
        max.f32 $4, $0, $9; max.f32 $5, $1, $10; max.f32 $6, $2, $11; max.f32 $7, $3, $12;
    }"""
    constraints = ",".join(["=r"] * 8 + ["r"] * 5)
    first, second = run(asm, constraints, [x, y], (tl.float32, tl.float32), pack=4)
    np.testing.assert_array_equal(first, x.astype(np.float32))
    np.testing.assert_array_equal(second, np.maximum(x.astype(np.float32), y))


@pytest.mark.usefixtures("interpreted")
def test_halves_of_a_register() -> None:
    x = FLOATS.astype(np.float16)
    found = run("mul.f16x2 $0, $1, $2;", "=r,r,r", [x, x], tl.float16, pack=2)
    np.testing.assert_array_equal(found, x * x)
    narrow = run("cvt.rn.satfinite.e4m3x2.f32 $0, $1, $2;", "=h,f,f", [FLOATS, FLOATS], tl.uint16)
    expected = FLOATS.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).astype(np.uint16)
    np.testing.assert_array_equal(narrow, expected * 257)


@triton.jit
def _softplus_kernel(x, y, n, asm: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    found = tl.inline_asm_elementwise(asm, "=r,r", [value], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y + at, found, mask=at < n)


def test_a_compiled_kernel_has_it_too() -> None:
    x, y = torch.randn(1000) * 20, torch.full((1000,), torch.nan)
    _softplus_kernel[(8,)](x, y, 1000, SOFTPLUS, BLOCK=128)
    torch.testing.assert_close(y.double(), torch.nn.functional.softplus(x.double()), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("asm", "constraints", "error", "message"),
    [
        ("ld.global.f32 $0, [$1];", "=f,f", KernelUnsupportedError, r"\[\$1\]"),
        ("mov.u32 $0, %laneid;", "=r,f", KernelUnsupportedError, "%laneid"),
        ("vadd4.u32.u32.u32 $0, $1, $1, $1;", "=f,f", KernelUnsupportedError, "vadd4"),
        ("L: bra L;", "=f,f", KernelUnsupportedError, "straight-line"),
        ("mov.f32 $0, $1;", "=f,f,f", KernelValueError, "1 output and 2 input"),
        ("mov.f32 $0, $1;", "=f,m", KernelUnsupportedError, "constraint 'm'"),
        ("{ .reg .f32 t; add.f32 $0, t, $1; }", "=f,f", KernelValueError, "reads t before"),
        ("{ .reg .f32 t; mov.f32 t, $1; }", "=f,f", KernelValueError, "does not write"),
        ("{ mov.f32 $0, $1;", "=f,f", KernelValueError, "does not close"),
        ("mov.f32 $0, $1", "=f,f", None, ""),
    ],
)
def test_what_is_refused(asm: str, constraints: str, error: type[KernelError] | None, message: str) -> None:
    if error is None:
        np.testing.assert_array_equal(run(asm, constraints, [FLOATS], tl.float32), FLOATS)
        return
    with pytest.raises(error, match=message):
        run(asm, constraints, [FLOATS], tl.float32)


@pytest.mark.usefixtures("interpreted")
def test_what_the_author_passes_is_checked() -> None:
    with pytest.raises(KernelValueError, match="pack"):
        run("mov.f32 $0, $1;", "=f,f", [FLOATS], tl.float32, pack=0)
    with pytest.raises(KernelTypeError, match="constraints as text"):
        run("mov.f32 $0, $1;", 3, [FLOATS], tl.float32)  # type: ignore[arg-type]


def _nth(mask: int, base: int, count: int) -> int:
    """`fns` as NVIDIA's manual writes it."""
    if count == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    place, left, step = base, abs(count) - 1, 1 if count > 0 else -1
    while 0 <= place < 32:
        if mask >> place & 1:
            if not left:
                return place
            left -= 1
        place += step
    return 0xFFFFFFFF


@pytest.mark.usefixtures("interpreted")
def test_the_nth_bit_is_found() -> None:
    bases, counts = RANDOM.integers(0, 32, 64, np.uint32), RANDOM.integers(-9, 10, 64).astype(np.int32)
    found = run("fns.b32 $0, $1, $2, $3;", "=r,r,r,r", [WORDS, bases, counts], tl.uint32)
    expected = [_nth(int(w), int(b), int(c)) for w, b, c in zip(WORDS, bases, counts, strict=True)]
    assert found.tolist() == expected
    found = run("fns.b32 $0, $1, 0, $2;", "=r,r,r", [WORDS, np.full(64, 3, np.int32)], tl.int32)
    assert found.tolist() == [np.int32(np.uint32(_nth(int(w), 0, 3))) for w in WORDS]
