"""Imports the nodes of a model into a graph, one stage at a time: until the end, or until data have to be looked at.

A stage ends where a node needs the elements of a value (a shape, a condition) that is still to be computed, or where an
operator runs on the host; what follows is imported when the elements, or the host's results, are there.
"""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from weft.backends.reference.graph import run
from weft.errors import DataError, ModelError, ShapeError, UnsupportedError, WeftError
from weft.frontends.onnx.call import Call, HostFunction, Mistake, NoRegion, static
from weft.frontends.onnx.dtypes import STRINGS, kernel_dtype
from weft.frontends.onnx.functions import inlined, no_converter, schema_function, version_of
from weft.frontends.onnx.model import Function, Graph, Node, free_names
from weft.frontends.onnx.operators.table import converter_of
from weft.frontends.onnx.origins import is_count, is_shape, most_folded, with_origins
from weft.frontends.onnx.rewrite import Rewrite
from weft.frontends.onnx.values import Absent, Known, Origin, Slot, Traced, Value, arrays_in, leaves, replaced
from weft.ir.types import DType, Tensor, tensor_of, tensor_type
from weft.ops.control import LoopOp
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp

FOLDED = 1 << 14
"""Results of more elements are not computed at import, even where all operands are known."""
LARGEST = 1 << 36
"""Tensors of more elements are refused: no machine that this is for holds them."""
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


@dataclass
class NeedsElements(Exception):
    """A node needs the elements of a value that is not known yet."""

    value: Traced | Slot


@dataclass
class RunsOnHost(Exception):
    """A node is carried out by a function of arrays, between two stages."""

    node: Node
    function: HostFunction
    values: tuple[Value, ...]
    count: int


class StageFull(Exception):
    """The stage has grown large enough: what is left goes into another."""


@dataclass
class Target:
    """The function that is being built: each argument is the place of a slot, or an array that is always the same."""

    function: FuncOp = field(default_factory=lambda: FuncOp.make("stage", {}))
    arguments: list[int | np.ndarray] = field(default_factory=list[int | np.ndarray])
    values: dict[object, SSAValue] = field(default_factory=dict[object, SSAValue])

    @property
    def block(self) -> Block:
        return self.function.block

    def argument(self, source: int | np.ndarray, key: object, tensor: Tensor) -> SSAValue:
        if key not in self.values:
            self.values[key] = self.block.insert_arg(tensor_type(tensor), len(self.arguments))
            self.arguments.append(source)
        return self.values[key]

    def place_of(self, value: SSAValue) -> int | None:
        """The slot that a value is, unchanged."""
        if isinstance(value, BlockArgument):
            source = self.arguments[value.index]
            return source if isinstance(source, int) else None
        return None


@dataclass
class Importer:
    """Walks over nodes with the values of their names; nodes that stand for others are replaced on the way."""

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Function]
    fresh: Callable[[str], str]
    values: dict[str, Value]
    pending: list[Node]
    """What is still to be imported, the next one last."""
    target: Target = field(default_factory=Target)
    stage_ops: int = 6000
    repeatable: bool = True
    """Whether another import of the same nodes gives the same: no elements of large arrays were looked at, or drawn."""

    whole: bool = False
    """Whether the program is to be one graph: `If` is a branch outside of loops, too."""

    open: bool = False
    """Whether sizes are others at other calls: arrays that are made of them are computed in the program."""

    checks: list[tuple[SSAValue, Mistake]] = field(default_factory=list[tuple[SSAValue, Mistake]])
    """Conditions on data that must not hold, of this stage."""
    tables: list[np.ndarray] = field(default_factory=list[np.ndarray])
    """Arrays that were made of attributes alone."""

    def __post_init__(self) -> None:
        self.builder = GraphBuilder(self.target.block)
        self._count = 0
        self._folding = False
        self._from_sizes: dict[int, tuple[Known, SSAValue]] = {}

    def declare_arguments(self) -> None:
        """Let arguments stand in the order of the slots, whatever reads them first; what nothing reads is taken out."""
        slots = {leaf.place: leaf for value in self.values.values() for leaf in leaves(value) if isinstance(leaf, Slot)}
        for _, slot in sorted(slots.items()):
            dtype = kernel_dtype(slot.dtype)
            if dtype is not None:
                self.target.argument(slot.place, ("slot", slot.place), Tensor(dtype, slot.shape))

    def run(self) -> None:
        """Import all nodes that are left; raises where the stage ends before."""
        while self.pending:
            node = self.pending[-1]
            made = self._converted(node)
            self.pending.pop()
            if isinstance(made, Rewrite):
                self.values.update({name: Known(array) for name, array in made.arrays.items()})
                self.pending.extend(reversed([self._inside(node, each) for each in made.nodes]))
                continue
            self._bind(node, made)

    def _inside(self, node: Node, made: Node) -> Node:
        return made if made.opsets is not None else replace(made, opsets=node.opsets)

    def _bind(self, node: Node, made: Sequence[Value]) -> None:
        _require_outputs(node, len(made))
        for name, value in zip(node.outputs, made, strict=False):
            if name:
                self.values[name] = value

    def _converted(self, node: Node) -> Rewrite | Sequence[Value]:
        self._count += 1
        if self._count > 1_000_000:
            raise UnsupportedError(f"{node}: the model unrolls to over a million nodes")
        inputs = [self.values[name] if name else Absent() for name in node.inputs]
        opsets = self.opsets if node.opsets is None else node.opsets
        own = self.functions.get((node.domain, node.op, node.overload))
        if own is not None:
            return Rewrite(inlined(node, own, self.fresh))
        version = version_of(node, self.opsets)
        converter = converter_of(node.domain, node.op, version)
        if converter is None:
            function = schema_function(node, version, [_about(each) for each in inputs], {**self.opsets, **opsets})
            if function is None:
                raise no_converter(node, version)
            return Rewrite(inlined(node, function, self.fresh))
        known = all(isinstance(leaf, Known) for each in (*inputs, *self._outer(node)) for leaf in leaves(each))
        if known and node.op not in _RANDOM and not _is_quantized_weight(node, inputs):
            folded = self._folded(node, converter, inputs, version)
            if folded is not None:
                return self._noted(folded, Origin(node, 0, converter, tuple(inputs), version))
        made = self._called(node, converter, inputs, version)
        return made if known else self._noted(made, Origin(node, 0))

    def _noted(self, made: Rewrite | Sequence[Value], origin: Origin) -> Rewrite | Sequence[Value]:
        return with_origins(made, origin) if self.open and not isinstance(made, Rewrite) else made

    def _outer(self, node: Node) -> list[Value]:
        """What the graphs of a node read beside its inputs."""
        names = free_names(node).difference(node.inputs) if _has_graphs(node) else ()
        return [self.values[name] for name in names if name in self.values]

    def _called(self, node: Node, converter: Any, inputs: Sequence[Value], version: int) -> Rewrite | Sequence[Value]:
        """What a converter makes of a node, whose attributes and shapes may be such as no operator allows."""
        try:
            return self._valued(node, converter(Call(self, node, inputs, version)))
        except WeftError:
            raise
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise ModelError(f"{node} is not as its operator allows: {str(error)[:200]}") from error
        except MemoryError as error:
            raise ModelError(f"{node} asks for more memory than there is: {str(error)[:200]}") from error

    def _valued(self, node: Node, made: Any) -> Rewrite | Sequence[Value]:
        """What a converter gave, as values."""
        if isinstance(made, Rewrite):
            return made
        several: Iterable[Any] = made if isinstance(made, tuple | list) else (made,)
        values: list[Value] = []
        for each in several:
            match each:
                case np.ndarray() | np.generic():
                    values.append(Known(np.asarray(each)))
                case SSAValue():
                    tensor = tensor_of(each.type)
                    if prod(size for size in tensor.shape if isinstance(size, int)) > LARGEST:
                        raise ShapeError(f"{node} gives {tensor}, which is too large")
                    values.append(Traced(each))
                case None:
                    values.append(Absent())
                case _:
                    values.append(each)
        return values

    def _folded(self, node: Node, converter: Any, inputs: Sequence[Value], version: int) -> Any:
        """The results of a node whose operands are all known, by the meaning of its ops; None if they are large.

        None as well where there is something to check: a stage does that, and tells what is wrong.
        """
        read = *inputs, *self._outer(node)
        arrays = [leaf.array for each in read for leaf in leaves(each) if isinstance(leaf, Known)]
        most = most_folded(inputs, FOLDED)
        if sum(array.size for array in arrays) > most and not any(array.dtype == STRINGS for array in arrays):
            return None
        outer = self.target, self.builder, self.checks, self._folding
        self.target, self.checks, self._folding = Target(), [], True
        self.builder = GraphBuilder(self.target.block)
        try:
            made = self._called(node, converter, inputs, version)
            if isinstance(made, Rewrite):
                return made
            if self.checks or any(_takes_long(op) for op in self.target.block.ops):
                return None
            wanted = [leaf.value for each in made for leaf in leaves(each) if isinstance(leaf, Traced)]
            if any(prod(static(tensor_of(value.type))) > most for value in wanted):
                return None
            GraphBuilder(self.target.block).insert(ReturnOp.make(wanted))
            arrays = [each for each in self.target.arguments if isinstance(each, np.ndarray)]
            if _has_graphs(node) and sum(array.size for array in arrays) > FOLDED:
                return None  # its graphs have large arrays of their own
            found = dict(zip(wanted, run(self.target.function, arrays), strict=True)) if wanted else {}
            return [replaced(each, found) for each in made]
        finally:
            self.target, self.builder, self.checks, self._folding = outer

    def traced(self, value: Value, node: Node) -> SSAValue:
        """A value as one of the graph: what is known becomes a constant of it."""
        match value:
            case Traced(ssa):
                return ssa
            case Slot():
                dtype = kernel_dtype(value.dtype)
                if dtype is None:
                    raise _no_kernels(node, value.dtype)
                return self.target.argument(value.place, ("slot", value.place), Tensor(dtype, value.shape))
            case Known(array):
                dtype = kernel_dtype(array.dtype)
                if dtype is None:
                    raise _no_kernels(node, array.dtype)
                if value.origin is not None and not self._folding and not is_count(array):
                    return self._made_of_sizes(value, value.origin, dtype)
                if array.size == 1 or (0 < array.size <= FOLDED and _is_uniform(array)):
                    scalar = array.reshape(-1)[0].item()
                    return self.builder.full(value=scalar, shape=array.shape, dtype=dtype)
                return self.target.argument(array, id(array), Tensor(dtype, array.shape))
            case _:
                raise ModelError(f"{node} takes a sequence or an empty optional, expected a tensor")

    def _made_of_sizes(self, value: Known, origin: Origin, dtype: DType) -> SSAValue:
        """An array that sizes decide, by the ops that compute it: a constant would be another one at other sizes."""
        if id(value) not in self._from_sizes:
            outer = self.builder
            self.builder = GraphBuilder(self.target.block)
            try:
                found = self._computed(value, origin, dtype)
            finally:
                self.builder = outer
            self._from_sizes[id(value)] = value, found
        return self._from_sizes[id(value)][1]

    def _computed(self, value: Known, origin: Origin, dtype: DType) -> SSAValue:
        if origin.converter is not None:
            made = self._called(origin.node, origin.converter, origin.inputs, origin.version)
            again = None if isinstance(made, Rewrite) else made[origin.place]
            if isinstance(again, Traced):
                return again.value
        if is_shape(value.array):
            sizes = [self.builder.full(value=each, shape=(1,), dtype=dtype) for each in value.array.tolist()]
            return self.builder.concat(*sizes, dim=0)
        return self.traced(Known(value.array), origin.node)

    def known(self, value: Value, node: Node) -> np.ndarray:
        match value:
            case Known(array):
                self.repeatable &= array.size <= FOLDED
                return array
            case Traced() | Slot():
                raise NeedsElements(value)
            case _:
                raise ModelError(f"{node} takes a sequence or an empty optional, expected a tensor")

    def host(self, node: Node, function: HostFunction, values: Sequence[Value], count: int) -> tuple[Value, ...]:
        if all(isinstance(leaf, Known) for each in values for leaf in leaves(each)):
            known = [leaf for each in values for leaf in leaves(each) if isinstance(leaf, Known)]
            self.repeatable &= all(leaf.array.size <= FOLDED for leaf in known)
            return tuple(Known(each) for each in call_host(node, function, [arrays_in(each) for each in values]))
        raise RunsOnHost(node, function, tuple(values), count)

    @property
    def in_region(self) -> bool:
        """Whether nodes are imported into a body, where no stage can end."""
        return self.builder.block is not self.target.block

    @contextmanager
    def within(
        self, builder: GraphBuilder, nodes: Sequence[Node], values: Mapping[str, Value]
    ) -> Generator[Mapping[str, Value]]:
        """Import nodes into a region, and go on there; `NoRegion` where they cannot be one."""
        outer = self.builder, self.pending, self.values, self.checks
        self.builder, self.pending, self.checks = builder, list(reversed(nodes)), []
        self.values = {**self.values, **values}
        try:
            try:
                self.run()
            except (NeedsElements, RunsOnHost, StageFull, WeftError) as error:
                raise NoRegion from error
            yield self.values
        finally:
            self.builder, self.pending, self.values, self.checks = outer

    def check_room(self) -> None:
        """End the stage where it, or the body that nodes are imported into, has grown large."""
        blocks = {self.target.block, self.builder.block}
        if any(len(block.ops) > self.stage_ops for block in blocks):
            raise StageFull


def call_host(node: Node, function: HostFunction, arguments: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Carry out a node on the host."""
    try:
        with np.errstate(all="ignore"):
            made = function(*arguments)
    except (ValueError, IndexError, TypeError, AttributeError, OverflowError, np.linalg.LinAlgError) as error:
        raise DataError(f"{node} failed on its data: {error}") from error
    results = made if isinstance(made, tuple) else (made,)
    _require_outputs(node, len(results))
    return tuple(np.asarray(each) for each in results)


def _require_outputs(node: Node, made: int) -> None:
    """Refuse a node that names more outputs than its operator has."""
    if made < max((place for place, name in enumerate(node.outputs, 1) if name), default=0):
        raise ModelError(f"{node} has {len(node.outputs)} outputs, expected at most {made}")


def _has_graphs(node: Node) -> bool:
    return any(isinstance(each, Graph) for each in node.attributes.values())


def _takes_long(op: Operation) -> bool:
    """Whether an op is a loop of so many turns that it is worth its compilation."""
    return isinstance(op, LoopOp) and not (isinstance(op.trip_count, int) and op.trip_count <= FOLDED)


def _is_quantized_weight(node: Node, inputs: Sequence[Value]) -> bool:
    """Whether a node gives the numbers of a matrix of 8-bit codes: products read the codes themselves."""
    codes = inputs[0] if inputs else None
    if node.op != "DequantizeLinear" or not isinstance(codes, Known):
        return False
    return codes.array.ndim > 1 and codes.array.dtype.kind in "iu" and codes.array.dtype.itemsize == 1


def _is_uniform(array: np.ndarray) -> bool:
    """Whether all elements have the same bits: 0 and -0 are equal, but not the same."""
    flat = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return bool((flat == flat[0]).all())


def _about(value: Value) -> tuple[np.dtype, tuple[int, ...]] | None:
    """The type of a tensor, for ONNX's functions."""
    match value:
        case Known(array):
            return array.dtype, array.shape
        case Slot():
            return value.dtype, value.shape
        case Traced(ssa):
            tensor = tensor_of(ssa.type)
            return tensor.dtype.numpy, tuple(size for size in tensor.shape if isinstance(size, int))
        case _:
            return None


def _no_kernels(node: Node, dtype: np.dtype) -> UnsupportedError:
    kind = "strings" if dtype == STRINGS else str(dtype)
    return UnsupportedError(f"{node} computes with {kind}, for which there are no kernels")
