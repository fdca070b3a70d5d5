"""Innermost loops of products in an x86's matrix tiles (AMX): 16 rows of 64 bytes each, and sums of 16 by 16 elements.

bf16 is summed in f32, i8 and u8 in i32. A block is two tiles by two; the rows of a lie in memory as they are, b in
panels of 32 columns with as many neighbours along K together as make four bytes:

    tile 0, 1        sums of rows 0 to 15       +=  tile 4 (rows of a)  *  tiles 6, 7 (columns of b)
    tile 2, 3        sums of rows 16 to 31      +=  tile 5              *  tiles 6, 7
"""

from __future__ import annotations

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.cast import store_convert
from weft.backends.llvm.values import V, const, i64, vector
from weft.ir.types import DType, bf16, i8, u8

TILE_ROWS, TILE_BYTES = 16, 64
MATRIX_ROWS, MATRIX_COLUMNS = 2 * TILE_ROWS, 32
"""The block of a result that the tiles hold."""
_INSTRUCTIONS = {bf16: "llvm.x86.tdpbf16ps", i8: "llvm.x86.tdpbssd", u8: "llvm.x86.tdpbusd"}
"""By the type of the rows; those of 8 bits are multiplied with columns of i8."""
_FIRST_A, _FIRST_B = 4, 6
_SUM_BYTES, _STEP_BYTES = 4, 128
_LANES = 16


def elements_of_step(dtype: DType) -> int:
    """How many of K one instruction takes."""
    return TILE_BYTES // dtype.bytes


def matrix_kernel(module: Module, rows: int, dtype: DType) -> str:
    """`c (+)= a @ b` for blocks of so many rows, at most 32, and some panels. Returns its name.

    K is given in steps of 64 bytes; rows and panels have zeros up to the last one's end.
    """
    name = f"weft.matrix.{rows}.{dtype}"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "c"), ("i64", "c_stride"), ("ptr noalias", "a"), ("i64", "a_bytes")]
    params += [("ptr noalias", "b"), ("i64", "panel_bytes"), ("i64", "panels"), ("i64", "steps"), ("i1", "keep")]
    f = Function(module, name, [*params, ("i64", "blocks")], attributes="nounwind noinline", linkage="internal")
    c, c_stride, a, a_bytes, b, panel_bytes, panels, steps, keep, blocks = f.args
    heights = [min(rows, TILE_ROWS), *([rows - TILE_ROWS] if rows > TILE_ROWS else [])]
    c_bytes = f.mul(c_stride, i64(_SUM_BYTES))
    _configure(f, heights)

    def sums() -> list[tuple[int, V]]:
        """The tiles of sums, and where they belong."""
        return [
            (
                2 * down + across,
                f.gep(f.gep(place, f.mul(c_bytes, i64(TILE_ROWS * down)), "i8"), i64(64 * across), "i8"),
            )
            for down in range(len(heights))
            for across in range(2)
        ]

    with f.loop(i64(0), panels, i64(1)) as panel, f.loop(i64(0), blocks, i64(1)) as number:
        first = f.mul(number, i64(rows))
        column = f.mul(panel, i64(MATRIX_COLUMNS * _SUM_BYTES))
        place = f.gep(f.gep(c, column, "i8"), f.mul(first, c_bytes), "i8")
        top = f.gep(a, f.mul(first, a_bytes), "i8")
        right = f.gep(b, f.mul(panel, panel_bytes), "i8")
        for tile, _ in sums():
            _do(f, "llvm.x86.tilezero", tile)
        with f.when(keep):
            for tile, address in sums():
                _move(f, "llvm.x86.tileloadd64", tile, address, c_bytes)
        with f.loop(i64(0), steps, i64(1)) as step:
            left = f.gep(top, f.mul(step, i64(TILE_BYTES)), "i8")
            below = f.gep(right, f.mul(step, i64(TILE_ROWS * _STEP_BYTES)), "i8")
            for across in range(2):
                _move(
                    f, "llvm.x86.tileloadd64", _FIRST_B + across, f.gep(below, i64(64 * across), "i8"), i64(_STEP_BYTES)
                )
            for down in range(len(heights)):
                rows_of = f.gep(left, f.mul(a_bytes, i64(TILE_ROWS * down)), "i8")
                _move(f, "llvm.x86.tileloadd64", _FIRST_A + down, rows_of, a_bytes)
                for across in range(2):
                    _do(f, _INSTRUCTIONS[dtype], 2 * down + across, _FIRST_A + down, _FIRST_B + across)
        for tile, address in sums():
            _move(f, "llvm.x86.tilestored64", tile, address, c_bytes)
    f.call("llvm.x86.tilerelease", "void")
    f.finish()
    return name


def _configure(f: Function, heights: list[int]) -> None:
    """Say how many rows and bytes the tiles have."""
    name = f"weft.matrix.shape.{'.'.join(map(str, heights))}"
    rows = bytearray(TILE_ROWS)
    for down, height in enumerate(heights):
        rows[2 * down] = rows[2 * down + 1] = rows[_FIRST_A + down] = height
    rows[_FIRST_B] = rows[_FIRST_B + 1] = TILE_ROWS
    columns = b"".join((TILE_BYTES if height else 0).to_bytes(2, "little") for height in rows)
    shape = bytes([1]) + bytes(15) + columns + bytes(rows)
    text = ", ".join(f"i8 {byte}" for byte in shape)
    f.module.globals.setdefault(name, f"@{name} = private unnamed_addr constant [64 x i8] [{text}], align 64")
    f.call("llvm.x86.ldtilecfg", "void", V("ptr", f"@{name}"))


def _do(f: Function, name: str, *tiles: int) -> None:
    f.call(name, "void", *(V("i8", str(tile)) for tile in tiles))


def _move(f: Function, name: str, tile: int, address: V, stride: V) -> None:
    f.call(name, "void", V("i8", str(tile)), address, stride)


def narrow_rows(module: Module, dtype: DType, memory: DType) -> str:
    """Rows of registers' floats, or of i8 → rows in memory of `memory`, 0 up to `padded` elements. Returns its name."""
    name = f"weft.narrow.{dtype}.{memory}"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "out"), ("i64", "padded"), ("ptr noalias", "a"), ("i64", "stride")]
    f = Function(
        module, name, [*params, ("i64", "rows"), ("i64", "depth")], attributes="nounwind noinline", linkage="internal"
    )
    out, padded, a, stride, rows, depth = f.args
    source_type, target_type = ("float", "i16") if memory == bf16 else ("i8", "i8")
    if dtype == memory == bf16:
        source_type = "i16"
    whole = f.binary("and", depth, i64(-_LANES))
    with f.loop(i64(0), rows, i64(1)) as row:
        source, target = f.gep(a, f.mul(row, stride), source_type), f.gep(out, f.mul(row, padded), target_type)
        for start, stop, lanes in ((i64(0), whole, _LANES), (whole, depth, 1)):
            with f.loop(start, stop, i64(lanes)) as k:
                value = f.load(vector(source_type, lanes), f.gep(source, k, source_type), 1)
                value = store_convert(f, value, bf16) if source_type == "float" else value
                f.store(value, f.gep(target, k, target_type), 1)
        with f.loop(depth, padded, i64(1)) as k:
            f.store(const(0, target_type), f.gep(target, k, target_type), 1)
    f.finish()
    return name
