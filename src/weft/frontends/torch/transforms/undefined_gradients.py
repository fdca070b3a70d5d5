"""Backward graphs for the results that have a gradient: for the others, zeros are neither made nor read.

A model gives its logits beside its loss, and only the loss is differentiated. Autograd would fill a gradient of the
logits with zeros for the function that AOTAutograd makes; that function is told to take None instead, and the graph is
compiled for the set of gradients that there are: the others are zeros that passes know of.
"""

# AOTAutograd has no public interface to it; torch leaves some of its functions without types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo import compiled_autograd
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from weft.frontends.torch.execution.first_call import Boxed
from weft.frontends.torch.importer.donated_placeholders import DONATED
from weft.frontends.torch.transforms.backward_ahead import expected_undefined, is_ahead

log = logging.getLogger("weft")

Compile = Callable[[fx.GraphModule, Sequence[Any]], Boxed]
"""Makes a program of a backward graph and what it was traced with."""

_undefined: ContextVar[frozenset[int]] = ContextVar("_undefined", default=frozenset())
"""The arguments without a value in the call for which a backward graph is compiled now, by position."""
_TANGENT = "tangents"
"""What AOTAutograd calls gradients of results."""
_PARTS = (
    "forward",
    "_backward_impl",
    "compiled_bw",
    "metadata",
    "maybe_subclass_metadata",
    "num_symints_saved_for_bw",
)
"""What is asked of AOTAutograd's functions."""
_PROLOGUE = ("_bw_prologue_fn", "_bwd_fn", "_lazy_backward_info")
"""And what compiled autograd asks of them."""
_MOST_PROGRAMS = 8
"""Sets of gradients that a graph is compiled for; for others zeros are made."""


def take_undefined(function: Any) -> None:
    """Let a function of AOTAutograd's hand None to its backward graph for gradients that are not there."""
    if not all(hasattr(function, name) for name in _PARTS) or _torch_does_it():
        return  # another release has other names: there are zeros then
    changing = function.num_symints_saved_for_bw or any(each.dynamic_dims for each in function.metadata.output_info)
    if changing or function.maybe_subclass_metadata is not None:
        return  # the gradients tell sizes that change; of subclasses torch asks for every part
    forward, backward = function.forward, function._backward_impl

    def leaving(ctx: Any, *arguments: Any) -> Any:
        results = forward(ctx, *arguments)
        # Compiled autograd traces the graph as it is, with all its arguments.
        if not (compiled_autograd.compiled_autograd_enabled or torch._dynamo.config.compiled_autograd):
            ctx.set_materialize_grads(False)
        return results

    def noting(ctx: Any, arguments: list[Any]) -> Any:
        if function.compiled_bw is not None:
            return backward(ctx, arguments)
        token = _undefined.set(frozenset(n for n, value in enumerate(arguments) if value is None))
        try:
            return backward(ctx, arguments)
        finally:
            _undefined.reset(token)

    function.forward, function._backward_impl = staticmethod(leaving), staticmethod(noting)
    if all(hasattr(function, name) for name in _PROLOGUE):
        _fill_for_compiled_autograd(function)


def _fill_for_compiled_autograd(function: Any) -> None:
    """Make zeros where compiled autograd, begun after the call, takes a function's graph instead of the function."""
    prologue, whole = function._bw_prologue_fn, function._bwd_fn

    def filling(*given: Any) -> list[Any]:
        arguments = list(prologue(*given))
        nodes = function._lazy_backward_info.bw_module.graph.find_nodes(op="placeholder")
        tangents = [node.meta["val"] for node in nodes if node.name.startswith(_TANGENT)]
        first = len(arguments) - len(tangents)
        return arguments[:first] + [
            _zeros(traced) if value is None else value
            for value, traced in zip(arguments[first:], tangents, strict=True)
        ]

    def unfilled(grads: Any, ctx: Any, _: Any, *rest: Any) -> Any:
        return whole(grads, ctx, prologue, *rest)

    function._bw_prologue_fn, function._bwd_fn = staticmethod(filling), staticmethod(unfilled)


def _torch_does_it() -> bool:
    """Whether this release of torch has graphs for sets of gradients of its own."""
    return hasattr(torch._functorch.config, "aot_autograd_prune_unused_outputs")


def _is_static(traced: Any) -> bool:
    sizes: list[Any] = [*traced.shape, *traced.stride()] if isinstance(traced, Tensor) else [None]
    return all(isinstance(size, int) for size in sizes)


def compile_backward(module: fx.GraphModule, inputs: Sequence[Any], compile_graph: Compile) -> Boxed:
    """The call of a backward graph, with None for gradients that are not there: a program for each set of them."""
    placeholders = module.graph.find_nodes(op="placeholder")
    tangents = {n: node.meta.get("val") for n, node in enumerate(placeholders) if node.name.startswith(_TANGENT)}
    static = all(map(_is_static, tangents.values()))
    if is_ahead():
        programs = _Programs(module, inputs, compile_graph, tuple(tangents) if static else ())
        # What is found out of sizes that change is to be guarded with the forward graph.
        changing = any(isinstance(value, torch.SymInt) for value in inputs)
        told = static and not _torch_does_it()
        programs.expect(() if changing else expected_undefined(tangents) if told else None)
        return programs
    if not static:
        return compile_graph(module, inputs)
    programs = _Programs(module, inputs, compile_graph, tuple(tangents))
    programs.program(tuple(n for n in tangents if n in _undefined.get()))
    return programs


@dataclass
class _Programs:
    """A backward graph, and its programs by the places of the gradients that are not there."""

    module: fx.GraphModule
    inputs: Sequence[Any]
    compile_graph: Compile
    places: tuple[int, ...]
    made: dict[tuple[int, ...], Boxed] = field(default_factory=dict[tuple[int, ...], Boxed])
    _boxed_call: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        missing = tuple([n for n in self.places if arguments[n] is None])
        program = self.made.get(missing) or self.program(missing)
        if program is None:
            nodes = self.module.graph.find_nodes(op="placeholder")
            for n in missing:
                arguments[n] = _zeros(nodes[n].meta["val"])
            return self.made[()](arguments)
        for n in reversed(missing):
            del arguments[n]
        return program(arguments)

    def expect(self, missing: tuple[int, ...] | None) -> None:
        """Make the program for a set that is likely to be asked for, before it is; None where that is not known."""
        if missing is None:
            return
        try:
            self.program(missing)
        except Exception as error:  # whatever it is, whoever asks for the gradient meets it again
            log.info("a backward graph is not compiled ahead: %r", error)

    def program(self, missing: tuple[int, ...]) -> Boxed | None:
        """The program for a set; None where there are too many already."""
        with self._lock:
            return self.made.get(missing) or self._compiled(missing)

    def _compiled(self, missing: tuple[int, ...]) -> Boxed | None:
        if missing and len(self.made) >= _MOST_PROGRAMS:
            if () not in self.made:
                self._compiled(())
            return None
        graph = with_zeros(self.module, missing)
        self.made[missing] = self.compile_graph(graph, [v for n, v in enumerate(self.inputs) if n not in missing])
        return self.made[missing]


def _zeros(traced: Tensor) -> Tensor:
    made = torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype, device=traced.device)
    return made.zero_()


def with_zeros(module: fx.GraphModule, missing: Collection[int]) -> fx.GraphModule:
    """A copy of a graph that knows the arguments at some places to be zeros, and does not take them."""
    graph = copy.deepcopy(module.graph)
    with _use_lazy_graph_module(True):  # Python is only written of a graph that torch is to run after all
        made = _make_graph_module(module, graph)
    made.meta = dict(module.meta)
    donated = made.meta.get(DONATED, ())
    made.meta[DONATED] = tuple(n - sum(each < n for each in missing) for n in donated)
    placeholders = graph.find_nodes(op="placeholder")
    for n in missing:
        node, traced = placeholders[n], placeholders[n].meta["val"]
        with graph.inserting_after(placeholders[-1]):
            full: Any = torch.ops.aten.full.default
            options = {"dtype": traced.dtype, "device": traced.device, "pin_memory": False}
            zero = graph.call_function(full, (list(traced.shape), 0), options)
        zero.meta = dict(node.meta)
        node.replace_all_uses_with(zero)
        graph.erase_node(node)
    made.recompile()
    return made
