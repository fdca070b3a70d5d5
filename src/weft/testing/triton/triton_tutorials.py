"""The kernels of Triton's tutorials, run unmodified from a checkout and compared with torch.

A tutorial measures and draws as it is imported, and asks for a GPU; of its text only the kernels are taken, line for
line, with what they import. What is launched, and what the results should be, is said here (`triton_tutorial_cases`).
"""

# torch and loaded modules are not fully typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import ast
import importlib.util
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.errors import WeftError

TUTORIALS = "python/tutorials"
_ELSEWHERE = ("profiler", "mxfp")
"""What tutorials import for their own measurements and inputs, not for their kernels."""


class TutorialError(WeftError):
    """A folder in which a tutorial is missing."""


@dataclass(frozen=True)
class TutorialResult:
    """Whether the kernels of a tutorial gave what torch gives."""

    tutorial: str
    passed: bool
    error: str | None
    seconds: float


@contextmanager
def kernels_of(checkout: Path, name: str) -> Generator[ModuleType]:
    """The kernels of a tutorial as a module; the text of each stands at its own line."""
    path = checkout / TUTORIALS / name
    if not path.is_file():
        raise TutorialError(f"there is no {path}", hint="give the root of a checkout of Triton v3.6.0")
    text = kernel_text(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / name.replace("-", "_")
        copy.write_text(text)
        spec = importlib.util.spec_from_file_location(copy.stem, copy)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def kernel_text(text: str) -> str:
    """A module's text with everything blanked that is neither a kernel nor needed by one."""
    lines = text.splitlines()
    kept = [""] * len(lines)
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    kernels = {node.name: jits for node in functions if (jits := _jits(node))}
    named = {
        part.id for jits in kernels.values() for each in jits for part in ast.walk(each) if isinstance(part, ast.Name)
    }
    for node in tree.body:
        shown = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
        wanted = "triton" in shown and not any(word in shown for word in _ELSEWHERE)
        if isinstance(node, ast.FunctionDef) and (node.name in kernels or node.name in named):
            wanted = True
            for decorator in kernels.get(node.name, []):
                start, stop = decorator.lineno - 1, decorator.end_lineno or decorator.lineno
                kept[start:stop] = lines[start:stop]
        if wanted:
            kept[node.lineno - 1 : node.end_lineno] = lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(kept) + "\n"


def _jits(node: ast.FunctionDef) -> list[ast.expr]:
    """The decorators that make a function a kernel; configurations to try are not among them."""
    return [each for each in node.decorator_list if "jit" in ast.unparse(each)]


def run_tutorials(
    checkout: Path, names: tuple[str, ...], advance: Callable[[TutorialResult, int, int], None]
) -> list[TutorialResult]:
    """Run the kernels of all tutorials, or of those whose file names contain one of the names."""
    import weft.triton
    from weft.testing.triton.triton_tutorial_cases import CASES

    chosen = {file: case for file, case in CASES.items() if not names or any(name in file for name in names)}
    results: list[TutorialResult] = []
    with weft.triton.enable():
        for file, case in chosen.items():
            results.append(tutorial_result(checkout, file, case))
            advance(results[-1], len(results), len(chosen))
    return results


def tutorial_result(checkout: Path, file: str, case: Callable[[Any], None], device: str = "cpu") -> TutorialResult:
    """Launch a tutorial's kernels on tensors of a device; `import triton` finds Weft already."""
    import torch

    start = time.perf_counter()
    with kernels_of(checkout, file) as kernels:
        try:
            with torch.device(device):
                case(kernels)
        except Exception as error:  # whatever goes wrong in a kernel is its verdict
            return TutorialResult(file, False, f"{type(error).__name__}: {error}", time.perf_counter() - start)
    return TutorialResult(file, True, None, time.perf_counter() - start)
