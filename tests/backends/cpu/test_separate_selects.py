"""Choices that LLVM's AVX-512 patterns join wrongly with the bits that are chosen."""

from __future__ import annotations

from llvmlite import binding as llvm

from weft.backends.cpu.separate_selects import separate_selects
from weft.backends.cpu.target import CpuTarget, compile_assembly

HEAD = """
define void @f(ptr %p, ptr %q, ptr %r) {
  %h = load <16 x i16>, ptr %p, align 2
  %z = zext <16 x i16> %h to <16 x i32>
  %x = shl <16 x i32> %z, splat (i32 16)
  %v = load <16 x i32>, ptr %q, align 4
  %c = icmp sgt <16 x i32> %v, %x
"""
TAIL = """
  store <16 x i32> %s, ptr %r, align 4
  ret void
}
"""
MIXED = """
  %b = and <16 x i32> %x, splat (i32 -2147483648)
  %a = and <16 x i32> %v, splat (i32 2147483647)
  %o = or disjoint <16 x i32> %b, %a
  %s = select <16 x i1> %c, <16 x i32> %o, <16 x i32> %x
"""


def test_a_choice_between_assembled_bits_is_taken_apart() -> None:
    text = separate_selects(HEAD + MIXED + TAIL)
    assert text is not None
    assert "%yes.s = select <16 x i1> %c, <16 x i32> %o, <16 x i32> zeroinitializer" in text
    assert "%no.s = select <16 x i1> %c, <16 x i32> zeroinitializer, <16 x i32> %x" in text
    assert "%s = or <16 x i32> %yes.s, %no.s" in text


def test_other_choices_stay() -> None:
    assert separate_selects(HEAD + "  %s = select <16 x i1> %c, <16 x i32> %v, <16 x i32> %x" + TAIL) is None
    rounded = "  %o = or <16 x i32> %v, splat (i32 4194304)\n  %s = select <16 x i1> %c, <16 x i32> %o, <16 x i32> %x"
    assert separate_selects(HEAD + rounded + TAIL) is None


def test_no_function_of_three_operands_keeps_one_of_them_under_a_mask() -> None:
    """`vpternlogd imm, ..., {%k1}` without zeroing is what LLVM 22 gets wrong."""
    target = CpuTarget("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx512vl,+avx512bw,+avx512dq")
    lines = [line for line in compile_assembly(HEAD + MIXED + TAIL, target).splitlines() if "vpternlog" in line]
    assert not [line for line in lines if "{%k" in line and "{z}" not in line]


def test_a_choice_that_states_its_line_is_taken_apart_too() -> None:
    stated = MIXED.replace("<16 x i32> %x\n", "<16 x i32> %x, !dbg !7\n")
    text = separate_selects(HEAD + stated + TAIL)
    assert text is not None
    assert "%s = or <16 x i32> %yes.s, %no.s, !dbg !7" in text


def test_a_choice_without_a_name_is_taken_apart_too() -> None:
    """LLVM numbers what it makes, and a number is no beginning of a name."""
    numbered = MIXED.replace("%s = select", "%1 = select")
    text = separate_selects(HEAD + numbered + TAIL.replace("%s", "%1"))
    assert text is not None and llvm.parse_assembly(text)
