"""What docs/nvidia.md shows of kernels is what Weft makes: the list of passes, the kernel in the dialect, its PTX."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from weft.backends.nvidia.ir.kernel_passes import FirstThatMatches
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.ops.dialect import parse_module
from weft.tools.opt.opt import Options, at_level

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/nvidia.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("\n### A wgmma kernel in the dialect\n")[2].partition("\n### ")[0]
MATMUL = """
"graph.func"() ({
^bb0(%a: tensor<4096x4096xbf16>, %b: tensor<4096x4096xbf16>):
  %c = "graph.dot"(%a, %b) : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
  "graph.return"(%c) : (tensor<4096x4096xbf16>) -> ()
}) {sym_name = "matmul"} : () -> ()
"""


@cache
def made(level: str, stop_after: str | None = None) -> str:
    return at_level(parse_module(MATMUL), Options(level=level, stop_after=stop_after))


def test_the_passes_of_a_wgmma_kernel_are_those_of_the_list() -> None:
    *before, copies = nvidia_kernel_passes()
    assert isinstance(copies, FirstThatMatches)
    (taken,) = (each for each in copies.alternatives if each.name == "TMA brings operands of wgmma")
    names = dict.fromkeys(inner.name for each in (*before, *taken.passes) for inner in each.passes)
    shown = TEXT.partition("whose dots are `wgmma`, that is this list")[2].split("\n\n")[1]
    assert re.findall(r"`(\w+)`", shown) == list(names)


def test_the_kernel_is_what_weft_makes() -> None:
    (block,) = re.findall(r"^```mlir\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    left = [line.strip() for line in made("nvidia", "pipeline_dots").splitlines()]
    for line in map(str.strip, block.splitlines()):
        form = ".*".join(map(re.escape, line.split("…")))
        found = next((number for number, each in enumerate(left) if re.fullmatch(form, each)), None)
        assert found is not None, line
        left = left[found + 1 :]


def rows() -> list[list[str]]:
    found = [line.strip("|").split("|") for line in SECTION.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in found]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_an_op_becomes_the_instructions_of_the_table(row: list[str]) -> None:
    op, _, instructions, place = row
    assert f'"{op.strip("`")}"' in made("nvidia", "pipeline_dots")
    assert (ROOT / "src/weft" / place.strip("`")).is_file()
    for instruction in re.findall(r"`([^`]+)`", instructions):
        assert instruction in made("ptx"), instruction
