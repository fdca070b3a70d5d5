"""The `torch.compile` backend `weft`: AOTAutograd captures graphs, each is imported, compiled and made callable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from functorch.compile import make_boxed_func  # pyright: ignore[reportMissingTypeStubs, reportPrivateImportUsage]
from torch import fx
from torch._dynamo import disable  # pyright: ignore[reportUnknownVariableType]
from torch._dynamo.backends.common import aot_autograd

from weft.backends.target import require_capabilities
from weft.config import Config
from weft.diagnostics import warn
from weft.errors import CompilationError, LoweringError, WeftError
from weft.forks import COMPILING
from weft.frontends.torch import caching
from weft.frontends.torch.capture.causal_masks import state_causal_masks
from weft.frontends.torch.capture.chunked_loss import with_chunked_losses
from weft.frontends.torch.capture.class_types import check_classes
from weft.frontends.torch.capture.constant_masks import without_constant_masks
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.grouped_matmuls import with_traced_gradients
from weft.frontends.torch.capture.loop_states import with_own_loop_states
from weft.frontends.torch.capture.margin_loss import margins_of_labels
from weft.frontends.torch.capture.mask_shapes import check_masks
from weft.frontends.torch.capture.processor_tables import make_tables
from weft.frontends.torch.capture.random_numbers import draw_seeds_once
from weft.frontends.torch.capture.recurrent_layers import with_recurrent_layers
from weft.frontends.torch.capture.split_sizes import with_split_sizes
from weft.frontends.torch.capture.unread_prints import without_unread_prints
from weft.frontends.torch.capture.values_alone import ask_for_values_alone
from weft.frontends.torch.capture.whole_resizing import whole_resizing
from weft.frontends.torch.collectives.captured_collectives import has_collectives, lower_captured
from weft.frontends.torch.collectives.failures import naming_dead_ranks_of
from weft.frontends.torch.collectives.gathers import mark_gathers
from weft.frontends.torch.compiled_graph import CompiledGraph
from weft.frontends.torch.devices import kind_of, target_on
from weft.frontends.torch.execution.first_call import FirstCall, Loading
from weft.frontends.torch.execution.observed_call import ObservedCall
from weft.frontends.torch.execution.overlaps import mutated_arguments, overlaps_checked
from weft.frontends.torch.execution.shortcut import Shortcut
from weft.frontends.torch.executors import LaterExecutor, executor_for, is_storable, load_graph
from weft.frontends.torch.importer.argument_starts import starts_checked, strided_arguments
from weft.frontends.torch.importer.asked_sizes import ask_sizes
from weft.frontends.torch.importer.donated_placeholders import DONATED, take_donated
from weft.frontends.torch.importer.freezing import frozen_arguments, warn_of_quantization
from weft.frontends.torch.importer.graph_device import graph_device
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.inline_regions import inline_regions
from weft.frontends.torch.locations import first_line
from weft.frontends.torch.remat.draw_dropout import draw_dropout_of_attention
from weft.frontends.torch.remat.lay_out_saved import as_traced
from weft.frontends.torch.remat.memory_budget import PEAK, partition_joint
from weft.frontends.torch.report import (
    HOW_TO_DECIDE,
    Fallback,
    check_fallbacks,
    note_fallback,
    note_targets,
    note_whole_graph,
    shape_guards,
)
from weft.frontends.torch.report import record_targets as record_targets
from weft.frontends.torch.settings import settings, watch
from weft.frontends.torch.splitting import split_graph, stacked_loop
from weft.frontends.torch.transforms.backward_ahead import compiling_ahead, is_ahead
from weft.frontends.torch.transforms.deferred_logs import defer_logs
from weft.frontends.torch.transforms.double_backward import functions_made, make_differentiable
from weft.frontends.torch.transforms.dynamo_forms import trace_by_forms
from weft.frontends.torch.transforms.dynamo_functions import trace_autograd_functions
from weft.frontends.torch.transforms.dynamo_levels import trace_under_transforms, traced_under_transforms
from weft.frontends.torch.transforms.program import CompiledProgram, Program
from weft.frontends.torch.transforms.traced_graph import TracedGraph
from weft.frontends.torch.transforms.transformed_call import Captured
from weft.frontends.torch.transforms.uncollected_tracing import trace_without_collection
from weft.frontends.torch.transforms.undefined_gradients import compile_backward, take_undefined
from weft.frontends.torch.worker_starts import start_before_tracing, start_for_missing
from weft.runtime.collection import without_collection
from weft.runtime.record import CompilationRecord, compilation, is_recording
from weft.runtime.single_flight import Flight

log = logging.getLogger("weft")

_UNKNOWN_SIZE = "the size of its result is only known when it has run"
_HOW_TO_REPORT = "`weft reduce script.py` makes a report of it"


def weft_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured; `options` are fields of `weft.config.Config`, `mode` stands for some."""
    config = settings(options, mode)
    note_compiled = start_before_tracing(module, example_inputs, config)
    check_masks(module)
    check_classes(module)
    module = without_constant_masks(with_recurrent_layers(with_traced_gradients(with_split_sizes(module))))
    module = with_own_loop_states(module)
    captured = Captured(module, config, compile_program)
    if traced_under_transforms():
        return disable(captured)
    traced = replace(captured, module=with_chunked_losses(module, config)).differentiable(example_inputs)
    with compiling_ahead(kind_of(example_inputs)):
        compiled, _ = _by_aot_autograd(traced, example_inputs, config, lambda *given: captured.program(given)[1])
    note_compiled()
    written = mutated_arguments(len(example_inputs))
    return compiled if written == () else overlaps_checked(compiled, module, example_inputs, written, config)


def compile_program(
    body: torch.nn.Module, arguments: Sequence[Any], config: Config, program: Program
) -> CompiledProgram:
    """A program for arguments like these, whose gradients are those of the program's vjp."""
    compiled, traced = _by_aot_autograd(body, arguments, config, lambda *_: program, keeps_arguments=True)
    return CompiledProgram(compiled, traced.reads)


def _by_aot_autograd(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    config: Config,
    program: Callable[..., Program],
    *,
    keeps_arguments: bool = False,
) -> tuple[Callable[..., Any], TracedGraph]:
    """A module as AOTAutograd captures it, and what it traced; `program` gives what second derivatives are made of."""
    shortcut, traced = Shortcut(), TracedGraph()
    compilers = {
        name: partial(compile_graph, name=name, config=config, traced_inputs=example_inputs)
        for name in ("forward", "backward", "inference")
    }

    def compile_gradients(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        graph.meta[DONATED] = take_donated()
        return compile_backward(graph, inputs, compilers["backward"])

    def compile_inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        inline_regions(graph)
        traced.note(graph.graph)
        state_causal_masks(graph)
        return shortcut.watched(compilers["inference"](graph, inputs))

    def partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        inline_regions(joint)
        mark_gathers(joint)
        traced.note(joint.graph)
        state_causal_masks(joint)
        draw_dropout_of_attention(joint, lambda device: target_on(device, config).capabilities.fast_matmuls)
        draw_seeds_once(joint)
        return partition_joint(joint, *args, config=config, **kwargs)

    backend: Any = aot_autograd(
        fw_compiler=compilers["forward"],
        bw_compiler=compile_gradients,
        inference_compiler=compile_inference,
        decompositions=decompositions(kind_of(example_inputs)),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    whole = whole_resizing(kind_of(example_inputs), module)
    quiet = without_unread_prints()
    with functions_made() as functions, margins_of_labels(), whole, without_collection(), quiet:
        compiled = shortcut.shortened(backend(module, example_inputs))
    leading = len([*module.parameters(), *module.buffers()])
    for function in functions:
        take_undefined(function)
        make_differentiable(
            function, program, leading=leading, is_random=traced.is_random, keeps_arguments=keeps_arguments
        )
    return compiled, traced


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
    draw_seeds_once(module)
    ask_for_values_alone(module)
    try:
        make_tables(module)
        ask_sizes(module)
    except Exception as error:  # whatever is wrong in asking, what is not known is found out where it is needed
        if config.forbids_fallbacks:
            raise
        log.info("tables of a graph are not made, or its sizes not asked for: %r", error)
    guards = shape_guards(example_inputs) if is_recording() else []
    frozen = frozen_arguments(module, name, config, traced_inputs)
    try:
        split = split_graph(module)
    except Exception as error:  # whatever is wrong in cutting it, the graph can be compiled, or run, as a whole
        if config.forbids_fallbacks:
            raise
        log.info("a graph is not split: %r", error)
        split = None
    if split is None:
        starts = strided_arguments(module)
        whole = starts_checked(_compiled(module, name, config, frozen, guards), module, starts, config)
        return naming_dead_ranks_of(whole, module)
    placeholders = {node: position for position, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    fallbacks = [Fallback(str(node.target), first_line([node]), _UNKNOWN_SIZE) for node in split.sources]
    note_targets(str(node.target) for node in split.sources)
    check_fallbacks(fallbacks, config)
    parts: list[Callable[[list[Any]], Sequence[Any]]] = []
    for part in split.parts:
        places = {placeholders[node]: place for place, node in enumerate(part.inputs) if node in placeholders}
        weights = {places[position]: tensor for position, tensor in frozen.items() if position in places}
        parts.append(_compiled(part.module, name, config, weights, guards, () if parts else fallbacks))
    compiled = partial(compile_graph, example_inputs=(), name=name, config=config)
    loops = {node: stacked_loop(*map(compiled, functions)) for node, functions in split.loops.items()}
    return naming_dead_ranks_of(split.runner(parts, loops), module)


def _compiled(
    module: fx.GraphModule,
    name: str,
    config: Config,
    frozen: Mapping[int, torch.Tensor],
    guards: list[str],
    left: Sequence[Fallback] = (),
) -> Callable[[list[Any]], Sequence[Any]]:
    """A callable for a graph, or a part of one, of which some calls were `left` to torch."""
    with COMPILING, compilation(name) as record:
        record.nodes = len(module.graph.nodes)
        record.guards = guards
        for fallback in left:
            note_fallback(fallback.target, fallback, config)
        with without_collection():
            return _callable(module, name, config, frozen, record)


def _callable(
    module: fx.GraphModule, name: str, config: Config, frozen: Mapping[int, torch.Tensor], record: CompilationRecord
) -> Callable[[list[Any]], Sequence[Any]]:
    start = time.perf_counter()
    flight, is_awaited = Flight("", None), False
    record.config, record.peak = config, module.meta.get(PEAK)
    try:
        device = graph_device(module)
        target = target_on(device, config)
        if frozen:
            warn_of_quantization(config.quantize, device.type, target.capabilities)
        made_for = target.cache_key() if config.cache else ""
        key = caching.graph_key(module, name, config, frozen, made_for) if made_for else None
        loaded: CompiledGraph | None = None
        if key:
            look_up = partial(load_graph, key, module, frozen, record, config, device)
            loaded = look_up()
            # Others are not to wait for a gradient that may be asked for late, or never.
            if loaded is None and not (name == "backward" and is_ahead()):
                flight, loaded = caching.lead(key, look_up)
        if loaded is not None:
            record.measure("load", start)
            log.info("loaded %s from the cache in %.3f s", name, time.perf_counter() - start)
            return loaded.shortest()
        start_for_missing(module, config, device)
        looked = record.measure("look_up", start)
        left: frozenset[Hashable] = frozenset()
        while True:
            imported = import_graph(module, name, config, frozen, target.capabilities, left)
            if has_collectives(imported.function):
                lower_captured(imported.function, dict(imported.objects), record)
            require_capabilities(imported.function, target)
            record.measure("import", looked)
            if not is_storable(imported):
                flight.release()  # others would wait for nothing
            try:
                executor = executor_for(imported, config, key, frozen, target, device)
                is_awaited = isinstance(executor, LaterExecutor)
                break
            except LoweringError as error:  # torch has code for what this kernel was to do
                if config.forbids_fallbacks or error.sources <= left:
                    raise
                if config.fallback == "warn":
                    what = "a kernel cannot be made, torch carries out what it was to do"
                    warn("fallback", what, error.message, _HOW_TO_REPORT, location=error.location)
                left |= error.sources
    except torch.OutOfMemoryError as error:
        return LaterCall(module, name, config, frozen, str(error))
    except Exception as error:  # whatever is wrong in the compiler, torch can run the graph
        if record.wants_programs and "import" not in record.seconds:
            record.captured = module
        if config.forbids_fallbacks:
            raise
        return _uncompiled(module, record, error, config)
    finally:
        if not is_awaited:
            flight.release()
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

        def finish() -> Callable[[list[Any]], Sequence[Any]]:
            with flight:
                return compiled(load()).shortest()

        return FirstCall(Loading(finish, partial(_uncompiled, module, record, config=config), record))
    if record.wants_inputs and not target.capabilities.own_memory:
        return ObservedCall(compiled(executor).shortest(), imported.calling, imported.constants, record)
    return compiled(executor).shortest()


def _uncompiled(
    module: fx.GraphModule,
    record: CompilationRecord,
    error: Exception,
    config: Config = Config(),  # noqa: B008  frozen
) -> Callable[..., Sequence[Any]]:
    """The graph as torch runs it, for which there is a reason; memory that ran out may be there in the next call."""
    if isinstance(error, torch.OutOfMemoryError) or config.forbids_fallbacks:
        raise error
    line = (error.location if isinstance(error, WeftError) else None) or first_line(module.graph.nodes)
    if config.fallback == "warn":
        # What is no error of Weft's own is a mistake in it, and so is what LLVM does not take.
        expected = isinstance(error, WeftError) and not isinstance(error, CompilationError)
        why = error.message if isinstance(error, WeftError) else repr(error)
        hint = error.hint if isinstance(error, WeftError) else None
        advice = "; ".join(filter(None, (hint, None if expected else _HOW_TO_REPORT, HOW_TO_DECIDE)))
        shown = None if isinstance(error, WeftError) else error
        warn("fallback", "a graph runs uncompiled", why, advice, location=line, error=shown)
    record.source, record.error = "torch", f"{type(error).__name__}: {error}"
    note_whole_graph(Fallback("the whole graph", line, str(error).partition("\n")[0]))
    return make_boxed_func(lambda *arguments: as_traced(module, list(arguments)))


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


watch(weft_backend)
trace_under_transforms(weft_backend)
trace_by_forms(weft_backend)
defer_logs(weft_backend)
trace_without_collection(weft_backend)
trace_autograd_functions(weft_backend)
