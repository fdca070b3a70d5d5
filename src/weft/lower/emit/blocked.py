"""Kernels of matmuls (matmuls, attention): a group's arguments, and a grid of blocks of its index space."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, simplify, symbol, symbols_of
from weft.ir.types import DType, Tensor, tensor_of
from weft.lower.emit.body import TileValue
from weft.lower.emit.frame import KernelFrame
from weft.lower.emit.kernel import group_symbols
from weft.lower.emit.row_reductions import DotEmitter
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import Source
from weft.lower.refusal import Refusal
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.reshaping import reshape_index


@dataclass
class BlockedKernel:
    """A kernel under construction: one pointer for each input and output of the group, tiles of two axes."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]
    domain: Domain
    parts: bool = False
    """Whether accesses say of what whole they are a part."""
    written: Sequence[DType] | None = None
    """The types of what is written, if that is not what the group yields."""
    in_place: Mapping[int, int] = field(default_factory=dict[int, int])
    """Results that are written over operands, which what follows the matmul reads at the same places."""
    scratch: Sequence[Tensor] = ()
    """Tensors that the kernel reads or writes beside those of the group."""

    def __post_init__(self) -> None:
        arguments = self.group.block.args
        inputs, outputs = ([tensor_of(value.type).dtype for value in vs] for vs in (arguments, self.group.yielded))
        outputs = [dtype for result, dtype in enumerate(outputs) if result not in self.in_place]
        symbols = group_symbols(self.group, [*self.layouts.values(), *self.outputs])
        written = self.written or outputs
        dtypes = [*inputs, *written, *(tensor.dtype for tensor in self.scratch)]
        self.frame = KernelFrame.of(self.name, dtypes, symbols)
        pointers = self.frame.pointers
        last = len(inputs) + len(written)
        own, self.beside = iter(pointers[len(inputs) : last]), pointers[last:]
        results = range(len(written) + len(self.in_place))
        self.targets = [pointers[self.in_place[n]] if n in self.in_place else next(own) for n in results]
        self.emit = DotEmitter(
            self.layouts,
            domain=self.domain,
            block=self.frame.block,
            pointers=dict(zip(arguments, pointers, strict=False)) | {target: target for target in self.targets},
            scalars=self.frame.scalars,
            rank=2,
            parts=self.parts,
        )

    def program(self, run: Run) -> None:
        """Let the grid walk a run, one program for each of its elements."""
        self.emit.scalars[run.name] = self.frame.program(run.size)

    def start_of(self, run: Run, capacity: int) -> Size:
        """Where this program's block of a run starts; adds a grid axis unless one block is all there is."""
        if isinstance(run.size, int) and 0 < run.size <= capacity:
            return 0
        name = f"{run.name}_block"
        self.emit.scalars[name] = self.frame.program(ceildiv(run.size, capacity))
        return symbol(name) * capacity


@dataclass
class Reads:
    """The addresses of a matmul's operands, and of all that follows it."""

    a: list[Size] = field(default_factory=list[Size])
    b: list[Size] = field(default_factory=list[Size])
    rest: list[Size] = field(default_factory=list[Size])

    @property
    def all(self) -> list[Size]:
        return [*self.a, *self.b, *self.rest]


def uses(addresses: Sequence[Size], run: Run) -> bool:
    """Whether any address depends on where along a run it is."""
    names = {variable.name for variable in run.variables}
    return any(symbols_of(address) & names for address in addresses)


def epilogue_refusal(group: GroupOp, products: Sequence[SSAValue]) -> Refusal | None:
    """Why what follows matmuls is not computed of their tiles: each op of it must keep every element, in some order."""
    follows: set[SSAValue] = set(products)
    for op in group.block.ops:
        made = [value for value in op.operands if value in follows]
        if not made or not op.results:
            continue
        alike = tensor_of(op.results[0].type).shape == tensor_of(made[0].type).shape
        if not (isinstance(op, Elementwise) and alike) and op.name not in ("graph.permute", "graph.reshape"):
            return Refusal(f"{op.name} cannot follow a product in its kernel")
        follows.add(op.results[0])
    shape = tensor_of(products[0].type).shape
    for value in group.yielded:
        if value not in follows and tensor_of(value.type).shape != shape:
            return Refusal(f"an output of type {tensor_of(value.type)} is not the product's")
    return None


def output_indices(group: GroupOp, products: Sequence[SSAValue], domain: Domain) -> list[list[Size]]:
    """Where in each output the element lies that a matmul's element at the domain's row index becomes.

    Of several matmuls the later ones have an element for each row of the first. `epilogue_refusal` is asked before.
    """
    places: dict[SSAValue, list[Size]] = {value: _place_in(value, domain) for value in products}
    for op in group.block.ops:
        made = [v for v in op.operands if v in places]
        if not made or not op.results:
            continue
        value = op.results[0]
        shape, source = tensor_of(value.type).shape, tensor_of(made[0].type).shape
        index = places[made[0]]
        if isinstance(op, Elementwise) and shape == source:
            places[value] = index
        elif isinstance(op, GraphOp) and op.name == "graph.permute":
            places[value] = [index[d] for d in op.params["dims"]]
        else:
            assert op.name == "graph.reshape"
            places[value] = [simplify(i, domain.bounds) for i in reshape_index(index, source, shape)]
    return [places.get(value, list(domain.row_index)) for value in group.yielded]


def _place_in(value: SSAValue, domain: Domain) -> list[Size]:
    return list(domain.row_index[: tensor_of(value.type).rank])


def store_outputs(kernel: BlockedKernel, products: Mapping[SSAValue, TileValue], written: Collection[int] = ()) -> None:
    """Compute what follows the matmuls and write the outputs, but those that are `written` already.

    The axes must be those of the first matmul's tile.
    """
    emit, group = kernel.emit, kernel.group
    for product, value in products.items():
        emit.given[product] = (tuple(_place_in(product, kernel.domain)), value)
    indices = output_indices(group, list(products), kernel.domain)
    places = zip(group.yielded, kernel.outputs, indices, kernel.targets, strict=True)
    for number, (output, layout, index, target) in enumerate(places):
        if number in written:
            continue
        element = emit.at(Source(output, tensor_of(output.type)), index)
        emit.store(element, target, layout.address(index))
