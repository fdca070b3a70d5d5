"""Programs as text: a graph in Weft's own MLIR becomes a function of arrays, with no framework in sight.

encode = compile_text(Path("encoder.mlir").read_text(), constants=dict(np.load("weights.npz")))
hidden, pooled = encode(ids, mask)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from weft.backends.cpu.target import CpuTarget, target_for
from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.driver import device_facts
from weft.backends.nvidia.target import NvidiaTarget, target_of_capability
from weft.config import Config
from weft.diagnostics import nearest
from weft.errors import ParseError, WeftError
from weft.forks import COMPILING
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.types import tensor_of
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.pipelines import compile_cpu, compile_nvidia
from weft.runtime import stored_programs
from weft.runtime.array_function import ArrayFunction
from weft.runtime.blas import blas_symbols
from weft.runtime.cache import cache_key
from weft.runtime.codec import table
from weft.runtime.device_arrays import DriverExecutor
from weft.runtime.device_program import DeviceProgram
from weft.runtime.executable import Executable
from weft.runtime.numpy_arrays import HostExecutor
from weft.runtime.signature import Signature
from weft.runtime.sources import source_digest, versions
from weft.tile.text import functions_of, parse_program

_CLASSES = table(Signature)


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

    `constants` are arguments, by name, that are the same in every call: they are folded and packed now, and calls leave
    them out. The `device` is `cpu`, or a GPU: `cuda`, `cuda:1`. On a processor, kernels run in as many `threads` as
    there are cores for, and results are arrays of NumPy's; those of a GPU are `DeviceArray`s.
    """
    config = config or Config.from_options()
    if device != "cpu":  # no framework is there whose library could multiply
        config = replace(config, strict=True)
    frozen = sorted(constants or {})
    number = _number(device)
    target = target_for(config.cpu) if number is None else _gpu(number)
    made_with = (*versions(), f"blas {sorted(blas_symbols())}", source_digest())
    key = cache_key("graph text", text, function, tuple(frozen), config.key(), made_with, repr(target))
    with COMPILING:
        found = stored_programs.load(key, Signature, _CLASSES, _check) if config.cache else None
        if found is None:
            graph = _chosen(functions_of(parse_program(text)), function)
            signature = _signature(graph, frozen)
            graph.attributes["constants"] = to_attribute(signature.constants)
            plan, code = _compiled(graph, config, target)
            if config.cache:
                stored_programs.store(key, plan, code, signature)
        else:
            plan, code, signature = found
        if isinstance(code, bytes):
            return ArrayFunction(signature, HostExecutor(Executable(plan, code), threads=threads), constants)
        cache = stored_programs.disk_cache() if config.cache else None
        program = DeviceProgram(plan, code, device=number or 0, cache=cache)
        return ArrayFunction(signature, DriverExecutor(program), constants)


def _compiled(graph: FuncOp, config: Config, target: CpuTarget | NvidiaTarget) -> tuple[Plan, bytes | DeviceCode]:
    if isinstance(target, CpuTarget):
        made = compile_cpu(graph, config, target)
        return made.plan, made.code
    compiled = compile_nvidia(graph, config, target)
    return compiled.plan, compiled.code


def _number(device: str) -> int | None:
    """The number of a GPU; None for the processor."""
    kind, _, number = device.partition(":")
    if device == "cpu":
        return None
    if kind != "cuda" or not (number or "0").isdecimal():
        raise WeftError(f"no device is called {device!r}", hint="there are `cpu`, `cuda` and `cuda:1`")
    return int(number or 0)


def _gpu(number: int) -> NvidiaTarget:
    facts = device_facts(number)
    return target_of_capability(*facts.capability, facts.multiprocessors)


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
    return Signature(
        function.sym_name.data,
        names,
        tuple(tensor_of(value.type) for value in arguments),
        tuple((name, least, most) for name, (least, most) in ranges.items()),
        tuple(sorted({*already, *(names.index(name) for name in frozen)})),
        tuple(place for place, _ in replaced),
    )


def _check(signature: Signature, plan: Plan) -> None:
    """Raise where a stored signature does not fit its plan."""
    count = len(plan.inputs) + len(plan.fixed)
    if len(signature.names) != count or len(signature.arguments) != count or signature.constants != plan.fixed:
        raise ParseError("a stored signature does not fit its plan")
