"""From programs, compiled just now or kept in the cache, to executors on the device of a graph's tensors."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import fx

from weft.backends.nvidia.code import DeviceCode
from weft.backends.target import Target
from weft.config import Config
from weft.diagnostics import warn
from weft.errors import ParseError
from weft.frontends.torch import caching
from weft.frontends.torch.compiled_graph import CompiledGraph, Executor
from weft.frontends.torch.devices import host_on
from weft.frontends.torch.execution.executor import CpuExecutor
from weft.frontends.torch.execution.reference import TargetExecutor
from weft.frontends.torch.execution.returning import written_inputs
from weft.frontends.torch.importer.freezing import make_constants
from weft.frontends.torch.importer.graph_device import CPU
from weft.frontends.torch.importer.imported_graph import Calling, ImportedGraph, with_own_lines
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.frontends.torch.report import (
    check_fallbacks,
    note_fallback,
    note_targets,
)
from weft.frontends.torch.report import record_targets as record_targets
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.runtime import stored_programs
from weft.runtime.cache import DiskCache
from weft.runtime.compiled import Compiled
from weft.runtime.executable import Executable, FrugalExecutable
from weft.runtime.record import CompilationRecord
from weft.targets.cpu import Cpu
from weft.targets.nvidia import Nvidia

if TYPE_CHECKING:
    from weft.frontends.torch.execution.cuda_executor import CudaExecutor

log = logging.getLogger("weft")

_ON_TENSORS = (Cpu.load, Nvidia.load)
"""Whoever loads programs like this has programs of Weft's own runtime, which run on torch's memory."""


def load_graph(
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
    calling = with_own_lines(calling, module)
    try:
        if isinstance(code, bytes) is not (device.type == "cpu"):
            raise ParseError("a program of another device's")
        constants = tuple(operator.attrgetter(path)(module) for path in calling.constants)
        executor = _loaded_on(device, plan, code, None, OpaqueRuntime({}), config, calling)
        make_constants(executor, [*map(frozen.get, calling.arguments), *constants])
    except Exception as error:  # an entry is data from elsewhere: whatever is wrong with it, the graph is compiled
        warn("cache", "a cache entry is not used", repr(error), "the graph is compiled anew")
        return None
    record.source = "cache"
    record.planned(plan, {})
    note_targets(str(node.target) for node in module.graph.nodes if node.op == "call_function")
    for fallback in calling.fallbacks:
        note_fallback(fallback.target, fallback, config)
    check_fallbacks(calling.fallbacks, config)
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
        made = FrugalExecutable if config.memory_budget else Executable
        return CpuExecutor(made(plan, code, prepare), opaque)
    # What it needs of torch is not there where torch is built without CUDA.
    from weft.frontends.torch.execution.cuda_executor import CudaExecutor, load_program

    program = load_program(plan, code, prepare, device=device.index or 0, cache=_disk_cache(config))
    # The arguments of a backward graph are its own: tracing guards those that the user gives.
    guarded = plan.name != "backward"
    written = written_inputs(calling)
    return CudaExecutor(program, opaque, cuda_graphs=config.cuda_graphs, written=written, guarded=guarded)


def _disk_cache(config: Config) -> DiskCache | None:
    return stored_programs.disk_cache() if config.cache else None


@dataclass
class LaterExecutor:
    """The executor of a program that threads still compile: `load` waits for them."""

    load: Callable[[], Executor]


def is_storable(imported: ImportedGraph) -> bool:
    """Whether a program of it can be kept for other processes."""
    return imported.cacheable and all(imported.calling.constants)


def executor_for(
    imported: ImportedGraph,
    config: Config,
    key: str | None,
    frozen: Mapping[int, torch.Tensor],
    target: Target,
    device: torch.device = CPU,
) -> Executor | LaterExecutor:
    """The executor for a target; a compiled program is kept under the key, if it has one."""
    runtime = OpaqueRuntime(imported.objects)
    function, host = imported.function, host_on(device, config, runtime)
    made = target.compile(function, config, host)
    if type(target).load not in _ON_TENSORS or not isinstance(made, Compiled):
        return TargetExecutor(function, target.load(made, config, host))  # a program of arrays, whatever it is else
    compiled = cast("Compiled[bytes | DeviceCode]", made)

    def load() -> Executor:
        start = time.perf_counter()
        if key is not None and is_storable(imported):
            stored_programs.store(key, compiled.plan, compiled.code, imported.calling)
            start = compiled.report.measure("store", start)
        executor = _loaded_on(device, compiled.plan, compiled.code, compiled.prepare, runtime, config, imported.calling)
        start = compiled.report.measure("link", start)
        make_constants(executor, [*map(frozen.get, imported.calling.arguments), *imported.constants])
        compiled.report.measure("prepare_constants", start)
        log.debug("stages of %s: %s", imported.function.sym_name.data, compiled.report.seconds)
        return executor

    awaited = isinstance(compiled.code, DeviceCode) and compiled.code.is_awaited
    return LaterExecutor(load) if awaited and not frozen and not config.forbids_fallbacks else load()
