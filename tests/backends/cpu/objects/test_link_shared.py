"""Object files linked to shared objects: calls into the C library, data, constants and blobs."""

from __future__ import annotations

import ctypes
import platform
import struct
from pathlib import Path

import pytest

from weft.backends.cpu.objects.elf_object import AARCH64, X86_64, read_object
from weft.backends.cpu.objects.link_shared import link_shared
from weft.backends.cpu.objects.relocate import relocate, stub
from weft.backends.cpu.target import CpuTarget, compile_object, host_target
from weft.errors import CompilationError

TEXT = """
@counter = global i64 5, align 8
@zero = internal global [4 x i64] zeroinitializer, align 64
@table = internal constant [2 x ptr] [ptr @one, ptr @cos], align 8
@blob = external hidden constant i32
@pointer = internal global ptr @blob, align 8
declare double @cos(double)
declare i64 @labs(i64)

define i64 @one(i64 %x) {
  %c = load i64, ptr @counter
  %n = add i64 %c, 1
  store i64 %n, ptr @counter
  %y = call i64 @labs(i64 %x)
  %s = add i64 %y, %c
  %z = load i64, ptr getelementptr ([4 x i64], ptr @zero, i64 0, i64 2)
  store i64 %s, ptr getelementptr ([4 x i64], ptr @zero, i64 0, i64 2)
  %r = add i64 %s, %z
  ret i64 %r
}

define double @two(i64 %which, double %x) {
  %p = getelementptr [2 x ptr], ptr @table, i64 0, i64 %which
  %f = load ptr, ptr %p
  %y = call double %f(double %x)
  %z = fadd double %y, 0.3333333333333
  ret double %z
}

define i32 @three() {
  %p = load ptr, ptr @pointer
  %x = load i32, ptr %p
  ret i32 %x
}
"""
HEAD = 'target triple = "{}"\n'


def linked(target: CpuTarget) -> bytes:
    code = compile_object(HEAD.format(target.triple) + TEXT, target, jit=False)
    return link_shared(code, ("one", "two", "three"), {"blob": struct.pack("<i", -77)}, "libthing.so")


def test_functions_data_calls_and_blobs_work(tmp_path: Path) -> None:
    (tmp_path / "thing.so").write_bytes(linked(host_target()))
    library = ctypes.CDLL(str(tmp_path / "thing.so"))
    library.one.restype, library.one.argtypes = ctypes.c_int64, [ctypes.c_int64]
    library.two.restype, library.two.argtypes = ctypes.c_double, [ctypes.c_int64, ctypes.c_double]
    assert library.one(-3) == 8  # 3 + 5
    assert library.one(-3) == 9 + 8  # 3 + 6, and what was kept
    assert library.two(1, 0.0) == pytest.approx(1.3333333333333)
    assert library.three() == -77
    with pytest.raises(AttributeError):
        library.counter  # noqa: B018  seen from inside alone


@pytest.mark.parametrize(
    "target",
    [
        CpuTarget("x86_64-unknown-linux-gnu", "x86-64-v2", ""),
        CpuTarget("aarch64-unknown-linux-gnu", "generic", ""),
    ],
    ids=["x86-64", "aarch64"],
)
def test_processors_that_are_not_here_are_linked_for(target: CpuTarget) -> None:
    image = linked(target)
    kind, machine = struct.unpack_from("<HH", image, 16)
    assert kind == 3 and machine == (X86_64 if target.is_x86 else AARCH64)
    # No part of a file is mapped both to be written and to be run.
    count = struct.unpack_from("<H", image, 56)[0]
    rights = [struct.unpack_from("<II", image, 64 + 56 * n) for n in range(count)]
    assert all(flags & 3 != 3 for kind, flags in rights if kind == 1)
    assert any(kind == 0x6474E551 and not flags & 1 for kind, flags in rights)


@pytest.mark.parametrize(
    ("kind", "word", "place", "target", "expected"),
    [
        (283, 0x94000000, 0x1000, 0x1004, 0x94000001),  # bl .+4
        (283, 0x94000000, 0x1004, 0x1000, 0x97FFFFFF),  # bl .-4
        (275, 0x90000000, 0x1010, 0x2345, 0xB0000000),  # adrp x0, the next page
        (275, 0x90000001, 0x5000, 0x1000, 0x90FFFFE1),  # adrp x1, four pages back
        (277, 0x91000000, 0x1000, 0x2010, 0x91004000),  # add x0, x0, #0x10
        (286, 0xF9400000, 0x1000, 0x2008, 0xF9400400),  # ldr x0, [x0, #8]
        (299, 0x3DC00000, 0x1000, 0x2020, 0x3DC00800),  # ldr q0, [x0, #32]
        (285, 0xB9400000, 0x1000, 0x2004, 0xB9400400),  # ldr w0, [x0, #4]
    ],
)
def test_instructions_of_aarch64_are_filled_in(kind: int, word: int, place: int, target: int, expected: int) -> None:
    image = bytearray(0x6000)
    struct.pack_into("<I", image, place, word)
    relocate(AARCH64, image, place, kind, target, 0)
    assert struct.unpack_from("<I", image, place)[0] == expected


def test_stubs_jump_by_the_table() -> None:
    # adrp x16, the next page; ldr x17, [x16, #24]; br x17; nop
    assert struct.unpack("<4I", stub(AARCH64, 0x1000, 0x2018)) == (0xB0000010, 0xF9400E11, 0xD61F0220, 0xD503201F)
    assert stub(X86_64, 0x1000, 0x2000)[:6] == b"\xff\x25" + struct.pack("<i", 0x2000 - 0x1006)


def test_what_is_too_far_away_is_refused() -> None:
    with pytest.raises(CompilationError, match="too large"):
        relocate(X86_64, bytearray(8), 0, 2, 1 << 33, 0)


def test_unknown_functions_and_objects_are_refused() -> None:
    code = compile_object(HEAD.format(host_target().triple) + TEXT, host_target(), jit=False)
    with pytest.raises(CompilationError, match="no function four"):
        link_shared(code, ("four",), {"blob": b"1234"})
    with pytest.raises(CompilationError, match="not of a 64-bit"):
        read_object(b"\x7fELF\x01" + bytes(100))


def test_this_machine_is_one_of_them() -> None:
    assert platform.machine() in ("x86_64", "aarch64")
