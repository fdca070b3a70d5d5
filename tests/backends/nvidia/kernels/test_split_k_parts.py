"""Products in parts of K as PTX on a machine of the CPU: TMA or threads bring operands, the last part ends anywhere."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.seeds import generator
from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.target import target_named
from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, bf16
from weft.lower.machine import gpu_machine
from weft.lower.schedule.dot_model import Matmuls, split_of
from weft.passes.grouping.build_groups import SCHEDULE
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of

from ..ptx_machine import Memory, run_blocks
from ..ptx_products import run_products
from ..ptx_roles import Box, run_roles
from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")


def turned(b: Any, x: Any, w: Any) -> Any:
    return b.dot(x, b.permute(w, dims=(1, 0)))


def parts_of(m: int, n: int, k: int, body: Any = turned) -> Trial:
    shapes = [(m, k), (n, k)] if body is turned else [(m, k), (k, n)]
    return Trial.of(group_of([Tensor(bf16, shape) for shape in shapes], body), "product", gpu_machine())


def test_tma_brings_parts_of_which_the_last_is_short() -> None:
    m, n, k = 72, 40, 1304
    found, draw = parts_of(m, n, k), generator()
    kernel, (scratch,) = found.lowered.calls[0].kernel.op, found.lowered.scratch
    x, w = (draw.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    name = kernel.sym_name.data
    code = compile_kernels({name: kernel}, TARGET)
    launch, memory = code.launches[name], Memory()
    out = np.full([int(size) for size in scratch.shape], np.nan, np.float32)
    words = [memory.add(each) for each in (x, w, out)]
    boxes = [Box(words[m.argument], tuple(map(int, m.sizes)), tuple(map(int, m.strides)), m.box) for m in launch.maps]
    run_roles(code.ptx, name, launch.threads, launch.shared, memory, words, 2, boxes)
    sums = memory.read(words[-1], out)
    split = split_of(Matmuls(m, n, k), gpu_machine())
    assert split is not None and split.count == len(sums) and k % split.depth
    for part, found_sums in enumerate(sums):
        columns = slice(part * split.depth, min(k, (part + 1) * split.depth))
        exact = x[:, columns].astype(float) @ w[:, columns].astype(float).T
        np.testing.assert_allclose(found_sums, exact, rtol=1e-5, atol=1e-4)


def run_on_machine(found: Trial, arrays: list[np.ndarray]) -> np.ndarray:
    """The result of kernels that need no TMA."""
    memory, code = Memory(), [compile_kernels({"kernel": call.kernel.op}, TARGET) for call in found.lowered.calls]
    shapes = [tuple(map(int, tensor.shape)) for tensor in found.lowered.scratch]
    out = np.full(tuple(map(int, found.outputs[0].shape)), np.nan, ml_dtypes.bfloat16)
    places = {"input": [memory.add(each) for each in arrays], "output": [memory.add(out)]}
    places["scratch"] = [memory.add(np.full(shape, np.nan, np.float32)) for shape in shapes]
    for call, made in zip(found.lowered.calls, code, strict=True):
        launch, words = made.launches["kernel"], [places[each.role][each.number] for each in call.arguments]
        assert not launch.maps
        run: Any = run_products if "wgmma" in made.ptx else run_blocks
        name = call.kernel.op.sym_name.data
        run(made.ptx, name, launch.threads, launch.shared, memory, words, prod(map(int, call.kernel.op.grid.data)))
    return memory.read(places["output"][0], out)


def loaded(layout: str, m: int, n: int, k: int, tile: tuple[int, int, int] | None = None) -> tuple[Trial, list[Any]]:
    """A product and its operands; a letter of the layout is t where one lies transposed in memory."""

    def body(b: Any, x: Any, w: Any) -> Any:
        x = b.permute(x, dims=(1, 0)) if layout[0] == "t" else x
        return b.dot(x, b.permute(w, dims=(1, 0)) if layout[1] == "t" else w)

    shapes = [(k, m) if layout[0] == "t" else (m, k), (n, k) if layout[1] == "t" else (k, n)]
    group, draw = group_of([Tensor(bf16, shape) for shape in shapes], body), generator()
    if tile is not None:
        group.attributes[SCHEDULE] = to_attribute((*tile, 1))
    arrays = [draw.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    return Trial.of(group, "product", gpu_machine()), arrays


def text_of(found: Trial) -> str:
    return str(annotate(found.lowered.calls[0].kernel.op, TARGET)[0])


def is_right(layout: str, found: Trial, arrays: list[Any]) -> bool:
    x, w = (a.astype(float).T if turned == "t" else a.astype(float) for a, turned in zip(arrays, layout, strict=True))
    result = run_on_machine(found, arrays)
    return bool(np.linalg.norm(result.astype(float) - x @ w) < 4e-3 * np.linalg.norm(x @ w))


@pytest.mark.parametrize(("layout", "m", "n", "k"), [("nn", 29, 33, 515), ("tt", 30, 21, 389), ("nt", 65, 18, 131)])
def test_threads_stage_rows_that_begin_anywhere(layout: str, m: int, n: int, k: int) -> None:
    found, arrays = loaded(layout, m, n, k)
    text = text_of(found)
    assert "nvidia.local_store" in text and "nvidia.wgmma" in text
    assert is_right(layout, found, arrays)


@pytest.mark.parametrize(
    ("layout", "m", "n", "k", "tile"),
    [("nn", 20, 33, 131, (64, 64, 64)), ("tn", 34, 22, 130, (64, 64, 64)), ("tt", 70, 66, 70, (128, 128, 64))],
)
def test_the_next_block_is_loaded_while_this_one_is_multiplied(
    layout: str, m: int, n: int, k: int, tile: tuple[int, int, int]
) -> None:
    """Rows of odd lengths come element by element, even ones in pairs."""
    found, arrays = loaded(layout, m, n, k, tile)
    text = text_of(found)
    assert text.count("nvidia.ahead") == 2 and ("nvidia.packed" in text or "nvidia.raw" in text)
    assert is_right(layout, found, arrays)


@needs_ptxas
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("tile", [(64, 64, 64), (128, 128, 64)])
def test_loads_ahead_have_registers(layout: str, tile: tuple[int, int, int]) -> None:
    found, _ = loaded(layout, 1501, 1203, 1667, tile)
    code = compile_kernels({call.kernel.op.sym_name.data: call.kernel.op for call in found.lowered.calls}, TARGET)
    made = assemble(code.ptx, TARGET.arch)
    assert not made.error and not any(each.spilled for each in made.kernels.values())


def test_nothing_is_added_by_atomics() -> None:
    found, _ = loaded("nn", 29, 93, 3201)
    kernels = {call.kernel.op.sym_name.data: call.kernel.op for call in found.lowered.calls}
    ptx = compile_kernels(kernels, TARGET).ptx
    assert len(kernels) == 2 and not re.search(r"\b(atom|red)\.global", ptx)


@pytest.mark.parametrize(("m", "n", "k"), [(300, 200, 8000), (550, 56, 4816)])
def test_programs_of_parts_wait_for_what_others_bring(m: int, n: int, k: int) -> None:
    kernel, _ = annotate(parts_of(m, n, k).lowered.calls[0].kernel.op, TARGET)
    for block in (0, 39):
        check(protocol_of(kernel, block=block, blocks=40), runs=2)


@needs_ptxas
@pytest.mark.parametrize(("m", "n", "k"), [(460, 185, 8468), (550, 55, 4812), (161, 1384, 12096), (768, 768, 16384)])
def test_parts_assemble_without_spills(m: int, n: int, k: int) -> None:
    found = parts_of(m, n, k, lambda b, x, w: b.dot(x, w))
    assert len(found.lowered.calls) == 2
    kernels = {call.kernel.op.sym_name.data: call.kernel.op for call in found.lowered.calls}
    made = assemble(compile_kernels(kernels, TARGET).ptx, TARGET.arch)
    assert not made.error and not any(each.spilled for each in made.kernels.values())
