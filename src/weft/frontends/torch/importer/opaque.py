"""Calls that Weft hands to torch: made by the importer for what has no converter, carried out when the graph runs.

A call sees its operands with the strides that eager execution would give them, because some operators (`as_strided`,
`view`) mean something by them.
"""

# Torch's classes of operators are only found in a private module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch import fx
from xdsl.dialects.builtin import LocationAttr

from weft.frontends.torch.capture.host_copies import BEGINNINGS, WAITS
from weft.frontends.torch.capture.matrix_calls import CALLS
from weft.frontends.torch.capture.random_numbers import SEEDS, drawn_seeds
from weft.frontends.torch.importer.complex_numbers import resolved
from weft.frontends.torch.importer.encoding import Decoder, Encoder, dumps, operator_named
from weft.frontends.torch.importer.strides import restrided
from weft.ir.attributes import to_attribute
from weft.ir.expr import evaluate
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
        and (target.namespace in ("aten", "prims", "torch_nn") or target.name() in CALLS)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def has_effects(node: fx.Node) -> bool:
    """Whether a node calls, with a token that orders it, an operator which does more than to return something."""
    return node.op == "call_function" and getattr(node.target, "_name", None) == "with_effects"


def is_assertion(node: fx.Node) -> bool:
    """Whether a node checks values when it runs, and raises the user's message."""
    return node.target in (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


def is_guarded(node: fx.Node) -> bool:
    """Whether a node asserts sizes, types or devices, which tracing has turned into guards of the graph."""
    return node.target in (
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten._assert_tensor_metadata.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
    )


def as_drawn(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """The operator to call for a node and what to hand to it, if it draws random numbers the operator that eager uses.

    Tracing turns `bernoulli_` of a new tensor into `bernoulli`, which draws row by row whatever the strides are. In
    checkpoints the operator is an argument of what keeps the generator's state.
    """
    aten = torch.ops.aten
    new = (aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default, aten.empty_like.default)
    called = (node.target, *node.args)
    for place, target in enumerate(called):
        if target is aten.bernoulli.p and isinstance(source := called[place + 1], fx.Node) and source.target in new:
            called = (*called[:place], aten.bernoulli_.float, *called[place + 1 :])
    return called[0], called[1:]


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
_WAITS = WAITS | {"_c10d_functional::wait_tensor"}
"""Give an operand, which nobody else reads: no copy is needed."""
_MAKE_NEW = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "embedding_dense_backward"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"),
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward"),
        *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)
"""Operators that are called often, and whose kernels give nothing but new tensors. Schemas do not tell: by theirs
`dequantize`, `lift` and `_unsafe_view` make new tensors too, and give their operand."""
_OWN = {SEEDS: drawn_seeds}
"""Weft's own operators whose results may share memory here."""


@dataclass(frozen=True)
class OpaqueCall:
    """An opaque call, read once for known sizes.

    `args` and `named` are its arguments: the `plain` ones are operands, by place and number; those at `places` and
    under `names` hold operands, in encoded form.
    """

    function: Any
    args: list[Any]
    named: dict[str, Any]
    plain: list[tuple[int, int]]
    places: list[int]
    names: list[str]
    results: list[int]
    strides: Mapping[int, tuple[int, ...]]
    """Those that eager execution would give operands, by position, where they are not row-major."""
    decoder: Callable[[list[torch.Tensor]], Decoder]
    gives_one: bool
    """Whether it is known that the operator gives one tensor."""
    copies_operands: bool
    keeps_operands: bool
    """Whether results may be operands themselves."""
    as_they_lie: bool
    """Whether operands are taken with whatever strides they have."""
    is_fresh: bool
    """Whether the operator is one of those that are known to make new tensors; results of others are looked at."""

    @property
    def is_plain(self) -> bool:
        """Whether the operator takes operands as they are, and gives nothing but new tensors."""
        return self.is_fresh and not (self.places or self.names or self.copies_operands or self.keeps_operands)

    def __call__(self, operands: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """The tensors that the call returns; none of them shares memory with an operand.

        What the operator leaves undefined is None: nobody reads it.
        """
        args, named = self._arguments(self._as_eager_has_them(operands))
        if torch.is_grad_enabled():
            with torch.no_grad():
                returned = self.function(*args, **named)
        else:
            returned = self.function(*args, **named)
        outputs = [returned] if isinstance(returned, torch.Tensor) else _leaves(returned)
        found = [outputs[position] for position in self.results]
        return found if self.keeps_operands else self._separate(found, operands)

    def _as_eager_has_them(self, operands: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.as_they_lie:
            return operands
        strides = self.strides
        for position, operand in enumerate(operands):
            wanted = strides.get(position)
            if wanted is None:
                operands[position] = operand.contiguous()
            elif operand.stride() != wanted:
                operands[position] = restrided(operand, wanted)
        return [operand.clone() for operand in operands] if self.copies_operands else operands

    def _arguments(self, operands: list[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        args, named = self.args.copy(), self.named
        for place, number in self.plain:
            args[place] = operands[number]
        if self.places or self.names:
            decode = self.decoder(operands)
            for place in self.places:
                args[place] = decode(args[place])
            named = {**named, **{name: decode(named[name]) for name in self.names}}
        return args, named

    def _separate(self, found: list[Any], operands: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Results in memory of their own: that of operands is used again when they are not needed any more."""
        results = [resolved(r) if r is not None and (r.is_complex() or r.is_neg()) else r for r in found]
        if self.is_fresh:
            return results
        taken = {operand.untyped_storage().data_ptr() for operand in operands}
        return [r.clone() if r is not None and r.untyped_storage().data_ptr() in taken else r for r in results]


def _quickest(operator: Any, named: Iterable[str]) -> Any:
    """What calls an operator of torch's that gives one tensor: torch's own function of that name, where there is one.

    Its arguments are read by code that was generated for it, and not by the schema, which takes as long as a launch.
    Where the schema says `self`, it may say `input`: only what has no place is given by name.
    """
    functions = cast("Any", torch._C)._VariableFunctions
    placed = {each.name for each in operator._schema.arguments if not each.kwarg_only}
    if operator._overloadname != "default" or not gives_one_tensor(operator) or not placed.isdisjoint(named):
        return operator
    return getattr(functions, operator._opname, operator)


def gives_one_tensor(operator: torch._ops.OpOverload) -> bool:
    """Whether an operator gives a tensor, and not several things."""
    return [str(each.type) for each in operator._schema.returns] == ["Tensor"]


def _writes(function: Any) -> bool:
    """Whether an operator writes into its operands, which others may read, who do not expect it: a graph is pure."""
    return isinstance(function, torch._ops.OpOverload) and function._schema.is_mutable


def _leaves(returned: Any) -> Sequence[Any]:
    if type(returned) in (tuple, list) and all(each is None or isinstance(each, torch.Tensor) for each in returned):
        return returned
    return pytree.tree_leaves(returned)


def _holds_operand(value: Any) -> bool:
    """Whether an encoded argument has an operand in it."""
    if isinstance(value, list):
        return any(map(_holds_operand, cast("list[Any]", value)))
    if not isinstance(value, dict):
        return isinstance(value, str)
    ((kind, content),) = cast("dict[str, Any]", value).items()
    return kind in ("as_complex", "item") or (kind in ("tuple", "dict", "complex") and _holds_operand(content))


@dataclass
class OpaqueRuntime:
    """Carries out the opaque calls of one graph."""

    objects: Mapping[str, Any]

    def call(
        self, target: str, arguments: str, operands: Sequence[torch.Tensor], symbols: Mapping[str, int]
    ) -> list[torch.Tensor | None]:
        """What a call gives that is made once."""
        return self.bound(target, arguments, symbols)(list(operands))

    def bound(self, target: str, arguments: str, symbols: Mapping[str, int]) -> OpaqueCall:
        """A call for known sizes, to be made often."""
        text = json.loads(arguments)
        fixed = Decoder((), symbols, self.objects)
        function: Any
        if "callee" in text:
            function = self.objects[text["callee"]["object"]]
        else:
            function = _OWN[target] if target in _OWN else operator_named(target)
        given, named = text["args"], text["kwargs"]
        return OpaqueCall(
            function=_quickest(function, named) if target in _MAKE_NEW else function,
            args=[each if _holds_operand(each) else fixed(each) for each in given],
            named={name: each if _holds_operand(each) else fixed(each) for name, each in named.items()},
            plain=[(place, int(each[1:])) for place, each in enumerate(given) if type(each) is str],
            places=[place for place, each in enumerate(given) if type(each) is not str and _holds_operand(each)],
            names=[name for name, each in named.items() if _holds_operand(each)],
            results=text["results"],
            strides={
                int(position): tuple(evaluate(parse_size(stride), symbols) for stride in strides)
                for position, strides in text.get("strides", {}).items()
            },
            decoder=partial(Decoder, symbols=symbols, objects=self.objects),
            gives_one=target in _MAKE_NEW and gives_one_tensor(function),
            copies_operands=target in _STARTS or _writes(function),
            keeps_operands=target in _WAITS,
            as_they_lie=target in BEGINNINGS | WAITS,
            is_fresh=target in _MAKE_NEW,
        )
