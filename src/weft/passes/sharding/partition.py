"""Partition a sharded program: the one that each rank runs on its parts of tensors, with explicit collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.errors import ShardingError
from weft.ir.attributes import from_attribute
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.ops.base import GraphOp
from weft.ops.collectives import Collective, Recv, Send, Shard, ShardIndex, Wait
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.sharding_rules import rule_of
from weft.passes.sharding.annotations import ARGS, MESH, OUT, RESULTS, mesh_of, set_shardings, shardings_at
from weft.passes.sharding.choose_splits import choose_splits
from weft.passes.sharding.factor_splits import sharding_by
from weft.passes.sharding.pending_sums import partial_through
from weft.passes.sharding.reshard import Resharder


@dataclass(frozen=True)
class Partition(ModulePass):
    """graph.func @f(%x: 8x64 [{}, {tp}], %w: 64x32 [{tp}, {}])      graph.func @f(%x: 8x16, %w: 16x32)
      %y = graph.dot %x, %w : 8x32                              →      %0 = graph.dot %x, %w : 8x32
                                                                       %1 = graph.all_reduce %0 {axes = ["tp"]}
                                                                       %y = graph.wait %1

    Every op runs on the parts that `choose_splits` gives it, whatever does not lie so is resharded. A sum over a split
    dimension stays pending through ops that are linear in it, and is carried out where one is not.
    """

    name: ClassVar[str] = "partition"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.body.block.ops):
            if isinstance(function, FuncOp) and mesh_of(function) is not None:
                made = partitioned(function)
                op.body.block.insert_op_before(made, function)
                function.detach()
                function.erase()


def partitioned(function: FuncOp) -> FuncOp:
    """The program of a rank."""
    mesh = mesh_of(function)
    if mesh is None:
        raise ShardingError(f"function {function.sym_name.data} has no mesh")
    return _Partitioning(function, mesh).run()


@dataclass(frozen=True)
class _Held:
    """A rank's part of a value of the program."""

    value: SSAValue
    sharding: Sharding


@dataclass
class _Partitioning:
    function: FuncOp
    mesh: Mesh
    held: dict[SSAValue, _Held] = field(default_factory=dict[SSAValue, _Held])
    wanted: dict[SSAValue, Sharding] = field(default_factory=dict[SSAValue, Sharding])
    """The sharding that each value is annotated with."""
    layouts: dict[tuple[SSAValue, Sharding], SSAValue] = field(
        default_factory=dict[tuple[SSAValue, Sharding], SSAValue]
    )

    def run(self) -> FuncOp:
        function = self.function
        arguments = list(function.block.args)
        names = (
            [name.data for name in function.arg_names]
            if function.arg_names
            else [f"arg{n}" for n in range(len(arguments))]
        )
        given = [
            sharding or Sharding.replicated(tensor_of(value.type).rank)
            for value, sharding in zip(arguments, shardings_at(function, ARGS, len(arguments)), strict=True)
        ]
        types: dict[str, Tensor] = {}
        for name, value, sharding in zip(names, arguments, given, strict=True):
            sharding.check(tensor_of(value.type), self.mesh, name)
            types[name] = sharding.local(tensor_of(value.type), self.mesh)
        made = FuncOp.make(function.sym_name.data, types)
        for key, attribute in function.attributes.items():
            if key in (MESH, ARGS, RESULTS, "symbols", "mutated", "replaced", "constants"):
                made.attributes[key] = attribute
        for value, part, sharding in zip(arguments, made.block.args, given, strict=True):
            self.held[value] = _Held(part, sharding)
            self.wanted[value] = sharding.whole
        self.b = GraphBuilder(made.block)
        self.reshard = Resharder(self.b, self.mesh)
        for op in function.block.ops:
            self.b.location = op.location
            if isinstance(op, ReturnOp):
                break
            self._annotate(op)
            if isinstance(op, Collective | Send | Recv | Shard | Wait):
                raise ShardingError(f"{op.name} stands in a program that is to be partitioned", hint="partition once")
            if isinstance(op, GraphOp):
                self._split(op)
            else:
                self._whole(op)
        self._return(made)
        return made

    def _annotate(self, op: Operation) -> None:
        for value, sharding in zip(op.results, shardings_at(op, OUT, len(op.results)), strict=True):
            self.wanted[value] = (sharding or Sharding.replicated(tensor_of(value.type).rank)).whole

    def _return(self, made: FuncOp) -> None:
        values = self.function.returned.operands
        results = [
            self.wanted[value] if sharding is None else sharding
            for value, sharding in zip(values, shardings_at(self.function, RESULTS, len(values)), strict=True)
        ]
        mutated = from_attribute(made.attributes["mutated"]) if "mutated" in made.attributes else ()
        assert isinstance(mutated, tuple)
        for pair in mutated:
            argument, result = pair  # type: ignore[misc]
            results[result] = self.wanted[self.function.block.args[argument]]  # type: ignore[index]
        for value, sharding in zip(values, results, strict=True):
            sharding.check(tensor_of(value.type), self.mesh, "a result")
        self.b.insert(
            ReturnOp.make([self._as(value, sharding.whole) for value, sharding in zip(values, results, strict=True)])
        )
        set_shardings(made, RESULTS, [sharding.whole for sharding in results])

    def _as(self, value: SSAValue, target: Sharding) -> SSAValue:
        """The rank's part of a value in a layout."""
        held = self.held[value]
        if held.sharding == target:
            return held.value
        if held.sharding.partial and not target.partial:
            held = self._settled(value, target)
        key = (value, target)
        if key not in self.layouts:
            self.layouts[key] = self.reshard(held.value, held.sharding, target)
        return self.layouts[key]

    def _settled(self, value: SSAValue, target: Sharding | None = None) -> _Held:
        """A value whose pending sums are carried out, in the layout that it is annotated with."""
        held = self.held[value]
        if held.sharding.partial:
            # Who is the only one to read it may have it as it needs it.
            alone = target is not None and len(list(value.uses)) == 1
            settled = target if alone and target is not None else self.wanted[value]
            held = self.held[value] = _Held(self.reshard(held.value, held.sharding, settled), settled)
        return held

    def _whole(self, op: Operation) -> None:
        """What Weft does not look into gets all of its operands, on every rank."""
        operands = [self._as(value, Sharding.replicated(tensor_of(value.type).rank)) for value in op.operands]
        mapper: dict[SSAValue, SSAValue] = dict(zip(op.operands, operands, strict=True))
        copy = op.clone(mapper)
        self.b.insert(copy)
        for value, result in zip(op.results, copy.results, strict=True):
            self.held[value] = _Held(result, Sharding.replicated(tensor_of(value.type).rank))

    def _split(self, op: GraphOp) -> None:
        pending = partial_through(op, [self.held[value].sharding for value in op.operands])
        if pending is None:
            for value in op.operands:
                self._settled(value)
        rule = rule_of(op)
        operands = [(tensor_of(value.type), self.held[value].sharding) for value in op.operands]
        results = [(tensor_of(value.type), self.wanted[value]) for value in op.results]
        chosen = choose_splits(rule, operands, results, self.mesh)
        taken = {axis for axis, _ in pending or ()}
        chosen = {f: tuple(s for s in splits if s.axis not in taken) for f, splits in chosen.items()}
        parts: list[SSAValue] = []
        for value, dims in zip(op.operands, rule.operands, strict=True):
            layout = sharding_by(chosen, dims, rule.sizes, self.mesh)
            parts.append(self._as(value, Sharding(layout.dims, self.held[value].sharding.partial)))
        sums = tuple((s.axis, rule.reduced[f]) for f in rule.reduced for s in chosen.get(f, ()))
        layouts = [
            Sharding(sharding_by(chosen, dims, rule.sizes, self.mesh).dims, (*(pending or ()), *sums))
            for dims in rule.results
        ]
        if sums and op.name in _ADDS_TO:
            parts[0] = self._counted_once(op, parts[0], [axis for axis, _ in sums])
        made = self._local(
            op, parts, [layout.local(tensor, self.mesh) for layout, (tensor, _) in zip(layouts, results, strict=True)]
        )
        for value, result, layout in zip(op.results, made.results, layouts, strict=True):
            result.name_hint = value.name_hint
            self.held[value] = _Held(result, layout)

    def _counted_once(self, op: GraphOp, part: SSAValue, axes: Sequence[str]) -> SSAValue:
        """What updates are added to, on the first rank of a sum alone: zeros on the others."""
        source = op.operands[0].owner
        if isinstance(source, GraphOp) and source.name == "graph.full" and source.params["value"] == 0:
            return part
        ranks = self.mesh.size(axes)
        number = self.b.insert(ShardIndex.make(axes=tuple(axes), ranks=ranks)).results[0]
        return self.b.where(self.b.eq(number, self.b.full_like(number, 0)), part, self.b.full_like(part, 0))

    def _local(self, op: GraphOp, parts: Sequence[SSAValue], expected: Sequence[Tensor]) -> Operation:
        """The op on a rank's parts: a shape among its parameters is the rank's."""
        params: dict[str, Any] = dict(op.params)
        if op.results and params.get("shape") == tensor_of(op.results[0].type).shape:
            params["shape"] = expected[0].shape
        local: Callable[..., dict[str, Any]] | None = getattr(type(op), "local_params", None)
        if local is not None:
            params = local(*(tensor_of(value.type) for value in op.operands), *map(self.b.tensor, parts), **params)
        made = type(op).make(*parts, location=op.location, **params)
        if [tensor_type(tensor) for tensor in expected] != list(made.result_types):
            raise ShardingError(
                f"{op.name} on parts gives {', '.join(map(str, made.result_types))}, its rule says "
                f"{', '.join(map(str, expected))}",
                hint="the op's sharding rule does not fit its type rule",
            )
        return self.b.insert(made)


_ADDS_TO = ("graph.scatter", "graph.index_put")
"""Ops whose first operand is not summed over what the others are."""
