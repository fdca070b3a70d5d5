"""Propagate shardings: from what the user says of a few tensors to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import product
from weft.ir.sharding import Mesh, Sharding, Splits, fits
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement, viewed
from weft.ops.graph import FuncOp, ReturnOp
from weft.ops.sharding_rules import Dims, ShardingRule, rule_of
from weft.passes.sharding.annotations import (
    ARGS,
    OUT,
    RESULTS,
    late_axes,
    mesh_of,
    set_shardings,
    shardings_at,
)
from weft.passes.sharding.factor_splits import compose, fitting, tensor_factors

_MOST_SWEEPS = 32


@dataclass(frozen=True)
class PropagateShardings(ModulePass):
    """graph.func @f(%x: [{dp}, {}], %w: [{}, {tp}])        graph.func @f(%x: [{dp}, {}], %w: [{}, {tp}])
      %y = graph.dot %x, %w                             →     %y = graph.dot %x, %w   {sharding.out = [{dp}, {tp}]}
      %z = graph.exp %y                                       %z = graph.exp %y       {sharding.out = [{dp}, {tp}]}

    A split goes from a dimension to all that the op's rule ties to it, forwards and backwards, until nothing changes.
    Where two claim one axis or one factor, the order is: what comes of hints that are not late; a hint of the
    user's on this very tensor, or one that it is a view of; elementwise ops and movements before others; the larger tensor. Dimensions that the user
    gives are closed, and so are arguments without a hint, which stay whole. What an op sums over goes to no operand.
    """

    name: ClassVar[str] = "propagate_shardings"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and (mesh := mesh_of(function)) is not None:
                _Propagation(function, mesh).run()


@dataclass(frozen=True)
class _Claim:
    """A wish for the splits of a factor. The least one is heard first."""

    priority: int
    hinted: bool
    size: int
    splits: Splits

    @property
    def order(self) -> tuple[int, bool, int]:
        return self.priority, not self.hinted, -self.size


@dataclass
class _Propagation:
    function: FuncOp
    mesh: Mesh
    known: dict[SSAValue, Sharding] = field(default_factory=dict[SSAValue, Sharding])
    closed: set[tuple[SSAValue, int]] = field(default_factory=set[tuple[SSAValue, int]])
    hints: set[SSAValue] = field(default_factory=set[SSAValue])
    late: dict[SSAValue, set[str]] = field(default_factory=dict[SSAValue, set[str]])
    """The axes of values that come of what is heard in the second round."""
    rules: dict[Operation, ShardingRule] = field(default_factory=dict[Operation, ShardingRule])
    round: int = 0

    def run(self) -> None:
        function = self.function
        arguments = function.block.args
        given = shardings_at(function, ARGS, len(arguments))
        names = [name.data for name in function.arg_names] if function.arg_names else []
        for number, (value, hint, late) in enumerate(zip(arguments, given, late_axes(function), strict=True)):
            self._hint(value, hint or Sharding.replicated(tensor_of(value.type).rank), names[number : number + 1])
            self.late[value] = set(late)
        returned = function.returned
        for op in function.block.ops:
            if isinstance(op, GraphOp):
                self.rules[op] = rule_of(op)
                for value, hint in zip(op.results, shardings_at(op, OUT, len(op.results)), strict=True):
                    if hint is not None:
                        self._hint(value, hint, [])
        wanted = shardings_at(function, RESULTS, len(returned.operands))
        for value, hint in zip(returned.operands, wanted, strict=True):
            if hint is None:
                continue
            hint.check(tensor_of(value.type), self.mesh, "a result")
            if hint.axes and value not in self.known:  # whole ones are made so when they are returned
                self.known[value] = hint.whole
        ops = [op for op in function.block.ops if not isinstance(op, ReturnOp)]
        first = [op for op in ops if isinstance(op, Elementwise | Movement)]
        for self.round in (0, 1):
            for _ in range(_MOST_SWEEPS):
                changed = [self._step(op) for some in (first, first[::-1], ops, ops[::-1]) for op in some]
                if not any(changed):
                    break
        self._write(wanted)

    def _hint(self, value: SSAValue, hint: Sharding, name: list[str]) -> None:
        tensor = tensor_of(value.type)
        hint.check(tensor, self.mesh, (name or [value.name_hint or "a value"])[0])
        self.known[value] = Sharding(hint.dims, hint.partial)
        self.hints.add(value)
        self.closed |= {(value, d) for d in range(tensor.rank) if d not in hint.open}

    def _sharding(self, value: SSAValue) -> Sharding:
        known = self.known.get(value)
        return Sharding.replicated(tensor_of(value.type).rank) if known is None else known

    def _tensors(self, op: Operation, rule: ShardingRule) -> Iterator[tuple[SSAValue, Dims, bool]]:
        for value, dims in zip(op.operands, rule.operands, strict=True):
            yield value, dims, True
        for value, dims in zip(op.results, rule.results, strict=True):
            yield value, dims, False

    def _step(self, op: Operation) -> bool:
        rule = self.rules.get(op)
        if rule is None or not any(value in self.known for value in (*op.operands, *op.results)):
            return False
        claims: list[tuple[str, _Claim]] = []
        for value, dims, _ in self._tensors(op, rule):
            if value not in self.known:
                continue
            size = product(tensor_of(value.type).shape)
            found, _ = tensor_factors(self.known[value], dims, rule, self.mesh)
            late, hinted = self.late.get(value, set[str]()), viewed(value) in self.hints
            for factor, splits in found.items():
                early = tuple(takewhile(lambda split: split.axis not in late, splits))
                heard = [(0, early), (1, splits)] if self.round and len(early) < len(splits) else [(0, early)]
                for number, some in heard:
                    claims.append((factor, _Claim(number, hinted, size if isinstance(size, int) else 0, some)))
        if not claims:
            return False
        chosen = _chosen(claims)
        return any([self._project(value, dims, rule, chosen, is_operand) for value, dims, is_operand in self._tensors(op, rule)])

    def _project(
        self, value: SSAValue, dims: Dims, rule: ShardingRule, chosen: Mapping[str, tuple[Splits, int]], is_operand: bool
    ) -> bool:
        """Split the open dimensions of a tensor as its factors are; says whether anything is new."""
        tensor, changed = tensor_of(value.type), False
        for d, factors in enumerate(dims):
            if (value, d) in self.closed or not any(factor in chosen for factor in factors):
                continue
            taken = {f: fitting(chosen[f][0], rule.sizes[f], self.mesh) for f in factors if f in chosen}
            if is_operand:
                taken = {f: splits for f, splits in taken.items() if f not in rule.reduced}
            wanted = compose(taken, factors, rule.sizes, self.mesh)
            known = self._sharding(value)
            here = known.dims[d]
            elsewhere = (known.axes - {s.axis for s in here}) | {axis for axis, _ in known.partial}
            if (
                len(wanted) > len(here)
                and wanted[: len(here)] == here
                and not any(split.axis in elsewhere for split in wanted)
                and fits(tensor.shape[d], wanted, self.mesh)
            ):
                self.known[value] = known.with_dim(d, wanted)
                if any(chosen[f][1] for f in taken):
                    self.late.setdefault(value, set()).update(split.axis for split in wanted[len(here) :])
                changed = True
        return changed

    def _write(self, wanted: list[Sharding | None]) -> None:
        function = self.function
        set_shardings(function, ARGS, [self._sharding(value) for value in function.block.args])
        for op in function.block.ops:
            if isinstance(op, GraphOp) and any(not self._sharding(value).is_replicated for value in op.results):
                set_shardings(op, OUT, [self._sharding(value) for value in op.results])
        values = function.returned.operands
        set_shardings(
            function,
            RESULTS,
            [
                self._sharding(value) if hint is None or hint.open else hint
                for value, hint in zip(values, wanted, strict=True)
            ],
        )


def _chosen(claims: list[tuple[str, _Claim]]) -> dict[str, tuple[Splits, int]]:
    """Of each factor its splits: an axis goes to the first who claims it, and longer splits extend shorter ones."""
    chosen: dict[str, tuple[Splits, int]] = {}
    owner: dict[str, str] = {}
    for factor, claim in sorted(claims, key=lambda each: each[1].order):
        known, _ = chosen.get(factor, ((), 0))
        if claim.splits[: len(known)] != known:
            continue
        for split in claim.splits[len(known) :]:
            if owner.setdefault(split.axis, factor) != factor:
                break
            known = (*known, split)
        if known:
            chosen[factor] = (known, claim.priority)
    return chosen
