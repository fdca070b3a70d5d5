"""How much of compiled code knows its source line: tile ops, and instructions of the assembly and PTX of models.

    python -m weft.testing.line_coverage minilm llama_8

Nothing here needs a GPU: models are traced on the CPU, and their graphs compiled for both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.backends.cpu.target import compile_assembly, host_target
from weft.backends.llvm.stated_lines import stated_lines
from weft.backends.nvidia.target import NvidiaTarget, target_named
from weft.config import Config
from weft.ir.locations import file_line
from weft.ops.graph import FuncOp
from weft.pipelines import compile_cpu, compile_nvidia
from weft.runtime.record import CompilationRecord, recording
from weft.testing.gpu.corpus import traced
from weft.testing.models import FULL_SIZE


@dataclass(frozen=True)
class Share:
    """How many of something have a line."""

    known: int = 0
    all: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.known + other.known, self.all + other.all)

    def __str__(self) -> str:
        return f"{self.known / max(self.all, 1):.2%} of {self.all}"


@dataclass(frozen=True)
class Coverage:
    """Of a program's code for one target."""

    tile_ops: Share = Share()
    instructions: Share = Share()

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(self.tile_ops + other.tile_ops, self.instructions + other.instructions)


def cpu_coverage(function: FuncOp) -> Coverage:
    """Of the assembly for this processor."""
    with recording(programs=True) as records:
        compile_cpu(function, Config(cache=False, debug_lines=True))
    (record,) = records
    return Coverage(_tile_ops(record), instruction_share(compile_assembly(record.programs["llvm"], host_target())))


def nvidia_coverage(function: FuncOp, target: NvidiaTarget) -> Coverage:
    """Of the PTX for a GPU."""
    with recording(programs=True) as records:
        compile_nvidia(function, Config(cache=False, debug_lines=True), target)
    (record,) = records
    return Coverage(_tile_ops(record), instruction_share(record.programs["ptx"]))


def _tile_ops(record: CompilationRecord) -> Share:
    found = [file_line(op.location) is not None for kernel in record.tiles.values() for op in kernel.walk()]
    return Share(sum(found), len(found))


def instruction_share(text: str) -> Share:
    """The instructions of assembly or PTX that a line is stated for."""
    lines = [each.line > 0 for each in stated_lines(text) if each.is_instruction]
    return Share(sum(lines), len(lines))


def model_functions(name: str, dtype: torch.dtype = torch.float32) -> list[FuncOp]:
    """The graphs of a model of `weft.testing.models`, in inference."""
    case = FULL_SIZE[name]
    model = case.build().eval().to(dtype)
    with torch.no_grad():
        return traced(lambda compile: compile(model)(**case.inputs(0)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["minilm", "llama_8"], help="models of weft.testing.models")
    parser.add_argument("--arch", default="sm_90a", help="the GPU to compile for")
    given = parser.parse_args(arguments)
    for name in given.models:
        for target, dtype in (("cpu", torch.float32), (given.arch, torch.bfloat16)):
            total = Coverage()
            for function in model_functions(name, dtype):
                total += cpu_coverage(function) if target == "cpu" else nvidia_coverage(function, target_named(target))
            print(f"{name} {target}: tile ops {total.tile_ops}, instructions {total.instructions}", flush=True)


if __name__ == "__main__":
    main()
