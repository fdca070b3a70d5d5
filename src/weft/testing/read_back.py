"""Kernels for a GPU as text: those of the benchmarks and of Triton's tutorials, printed, read back and made code of.

    python -m weft.testing.read_back 'gpu/gemm/*'
    python -m weft.testing.read_back 'gpu/*' --tutorials CHECKOUT

A kernel that was read from the text of the `nvidia` dialect must give the text again, and the LLVM IR of the one that
was printed, to the letter: then its PTX is the same, too. None of this needs a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch

from weft.backends.nvidia import compile
from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.dialect import launch_of
from weft.backends.nvidia.ir.registry import parse_kernels
from weft.backends.nvidia.target import NvidiaTarget
from weft.errors import WeftError
from weft.testing.code_snapshot import cases
from weft.tile.dialect import KernelOp
from weft.tile.text import kernels_of, print_program


def difference(annotated: KernelOp, target: NvidiaTarget) -> str | None:
    """How a kernel that is printed and read back differs from itself; None where it does not."""
    text, launch = print_program(annotated), launch_of(annotated)
    try:
        (again,) = kernels_of(parse_kernels(text))
    except WeftError as error:
        return f"is not read back: {error}"
    if print_program(again) != text:
        return "is printed otherwise when it was read back"
    if launch_of(again) != launch:
        return f"is launched as {launch_of(again)}, not as {launch}, when it was read back"
    if compile.llvm_of(again, launch, target) != compile.llvm_of(annotated, launch, target):
        return "becomes other code when it was read back"
    return None


@dataclass
class Readings:
    """The kernels that were read back, by their text, and what was wrong with some of them."""

    kernels: set[str] = field(default_factory=set[str])
    wrong: list[str] = field(default_factory=list[str])

    def see(self, annotated: KernelOp, target: NvidiaTarget) -> None:
        text = print_program(annotated)
        if text in self.kernels:
            return
        self.kernels.add(text)
        if (found := difference(annotated, target)) is not None:
            self.wrong.append(f"{annotated.sym_name.data} {found}")


@contextmanager
def reading_back() -> Generator[Readings]:
    """Read back every kernel that is made for a GPU inside of the `with`, of graphs and in Triton's language."""
    readings, annotate = Readings(), compile.annotate

    def seen(kernel: KernelOp, target: NvidiaTarget, *given: Any, **named: Any) -> tuple[KernelOp, Launch]:
        annotated, launch = annotate(kernel, target, *given, **named)
        readings.see(annotated, target)
        return annotated, launch

    with patch.object(compile, "annotate", seen):
        yield readings


def read_back(patterns: Sequence[str], tutorials: Path | None = None) -> Readings:
    """Make the code of the cases whose names fit a pattern, and read back their kernels."""
    with reading_back() as readings:
        for name, make in cases(tutorials):
            if name.startswith("gpu/") and any(fnmatchcase(name, pattern) for pattern in patterns):
                kernels, wrong = len(readings.kernels), len(readings.wrong)
                make()
                said = [f"{name}: {len(readings.kernels) - kernels} more kernels", *readings.wrong[wrong:]]
                print("\n  ".join(said), flush=True)
    return readings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.testing.read_back", description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["gpu/*"], help="which cases, as in a shell; all by default")
    parser.add_argument("--tutorials", type=Path, help="a checkout of Triton, for its tutorials' kernels")
    given = parser.parse_args()
    found = read_back(given.patterns, given.tutorials)
    print(f"{len(found.kernels)} kernels were read back, {len(found.wrong)} came out otherwise")
    return 1 if found.wrong or not found.kernels else 0


if __name__ == "__main__":
    sys.exit(main())
