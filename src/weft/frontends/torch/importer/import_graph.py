"""A captured ATen graph as a function of the graph dialect: the first step of a compilation that starts in torch.

Its nodes become ops one by one (`import_nodes`). A graph as a whole is only refused (`UnsupportedError`) where a value
has no Weft type: sparse or quantised tensors, sizes that depend on data, symbolic floats.
"""

# Torch's values and sympy have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import fx
from xdsl.ir import SSAValue

from weft.backends.cpu.target import target_for
from weft.capabilities import Capabilities
from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch.importer.aliasing import aliased, memory_owners, replaced, view_of
from weft.frontends.torch.importer.checks import are_checked, combined, is_of_data
from weft.frontends.torch.importer.complex_numbers import Complex
from weft.frontends.torch.importer.donated_placeholders import DONATED, is_worth_it
from weft.frontends.torch.importer.facts import condition_count, environment_of
from weft.frontends.torch.importer.float_sizes import FloatFormula, formulas
from weft.frontends.torch.importer.import_nodes import NodeImporter, meta_of
from weft.frontends.torch.importer.imported_graph import Calling, ImportedGraph, Number, Output, Passed, Returned
from weft.frontends.torch.importer.opaque import has_effects
from weft.frontends.torch.importer.script_objects import is_passed_on
from weft.frontends.torch.importer.signature import annotate
from weft.frontends.torch.importer.sizes import (
    Source,
    fix_facts,
    formula_of_number,
    integer_sources,
    note_reshape,
    read_symbols,
    size_of,
    sizes_of,
)
from weft.frontends.torch.report import (
    check_fallbacks,
    note_fallback,
    note_targets,
)
from weft.ir.attributes import to_attribute
from weft.ir.expr import Expr, Size, symbols_of
from weft.ops.graph import FuncOp, ReturnOp
from weft.passes.check_first import state_verdict


def import_graph(
    module: fx.GraphModule,
    name: str,
    config: Config,
    frozen: Collection[int] = frozenset(),
    capabilities: Capabilities | None = None,
    left: Collection[Hashable] = frozenset(),
) -> ImportedGraph:
    """The function that computes what the captured graph computes; the arguments at `frozen` places are constants.

    `capabilities` are those of the target, by default of this processor. What comes from places of the user's program
    that are `left` is left to torch.
    """
    capabilities = capabilities or target_for(config.cpu).capabilities
    known = condition_count(module)
    if (environment := environment_of(module)) is not None:
        fix_facts(environment)
        _note_reshapes(module)
    positions = {node: position for position, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    nodes = NodeImporter(module, config, frozen, capabilities, left, positions)
    imported = _Importer(name, nodes).run()
    return replace(imported, conditional=condition_count(module) > known)


def _note_reshapes(module: fx.GraphModule) -> None:
    """Let the sizes of reshaped tensors be those that were asked for."""
    for target in _RESHAPES:
        for node in module.graph.find_nodes(op="call_function", target=target):
            source, asked = node.args[:2]
            values = [each.meta.get("val") if isinstance(each, fx.Node) else each for each in asked]
            traced, made = source.meta.get("val"), node.meta.get("val")
            if isinstance(traced, torch.Tensor) and isinstance(made, torch.Tensor) and None not in values:
                with suppress(UnsupportedError):  # which the node itself meets, and says
                    note_reshape(traced.shape, values, made.shape)


_RESHAPES = [getattr(torch.ops.aten, name).default for name in ("view", "_unsafe_view", "reshape", "view_copy")]


@dataclass
class _Importer:
    """Arguments, results and what a call needs to know, around the ops of the nodes."""

    name: str
    nodes: NodeImporter

    def run(self) -> ImportedGraph:
        in_order = self.nodes.module.graph.nodes
        note_targets(str(node.target) for node in in_order if node.op == "call_function")
        placeholders = list(self.nodes.positions)
        tokens = {node for node in placeholders if any(has_effects(user) for user in node.users)}
        self.nodes.values.update(dict.fromkeys(tokens))
        tensors = [node for node in placeholders if isinstance(meta_of(node), torch.Tensor) and node not in tokens]
        function = FuncOp.make(self.name, {node.name: self.nodes.type_of(meta_of(node)) for node in tensors})
        calls = sum(node.op == "call_function" for node in in_order)
        checked = not self.nodes.capabilities.own_memory or are_checked(self.nodes.config, calls)
        self.nodes.enter(function.block, checked=checked)
        for node, argument in zip(tensors, function.block.args, strict=True):
            self.nodes.values[node] = self.nodes.incoming(argument, meta_of(node))
        known = [item for node in placeholders if node not in tokens for item in self._sources(node)]
        outputs: list[Output] = []
        returned: list[fx.Node] = []
        for node in in_order:
            match node.op:
                case "get_attr":
                    self.nodes.values[node] = self.nodes.constant(node, self.nodes.module)
                case "call_function":
                    self.nodes.values[node] = self.nodes.plain(node, self.nodes.call)
                case "output":
                    outputs, returned = self._outputs(node)
                case _:
                    pass
        for fallback in self.nodes.fallbacks:
            note_fallback(fallback.target, fallback, self.nodes.config)
        check_fallbacks(self.nodes.fallbacks, self.nodes.config)
        self.nodes.builder.location = None
        code, checks = combined(self.nodes.builder)
        self.nodes.block.add_op(ReturnOp.make([*map(self._outgoing, returned), *([] if code is None else [code])]))
        mutated = tuple(
            (tensors.index(placeholders[position]), returned.index(n)) for position, n in self.nodes.mutated
        )
        own = (len(self.nodes.constants), int(code is not None))
        pairs = replaced(mutated, outputs)
        self.nodes.symbols |= annotate(function, tensors, returned, own, mutated, pairs, self.nodes.symbols)
        if code is not None and pairs and not self.nodes.capabilities.own_memory:
            state_verdict(function)
        if constants := self._constant_places(tensors):
            function.attributes["constants"] = to_attribute(constants)
        if donated := self._donated(tensors):
            function.attributes["donated"] = to_attribute(donated)
        waits = not self.nodes.capabilities.own_memory or self.nodes.config.device_checks == "wait"
        calling = Calling(
            arguments=tuple(self.nodes.positions[node] for node in tensors),
            constants=tuple(self.nodes.paths),
            symbols=read_symbols(known, self.nodes.symbols, self._formulas()),
            outputs=tuple(outputs),
            mutated=tuple((position, returned.index(node)) for position, node in self.nodes.mutated),
            fallbacks=tuple(self.nodes.fallbacks),
            checks=checks,
            deferred=not waits and all(map(is_of_data, checks)),
            resolved_arguments=tuple(
                position
                for position, value in enumerate((*map(meta_of, tensors), *self.nodes.constants))
                if value.is_complex() or value.is_neg()
            ),
        )
        return ImportedGraph(function, calling, tuple(self.nodes.constants), self.nodes.objects)

    def _formulas(self) -> Mapping[str, FloatFormula]:
        environment = environment_of(self.nodes.module)
        return {} if environment is None else formulas(environment)

    def _constant_places(self, tensors: Sequence[fx.Node]) -> tuple[int, ...]:
        """Which of the function's arguments are the same in every call: frozen ones, and the graph's own constants."""
        frozen_positions = set(self.nodes.frozen) - {position for position, _ in self.nodes.mutated}
        frozen = [n for n, node in enumerate(tensors) if self.nodes.positions[node] in frozen_positions]
        own = [len(tensors) + n for n, constant in enumerate(self.nodes.constants) if not constant.is_complex()]
        return tuple([*frozen, *own])

    def _donated(self, tensors: Sequence[fx.Node]) -> tuple[int, ...]:
        """Which of the function's arguments it may write over; of complex numbers a view is passed to it."""
        positions = set(self.nodes.module.meta.get(DONATED, ())).difference(self.nodes.frozen)
        return tuple(
            n
            for n, node in enumerate(tensors)
            if self.nodes.positions[node] in positions and is_worth_it(meta_of(node))
        )

    def _outgoing(self, node: fx.Node) -> SSAValue:
        value = self.nodes.values[node]
        return value.interleaved if isinstance(value, Complex) else value

    def _sources(self, node: fx.Node) -> list[tuple[Source, Size]]:
        meta = meta_of(node)
        position = self.nodes.positions[node]
        if isinstance(meta, torch.Tensor):
            return [(Source(position, dim), size) for dim, size in enumerate(sizes_of(meta.shape))]
        if isinstance(meta, torch.SymInt):
            self.nodes.values[node] = size_of(meta)
            return integer_sources(position, meta)
        if meta is None or isinstance(meta, int | float | bool | str | torch.SymFloat):
            self.nodes.values[node] = meta
            return []
        if is_passed_on(node):
            return []
        raise UnsupportedError(f"argument {node.name} is a {type(meta).__name__}")

    def _outputs(self, node: fx.Node) -> tuple[list[Output], list[fx.Node]]:
        items = [aliased(item) for item in node.args[0]]  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
        placeholders = list(self.nodes.positions)
        written = {placeholders[position]: value for position, value in self.nodes.mutated}
        owners = memory_owners(self.nodes.module.graph.nodes, items, written)
        returned: list[fx.Node] = []

        def result(source: fx.Node) -> Returned:
            if source not in returned:
                returned.append(source)
            return Returned(returned.index(source), isinstance(self.nodes.values[source], Complex))

        outputs: list[Output] = []
        for source in items:
            value = self.nodes.values.get(source) if isinstance(source, fx.Node) else source
            if source in self.nodes.positions:
                outputs.append(Passed(self.nodes.positions[source]))
            elif isinstance(value, torch.SymFloat | torch.SymBool):
                formula = formula_of_number(value)
                self.nodes.symbols |= formula.symbols
                outputs.append(Number(formula))
            elif isinstance(value, SSAValue | Complex):
                owner = owners.get(source, source)
                # Gradients may come in other strides than tracing saw: nothing is told of where they lie.
                if owner is source or (owner in self.nodes.positions and self.name == "backward"):
                    outputs.append(result(source))
                    continue
                base = Passed(self.nodes.positions[owner]) if owner in self.nodes.positions else result(owner)
                outputs.append(viewed := view_of(base, meta_of(owner), meta_of(source)))
                self.nodes.symbols |= viewed.symbols
            else:
                self.nodes.symbols |= symbols_of(value) if isinstance(value, Expr) else set()
                outputs.append(Number(value))
        for _, source in self.nodes.mutated:
            result(source)
        return outputs, returned
