"""Programs as text: a graph in Weft's own MLIR becomes a function of arrays, with no framework in sight.

encode = compile_text(Path("encoder.mlir").read_text(), constants=dict(np.load("weights.npz")))
hidden, pooled = encode(ids, mask)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np

from weft.backends.target import Executable as Program
from weft.backends.target import Host, Target, require_capabilities, target_at
from weft.config import Config
from weft.diagnostics import nearest
from weft.errors import ParseError, UnsupportedError, WeftError
from weft.forks import COMPILING
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import symbols_of
from weft.ir.types import DType, dtype_of_numpy, tensor_of
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.ops.size_checks import SizeChecks
from weft.runtime import stored_programs
from weft.runtime.array_function import ArrayExecutor, ArrayFunction
from weft.runtime.blas import blas_symbols
from weft.runtime.cache import cache_key
from weft.runtime.codec import table
from weft.runtime.compiled import Compiled
from weft.runtime.cores import checked_threads
from weft.runtime.numpy_arrays import HostExecutor, NumpyArrays
from weft.runtime.record import CompilationRecord
from weft.runtime.signature import Signature, signature_of
from weft.runtime.sources import source_digest, versions
from weft.tile.text import functions_of, parse_program, print_program

_CLASSES = table(Signature)

Prepared: TypeAlias = Callable[[Plan | None], "Mapping[int, np.ndarray] | None"]
"""Gives the constant buffers of a plan, if they were made before; without a plan there is no use for them."""


def compile_text(
    text: str,
    *,
    constants: Mapping[str, Any] | None = None,
    config: Config | None = None,
    function: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> ArrayFunction[Any]:
    """Compile a graph function that is given as text; a module with several needs the name of one.

    `constants` are arguments, by name, that are the same in every call: they are copied, folded and packed now, and
    calls leave them out. The `device` is `cpu`, or a GPU: `cuda`, `cuda:1`. On a processor, kernels run in as many
    `threads` as there are cores for, and results are arrays of NumPy's; those of a GPU are `DeviceArray`s.
    """
    return _compiled(
        text, lambda frozen: read_function(text, function, frozen), constants, config, device, threads, function
    )


def compile_function(
    graph: FuncOp,
    *,
    text: str | None = None,
    constants: Mapping[str, Any] | None = None,
    config: Config | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> ArrayFunction[Any]:
    """Compile a graph function, as `compile_text` does its `text`, printed if it is not given; it is used up."""

    def read(frozen: Iterable[str]) -> tuple[FuncOp, Signature]:
        return graph, _frozen(graph, frozen)

    return _compiled(text or print_program(graph), read, constants, config, device, threads)


def load_stored(
    key: str,
    *,
    constants: Mapping[str, Any],
    config: Config,
    device: str = "cpu",
    threads: int | None = None,
    prepared: Prepared | None = None,
) -> ArrayFunction[Any] | None:
    """A program from the cache by its `program_key`, without its text; None where it is not there.

    What `prepared` gives for its plan are its constant buffers: the elements of `constants` are not looked at then.
    """
    target, config = _target(config, device)
    with COMPILING:
        found = stored_programs.load(key, Signature, _CLASSES, check_signature)
        if found is None:
            return None
        plan, code, signature = found
        compiled = Compiled(plan, code, CompilationRecord(plan.name, source="cache"), None, signature.names)
        return _loaded(target, compiled, config, signature, constants, threads, prepared=prepared)


def program_key(text: str, constants: Iterable[str], config: Config, device: str, function: str | None = None) -> str:
    """What a program is stored under: all that its code depends on."""
    target, config = _target(config, device)
    made_with = (*versions(), f"blas {sorted(blas_symbols())}", source_digest())
    frozen = tuple(sorted(constants))
    return cache_key("graph text", text, function, frozen, config.key(), made_with, target.cache_key())


def _target(config: Config, device: str) -> tuple[Target, Config]:
    """What compiles for a device, and by which configuration."""
    kind, number = _parts(device)
    if kind != "cpu":  # no framework is there whose library could multiply
        config = replace(config, strict=True)
    return target_at(kind, config, number), config


def _compiled(
    text: str,
    read: Callable[[Iterable[str]], tuple[FuncOp, Signature]],
    constants: Mapping[str, Any] | None,
    config: Config | None,
    device: str,
    threads: int | None,
    function: str | None = None,
) -> ArrayFunction[Any]:
    """The program of a text, from the cache or compiled; `read` gives its function and what that takes."""
    config = config or Config.from_options()
    frozen = sorted(constants or {})
    key = program_key(text, frozen, config, device, function)
    target, config = _target(config, device)
    with COMPILING:
        keeps = config.cache and target.cache_key() != ""
        found = stored_programs.load(key, Signature, _CLASSES, check_signature) if keeps else None
        if found is None:
            graph, signature = read(frozen)
            require_capabilities(graph, target)
            compiled: Any = target.compile(graph, config)
            _require_known(signature, getattr(getattr(compiled, "plan", None), "symbols", ()))
            if keeps:
                stored_programs.store(key, compiled.plan, compiled.code, signature)
        else:
            plan, code, signature = found
            compiled = Compiled(plan, code, CompilationRecord(plan.name, source="cache"), None, signature.names)
        checks = _TextChecks(text, function) if signature.asks_sizes else None
        return _loaded(target, compiled, config, signature, constants, threads, checks)


def load_program(
    meta: Mapping[str, Any], blobs: Mapping[str, bytes], constants: Mapping[str, Any], device: str
) -> ArrayFunction[Any]:
    """A program that was compiled before (`stored_programs.encode_program`), as a function of arrays.

    Raises one of `stored_programs.BAD_ENTRY` where the data is none.
    """
    plan, code, signature = stored_programs.decode_program(meta, blobs, Signature, _CLASSES, check_signature)
    config = Config(strict=True)
    kind, number = _parts(device)
    target = target_at(kind, config, number)
    compiled: Any = Compiled(plan, code, CompilationRecord(plan.name, source="artifact"), None, signature.names)
    with COMPILING:
        return _loaded(target, compiled, config, signature, constants, None)


def read_function(text: str, function: str | None = None, frozen: Iterable[str] = ()) -> tuple[FuncOp, Signature]:
    """A function of a text, checked, and what it takes; arguments that are `frozen` are among its constants."""
    graph = _chosen(functions_of(parse_program(text)), function)
    return graph, _frozen(graph, frozen)


def _frozen(graph: FuncOp, frozen: Iterable[str]) -> Signature:
    """What a function takes, with arguments that are always the same among its constants."""
    signature = _signature(graph, frozen)
    graph.attributes["constants"] = to_attribute(signature.constants)
    return signature


def _loaded(
    target: Target,
    compiled: Any,
    config: Config,
    signature: Signature,
    constants: Mapping[str, Any] | None,
    threads: int | None,
    checks: Callable[[Mapping[str, int]], None] | None = None,
    prepared: Prepared | None = None,
) -> ArrayFunction[Any]:
    program = target.load(compiled, config, Host(threads=checked_threads(threads)))
    # Programs of Weft's own runtime, `PlanProgram`, bring what runs them.
    executor: ArrayExecutor[Any] = getattr(program, "executor", None) or ProgramOnArrays(program)
    freeze: Callable[[Sequence[Any]], None] | None = None
    if prepared is not None:
        host = executor if isinstance(executor, HostExecutor) else None
        arrays = prepared(None if host is None else compiled.plan)
        if host is not None and arrays is not None:
            freeze = partial(host.freeze, prepared=arrays)
    return ArrayFunction(signature, executor, constants, checks, freeze)


@dataclass
class _TextChecks:
    """What a text asks of symbolic sizes; it is read when a call first has some."""

    text: str
    function: str | None
    found: SizeChecks | None = None

    def __call__(self, symbols: Mapping[str, int]) -> None:
        if self.found is None:
            with COMPILING:
                self.found = SizeChecks(read_function(self.text, self.function)[0])
        self.found(symbols)


@dataclass(frozen=True)
class ProgramOnArrays:
    """A program of a target that has no plan: arrays of NumPy's in, and whatever it gives out."""

    program: Program
    arrays: NumpyArrays = field(default_factory=NumpyArrays)
    fixed: tuple[int, ...] = ()

    def borrow(self, value: Any, written: bool) -> tuple[np.ndarray, DType]:
        array = np.array(value) if written else np.asarray(value)
        return array, dtype_of_numpy(array.dtype)

    def freeze(self, given: Sequence[np.ndarray]) -> None:
        """Constants come with every call: nothing is prepared of them."""

    def __call__(self, tensors: Sequence[np.ndarray], symbols: Mapping[str, int]) -> list[np.ndarray]:
        return [self._apart(found, tensors) for found in self.program(tensors, symbols)]

    def _apart(self, found: Any, given: Sequence[np.ndarray]) -> Any:
        """A result in memory of its own, as compiled programs give it."""
        if not isinstance(found, np.ndarray):
            return found
        array = cast(np.ndarray, found)
        return array.copy() if any(np.may_share_memory(array, each) for each in given) else array


def _parts(device: str) -> tuple[str, int]:
    """The kind of a device, and its number."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise WeftError(f"no device is called {device!r}", hint="there are `cpu`, `cuda` and `cuda:1`")
    if kind == "cpu" and int(number or 0):
        raise WeftError(f"no device is called {device!r}", hint="all processors are one device, `cpu`")
    return kind, int(number or 0)


def _chosen(functions: Iterable[FuncOp], name: str | None) -> FuncOp:
    known = {each.sym_name.data: each for each in functions}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ParseError(
            f"the text has the functions {listed}" + (f", but no {name}{nearest(name, known)}" if name else ""),
            hint="say which one by `function`",
        )
    return known[name]


def _signature(function: FuncOp, frozen: Iterable[str]) -> Signature:
    arguments = function.block.args
    stated = [] if function.arg_names is None else [each.data for each in function.arg_names]
    names = tuple(stated) if len(stated) == len(arguments) else tuple(f"arg{n}" for n in range(len(arguments)))
    if unknown := sorted(set(frozen) - set(names)):
        raise WeftError(f"no argument is called {unknown[0]!r}{nearest(unknown[0], names)}", hint=", ".join(names))
    ranges: Any = {} if function.symbols is None else {k: from_attribute(v) for k, v in function.symbols.data.items()}
    already: Any = () if (given := function.attributes.get("constants")) is None else from_attribute(given)
    replaced: Any = () if (given := function.attributes.get("replaced")) is None else from_attribute(given)
    signature = Signature(
        function.sym_name.data,
        names,
        tuple(tensor_of(value.type) for value in arguments),
        tuple((name, least, most) for name, (least, most) in ranges.items()),
        tuple(sorted({*already, *(names.index(name) for name in frozen)})),
        tuple(place for place, _ in replaced),
        SizeChecks(function).may_fail,
    )
    _require_known(signature, (s for each in signature.arguments for size in each.shape for s in symbols_of(size)))
    return signature


def _require_known(signature: Signature, symbols: Iterable[str]) -> None:
    """Refuse sizes that no call could tell."""
    if unknown := signature.unknown(symbols):
        raise UnsupportedError(
            f"the size {unknown[0]} of {signature.name} is not that of an argument, but only a part of others",
            hint="name the whole size, and state others by it",
        )


def check_signature(signature: Signature, plan: Plan) -> None:
    """Raise where a stored signature does not fit its plan."""
    own = signature_of(plan, signature.names)
    fits = (
        (signature.names, signature.arguments, signature.constants) == (own.names, own.arguments, own.constants)
        and len(set(signature.names)) == len(signature.names)
        and all(plan.buffers[place].role == "constant" for place in plan.fixed)
        and set(own.replaced) <= set(signature.replaced) <= set(range(len(own.names)))
        and not signature.unknown(plan.symbols)
    )
    if not fits:
        raise ParseError("a stored signature does not fit its plan")
