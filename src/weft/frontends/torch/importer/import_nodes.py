"""The nodes of a captured graph, one by one: converted to ops of the graph dialect, or left to torch.

Each node goes to the converter of its target. A node that has none, or whose converter gives up, becomes an opaque call
that torch carries out when the graph runs.
"""

# Torch's values and sympy have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.capabilities import Capabilities
from weft.config import CODES, Config
from weft.errors import UnsupportedError, WeftError
from weft.frontends.torch.aten import COMPLEX_CONVERTERS, CONVERTERS
from weft.frontends.torch.capture.decompositions import decomposition_of
from weft.frontends.torch.capture.host_copies import WAITS, is_host_copy
from weft.frontends.torch.capture.long_lines import by_lines
from weft.frontends.torch.capture.matrix_calls import is_matrix_call
from weft.frontends.torch.dtypes import FLOAT8
from weft.frontends.torch.importer.attention_matmuls import may_be_attention
from weft.frontends.torch.importer.builder import ImportBuilder, tensor_of_meta
from weft.frontends.torch.importer.claims import (
    is_claimed,
    is_draw,
    is_own_convolution,
    is_own_on_tensor_cores,
    is_own_order,
    is_own_row_sum,
    is_pointwise_product,
    weights_of_product,
)
from weft.frontends.torch.importer.complex_numbers import Complex, interleaved_type
from weft.frontends.torch.importer.control_flow import import_control, is_control
from weft.frontends.torch.importer.custom_functions import import_custom, is_custom, marks_of
from weft.frontends.torch.importer.encoding import NumberArgument, TensorArgument
from weft.frontends.torch.importer.facts import symbols_told
from weft.frontends.torch.importer.flex import import_flex, is_flex, is_own_flex
from weft.frontends.torch.importer.graph_device import copies_away
from weft.frontends.torch.importer.inlining import record_random_results, trace_decomposition
from weft.frontends.torch.importer.opaque import as_drawn, has_effects, is_assertion, is_guarded, is_pure, make_opaque
from weft.frontends.torch.importer.region_seeds import OUTER, seed_inside
from weft.frontends.torch.importer.sizes import size_of, sizes_of
from weft.frontends.torch.importer.strides import dense_strides, unusual_strides
from weft.frontends.torch.importer.symbolic_floats import condition_value, float_value
from weft.frontends.torch.locations import location_of, user_line
from weft.frontends.torch.report import (
    COPIES_AWAY,
    HAS_EFFECTS,
    Fallback,
)
from weft.ir.attributes import to_attribute
from weft.ir.expr import Expr, symbols_of
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.ops.base import Movement
from weft.ops.graph import OpaqueOp
from weft.passes.own_kernels import needs_library


@dataclass
class NodeImporter:
    """Makes ops of nodes at the end of a block, and keeps what these came to: values, constants, fallbacks, symbols."""

    module: fx.GraphModule
    config: Config
    frozen: Collection[int]
    capabilities: Capabilities
    left: Collection[Hashable]
    positions: Mapping[fx.Node, int]
    """Of the graph's placeholders."""
    values: dict[fx.Node, Any] = field(default_factory=dict[fx.Node, Any])
    constants: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    paths: list[str] = field(default_factory=list[str])
    objects: dict[str, Any] = field(default_factory=dict[str, Any])
    fallbacks: list[Fallback] = field(default_factory=list[Fallback])
    mutated: list[tuple[int, fx.Node]] = field(default_factory=list[tuple[int, fx.Node]])
    symbols: set[str] = field(default_factory=set[str])
    turns: tuple[SSAValue, ...] = ()
    """The numbers of the turns of the loops around."""

    def enter(self, block: Block, *, checked: bool) -> None:
        """Go on at the end of a block; `checked` programs look at their data."""
        self.block, self.outermost = block, block
        self.builder = self._builder(block, checked=checked)

    def _builder(self, block: Block, *location: Any, checked: bool) -> ImportBuilder:
        strict, capabilities = self.config.strict, self.capabilities
        return ImportBuilder(block, *location, strict=strict, checked=checked, capabilities=capabilities)

    @contextmanager
    def inside(self, block: Block, *turn: SSAValue) -> Generator[ImportBuilder]:
        """Go on at the end of a region's block, for a while, with a builder whose checks its caller lets out of it.

        Of a loop's, the number of its turn is given."""
        around, builder, known, turns = self.block, self.builder, len(self.fallbacks), self.turns
        self.block, self.turns = block, (*turns, *turn)
        self.builder = self._builder(block, builder.location, checked=builder.checked)
        try:
            yield self.builder
        except WeftError:
            del self.fallbacks[known:]
            raise
        finally:
            self.block, self.builder, self.turns = around, builder, turns

    def type_of(self, meta: torch.Tensor) -> Tensor:
        """The type in which a tensor comes in and goes out."""
        tensor = tensor_of_meta(meta)
        tensor = interleaved_type(tensor) if meta.is_complex() else tensor
        for size in tensor.shape:
            self.symbols |= symbols_of(size)
        return tensor

    def incoming(self, value: SSAValue, meta: torch.Tensor) -> SSAValue | Complex:
        return Complex(self.builder, joined=value) if meta.is_complex() else value

    def constant(self, node: fx.Node, module: fx.GraphModule) -> Any:
        if OUTER in node.meta:
            return seed_inside(self.builder, self.values[node.meta[OUTER]], self.turns)
        value = operator.attrgetter(str(node.target))(module)
        if not isinstance(value, torch.Tensor):
            return value
        tensor = self.type_of(value)
        if tensor.rank == 0 and tensor.dtype not in FLOAT8:
            with unset_fake_temporarily():
                return self.builder.number(value.item(), tensor.dtype)
        self.constants.append(value)
        self.paths.append(str(node.target) if module is self.module else "")
        argument = self.outermost.insert_arg(tensor_type(tensor), len(self.outermost.args))
        argument.name_hint = node.name if node.name.isidentifier() else None
        return self.incoming(argument, value)

    def plain(self, node: fx.Node, otherwise: Callable[[fx.Node], Any]) -> Any:
        """The value of a node that is a number or a choice among results; any other node's is `otherwise`."""
        if "val" not in node.meta:
            record_random_results(node)
        meta = meta_of(node)
        if "val" not in node.meta and node.users:
            raise UnsupportedError(f"tracing did not record the results of {node.target}")
        if isinstance(meta, torch.SymInt):
            return size_of(meta)
        if isinstance(meta, torch.SymFloat | torch.SymBool | int | float | bool):
            return meta
        if node.target is operator.getitem:
            source, index = node.args
            return self.values[source][index]  # pyright: ignore[reportArgumentType]
        return None if is_guarded(node) else otherwise(node)

    def call(self, node: fx.Node) -> Any:
        last, marks = self.block.last_op, marks_of(node)
        found = import_custom(self, node) if is_custom(node) else self._call(node)
        for op in self._made_after(last) if marks else ():
            op.attributes |= marks
        return found

    def _call(self, node: fx.Node) -> Any:
        self.builder.location, self.builder.source = location_of(node), node.name
        if node.target is torch.ops.aten.copy_.default and node.args[0] in self.positions:
            return self._write_back(node)
        if has_effects(node):
            # The token orders effects; opaque calls that are not pure keep their order without it.
            _, target, *args = node.args
            outputs = self._opaque(target, args, node.kwargs, meta_of(node)[1:], HAS_EFFECTS, pure=False)
            return None, *outputs
        if is_assertion(node):
            return self._opaque(node.target, node.args, node.kwargs, meta_of(node), HAS_EFFECTS)
        if not self.config.strict and self._is_claimed(node):
            return self._opaque(
                node.target, node.args, node.kwargs, meta_of(node), "a library claims it", claim="library"
            )
        if is_draw(node):
            reason = "random numbers are drawn by torch's generator"
            return self._opaque(*as_drawn(node), node.kwargs, meta_of(node), reason, claim="generator")
        if is_matrix_call(node):
            return self._opaque(node.target, node.args, node.kwargs, meta_of(node), "LAPACK", claim="library")
        if is_host_copy(node):
            claim = "wait" if str(node.target.name()) in WAITS else "transfer"  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess, reportOptionalMemberAccess]
            return self._opaque(node.target, node.args, node.kwargs, meta_of(node), "a copy", claim=claim)
        if self.capabilities.own_memory and copies_away(node):
            return self._opaque(node.target, node.args, node.kwargs, meta_of(node), COPIES_AWAY)
        last = self.block.last_op
        try:
            if self.builder.location in self.left:
                raise UnsupportedError("no kernel could be made")
            value = self.converted(node)
        except WeftError as error:
            self.erase_after(last)
            return self._opaque(node.target, node.args, node.kwargs, meta_of(node), error.message)
        if (
            self.capabilities.library_first
            and not self.config.strict
            and needs_library(self._made_after(last))
            and not self._is_own_kernel(node)
        ):
            self.erase_after(last)
            return self._opaque(
                node.target, node.args, node.kwargs, meta_of(node), "a library claims it", claim="library"
            )
        return pytree.tree_map_only(SSAValue, self._rounded, value) if self.config.emulate_precision_casts else value

    def _rounded(self, value: SSAValue) -> SSAValue:
        """What an op of the program computes, rounded to its type as eager does; what only moves is so already."""
        dtype = tensor_of(value.type).dtype
        computed = isinstance(value, OpResult) and not isinstance(value.op, Movement | OpaqueOp)
        return (
            self.builder.emit("reduce_precision", value) if computed and dtype.is_float and dtype.bits < 32 else value
        )

    def _made_after(self, last: Operation | None) -> list[Operation]:
        """The ops at the end of the block that are newer than one."""
        made: list[Operation] = []
        op = self.block.last_op
        while op is not None and op is not last:
            made.append(op)
            op = op.prev_op
        return made

    def erase_after(self, last: Operation | None) -> None:
        for op in self._made_after(last):
            self.block.erase_op(op)

    def _is_own_kernel(self, node: fx.Node) -> bool:
        if is_own_flex(node) or is_own_order(node) or is_own_row_sum(node) or self._has_coded_weights(node):
            return True
        if not self.capabilities.fast_matmuls:
            return False
        own = is_own_on_tensor_cores(node) or may_be_attention(node)
        return own or is_pointwise_product(node, self._mapped)

    def _has_coded_weights(self, node: fx.Node) -> bool:
        """Whether a product's weights are to be held in few bits: then they must be seen to be weights."""
        weights = weights_of_product(node) if self.config.quantize in CODES else None
        return weights is not None and weights.op in ("placeholder", "get_attr") and self._is_constant(weights)

    def _is_claimed(self, node: fx.Node) -> bool:
        """Whether a library carries out a call; convolutions are Weft's own where that is faster."""
        if not is_claimed(node, self.capabilities):
            return False
        if self.capabilities.library_first:
            return not self._is_own_kernel(node)
        frozen = node.target is torch.ops.aten.convolution.default and self._is_constant(node.args[1])
        library = self.capabilities.library_convolutions
        return not is_own_convolution(node, self._mapped, frozen=frozen, library=library)

    def _is_constant(self, node: Any) -> bool:
        assert isinstance(node, fx.Node)
        if node.op == "placeholder":
            position = self.positions[node]
            return position in self.frozen and all(position != written for written, _ in self.mutated)
        return node.op == "get_attr" and isinstance(self.values[node], SSAValue)

    def _write_back(self, node: fx.Node) -> Any:
        """An argument that takes a new value when the graph has run."""
        target, source = node.args[:2]
        assert isinstance(target, fx.Node) and isinstance(source, fx.Node)
        self.mutated.append((self.positions[target], source))
        return self.values[source]

    def converted(self, node: fx.Node) -> Any:
        self.builder.enter(node)
        results = self.builder.results
        args = [self._mapped(argument) for argument in node.args]
        kwargs = {key: self._mapped(argument) for key, argument in node.kwargs.items()}
        is_complex = self.builder.has_complex_result or any(
            isinstance(self.values[source], Complex) for source in node.all_input_nodes
        )
        converter = (COMPLEX_CONVERTERS if is_complex else CONVERTERS).get(str(node.target))
        if converter is None and is_complex and str(node.target) in CONVERTERS:
            raise UnsupportedError("complex numbers")
        if is_flex(node):
            found = self._checked(import_flex(self, node), results, several=True)
            return pytree.tree_unflatten(found, pytree.tree_structure(meta_of(node)))
        if is_control(node):
            value = import_control(self, node, args)
        else:
            parts = by_lines(node)
            own = converter if parts is None else None
            value = self._inlined(node, parts) if own is None else own(self.builder, *args, **kwargs)
        return self._checked(value, results, isinstance(meta_of(node), tuple | list))

    def _inlined(self, node: fx.Node, decomposition: Callable[..., Any] | None = None) -> Any:
        """The results of the node's decomposition, torch's if there is no other, if all of it can be converted."""
        # A random operator taken apart would draw other numbers than eager does.
        if decomposition is None and is_pure(node.target):
            decomposition = decomposition_of(node.target)
        if decomposition is None:
            raise UnsupportedError("no converter")
        graph, sources = trace_decomposition(node, decomposition)
        return self.traced(graph, [self.values[source] for source in sources], self.converted)

    def traced(
        self, traced: fx.GraphModule, given: Sequence[Any], convert: Callable[[fx.Node], Any]
    ) -> tuple[Any, ...]:
        """The results of a graph in place of a node, whose placeholders have these values."""
        values = iter(given)
        for inner in traced.graph.nodes:
            match inner.op:
                case "placeholder":
                    self.values[inner] = next(values)
                case "get_attr":
                    self.values[inner] = self.constant(inner, traced)
                case "output":
                    returned = inner.args[0]
                    results = returned if isinstance(returned, tuple | list) else (returned,)
                    return tuple(self._value(result) for result in results)
                case _:
                    self.values[inner] = self.plain(inner, convert)
        raise UnsupportedError("its decomposition returns nothing")

    def _checked(self, value: Any, results: Sequence[Tensor | None], several: bool) -> Any:
        """The converter's results in the types that tracing recorded."""
        given = value if isinstance(value, tuple) else (value,)
        if len(given) != len(results):
            raise UnsupportedError(f"the converter gives {len(given)} results, tracing {len(results)}")
        checked: list[Any] = []
        for item, result in zip(given, results, strict=True):
            if result is None or item is None:
                checked.append(None)
                continue
            item = item.to(result.dtype) if isinstance(item, Complex) else self.builder.to(item, result.dtype)
            for part in (item.real, item.imag) if isinstance(item, Complex) else (item,):
                if tensor_of(part.type) != result:
                    raise UnsupportedError(f"the converter gives {tensor_of(part.type)}, tracing {result}")
            if not result.is_static:
                self.symbols |= set[str]().union(*map(symbols_of, result.shape))
            checked.append(item)
        return tuple(checked) if several else checked[0]

    def _mapped(self, argument: Any) -> Any:
        """An argument of a node, with the values of the nodes in it."""
        if isinstance(argument, list):
            return [self._mapped(item) for item in argument]
        return tuple(map(self._mapped, argument)) if isinstance(argument, tuple) else self._value(argument)

    def _value(self, argument: Any) -> Any:
        value = self.values[argument] if isinstance(argument, fx.Node) else argument
        if isinstance(value, torch.SymInt):
            value = size_of(value)
        if isinstance(value, torch.SymFloat):
            return float_value(self.builder, value, self.symbols)
        if isinstance(value, torch.SymBool):
            return condition_value(self.builder, value, self.symbols)
        if isinstance(value, Expr):
            self.symbols |= symbols_of(value)
        return value

    def _opaque(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        meta: Any,
        reason: str,
        pure: bool = True,
        claim: str = "",
    ) -> Any:
        """A call that torch carries out, whose results have the types that tracing recorded."""
        fallback = Fallback(str(target), user_line(self.builder.location), reason, self.builder.source)
        args, kwargs = pytree.tree_map(self._tensor_argument, (list(args), dict(kwargs)))
        leaves, structure = pytree.tree_flatten(meta)
        types = [self.type_of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        made = make_opaque(target, args, kwargs, types, self.objects, self.builder.location)
        if not pure:
            made.attributes["pure"] = to_attribute(False)
        if sizes := sorted(symbols_told((args, kwargs))):
            made.attributes["symbols"] = to_attribute(tuple(sizes))
        strides = tuple(dense_strides(leaf) for leaf, type_ in zip(leaves, types, strict=True) if type_ is not None)
        if any(strides):
            made.attributes["result_strides"] = to_attribute(strides)
        self.block.add_op(made)
        if claim:
            made.attributes["weft.claim"] = to_attribute(claim)
        else:
            self.fallbacks.append(fallback)
        tensors = iter(made.results)
        values = [
            self.incoming(next(tensors), leaf)
            if type_ is not None
            else size_of(leaf)
            if isinstance(leaf, torch.SymInt)
            else leaf
            for leaf, type_ in zip(leaves, types, strict=True)
        ]
        return pytree.tree_unflatten(values, structure)

    def _tensor_argument(self, argument: Any) -> Any:
        value = self._value(argument)
        is_complex = isinstance(value, Complex)
        value = value.interleaved if is_complex else value
        if not isinstance(value, SSAValue):
            return value
        meta = meta_of(argument) if isinstance(argument, fx.Node) else argument
        if isinstance(meta, torch.SymFloat):
            return NumberArgument(value)
        strides = None
        if isinstance(meta, torch.Tensor):  # one without elements has strides too, which operators look at
            strides = unusual_strides(meta, exact=0 in sizes_of(meta.shape))
        for stride in strides or ():
            self.symbols |= symbols_of(stride)
        return TensorArgument(value, strides, is_complex)


def meta_of(node: fx.Node) -> Any:
    """What tracing recorded of a node's value."""
    return node.meta.get("val")
