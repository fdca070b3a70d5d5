"""Values move down to where they are first read; what has effects stays in its order, and results stay the same."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

import weft.triton as triton
import weft.triton.language as tl
from weft.backends.nvidia.emit.sink_to_uses import sink_to_uses

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulation import compile_like, emulate
from ptxas import assemble, needs_ptxas

SIZE = 1024
BF16 = ml_dtypes.bfloat16


def test_chains_of_elements_come_one_after_the_other() -> None:
    lines = [
        "  %x1 = fmul float %a, %a",
        "  %x2 = fmul float %b, %b",
        '  %y1 = call float asm "ex2.approx.f32 $0, $1;", "=f,f"(float %x1)',
        '  %y2 = call float asm "ex2.approx.f32 $0, $1;", "=f,f"(float %x2)',
        '  call void asm sideeffect "st.global.f32 [$0], $1;", "l,f"(i64 %p, float %y1)',
        '  call void asm sideeffect "st.global.f32 [$0], $1;", "l,f"(i64 %q, float %y2)',
        "  ret void",
    ]
    assert sink_to_uses(lines) == [lines[n] for n in (0, 2, 4, 1, 3, 5, 6)]


def test_what_others_read_stays_in_its_block() -> None:
    """And nothing comes before the values that it reads, or between those that begin a block."""
    lines = [
        "  %base = add i32 %a, 1",
        "  br label %loop",
        "loop:",
        "  %i = phi i32 [ 0, %entry ], [ %next, %loop ]",
        "  %j = phi i32 [ %base, %entry ], [ %twice, %loop ]",
        "  %twice = mul i32 %j, 2",
        '  %seen = call i32 asm sideeffect "ld.global.b32 $0, [$1];", "=r,r"(i32 %i)',
        "  %next = add i32 %i, %seen",
        "  %more = icmp slt i32 %next, 9",
        "  br i1 %more, label %loop, label %end",
        "end:",
        "  ret void",
    ]
    found = sink_to_uses(lines)
    assert sorted(found) == sorted(lines) and found[:5] == lines[:5]
    place = {line: number for number, line in enumerate(found)}
    assert place[lines[6]] < place[lines[7]] < place[lines[8]] < place[lines[9]] and place[lines[5]] < place[lines[9]]


@triton.jit
def gated(dc, a, b, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    upstream, x, y = tl.load(dc + i), tl.load(a + i).to(tl.float32), tl.load(b + i)
    rising = tl.sigmoid(x)
    gate = x * rising
    tl.store(a + i, upstream * (gate * (1 - rising) + rising) * y)
    tl.store(b + i, upstream * gate.to(y.dtype))


def test_results_are_the_same() -> None:
    rng = np.random.default_rng(3)
    dc, a, b = (rng.standard_normal(SIZE).astype(BF16) for _ in range(3))
    upstream, x, y = (each.astype(np.float64) for each in (dc, a, b))
    rising = 1 / (1 + np.exp(-x))
    emulate(gated, dc, a, b, SIZE=SIZE, num_warps=2)
    expected = upstream * (x * rising * (1 - rising) + rising) * y
    np.testing.assert_allclose(a.astype(np.float64), expected, rtol=2**-7, atol=1e-4)
    np.testing.assert_allclose(b.astype(np.float64), upstream * x * rising, rtol=2**-6, atol=1e-4)


@needs_ptxas
def test_fewer_registers_are_taken() -> None:
    """Sixteen elements a thread of three operands; with all of a tile's sigmoids alive at once there were 62."""
    operands = [np.zeros(SIZE, BF16) for _ in range(3)]
    ptx = compile_like(gated, operands, {"SIZE": SIZE, "num_warps": 2}, "sm_90a").code.ptx
    (found,) = assemble(ptx, "sm_90a").kernels.values()
    assert found.registers <= 48 and not found.spilled
