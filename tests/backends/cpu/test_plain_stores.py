"""Stores of a choice between a new and an old value of memory: no masked stores, which are slow on some processors."""

from __future__ import annotations

import pytest

from weft.backends.cpu.plain_stores import keep_stores_plain
from weft.backends.cpu.target import CpuTarget, compile_assembly

TEXT = """
define void @f(ptr %p, ptr %q, ptr %r, i64 %i) {{
  %at = getelementptr float, ptr %p, i64 %i
  %old = load <16 x float>, ptr {read}, align 4
  %x = load <16 x float>, ptr %q, align 4
  %c = fcmp ogt <16 x float> %x, %old
  %new = select <16 x i1> %c, <16 x float> {chosen}
  store <16 x float> %new, ptr {written}, align 4
  ret void
}}
"""
ZEN = CpuTarget("x86_64-unknown-linux-gnu", "znver3", "")


@pytest.mark.parametrize("chosen", ["%x, <16 x float> %old", "%old, <16 x float> %x"])
@pytest.mark.parametrize("place", ["%p", "%at"])
def test_what_is_written_over_what_was_chosen_from_is_no_masked_store(chosen: str, place: str) -> None:
    text = TEXT.format(read=place, written=place, chosen=chosen)
    assert f"store volatile <16 x float> %new, ptr {place}," in (keep_stores_plain(text) or "")
    assert "maskmov" not in compile_assembly(text, ZEN)


def test_a_place_that_is_computed_twice_is_one() -> None:
    text = TEXT.format(read="%at", written="%at.1", chosen="%x, <16 x float> %old")
    text = text.replace("  store", "  %at.1 = getelementptr float, ptr %p, i64 %i\n  store")
    assert "store volatile" in (keep_stores_plain(text) or "")


def test_other_stores_stay() -> None:
    assert keep_stores_plain(TEXT.format(read="%p", written="%r", chosen="%x, <16 x float> %old")) is None
    assert keep_stores_plain(TEXT.format(read="%p", written="%p", chosen="%x, <16 x float> %x")) is None
