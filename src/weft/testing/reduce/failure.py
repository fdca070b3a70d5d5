"""Does a graph function fail? Compiles and runs it on random inputs and holds the results against the NumPy reference.

`examine` does it here, `examine_apart` in a child process, which contains a crash and a hang. `reproduce` is what the
scripts that `weft reduce` writes call.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from weft.backends.reference.graph import bind_symbols, run
from weft.config import Config
from weft.errors import WeftError
from weft.ir.expr import evaluate, symbols_of
from weft.ir.types import Tensor, tensor_of
from weft.ops.graph import FuncOp, OpaqueOp
from weft.pipelines import compile_cpu
from weft.runtime.arrays import run_arrays
from weft.runtime.blas import blas_symbols
from weft.runtime.executable import Executable
from weft.runtime.plan_executor import WrongData
from weft.testing.reduce.kept_inputs import KeptInputs, read_inputs
from weft.tile.text import functions_of, parse_program

# Against the NumPy reference, which computes in the same types: the largest error in units of the largest magnitude.
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2, "f8E4M3FN": 0.3, "f8E5M2": 0.5}
# Sizes that symbols stand for: small, odd, and each its own.
_SIZES = (3, 5, 7, 9, 11, 13)


@dataclass(frozen=True)
class Failure:
    """What goes wrong: `raises`, `wrong`, `crashes` or `hangs`; two failures with one `key` are the same."""

    kind: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def examine(
    function: FuncOp, config: Config | None = None, seed: int = 0, inputs: KeptInputs | None = None
) -> Failure | None:
    """The function's failure, or None; raises a `WeftError` where not even the reference can run it.

    It runs on random inputs, or on `inputs`: then it is a failure too if these are said to be wrong.
    """
    tensors = [tensor_of(value.type) for value in function.block.args]
    if inputs is None:
        arrays, symbols = random_inputs(tensors, seed)
    else:
        arrays = inputs.of(function)
        symbols = bind_symbols(tensors, arrays, {})
    opaque = any(isinstance(op, OpaqueOp) for op in function.walk())
    reference = _torch_reference(function) if opaque else partial(run, function, symbols=symbols)
    try:
        expected = reference(arrays)
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        kind = "random" if inputs is None else "these"
        raise WeftError(f"the reference cannot run this on {kind} inputs: {error}") from error
    try:
        found = _compiled(function.clone(), config or Config.from_options(), opaque)(arrays, symbols)
    except WrongData as error:  # before it wrote over its arguments, which the reference does not do
        said = inputs.said(error.code) if inputs is not None else None
        return Failure("raises", said, said) if said is not None else None
    except Exception as error:  # whatever it is, it is the failure
        text = f"{type(error).__name__}: {error}"
        words = re.sub(r"[^A-Za-z ]", "", str(error).splitlines()[0] if str(error) else "")[:40]
        return Failure("raises", f"{type(error).__name__} {words}", text)
    if inputs is not None and (said := inputs.complaint(found)) is not None:
        return Failure("raises", said, said)
    complaints = [_complaint(a, b) for a, b in zip(found, expected, strict=True)]
    wrong = [f"result {number}: {text}" for number, text in enumerate(complaints) if text]
    return Failure("wrong", "", "; ".join(wrong)) if wrong else None


def _compiled(function: FuncOp, config: Config, opaque: bool) -> Callable[..., Sequence[np.ndarray]]:
    if any(op.name == "graph.dot" for op in function.walk()):
        config = _with_products(config)
    compiled = compile_cpu(function, config)
    executable = Executable(compiled.plan, compiled.code)
    if not opaque:
        return partial(run_arrays, executable)
    from weft.frontends.torch.execution.executor import CpuExecutor
    from weft.frontends.torch.execution.reference import to_array, to_tensor
    from weft.frontends.torch.importer.opaque import OpaqueRuntime

    executor = CpuExecutor(executable, OpaqueRuntime({}))

    def call(arrays: Sequence[np.ndarray], symbols: Mapping[str, int]) -> list[np.ndarray]:
        return [to_array(result) for result in executor([to_tensor(array) for array in arrays], symbols)]

    return call


def _with_products(config: Config) -> Config:
    """Matrix products as they are in use: by the library that torch brings, or generated where there is no torch."""
    if not blas_symbols() and importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch")
    return config if blas_symbols() else replace(config, strict=True)


def _torch_reference(function: FuncOp) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
    from weft.frontends.torch.execution.reference import TargetExecutor, calls_on_arrays, to_array, to_tensor
    from weft.frontends.torch.importer.opaque import OpaqueRuntime
    from weft.targets.reference import ReferenceProgram

    executor = TargetExecutor(function, ReferenceProgram(function, calls_on_arrays(OpaqueRuntime({}))))

    def call(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        symbols = bind_symbols([tensor_of(value.type) for value in function.block.args], arrays, {})
        return [to_array(result) for result in executor([to_tensor(array) for array in arrays], symbols)]

    return call


def random_inputs(tensors: Sequence[Tensor], seed: int) -> tuple[list[np.ndarray], dict[str, int]]:
    """Arrays of these types, and the sizes that were taken for symbols."""
    rng = np.random.default_rng(seed)
    names = sorted({name for tensor in tensors for size in tensor.shape for name in symbols_of(size)})
    symbols = {name: _SIZES[position % len(_SIZES)] for position, name in enumerate(names)}
    shapes = [tuple(evaluate(size, symbols) for size in tensor.shape) for tensor in tensors]
    # Integers may be positions in some dimension: the smallest that is not 0 or 1 bounds them.
    bound = min((size for shape in shapes for size in shape if size > 1), default=1)
    arrays: list[np.ndarray] = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        dtype = tensor.dtype
        if dtype.kind == "bool":
            arrays.append(rng.random(shape) < 0.5)
        elif dtype.is_integer:
            arrays.append(rng.integers(0, min(bound, 100), shape).astype(dtype.numpy))
        else:
            arrays.append(np.asarray(rng.standard_normal(shape)).astype(dtype.numpy))
    return arrays, symbols


def _complaint(found: np.ndarray, expected: np.ndarray) -> str:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if found.dtype.kind in "biu":
        differ = int((found != expected).sum())
        return f"{differ} of {found.size} elements differ" if differ else ""
    a, b = found.astype(np.complex128), expected.astype(np.complex128)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "infinities or NaN stand elsewhere"
    name = {"complex64": "f32", "complex128": "f64"}.get(found.dtype.name) or _NAMES.get(found.dtype.name, "f32")
    scale = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-30)
    error = float(np.abs(a - b)[finite].max(initial=0.0)) / scale
    return f"off by {error:.2e} of the largest value" if error > TOLERANCES[name] else ""


_NAMES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def examine_apart(
    function: FuncOp,
    config: Config | None = None,
    seed: int = 0,
    seconds: float = 60.0,
    inputs: KeptInputs | None = None,
) -> Failure | None:
    """As `examine`, in a child process."""

    def check() -> dict[str, Any]:
        failure = examine(function, config, seed, inputs)
        return {} if failure is None else asdict(failure)

    outcome = run_apart(check, seconds)
    if isinstance(outcome, Failure):
        return outcome
    if "refused" in outcome:
        raise WeftError(outcome["refused"])
    return Failure(**outcome) if outcome else None


def run_apart(check: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any] | Failure:
    """The dictionary that a function gives when run in a forked child, or how the child ended instead."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(check, reader, writer)
    os.close(writer)
    answer, deadline = b"", time.monotonic() + seconds
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(65536)
            if not part:
                break
            answer += part
        else:
            os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0 and answer:
        return json.loads(answer)
    if status == -signal.SIGKILL:
        return Failure("hangs", "", f"takes more than {seconds:.0f} s")
    how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
    return Failure("crashes", how, f"the process ends with {how}")


def _answer(check: Callable[[], dict[str, Any]], reader: int, writer: int) -> NoReturn:
    """The child's part: it must never return to the caller's code."""
    try:
        os.close(reader)
        faulthandler.disable()  # a crash is an answer like any other
        try:
            answer = check()
        except WeftError as error:
            answer = {"refused": str(error)}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
        os._exit(0)
    finally:
        os._exit(70)


def reproduce(
    program: str, seed: int = 0, options: Mapping[str, Any] | None = None, inputs: Mapping[str, Any] | None = None
) -> NoReturn:
    """Examine a program's text, say what happens, and exit with 1 if it fails.

    `options` are those that it was compiled with, `inputs` what it was called with, where it fails on that alone.
    """
    (function,) = functions_of(parse_program(program, "reproducer"))
    config = Config.from_options(options)
    failure = examine(function, config, seed, None if inputs is None else read_inputs(inputs))
    print("it works" if failure is None else f"it fails: {failure}")
    raise SystemExit(failure is not None)
