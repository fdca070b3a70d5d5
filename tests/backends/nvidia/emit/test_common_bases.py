"""A base that many unrelated values are added to is copied for each few of them, and all else stays as it was: gathers
of many elements a thread compile in time that grows with their number, not with its square."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.backends.nvidia.emit.common_bases import MOST_ADDENDS, split_common_bases

from ..ptxas import assemble, needs_ptxas

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulation import compile_like, emulate

COPY = re.compile(r'  (%\S+) = call (i\d+) asm "mov\.b\d+ \$0, \$1;", "=(\w),\3"\(\2 (%\w+)\)')
WIDTHS = (64, 256)
"""Elements a thread."""


def gathered(count: int, type_: str = "i64") -> list[str]:
    """A base and as many values that have nothing to do with each other."""
    loads = [f'  %x{i} = call {type_} asm sideeffect "ld $0, [{i}];", "=l"()' for i in range(count)]
    return [*loads, *(f"  %v{i} = add {type_} %base, %x{i}" for i in range(count))]


def test_few_addends_stay_as_they_are() -> None:
    lines = gathered(MOST_ADDENDS)
    assert split_common_bases(lines) is lines


@pytest.mark.parametrize("type_", ["i32", "i64"])
def test_no_copy_has_many_addends(type_: str) -> None:
    lines = gathered(4 * MOST_ADDENDS, type_)
    result = split_common_bases(lines)
    assert len(result) == len(lines), "places of the source are told by the number of a line"
    flat = "\n".join(result).splitlines()
    copies = {match[1]: match[4] for line in flat if (match := COPY.fullmatch(line))}
    sums = [line.split() for line in flat if " = add " in line]
    reads = Counter(words[4].rstrip(",") for words in sums)
    assert set(copies.values()) == {"%base"} and reads.keys() == copies.keys()
    assert max(reads.values()) <= MOST_ADDENDS // 4 and sum(reads.values()) == 4 * MOST_ADDENDS
    assert [words[0] for words in sums] == [f"%v{i}" for i in range(4 * MOST_ADDENDS)]
    assert [words[5] for words in sums] == [f"%x{i}" for i in range(4 * MOST_ADDENDS)]


def test_addends_that_differ_by_constants_share_their_base() -> None:
    lines: list[str] = []
    for i in range(4 * MOST_ADDENDS):
        lines += [f"  %p{i} = add i64 %place, {i}", f"  %r{i} = add i64 %row, %p{i}", f"  %b{i} = mul i64 %r{i}, 4"]
        lines.append(f"  %v{i} = add i64 %base, %b{i}")
    assert split_common_bases(lines) is lines


def test_a_copy_is_read_in_its_block_only() -> None:
    lines = gathered(MOST_ADDENDS + 1)
    result = "\n".join(split_common_bases([*lines, "  br label %next", "next:", "  %w = add i64 %x0, %base"]))
    before, _, after = result.partition("next:\n")
    (copy,) = (match for line in after.splitlines() if (match := COPY.fullmatch(line)))
    assert copy[1] not in before and f"%w = add i64 %x0, {copy[1]}" in after


@triton.jit
def look_up(x, weights, groups, out, size, first, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = first + offsets // size
    weight, shift = tl.load(weights + row), tl.load(groups + row % 7)
    tl.store(out + offsets, tl.load(x + offsets) * weight + shift)


def arguments(block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, int]:
    random = np.random.default_rng(block)
    x, weights, groups = (random.standard_normal(n).astype(np.float32) for n in (block, block // 5 + 3, 7))
    return x, weights, groups, np.zeros(block, np.float32), 5, 2


def test_many_elements_a_thread_are_looked_up() -> None:
    block = 32 * WIDTHS[-1]
    x, weights, groups, out, size, first = args = arguments(block)
    emulate(look_up, *args, BLOCK=block, num_warps=1)
    rows = first + np.arange(block) // size
    expected = x.astype(np.float64) * weights[rows] + groups[rows % 7]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@needs_ptxas
def test_ptxas_reads_one_register_for_all_copies() -> None:
    block = 32 * 2 * MOST_ADDENDS
    ptx = compile_like(look_up, arguments(block), {"BLOCK": block, "num_warps": 1}, "sm_90a").code.ptx
    copied = re.compile(r"// begin inline asm\n\s*mov\.b(?:32|64) (%\w+), (%\w+);\n\s*// end inline asm\n")
    names = dict(copied.findall(ptx))
    plain = re.sub(r"%\w+", lambda name: names.get(name[0], name[0]), copied.sub("", ptx))
    assert len(names) >= MOST_ADDENDS // 8
    assert assemble(ptx, "sm_90a").cubin == assemble(plain, "sm_90a").cubin != b""


def test_time_to_compile_grows_with_the_number_of_elements() -> None:
    times: dict[int, float] = {}
    for width in (WIDTHS[0], *WIDTHS):  # the first also makes what all kernels share
        start = time.process_time()
        compile_like(look_up, arguments(32 * width), {"BLOCK": 32 * width, "num_warps": 1}, "sm_90a")
        times[width] = time.process_time() - start
    narrow, wide = (times[width] for width in WIDTHS)
    assert wide < 6 * narrow, f"{wide:.2f} s for {WIDTHS[-1]} elements a thread, {narrow:.2f} s for {WIDTHS[0]}"
