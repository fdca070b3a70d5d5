"""Negated integers of which the least is found: ptxas loses the sign of one where it makes one instruction of two."""

from __future__ import annotations

from weft.backends.nvidia.target import llvm_to_ptx, target_named

_KERNEL = """
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @k(ptr addrspace(1) %p, i32 %a, i32 %b, i32 %c) {{
  %minus = sub i32 0, %b
  %one = call i32 @llvm.{function}.i32(i32 %a, i32 %minus)
  %two = call i32 @llvm.{function}.i32(i32 %one, i32 %c)
  store i32 %two, ptr addrspace(1) %p
  ret void
}}
declare i32 @llvm.{function}.i32(i32, i32)
"""


def test_what_is_negated_for_a_minimum_is_no_negation_to_the_assembler() -> None:
    for function, name in (("smin", "min.s32"), ("smax", "max.s32")):
        ptx = llvm_to_ptx(_KERNEL.format(function=function), target_named("sm_90a"))
        assert name in ptx and "neg.s32" not in ptx and "not.b32" in ptx


def test_other_negations_stay() -> None:
    assert "neg.s32" in llvm_to_ptx(_KERNEL.format(function="umin"), target_named("sm_90a"))
