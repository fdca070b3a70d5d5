"""The `torch.compile` backend `weft`: AOTAutograd captures graphs, each is imported, compiled and made callable."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from functorch.compile import make_boxed_func  # pyright: ignore[reportMissingTypeStubs, reportPrivateImportUsage]
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from weft.backends.nvidia.code import DeviceCode
from weft.config import Config
from weft.errors import LoweringError, ParseError, WeftError
from weft.forks import COMPILING
from weft.frontends.torch import caching
from weft.frontends.torch.checks import failure
from weft.frontends.torch.collection import without_collection
from weft.frontends.torch.complex_numbers import as_real
from weft.frontends.torch.decompositions import decompositions
from weft.frontends.torch.device_timing import timer_on
from weft.frontends.torch.devices import CPU, graph_device, kind_of, nvidia_target, target_on
from weft.frontends.torch.executor import CpuExecutor
from weft.frontends.torch.first_call import FirstCall, Loading
from weft.frontends.torch.freezing import frozen_arguments, make_constants, warn_of_quantization
from weft.frontends.torch.graph import Calling, ImportedGraph
from weft.frontends.torch.importer import import_graph
from weft.frontends.torch.opaque import OpaqueRuntime
from weft.frontends.torch.plan_executor import PlanExecutor
from weft.frontends.torch.report import Fallback, note_fallback, note_targets, shape_guards
from weft.frontends.torch.report import record_targets as record_targets
from weft.frontends.torch.returning import output_of, write_back, written_inputs
from weft.frontends.torch.shortcut import Shortcut
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.pipelines import Compiled, compile_cpu, compile_nvidia
from weft.runtime.cache import DiskCache
from weft.runtime.cubins import EarlyLoader
from weft.runtime.executable import Executable
from weft.runtime.record import CompilationRecord, compilation, is_recording

if TYPE_CHECKING:
    from weft.frontends.torch.cuda_executor import CudaExecutor

log = logging.getLogger("weft")

_HOW_TO_REPORT = "\nRun `weft reduce` on it to make a report; WEFT_STRICT=1 makes this an error."


class Executor(Protocol):
    """A compiled function: its tensors and the values of its symbols in, its results out.

    Every result is a fresh tensor with the strides that the function states, also one that is an argument unchanged.
    """

    def __call__(self, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int]) -> list[torch.Tensor]: ...


def weft_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured; `options` are the fields of `weft.config.Config`.

    `mode` is accepted for the sake of `torch.compile`'s signature; Weft has one mode.
    """
    config = Config.from_options(options)
    shortcut = Shortcut()
    compilers = {
        name: partial(compile_graph, name=name, config=config, traced_inputs=example_inputs)
        for name in ("forward", "backward", "inference")
    }

    def compile_inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        return shortcut.watched(compilers["inference"](graph, inputs))

    backend: Any = aot_autograd(
        fw_compiler=compilers["forward"],
        bw_compiler=compilers["backward"],
        inference_compiler=compile_inference,
        decompositions=decompositions(kind_of(example_inputs)),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return shortcut.shortened(backend(module, example_inputs))


def compile_graph(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    name: str,
    config: Config,
    traced_inputs: Sequence[Any] = (),
) -> Callable[[list[Any]], Sequence[Any]]:
    """A callable for one ATen graph; what Weft cannot take at all runs as torch would run it.

    `traced_inputs` are what Dynamo traced it with: the weights among them can be frozen.
    """
    with COMPILING, compilation(name) as record:
        record.nodes = len(module.graph.nodes)
        record.guards = shape_guards(example_inputs) if is_recording() else []
        frozen = frozen_arguments(module, name, config, traced_inputs)
        with without_collection():
            return _callable(module, name, config, frozen, record)


def _callable(
    module: fx.GraphModule, name: str, config: Config, frozen: Mapping[int, torch.Tensor], record: CompilationRecord
) -> Callable[[list[Any]], Sequence[Any]]:
    start = time.perf_counter()
    try:
        device = graph_device(module)
        if frozen:
            warn_of_quantization(config.quantize, device.type)
        keeps = config.cache and config.target == "cpu"
        key = caching.graph_key(module, name, config, frozen, target_on(device)) if keeps else None
        loaded = _loaded(key, module, frozen, record, config, device) if key else None
        if loaded is not None:
            record.measure("load", start)
            log.info("loaded %s from the cache in %.3f s", name, time.perf_counter() - start)
            return loaded.shortest()
        looked = record.measure("look_up", start)
        tensor_cores = device.type == "cuda" and nvidia_target(device).has_wgmma
        left: frozenset[Hashable] = frozenset()
        while True:
            imported = import_graph(module, name, config, frozen, device.type, tensor_cores, left)
            record.measure("import", looked)
            try:
                executor = executor_for(imported, config, key, frozen, device)
                break
            except LoweringError as error:  # torch has code for what this kernel was to do
                if config.strict or error.sources <= left:
                    raise
                log.warning("a kernel cannot be made, torch carries out what it was to do: %s", error)
                left |= error.sources
    except torch.OutOfMemoryError as error:
        return LaterCall(module, name, config, frozen, str(error))
    except Exception as error:  # whatever is wrong in the compiler, torch can run the graph
        if record.wants_programs and "import" not in record.seconds:
            record.captured = module
        if config.strict:
            raise
        return _uncompiled(module, record, error)
    log.info(
        "compiled %s: %d nodes, %d left to torch, %.3f s",
        name,
        len(module.graph.nodes),
        len(imported.fallbacks),
        time.perf_counter() - start,
    )
    compiled = partial(CompiledGraph, imported.calling, imported.constants)
    if isinstance(executor, LaterExecutor):
        load = executor.load
        return FirstCall(Loading(lambda: compiled(load()).shortest(), partial(_uncompiled, module, record), record))
    return compiled(executor).shortest()


def _uncompiled(module: fx.GraphModule, record: CompilationRecord, error: Exception) -> Callable[..., Sequence[Any]]:
    """The graph as torch runs it, for which there is a reason; memory that ran out may be there in the next call."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    expected = isinstance(error, WeftError)
    log.warning(
        "a graph runs uncompiled: %s%s", error if expected else repr(error), _HOW_TO_REPORT, exc_info=not expected
    )
    record.source, record.error = "torch", f"{type(error).__name__}: {error}"
    location = error.location if isinstance(error, WeftError) else None
    note_fallback("the whole graph", Fallback("the whole graph", location, str(error).partition("\n")[0]))
    return make_boxed_func(module.forward)


@dataclass
class LaterCall:
    """A graph for whose program there was no memory: it is compiled when it is called.

    Then the caller gets torch's own error, which tracing would hide, and can free memory and call again.
    """

    module: fx.GraphModule
    name: str
    config: Config
    frozen: Mapping[int, torch.Tensor]
    error: str
    """What torch said; the error itself would keep alive what there was no memory for."""
    compiled: Callable[[list[Any]], Sequence[Any]] | None = None
    _boxed_call: bool = True

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self.compiled is None:
            with COMPILING, compilation(self.name) as record, without_collection():
                found = _callable(self.module, self.name, self.config, self.frozen, record)
            if isinstance(found, LaterCall):
                raise torch.OutOfMemoryError(found.error)
            self.compiled = found
        return self.compiled(arguments)


def _loaded(
    key: str,
    module: fx.GraphModule,
    frozen: Mapping[int, torch.Tensor],
    record: CompilationRecord,
    config: Config,
    device: torch.device,
) -> CompiledGraph | None:
    """What the cache holds under a key, ready to be called."""
    stored = caching.load(key)
    if stored is None:
        return None
    plan, code, calling = stored
    try:
        if isinstance(code, bytes) is not (device.type == "cpu"):
            raise ParseError("a program of another device's")
        constants = tuple(operator.attrgetter(path)(module) for path in calling.constants)
        executor = _loaded_on(device, plan, code, None, OpaqueRuntime({}), config, calling)
        make_constants(executor, [*map(frozen.get, calling.arguments), *constants])
    except Exception as error:  # an entry is data from elsewhere: whatever is wrong with it, the graph is compiled
        log.warning("a cache entry is not used: %r", error)
        return None
    record.source = "cache"
    record.planned(plan, {})
    note_targets(str(node.target) for node in module.graph.nodes if node.op == "call_function")
    for fallback in calling.fallbacks:
        note_fallback(fallback.target, fallback)
    return CompiledGraph(calling, constants, executor)


def _loaded_on(
    device: torch.device,
    plan: Plan,
    code: bytes | DeviceCode,
    prepare: FuncOp | None,
    opaque: OpaqueRuntime,
    config: Config,
    calling: Calling,
) -> CpuExecutor | CudaExecutor:
    """The executor of a compiled program on its device."""
    if isinstance(code, bytes):
        return CpuExecutor(Executable(plan, code, prepare), opaque)
    # What it needs of torch is not there where torch is built without CUDA.
    from weft.frontends.torch.cuda_executor import CudaExecutor, load_program

    program = load_program(plan, code, prepare, device=device.index or 0, cache=_disk_cache(config))
    # The arguments of a backward graph are its own: tracing guards those that the user gives.
    guarded = plan.name != "backward"
    written = written_inputs(calling)
    return CudaExecutor(program, opaque, cuda_graphs=config.cuda_graphs, written=written, guarded=guarded)


def _disk_cache(config: Config) -> DiskCache | None:
    return caching.disk_cache() if config.cache else None


@dataclass
class LaterExecutor:
    """The executor of a program that threads still compile: `load` waits for them."""

    load: Callable[[], Executor]


def executor_for(
    imported: ImportedGraph,
    config: Config,
    key: str | None,
    frozen: Mapping[int, torch.Tensor],
    device: torch.device = CPU,
) -> Executor | LaterExecutor:
    """The executor for the configured target; a compiled program is kept under the key, if it has one."""
    runtime = OpaqueRuntime(imported.objects)
    if config.target == "reference":
        from weft.frontends.torch.reference import ReferenceExecutor

        return ReferenceExecutor(imported.function, runtime)
    function = imported.function
    compiled: Compiled[bytes] | Compiled[DeviceCode]
    if device.type == "cpu":
        compiled = compile_cpu(function, config, framework=True)
    else:
        loader = EarlyLoader(device.index or 0, _disk_cache(config))
        compiled = compile_nvidia(function, config, nvidia_target(device), timer_on(device), loader)

    def load() -> Executor:
        start = time.perf_counter()
        if key is not None and imported.cacheable and all(imported.calling.constants):
            caching.store(key, compiled.plan, compiled.code, imported.calling)
            start = compiled.report.measure("store", start)
        executor = _loaded_on(device, compiled.plan, compiled.code, compiled.prepare, runtime, config, imported.calling)
        start = compiled.report.measure("link", start)
        make_constants(executor, [*map(frozen.get, imported.calling.arguments), *imported.constants])
        compiled.report.measure("prepare_constants", start)
        log.debug("stages of %s: %s", imported.function.sym_name.data, compiled.report.seconds)
        return executor

    awaited = isinstance(compiled.code, DeviceCode) and compiled.code.is_awaited
    return LaterExecutor(load) if awaited and not frozen and not config.strict else load()


@dataclass
class CompiledGraph:
    """What AOTAutograd calls: a list of arguments, which is emptied, in; the outputs out."""

    calling: Calling
    constants: tuple[torch.Tensor, ...]
    executor: Executor
    _boxed_call: bool = True

    def shortest(self) -> Callable[[list[Any]], list[Any]]:
        """The quickest callable: the executor's own, where arguments and results are just the program's."""
        executor, calling = self.executor, self.calling
        if not isinstance(executor, PlanExecutor) or calling.complex_arguments or calling.symbols.rules:
            return self
        return executor.direct(calling, self.constants, self) or self

    def __call__(self, arguments: list[Any]) -> list[Any]:
        calling = self.calling
        symbols = calling.symbols(arguments)
        tensors = [arguments[position] for position in calling.arguments]
        tensors.extend(self.constants)
        for position in calling.complex_arguments:
            tensors[position] = as_real(tensors[position])
        given = list(arguments)
        arguments.clear()
        results = self.executor(tensors, symbols)
        if calling.checks and (code := int(results[-1])):
            raise failure(calling.checks, code)
        if calling.mutated:
            write_back([(given[position], results[result]) for position, result in calling.mutated])
        return [output_of(output, given, results, symbols) for output in calling.outputs]
