"""Calls that Weft hands to torch: made by the importer for what has no converter, carried out when the graph runs.

A call sees its operands with the strides that eager execution would give them, because some operators (`as_strided`,
`view`) mean something by them.
"""

# Torch's classes of operators are only found in a private module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from xdsl.dialects.builtin import LocationAttr

from weft.frontends.torch.importer.complex_numbers import as_real
from weft.frontends.torch.importer.encoding import Decoder, Encoder, dumps, operator_named
from weft.frontends.torch.importer.strides import restrided
from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, evaluate
from weft.ir.size_text import parse_size
from weft.ir.types import Tensor
from weft.ops.graph import OpaqueOp


def target_name(target: Any) -> str:
    """How an opaque call names its operator: `aten::sum.dim_IntList`, `higher_order::cond`."""
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.name()}"
    return f"python::{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', repr(target))}"


def is_pure(target: Any) -> bool:
    """Whether a call may be dropped when nobody reads its results, or carried out twice."""
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace in ("aten", "prims")
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def has_effects(node: fx.Node) -> bool:
    """Whether a node calls, with a token that orders it, an operator which does more than to return something."""
    return node.op == "call_function" and getattr(node.target, "_name", None) == "with_effects"


def as_drawn(node: fx.Node) -> Any:
    """The operator to call for a node, if it draws random numbers the one that eager uses.

    Tracing turns `bernoulli_` of a new tensor into `bernoulli`, which draws row by row whatever the strides are.
    """
    aten = torch.ops.aten
    new = (aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default, aten.empty_like.default)
    if node.target is aten.bernoulli.p and isinstance(source := node.args[0], fx.Node) and source.target in new:
        return aten.bernoulli_.float
    return node.target


def make_opaque(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results: Sequence[Tensor | None],
    objects: dict[str, Any],
    location: LocationAttr | None,
) -> OpaqueOp:
    """The call of `target`. `results` says which of its outputs, in order, are tensors."""
    encoder = Encoder(objects)
    text: dict[str, Any] = {
        "args": [encoder(argument) for argument in args],
        "kwargs": {key: encoder(argument) for key, argument in kwargs.items()},
        "results": [position for position, result in enumerate(results) if result is not None],
    }
    if encoder.strides:
        text["strides"] = encoder.strides
    name = target_name(target)
    if name.startswith("python::"):
        text["callee"] = encoder(target)
    made = OpaqueOp.make(
        name, encoder.operands, dumps(text), [result for result in results if result is not None], location
    )
    if not is_pure(target) or not made.results:
        made.attributes["pure"] = to_attribute(False)
    return made


_STARTS = tuple(
    f"_c10d_functional::{name}"
    for name in (
        *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_to_all_single", "broadcast"),
        *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
    )
)
"""Calls that read their operands after they have returned, when the memory may have been given to others."""
_WAITS = "_c10d_functional::wait_tensor"
"""Gives its operand, which nobody else reads: no copy is needed."""


@dataclass(frozen=True)
class _Call:
    """An opaque op, read once."""

    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[int]
    strides: dict[int, list[Size]]


@dataclass
class OpaqueRuntime:
    """Carries out the opaque calls of one graph."""

    objects: Mapping[str, Any]
    _calls: dict[tuple[str, str], _Call] = field(default_factory=dict[tuple[str, str], _Call])

    def call(
        self, target: str, arguments: str, operands: Sequence[torch.Tensor], symbols: Mapping[str, int]
    ) -> list[torch.Tensor | None]:
        """The tensors that the call returns; none of them shares memory with an operand.

        What the operator leaves undefined is None: nobody reads it.
        """
        call = self._calls.get((target, arguments))
        if call is None:
            call = self._calls[target, arguments] = self._read(target, arguments)
        operands = [
            restrided(operand, [evaluate(stride, symbols) for stride in call.strides[position]])
            if position in call.strides
            else operand.contiguous()
            for position, operand in enumerate(operands)
        ]
        if target in _STARTS:
            operands = [operand.clone() for operand in operands]
        decode = Decoder(operands, symbols, self.objects)
        with torch.no_grad():
            returned = call.function(
                *(decode(argument) for argument in call.args),
                **{key: decode(argument) for key, argument in call.kwargs.items()},
            )
        outputs = pytree.tree_leaves(returned)
        # The memory of operands is used again when they are not needed any more.
        taken = {operand.untyped_storage().data_ptr() for operand in operands}
        found = [outputs[position] for position in call.results]
        if target == _WAITS:
            return found
        results = [as_real(r) if r is not None and r.is_complex() else r for r in found]
        return [r.clone() if r is not None and r.untyped_storage().data_ptr() in taken else r for r in results]

    def _read(self, target: str, arguments: str) -> _Call:
        text = json.loads(arguments)
        function = self.objects[text["callee"]["object"]] if "callee" in text else operator_named(target)
        strides = {int(key): [parse_size(s) for s in value] for key, value in text.get("strides", {}).items()}
        return _Call(function, text["args"], text["kwargs"], text["results"], strides)
