"""Judges a random Triton kernel: compiled, against the same text run on NumPy a program at a time.

What the interpreter refuses must be refused compiled, too. Integers are equal; floats are as near as a few roundings of
each step allow, or as other inputs, different in their last place, make them.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

import ml_dtypes
import numpy as np

from weft.testing.fuzz.input_noise import is_noise, moved
from weft.testing.fuzz.triton_programs import TritonCase
from weft.testing.fuzz.verdict import Verdict

ULPS = 256.0

Launch = Callable[[Any, int, Sequence[np.ndarray], dict[str, int]], None]
"""Runs a kernel over a grid on arrays, which it changes."""


def launch_on_cpu(kernel: Any, grid: int, arrays: Sequence[np.ndarray], numbers: dict[str, int]) -> None:
    kernel[(grid,)](*arrays, **numbers)


def launch_on_gpu(kernel: Any, grid: int, arrays: Sequence[np.ndarray], numbers: dict[str, int]) -> None:
    """On copies in the memory of a GPU."""
    from weft.frontends.torch.execution.reference import to_array, to_tensor

    there = [to_tensor(array).to("cuda") for array in arrays]
    kernel[(grid,)](*there, **numbers)
    for array, tensor in zip(arrays, there, strict=True):
        array[...] = to_array(tensor.cpu())


def judge_kernel(case: TritonCase, backend: Launch | None = None) -> Verdict:
    """The verdict on a kernel."""
    from weft.frontends.triton.runtime.jit import interpret

    start = time.perf_counter()
    launch = backend or (launch_on_cpu if case.device == "cpu" else launch_on_gpu)
    kernel = case.kernel()
    expected, found = case.arrays(), case.arrays()
    refusal = error = None
    try:
        with np.errstate(all="ignore"), interpret():
            kernel[(case.grid,)](*expected, **case.numbers)
    except Exception as raised:  # what it says is not compared
        refusal = raised
    try:
        launch(case.kernel(), case.grid, found, case.numbers)
    except Exception as raised:
        error = raised
    seconds = time.perf_counter() - start
    if refusal is not None:
        status = "refused" if error is not None else "accepts"
        return Verdict(status, f"{type(refusal).__name__}: {refusal}".partition("\n")[0][:300], seconds)
    if error is not None:
        return Verdict("raises", f"{type(error).__name__}: {error}".partition("\n")[0][:300], seconds)
    undecided = ""
    for name, mine, theirs in zip(case.names, found, expected, strict=False):
        if said := _complaint(mine, theirs):
            undecided = undecided or f"{name}: {said}"
            if not is_noise(mine, theirs, partial(_again, case, name)):
                return Verdict("wrong", f"{name}: {said}", seconds)
    return Verdict("undecided", undecided, seconds) if undecided else Verdict("right", "", seconds)


def _again(case: TritonCase, name: str, seed: int) -> np.ndarray | None:
    """An array as the interpreter leaves it for inputs that are a little different."""
    from weft.frontends.triton.runtime.jit import interpret

    arrays = case.arrays()
    given = [*moved(arrays[: len(case.inputs)], seed), *arrays[len(case.inputs) :]]
    try:
        with np.errstate(all="ignore"), interpret():
            case.kernel()[(case.grid,)](*given, **case.numbers)
    except Exception:  # other inputs may be none that it takes
        return None
    return given[list(case.names).index(name)]


def _complaint(mine: np.ndarray, theirs: np.ndarray) -> str:
    if mine.dtype.kind in "iu":
        differ = int((mine != theirs).sum())
        return f"{differ} of {mine.size} elements differ" if differ else ""
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "infinities or NaN stand elsewhere"
    epsilon = float(cast(Any, ml_dtypes.finfo(mine.dtype)).eps)
    narrow = epsilon > 1e-5
    scale = max(float(np.abs(b[finite]).max(initial=0.0)), 1.0)
    error = float(np.abs(a - b)[finite].max(initial=0.0)) / scale
    return f"error {error:.2e}" if error > (4.0 if narrow else ULPS) * epsilon else ""


def shrink_kernel(case: TritonCase, interesting: Callable[[TritonCase], bool], seconds: float) -> TritonCase:
    """The fewest lines found that fail the same way; arguments stay as they are."""
    until = time.perf_counter() + seconds
    width = max(len(case.lines) // 2, 1)
    while width >= 1:
        start = len(case.lines) - width
        while start > 0:
            smaller = replace(case, lines=case.lines[:start] + case.lines[start + width :])
            if time.perf_counter() > until:
                return case
            if interesting(smaller):
                case = smaller
            start -= width
        width //= 2
    return case


def reproduce(
    kernel: Any,
    inputs: Sequence[tuple[str, int]],
    outputs: Sequence[tuple[str, int]],
    grid: int,
    numbers: dict[str, int],
    *,
    seed: int = 0,
    device: str = "cpu",
) -> NoReturn:
    """Judge the kernel of a script, say what happens, and exit with 1 if it fails."""
    lines = inspect.getsource(kernel.fn).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("def "))
    body = tuple(line.removeprefix("    ") for line in lines[first + 1 :] if line.strip())
    verdict = judge_kernel(TritonCase(body, tuple(inputs), tuple(outputs), grid, numbers, seed, device))
    print(f"{verdict.status}: {verdict.reason}" if verdict.reason else verdict.status)
    raise SystemExit(verdict.failed)
