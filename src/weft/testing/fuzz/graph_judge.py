"""Judges a random graph program: compiled, against the NumPy reference, with the same program in float64 as the oracle.

The bound is a few times the reference's own error: along a chain of ops each has its own rounding. Where the reference
itself is far from the oracle the numbers mean nothing, nor where inputs that differ in their last place change them as
much.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, cast

import ml_dtypes
import numpy as np

from weft.backends.reference.graph import run
from weft.config import Config
from weft.errors import WeftError
from weft.ir.types import DType, f64
from weft.ops.graph import FuncOp
from weft.pipelines import compile_cpu
from weft.runtime.arrays import run_arrays
from weft.runtime.executable import Executable
from weft.testing.fuzz.graph_programs import GraphCase
from weft.testing.fuzz.input_noise import is_float, is_noise, moved
from weft.testing.fuzz.verdict import Verdict
from weft.testing.reduce.editable import function_of, program_of
from weft.testing.reduce.reduce import reduce_function
from weft.tile.text import print_program

FACTOR, ULPS = 8.0, 16.0

Runner = Callable[[FuncOp, Sequence[np.ndarray], Mapping[str, int]], Sequence[np.ndarray]]
"""Compiles and runs a function."""


def run_on_cpu(function: FuncOp, arrays: Sequence[np.ndarray], symbols: Mapping[str, int]) -> Sequence[np.ndarray]:
    """By Weft's own kernels alone."""
    compiled = compile_cpu(function, Config(strict=True, cache=False))
    return run_arrays(Executable(compiled.plan, compiled.code), arrays, symbols, threads=2)


def judge_graph(case: GraphCase, backend: Runner = run_on_cpu) -> Verdict:
    """The verdict on a program."""
    start = time.perf_counter()
    function = case.function()
    arrays, symbols = case.arrays(function)
    try:
        expected = run(function, arrays, symbols)
    except (IndexError, ValueError, TypeError, WeftError) as error:
        return Verdict("undecided", f"the reference cannot run it: {error}"[:200])
    oracle = _oracle(function, arrays, symbols)
    before = [array.copy() for array in arrays]
    try:
        found = backend(function.clone(), arrays, symbols)
    except Exception as error:  # whatever it is, it is the finding
        text = str(error).strip().partition("\n")[0]
        return Verdict("raises", f"{type(error).__name__}: {text}"[:300], time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if any(a.tobytes() != b.tobytes() for a, b in zip(before, arrays, strict=True)):
        return Verdict("wrong", "an argument has changed", seconds)
    undecided = ""
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        said, decided = _complaint(mine, theirs, None if oracle is None else oracle[number])
        if said and decided and not is_noise(mine, theirs, partial(_again, function, arrays, symbols, number)):
            return Verdict("wrong", f"result {number}: {said}", seconds)
        undecided = undecided or said
    return Verdict("undecided", undecided, seconds) if undecided else Verdict("right", "", seconds)


def _again(
    function: FuncOp, arrays: Sequence[np.ndarray], symbols: Mapping[str, int], number: int, seed: int
) -> np.ndarray | None:
    """A result of the reference for inputs that are a little different."""
    try:
        return run(function, moved(arrays, seed), symbols)[number]
    except (IndexError, ValueError, TypeError, WeftError):
        return None


def _oracle(function: FuncOp, arrays: Sequence[np.ndarray], symbols: Mapping[str, int]) -> Sequence[np.ndarray] | None:
    """The results in float64, where the program has them."""

    def wide(dtype: DType) -> DType:
        return f64 if dtype.is_float else dtype

    try:
        widened = function_of(program_of(function).mapped(lambda size: size, wide))
        if len(widened.block.args) != len(arrays):
            return None
        given = [array.astype(np.float64) if is_float(array) else array for array in arrays]
        return run(widened, given, symbols)
    except (IndexError, ValueError, TypeError, WeftError):
        return None


def _complaint(mine: np.ndarray, theirs: np.ndarray, oracle: np.ndarray | None) -> tuple[str, bool]:
    """What is wrong with a result, and whether that can be said at all."""
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return f"{mine.dtype}{list(mine.shape)} instead of {theirs.dtype}{list(theirs.shape)}", True
    if not is_float(mine):
        differ = int((mine != theirs).sum())
        return (f"{differ} of {mine.size} elements differ" if differ else ""), True
    comparable = oracle is not None and oracle.shape == theirs.shape and oracle.dtype.kind == "f"
    a, b, c = (each.astype(np.float64) for each in (mine, theirs, cast(np.ndarray, oracle) if comparable else theirs))
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        # A wider type does not overflow where the narrow one does: then the reference is no judge.
        return "infinities or NaN stand elsewhere", bool(np.array_equal(np.isfinite(c), finite))
    judged = finite & np.isfinite(c)
    scale = max(float(np.abs(c[judged]).max(initial=0.0)), float(np.abs(b[judged]).max(initial=0.0))) or 1.0
    epsilon = float(cast(Any, ml_dtypes.finfo(mine.dtype)).eps)
    error, own = (float(np.abs(each[judged] - c[judged]).max(initial=0.0)) / scale for each in (a, b))
    if mine.dtype == np.float64:  # nothing here is wider: what the reference itself is off by is not known
        own = max(own, ULPS * epsilon)
    if error <= max(ULPS * epsilon, FACTOR * own):
        return "", True
    return f"error {error:.2e}, the reference's {own:.2e}", own <= math.sqrt(epsilon)


def shrink_graph(case: GraphCase, interesting: Callable[[GraphCase], bool], seconds: float) -> GraphCase:
    """The smallest program found that fails the same way, as `weft reduce` finds it."""
    until = time.perf_counter() + seconds

    def as_case(function: FuncOp) -> GraphCase:
        return GraphCase(print_program(function), case.ranges, case.seed, case.device)

    def still(function: FuncOp) -> bool:
        return time.perf_counter() < until and interesting(as_case(_named(function)))

    try:
        return as_case(_named(reduce_function(case.function(), still)))
    except WeftError:
        return case


def _named(function: FuncOp) -> FuncOp:
    names: Any = function.attributes.get("arg_names")
    if names is not None:
        for value, name in zip(function.block.args, names.data, strict=False):
            value.name_hint = name.data
    return function


def reproduce(text: str, ranges: Mapping[str, tuple[float, float]], seed: int = 0) -> NoReturn:
    """Judge the program of a script, say what happens, and exit with 1 if it fails."""
    verdict = judge_graph(GraphCase(text, dict(ranges), seed))
    print(f"{verdict.status}: {verdict.reason}" if verdict.reason else verdict.status)
    raise SystemExit(verdict.failed)
